// The order of a sum of products as a tree: its leaves are the products, its nodes the additions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../core/formats/accumulator.h"

namespace gradual::inspect {

// How an addition rounds.
struct Adder {
  int bits = 0;                               // significant bits of the result; 0: not seen
  std::optional<RoundingMode> rounding = {};  // of the result; nothing: not seen, or none of the modes
  // Of three addends or more: the bits that each keeps, counted from the leading bit of the largest one, and how the
  // others are dropped. 0: all are kept.
  int aligned = 0;
  std::optional<RoundingMode> alignment = {};

  bool operator==(const Adder&) const = default;
};

struct SumTree {
  int first = 0, size = 1;             // the lowest number of a product in it, and how many there are
  std::vector<SumTree> children = {};  // in the order of `first`, added at once; none: the product `first`
  Adder adder = {};                    // of a sum
  bool exact = false;                  // of a product: it is added without being rounded first
};

// Several trees added at once, and one after the other.
SumTree sum_of(std::vector<SumTree> addends);
SumTree sum_in_turn(std::vector<SumTree> addends);
// The most addends that an addition of the tree has.
int ways(const SumTree& tree);
// The order that an accumulator's definition gives to the products 0 to terms - 1 (core/formats/accumulator.h).
SumTree tree_of(const Accumulator& accumulator, int terms);
// Whether `found` is what can be seen of the order `truth`: an addition of three or more that loses nothing shows no
// order, and may stand for any additions of its addends.
bool shows(const SumTree& found, const SumTree& truth);

// What stands between parentheses is added from the left to the right. What "&" joins is added at once. "0+1+..+31" are
// the numbers 0 to 31; parts that repeat, shifted, are left out alike: "(0+1+..+31)+(32+33+..+63)+..+(480+481+..+511)".
std::string to_string(const SumTree& tree);

}  // namespace gradual::inspect
