// What rounding does to gradients: which share of them vanishes or overflows, and in which exponents they lie.
//
//   amp::GradientStats stats(amp::gradient_stats_options(recipe, 10));   // every tenth step
//   for (step = 0; ...; ++step) {
//     const auto watch = stats.watch(step);
//     run.step(...);
//   }
//   stats.total().underflow_percent();
//
// What is counted: the gradients that backward hands from op to op (errors) and to parameters (weight gradients), where
// they are f16 or bf16. The counts are those of the narrowing store that wrote the gradient, each store once: handing on
// the same numbers (a view, a copy) is no new rounding. Underflow: not zero before the store and zero after. Overflow:
// finite before and not after. Where gradients are f32 (`as_if`), each is counted as if it were cast to that dtype.
// A kernel that stores several gradients counts as one store, under the role of the first that is handed on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "../core/convert.h"
#include "recipe.h"

namespace gradual::amp {

enum class GradientRole : std::uint8_t { error, weight };

struct GradientTally {
  CastCounts counts;
  // The values as the format holds them (as they are, with as_if): exponents[i] counts the gradients g with
  // 2^(i - 127) <= |g| < 2^(i - 126), i from 1 to 254; 0: below 2^-126 but not zero; 255: Inf and NaN.
  std::array<std::uint64_t, 256> exponents{};
  std::uint64_t zeros = 0;  // not in exponents

  double underflow_percent() const;  // of all elements; 0 where there are none
  double overflow_percent() const;
  GradientTally& operator+=(const GradientTally& other);
};

struct GradientStatsOptions {
  std::int64_t every = 1;           // steps of which one is watched
  std::optional<DType> as_if = {};  // gradients are f32: count them as if cast to f16 or bf16
  bool histogram = true;            // exponents are counted too
};
// as_if f16 for recipes whose model is all f32.
GradientStatsOptions gradient_stats_options(const Recipe& recipe, std::int64_t every = 1);

// Counts while it lives.
struct GradientWatch {
  virtual ~GradientWatch() = default;
};

class GradientStats {
 public:
  explicit GradientStats(const GradientStatsOptions& options = {});

  // Counts this thread's backward passes while the result lives; null (and free of cost) where the step is not due.
  std::unique_ptr<GradientWatch> watch(std::int64_t step);

  const GradientTally& of(GradientRole role) const { return tallies_[static_cast<std::size_t>(role)]; }
  GradientTally total() const;                         // both roles
  const GradientTally& last() const { return last_; }  // of the step that was watched last, both roles
  std::int64_t watched() const { return watched_; }    // steps

 private:
  class Watch;
  GradientStatsOptions options_;
  std::array<GradientTally, 2> tallies_;
  GradientTally last_;
  std::int64_t watched_ = 0;
};

}  // namespace gradual::amp
