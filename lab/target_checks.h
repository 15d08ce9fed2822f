// Whether inputs tell their targets, apart from any model of the user.
#pragma once

#include <cstdint>
#include <optional>

#include "lab.h"

namespace gradual::lab {

// How often the nearest other sample has the same target, and how often a random one has; of float targets the mean
// squared difference of both instead.
struct NearestTargets {
  bool of_classes = true;
  double nearest = 0;
  double random = 0;
  bool tells = false;  // the nearest one is better by more than chance
};
// Of 1024 evenly spaced samples at most. Where each position of a sequence has a class, positions are the samples,
// drawn from those whose target no loss ignores; of tokens the nearest one has the most equal tokens up to it. None for
// other targets of several classes, and where samples have named fields.
std::optional<NearestTargets> nearest_targets(const data::Dataset& train);

// The data with targets that are a random function of the inputs, which most models can learn: of floats a linear one,
// of tokens their counts, or for a target at each token the token itself. None where there is no such function.
std::optional<LabData> taught(const LabData& data, std::uint64_t seed);

}  // namespace gradual::lab
