// Measures how much of each intended update arrives in the numbers from which the next step starts. It covers weights
// and, separately, gradient steps, weight decay, moments, batch statistics and moving averages.
//
//   inspect::UpdateMeter meter(model);
//   { const ObserverScope scope(meter); run.step(..); }
//   std::puts(meter.to_string().c_str());         // or to_csv()
//
// The intended update is that of the optimizer's op in f64, without rounding, on the actual weight, gradient and state.
// The made update is the change of the FP32 master if there is one, else of the parameter plus its Kahan compensation,
// else of the parameter. For optimizers written with ops, the intended update is the result of update(), in f32.
#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/observe/update_event.h"
#include "layer_names.h"
#include "mirror.h"
#include "names.h"
#include "numbers.h"

namespace gradual::inspect {

// What an update changes: the weight as a whole, or a part that UpdateMeter::parts() measures.
enum class UpdatePart : std::uint8_t {
  whole,
  gradient_step,
  weight_decay,
  first_moment,
  second_moment,
  other_state,
  running_mean,
  running_variance,
  average
};
inline constexpr int kUpdateParts = 9;
std::string_view to_string(UpdatePart part);  // "update", "gradient step", ..

struct Update {
  std::string parameter = {};  // "fc1.weight"; empty if it is not of the model
  std::string op = {};         // "adam_step_"
  std::int64_t elements = 0;
  std::int64_t intended = 0;  // elements with a finite nonzero intended update
  std::int64_t vanished = 0;  // those of them that do not change
  // Sums over elements with a finite update: squares of the weight and of the intended update, and the product of the
  // intended and the made update.
  double weight_squares = 0;
  double intended_squares = 0;
  double product = 0;
  UpdatePart part = UpdatePart::whole;
  std::int64_t step = 0;  // index among the observed steps, from 0; for a sum the last one
  // For whole updates: the elements whose rounded weight differs from that of the step before, and those of them that
  // return to their value before their last change. The rounded weight is the result of the forward quantiser (before
  // scales of a tensor or of rows), else the stored parameter. It is read before the update.
  std::int64_t moved = 0;
  std::int64_t flipped = 0;
  // For second moments after the step: elements that are Inf or NaN (their parameters stand still), and those that are
  // 0 beside a first moment that is not (their steps are m / eps). Moments kept as codes are read before encoding.
  std::int64_t overflowed = 0;
  std::int64_t zeroed = 0;
  DType dtype = DType::f32;  // of the numbers from which the next step starts
  struct Element {
    // the weight before, its intended and its made update
    double weight = 0;
    double intended = 0;
    double made = 0;
  };
  std::vector<Element> sample = {};  // of a step: evenly spaced elements, at most 64; a sum has none

  // |intended update| / |weight|; 0 for a weight of zeros.
  double ratio() const { return weight_squares > 0 ? std::sqrt(intended_squares / weight_squares) : 0; }
  // <made, intended> / |intended|^2: 1 if everything arrives (effective descent quality: Collage, arXiv 2405.03637,
  // sec. 4). NaN if nothing is intended.
  double arriving() const { return product / intended_squares; }
  Update& operator+=(const Update& other);  // sums over steps
  double vanished_percent() const { return percent_of(vanished, intended); }
  double flipped_percent() const { return percent_of(flipped, elements); }
};

// What an optimizer's op multiplies with, divides by or adds.
enum class Rate : std::uint8_t {
  lr,
  eps,
  weight_decay,
  beta1,
  one_minus_beta1,
  beta2,
  one_minus_beta2,
  kept_by_decay,
  momentum,
  one_minus_dampening,
  count_
};
inline constexpr std::string_view kRates[] = {"lr",        "eps",          "weight decay", "beta1",
                                              "1 - beta1", "beta2",        "1 - beta2",    "1 - lr * weight decay",
                                              "momentum",  "1 - dampening"};
static_assert(std::size(kRates) == static_cast<std::size_t>(Rate::count_));
constexpr std::string_view to_string(Rate rate) { return kRates[static_cast<int>(rate)]; }

// A rate of an optimizer's op, and its value in the dtype of the arithmetic: f32 (f64 for f64 parameters), or the
// parameter's dtype under UpdateOptions::pure_arithmetic, where every product is rounded: a beta of 1 never forgets.
struct Scalar {
  std::string op = {};  // "adam_step_"
  Rate rate = Rate::lr;
  double value = 0;
  double used = 0;
  DType dtype = DType::f32;
  bool lost() const { return used != value && (used == 0 || used == 1); }
  bool operator==(const Scalar&) const = default;
};
std::string to_string(const Scalar& s);  // "beta2 0.999 is 1 in bf16"

// The gradient of a layer's weights against the noise that the quantisers of its operands add to it, over the observed
// steps. The noise is the product (wgrad) of the rounded operands minus that of the same operands before rounding, both
// in f64. An operand that forward kept as codes counts as exact.
struct GradientNoise {
  std::string layer = {};  // the module's path
  double gradient_squares = 0;
  double noise_squares = 0;

