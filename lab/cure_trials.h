// --cure: what the cures of findings bring.
#pragma once

#include <vector>

#include "lab.h"

namespace gradual::lab {

// Trains the first seed of each recipe with the cures of its first findings, until one brings it back, and writes into
// the finding what came of it; that finding comes first then. `references` are of fp32, where the recipes lack it.
void try_cures(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
               const Options& options, std::vector<Result>& results, const std::vector<Result>& references);

}  // namespace gradual::lab
