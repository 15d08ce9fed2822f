// The errors of one step of a run, op by op (inspect/shadow.h), for results.json and the report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradual::inspect {
class Shadow;
}

namespace gradual::lab {

struct StepErrors {
  struct Row {
    std::string phase = {}, op = {}, layer = {}, product = {};
    double local = 0, inherited = 0, total = 0;  // relative
    double local_ulps = 0, total_ulps = 0;       // means, in ulps of the result's dtype
    double cosine = 1;                           // between the result and that in f64
    double share = 0;                            // share of the error in the loss
  };
  std::int64_t step = 0;
  double loss = 0, exact_loss = 0, explained = 0;  // loss in the recipe, loss in f64, sum of the shares
  std::vector<Row> rows = {};                      // of forward and backward; ops that change no number are left out
};

// The errors from a shadow with attribution that has observed the step.
StepErrors step_errors(const inspect::Shadow& shadow, std::int64_t step);

std::string to_json(const StepErrors& errors);
StepErrors step_errors_from(const std::string& json);

}  // namespace gradual::lab
