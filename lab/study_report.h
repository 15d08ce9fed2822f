// One step of a training as text: what gradual-lab step and diff print.
#pragma once

#include <string>

#include "../amp/recipe.h"
#include "study.h"

namespace gradual::lab {

// "layers: 0 (Conv2d), 4 (Conv2d), 9 (Linear)": the innermost modules with parameters, and their kinds. A line.
std::string layers_with_kinds(nn::Module& model);

struct StepReportOptions {
  bool ledger = false;      // a row for each op: counts and ranges
  bool shadow = false;      // a row for each op: local, inherited and total errors
  std::string folder = {};  // for ledger, shadow, updates, gradients and blocks as CSV, and ledger.jsonl; empty: none
};

// Trains up to the step: which ops' errors move its loss, which layers lose the bits, what each site does to the
// gradients, how much of each update arrives. Error if the loss is not finite.
std::string step_report(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                        const StudyOptions& options, const StepReportOptions& report = {});

struct DiffReportOptions {
  const amp::Recipe* trained_by = nullptr;  // trains up to the step; null: the first
  std::string csv = {};                     // a file with a line for each pair of ops; empty: none
};

// The same step (parameters, batch, random numbers) under two recipes: the first op whose errors depart, and the layers
// that make the losses differ.
std::string diff_report(const MakeModel& make_model, const LabData& data, const amp::Recipe& first,
                        const amp::Recipe& second, const StudyOptions& options, const DiffReportOptions& report = {});

}  // namespace gradual::lab
