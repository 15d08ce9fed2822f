// Early signs of trouble, at every second sampled step of a run's first seed: outliers of activations, attention's
// logits and entropy, and the experts of tokens. Observed (inspect/step_watch.h): no bit of a run depends on them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../inspect/step_watch.h"

namespace gradual::lab {

struct Result;

enum class Monitor : std::uint8_t {
  kurtosis,          // of an activation that enters a product: 3 of normal numbers
  feature_kurtosis,  // of its features' norms: 1 if all are alike, the number of features if one has everything
  largest,           // magnitude of its elements
  largest_logit,     // of an attention or another softmax
  entropy,           // of its probabilities, in nats, the mean over queries
  lowest_entropy,    // of the head in which that is lowest
  changed_routes,    // % of the tokens whose experts are not those of the same router in f64
  busiest_expert,    // % of the choices of experts that the busiest one gets
  count_
};
std::string_view to_string(Monitor monitor);  // "kurtosis", "feature kurtosis", ..

// What a monitor saw in a layer, step by step.
struct MonitorCurve {
  Monitor monitor = Monitor::kurtosis;
  std::string layer = {};
  std::string operand = {};  // "x", "q", "a 64x16"; "attention" or "softmax"; "router"
  std::vector<std::int64_t> step = {};
  std::vector<double> value = {};  // NaN (null) where there is none
};

// Adds what has been seen of a step.
void add_to(std::vector<MonitorCurve>& curves, const inspect::StepWatch& seen, std::int64_t step);

// recipe,seed,monitor,layer,operand,step,value: a line per number
std::string monitors_csv(const std::vector<Result>& results);

}  // namespace gradual::lab
