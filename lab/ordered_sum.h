// Sums of f32 numbers by a tree of additions that is drawn at random. Internal to tolerance().
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "../core/tensor/tensor.h"

namespace gradual::lab {

// How the terms of a part are added up.
enum class TreeKind : std::uint8_t {
  one_by_one,
  blocks,    // of one length, one by one, and then their sums one by one
  pairwise,  // of halves
  random     // of two parts that are split anywhere, and so on
};

struct OrderedSumOptions {
  int parts = 0;                      // 0: 1, 2, 4 or 8 at random
  std::optional<TreeKind> tree = {};  // none: one at random
  bool own_order = true;              // a quarter of the sums have their terms in their own order, not in a random one
};

// A tree of additions, the same for many sums at once, as a kernel has it. The terms come in a random order, or in
// their own. They are split into parts, whose sums are added in order; all parts have trees of one kind. Products may
// be rounded before they are added, or not (a fused multiply-add).
class OrderedSum {
 public:
  // Error for less than one term.
  OrderedSum(std::int64_t terms, const OrderedSumOptions& options, std::mt19937_64& random);

  // [n, m], f32 -> [1, m]: sums of n terms.
  Tensor total(const Tensor& terms) const;
  // [m, n] times [n, k], f32 -> [m, k].
  Tensor product(const Tensor& a, const Tensor& b) const;

  // A sum in the making is on top of a stack: it begins with a term, a term is added to it, or it is added to the one
  // below.
  enum class Action : std::uint8_t { begin, add, join };
  struct Step {
    Action action = Action::begin;
    std::int32_t term = 0;
  };
  const std::vector<Step>& steps() const { return steps_; }

 private:
  void grow(std::int64_t begin, std::int64_t end, std::mt19937_64& random);
  void put(Action action, std::int64_t place);

  TreeKind tree_;
  std::int64_t block_;
  bool fused_;
  std::vector<std::int64_t> order_;
  std::vector<Step> steps_;
  std::int64_t sums_ = 0;  // in the making
  std::int64_t most_ = 0;  // the largest number of them
};

}  // namespace gradual::lab
