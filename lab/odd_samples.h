// Training samples that stand out by far: candidates for the one that spoils a training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab.h"

namespace gradual::lab {

struct OddSample {
  std::int64_t index = 0;  // in the training data of the seed, from 0
  double factor = 1;       // by which it exceeds the median sample
  std::string why = {};    // "its inputs reach 1e+06, those of the median sample 16"
};

// The samples whose inputs, float targets or loss (of the initial model) exceed the median sample's by far, and those
// that every batch has which makes the run's loss jump, in two epochs or more. The most striking first, at most 8;
// empty if more than that stand out and they are over a hundredth of all. The run has the settings of `options`.
std::vector<OddSample> odd_samples(const MakeModel& make_model, const LabData& data, std::uint64_t seed,
                                   const Options& options, const Result& run);

// The data without these samples in their training part.
LabData without(const LabData& data, const std::vector<std::int64_t>& samples);

}  // namespace gradual::lab
