// The rules of diagnose(): each gives what it finds in one kind of evidence. Internal to diagnosis.
#pragma once

#include <functional>

#include "diagnosis.h"

namespace gradual::inspect::rules {

using Found = std::optional<Finding>;

// findings_steps.cpp: of a step's rows.
Found of_nonfinite(const ObservedStep& step, const Evidence& e);
Found of_skips(const Evidence& e);
Found of_zeros(const Evidence& e);       // a tensor of zeros alone
Found of_overflow(const Evidence& e);    // Inf that makes 0 of what reads it
Found of_moments(const Evidence& e);     // Adam's
Found of_statistics(const Evidence& e);  // running ones
Found of_sums(const Evidence& e);
Found of_rate(const Evidence& e);
Found of_rounding(const Evidence& e);

// findings_counts.cpp: of counts over the sampled steps.
std::vector<Finding> of_casts(const Evidence& e);
Found of_updates(const Evidence& e);

// At a row: its phase, op and site.
Finding at(const LedgerRow& row, std::int64_t step, std::string cause, std::string sentence,
           std::vector<Cure> cures = {}, double severity = 0);
std::string percent(double share);  // 0.125: "12.5%"
template <class N> double share(N part, N whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}
// What becomes 0 of the numbers that were not.
inline double lost_share(const CastCounts& c) { return share(c.underflow, c.elements - c.zeros); }

// The row with the highest score of those above the first.
struct Worst {
  double score = 0;
  const LedgerRow* row = nullptr;
  std::int64_t step = -1;

  void take(const std::optional<ObservedStep>& s, const std::function<double(const LedgerRow&)>& score_of);
};

// Shares from which on something is worth a finding.
inline constexpr double kManyVanish = 0.25, kManyClipped = 0.01, kManyClippedByFloor = 0.005;

}  // namespace gradual::inspect::rules
