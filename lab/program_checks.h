// What is wrong with a training that fails in fp32: its gradients, its data, its learning rate or its labels. Each
// cause is named by an experiment, not by a threshold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../inspect/diagnosis.h"
#include "lab.h"

namespace gradual::lab {

struct ProgramChecks {
  std::vector<inspect::Finding> findings = {};  // what an experiment bears out, at most one
  std::vector<std::string> excluded = {};       // what the experiments say against, as "the gradients are right"
  bool rates_tried = false;                     // other learning rates were tried
  bool stopped = false;                         // options.stop ended it
};

// `run` is of fp32, has ended and fails. In this order, until one explains the failure:
//   the gradients of the initial model are compared with differences of the loss (inspect/gradient_check.h)
//   samples that stand out are left out (odd_samples.h)
//   other learning rates are tried, 10 to 1000 times smaller or larger, and the optimizer's own
//   the targets are replaced by a random function of the inputs
// The last three are trainings, each of a sixth of the run's steps, at least 40, and as many as it takes until the
// run's failure shows; all together take as many steps as the run was to have, or 240, at most; with
// options.explain_steps so many. updates: of the run's sampled steps.
ProgramChecks check_program(const MakeModel& make_model, const LabData& data, std::uint64_t seed,
                            const Options& options, const Result& run, const std::vector<inspect::Update>& updates);

// A net can learn with the rest of its parameters where the gradients of some are lost.
// True if a parameter's updates without weight decay are 0 in all sampled steps, which nominates.
bool may_lose_gradients(const std::vector<inspect::Update>& updates);
// The wrong gradient of such a parameter: it is 0, and differences of the loss are not. None if the loss is level, as
// behind dead units, and for parameters that the loss does not reach.
std::optional<inspect::Finding> lost_gradient(const MakeModel& make_model, const LabData& data, std::uint64_t seed,
                                              const Options& options, const std::vector<inspect::Update>& updates);

}  // namespace gradual::lab