  double ratio() const { return std::sqrt(gradient_squares / noise_squares); }  // |gradient| / |noise|; Inf: no noise
  // Gradients below sqrt(3) times their noise contribute little to training (arXiv 2505.19115, sec. 5).
  bool drowns() const { return gradient_squares < 3 * noise_squares; }
};

class UpdateMeter final : public Observer {
 public:
  explicit UpdateMeter(const nn::Module& model);
  // Also measures a moving average, average = decay * average + (1 - decay) * of, which the program writes in place, by
  // any ops, once per step after the optimizer. The intended update is this formula in f64.
  void watch_average(const std::string& name, const Tensor& average, const Tensor& of, double decay);

  void before(const OpCall& call, const CallRecord& record) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;
  void before_update(const UpdateEvent& event) override;
  void after_update(const UpdateEvent& event) override;

  // The updates of all steps observed since clear(), in order.
  const std::vector<Update>& updates() const { return updates_; }
  // The parts: "gradient step" and "weight decay", if there is one: the update without decay, and the addition of
  // decay. "first moment" (SGD's momentum) and "second moment": as stored between steps. "running mean" and "running
  // variance" of batch norm, under the module's path. "average": see watch_average().
  const std::vector<Update>& parts() const { return parts_; }
  const std::vector<Scalar>& scalars() const { return scalars_; }  // of fused ops, each once
  const std::vector<GradientNoise>& gradient_noise() const { return noise_; }
  void clear();

  // A table: sums over the steps, rounded scalars, noise of gradients.
  std::string to_string(const LayerNames& name = {}) const;
  std::string to_csv() const;  // RFC 4180 with a header line: updates, then parts

 private:
  // A quantity that a step changes by now - before, instead of the intended intended - base (all f64).
  struct Change {
    Update row;
    Tensor target = {};
    Tensor master = {};
    Tensor compensation = {};
    Tensor before = {};
    Tensor base = {};
    Tensor intended = {};
    Tensor first_moment = {};  // of a second moment
    std::size_t at = 0;        // index of its row in updates_ or parts_
  };
  // Rounded weights. For each offset in the parameter: the last value of each element, and the value before.
  struct Weight {
    bool quantised = false;  // a quantiser of forward rounds it
    // not reported yet
    std::int64_t moved = 0;
    std::int64_t flipped = 0;
    std::map<std::int64_t, std::pair<std::vector<double>, std::vector<double>>> values = {};
    void observe(std::int64_t offset, const Tensor& rounded);
  };

  static Change change(std::string_view op, const std::string& name, UpdatePart part, const Tensor& target,
                       const Tensor& intended);
  // Begins the changes that the k-th parameter of an optimizer's op gets; `one` is the op for it alone.
  void begin_fused(const OpCall& one, int k);
  // Parts `whole` into what the gradient changes and what weight decay adds to that.
  void begin_decay(const OpCall& one, int k, const Change& whole);
  void add_scalars(const OpCall& one);
  void begin_update(Update& row, const Tensor& parameter);
  void next_step();
  // True if this step has changed this part of the parameter; an empty parameter stands for any.
  bool has_changed(UpdatePart part, std::string_view parameter = "") const;
  std::vector<Update>& rows_of(const Change& c) { return c.row.part == UpdatePart::whole ? updates_ : parts_; }
  void report(std::vector<Change> changes);
  void measure(const Change& change);
  void add_noise(const OpCall& call, const CallRecord& record);

  ParameterNames names_;
  std::vector<std::tuple<std::string, Tensor, Tensor, double>> averages_;  // as watch_average() takes them
  std::vector<Update> updates_, parts_;
  std::vector<Scalar> scalars_;
  std::vector<GradientNoise> noise_;
  Mirror given_, exact_;  // operands of products after rounding and before it

  std::int64_t step_ = 0;
  std::vector<Change> pending_;  // of the running call
  std::vector<Change> changes_;  // of this step
  std::vector<Change> by_ops_;  // of the running update by an optimizer that is written with ops: its state, its weight
  std::map<std::string, Weight> weights_;  // by parameter
};

}  // namespace gradual::inspect
