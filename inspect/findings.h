// The rules of diagnose(): each gives what it finds in one kind of evidence. Internal to diagnosis.
#pragma once

#include "diagnosis.h"

namespace gradual::inspect::rules {

using Found = std::optional<Finding>;

// findings_steps.cpp: of a step's rows.
Found of_nonfinite(const ObservedStep& step, const Evidence& e);
Found of_skips(const Evidence& e);
Found of_zeros(const Evidence& e);     // a tensor of zeros alone
Found of_overflow(const Evidence& e);  // Inf that makes 0 of what reads it
Found of_moments(const Evidence& e);   // Adam's
Found of_sums(const Evidence& e);

// findings_counts.cpp: of counts over the sampled steps.
std::vector<Finding> of_casts(const Evidence& e);
std::vector<Finding> of_updates(const Evidence& e);  // also of moments and running statistics
Found of_rate(const Evidence& e);                    // a learning rate

Update all_updates(const Evidence& e);  // their sum, of weights
std::string percent(double share);      // 0.125: "12.5%"
// What becomes 0 of the numbers that were not.
inline double lost_share(const CastCounts& c) {
  return c.elements > c.zeros ? static_cast<double>(c.underflow) / static_cast<double>(c.elements - c.zeros) : 0;
}

// Shares from which on something is worth a finding; updates in units of the weights.
inline constexpr double kManyVanish = 0.25, kMostArrives = 0.75, kSlow = 1e-6, kFast = 0.5;

}  // namespace gradual::inspect::rules
