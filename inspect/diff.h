// Compares one step under two recipes: the first op whose errors differ, and what makes the losses differ.
//
//   inspect::Shadow a(model_a, nullptr, {.attribution = true}), b(model_b, nullptr, {.attribution = true});
//   ... one step of each, from the same parameters, with the same batch ...
//   const inspect::ShadowDiff diff(a, b);
//   std::puts(diff.to_string("fp8-current", "amp-bf16").c_str());
//
// Rows of the two steps are paired by phase, layer, op and shape of the result. Recipes run different casts and split
// fused ops, so rows of only one step are left out.
#pragma once

#include "shadow.h"

namespace gradual::inspect {

class ShadowDiff {
 public:
  // The errors of a pair differ if one is more than this many times the other.
  static constexpr double kDeparts = 2;

  struct Pair {
    const ShadowRow* a = nullptr;
    const ShadowRow* b = nullptr;
    // The units of the errors. If one recipe computes in f16 and the other in bf16: half an ulp of 1 in each one's.
    double unit_a = 1;
    double unit_b = 1;
    bool has_two_units() const { return unit_a != unit_b; }
    // The total errors differ by more than kDeparts in their units, or in the numbers that are lost. Of one number only
    // its own error counts, if it is more than f32's rounding: how the errors that it inherits cancel is chance.
    bool departs() const;

   private:
    double error(const ShadowRow& row, double unit) const;
  };

  // The shadows must outlive the diff; each has observed one step, with attribution.
  ShadowDiff(const Shadow& a, const Shadow& b);

  const std::vector<Pair>& pairs() const { return pairs_; }
  const Pair* first_departure() const;  // null if no pair departs

  // The contribution of each layer to loss a - loss b: its shares in a minus its shares in b.
  struct Contribution {
    std::string layer = {};
    double a = 0;
    double b = 0;
  };
  std::vector<Contribution> contributions() const;  // by |a - b|, the largest first

  std::string to_string(const std::string& name_a, const std::string& name_b, const LayerNames& layer = {}) const;
  std::string to_csv() const;

 private:
  const Shadow& a_;
  const Shadow& b_;
  std::vector<Pair> pairs_;
};

}  // namespace gradual::inspect
