// What becomes of the updates that an optimizer intends: how much of each arrives in the numbers that the next step
// starts from.
//
//   inspect::UpdateMeter meter(model);
//   { const ObserverScope scope(meter); run.step(..); }
//   for (const auto& u : meter.updates()) std::puts(inspect::to_string(u).c_str());
//
// The intended update is the optimizer's own row in f64 on the numbers that the step starts from: weight, gradient and
// state as they are, no rounding. What arrives is the difference that the step makes: of the FP32 master where there is
// one, of the parameter and its Kahan compensation together, else of the parameter. For optimizers that are written
// with ops the intended update is what they copy into the parameter, in f32.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/observe/observer.h"
#include "parameter_names.h"

namespace gradual::inspect {

struct Update {
  std::string parameter = {};  // "fc1.weight"; empty where the model does not have it
  std::string op = {};         // "adam_step_"
  std::int64_t elements = 0;
  std::int64_t intended = 0;  // elements that the update would change: it is not zero and finite
  std::int64_t vanished = 0;  // of those, the ones that stay as they were
  // The sums of squares and products over elements with a finite update: of the weight, of the intended update, of it
  // with the update that is made.
  double weight_squares = 0, intended_squares = 0, product = 0;

  // |intended update| / |weight|; 0 for a weight of zeros.
  double ratio() const;
  // <made, intended> / |intended|^2: 1 where all arrives (effective descent quality: Collage, arXiv 2405.03637, sec.
  // 4). NaN where nothing is intended.
  double arriving() const;
  Update& operator+=(const Update& other);  // of several steps
  double vanished_percent() const {
    return intended ? 100.0 * static_cast<double>(vanished) / static_cast<double>(intended) : 0;
  }
};
// "fc1.weight: 93% of the updates vanish, 8% arrives, |update| / |weight| 2^-11".
std::string to_string(const Update& u);

class UpdateMeter final : public Observer {
 public:
  explicit UpdateMeter(const nn::Module& model) : names_(model) {}

  void before(const OpCall& call) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;

  // Of all steps observed since clear(), in order.
  const std::vector<Update>& updates() const { return updates_; }
  void clear() { updates_.clear(); }

 private:
  // Of a parameter, before its update.
  struct Before {
    std::string parameter;
    Tensor weight, intended;  // f64; the weight that would be right afterwards
  };

  ParameterNames names_;
  std::vector<Before> before_;  // of the call that runs
  std::vector<Update> updates_;
};

}  // namespace gradual::inspect
