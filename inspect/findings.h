// The rules of diagnose(). Each returns its findings from one kind of evidence. Internal to diagnosis.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "diagnosis.h"

namespace gradual::inspect::rules {

using Found = std::optional<Finding>;

// findings_steps.cpp: findings from the rows of a step.
Found of_nonfinite(const ObservedStep& step, const Evidence& e);
Found of_skips(const Evidence& e);
Found of_zeros(const Evidence& e);     // a tensor of zeros only
Found of_overflow(const Evidence& e);  // an Inf that makes later results 0
Found of_moments(const Evidence& e);   // Adam's moments
Found of_sums(const Evidence& e);

// findings_monitors.cpp: weak ones, which a trial decides.
std::vector<Finding> of_monitors(const Evidence& e);

// diagnosis.cpp
Update all_updates(const Evidence& e);  // the sum of all updates of weights
std::string percent(double share);      // 0.125: "12.5%"
// OpRow::site() in a sentence: a layer has its kind, "matmul in layer 4 (Linear)", a parameter its name alone.
inline std::string site_of(const LedgerRow& r, const Evidence& e) {
  return r.parameter.empty() ? r.site(e.names) : r.site();
}
// The share of the nonzero elements that become 0.
inline double lost_share(const CastCounts& c) {
  return c.elements > c.zeros ? static_cast<double>(c.underflow) / static_cast<double>(c.elements - c.zeros) : 0;
}

// Thresholds of findings. kSlow and kFast are updates relative to the weights.
inline constexpr double kManyVanish = 0.25;
inline constexpr double kMostArrives = 0.75;
inline constexpr double kSlow = 1e-6;
inline constexpr double kFast = 0.5;
// Powers of two that a loss scale leaves between the largest gradient of a step and the end of the format: gradients of
// other steps are larger.
inline constexpr double kRoomBits = 4;

// The row with the largest positive badness in the given steps, its step before, its badness behind; a null step if
// there is none.
template <class F>
std::tuple<const ObservedStep*, const LedgerRow*, double> worst_of(
    std::initializer_list<const std::optional<ObservedStep>*> steps, const F& badness) {
  std::tuple<const ObservedStep*, const LedgerRow*, double> worst = {};
  for (const auto* s : steps)
    if (*s)
      for (const LedgerRow& r : (*s)->ledger.rows())
        if (const double bad = badness(r); bad > std::get<double>(worst)) worst = {&**s, &r, bad};
  return worst;
}

}  // namespace gradual::inspect::rules
