// The order of a sum of products as a tree: its leaves are the products, its nodes the additions.
#pragma once

#include <array>
#include <vector>

#include "../core/formats/accumulator.h"

namespace gradual::inspect {

// How an addition rounds.
struct Adder {
  int bits = 0;                               // significant bits of the result; 0: not seen
  std::optional<RoundingMode> rounding = {};  // of the result; unset: not seen, or none of the modes
  // With three addends or more: the number of bits that each addend keeps, counted from the leading bit of the largest
  // one, and how the others are dropped. 0: all are kept.
  int aligned = 0;
  std::optional<RoundingMode> alignment = {};

  bool operator==(const Adder&) const = default;
};

struct SumTree {
  int first = 0;                       // the lowest index of its products
  int size = 1;                        // the number of products
  std::vector<SumTree> children = {};  // in the order of `first`, added at once; empty: the product `first`
  Adder adder = {};                    // for a sum
  bool exact = false;                  // for a product: it is added unrounded
};

// Trees added at once, and trees added one after the other.
SumTree sum_of(std::vector<SumTree> addends);
SumTree sum_in_turn(std::vector<SumTree> addends);
// The largest number of addends of an addition in the tree.
int ways(const SumTree& tree);
// The order that an accumulator's definition gives to the products 0 to terms - 1 (core/formats/accumulator.h).
SumTree tree_of(const Accumulator& accumulator, int terms);
// True if experiments on a sum in the order `truth` can show `found`. An addition of three or more that loses nothing
// shows no order and matches any additions of its addends.
bool shows(const SumTree& found, const SumTree& truth);

// The tree as points to draw, the root first: {x, height, parent}. The x of a product is its number, that of a sum the
// mean of its addends' x. The height of a product is 0, that of a sum is 1 more than its highest addend's. parent is an
// index, -1 for the root.
std::vector<std::array<double, 3>> points_of(const SumTree& tree);

// Terms in parentheses are added from left to right. "&" joins terms that are added at once. "0+1+..+31" stands for the
// numbers 0 to 31; shifted repetitions are abbreviated in the same way:
// "(0+1+..+31)+(32+33+..+63)+..+(480+481+..+511)".
std::string to_string(const SumTree& tree);

}  // namespace gradual::inspect
