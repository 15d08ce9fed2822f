// What becomes of the updates that a step intends: how much of each arrives in the numbers that the next step starts
// from. Of weights, and apart for the gradient step, weight decay, moments, batch statistics and moving averages.
//
//   inspect::UpdateMeter meter(model);
//   { const ObserverScope scope(meter); run.step(..); }
//   std::puts(meter.to_string().c_str());         // or to_csv()
//
// The intended update is the optimizer's own row in f64 on the numbers that the step starts from: weight, gradient and
// state as they are, no rounding. What arrives is the difference that the step makes: of the FP32 master where there is
// one, of the parameter and its Kahan compensation together, else of the parameter. For optimizers that are written
// with ops the intended update is what update() returns, in f32.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../core/observe/observer.h"
#include "mirror.h"
#include "numbers.h"
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
  std::string part = "update";  // the whole; or of it one of UpdateMeter::parts()
  std::int64_t step = 0;        // among those observed, from 0; of a sum, the last
  // Of whole updates: the elements whose rounded weight is not what it was a step before, and of these the ones that
  // are back at what they were before their last move. The rounded weight is what a quantiser of forward makes of it
  // (before scales of a tensor or of rows), else the stored parameter; it is read before the update.
  std::int64_t moved = 0, flipped = 0;

  // |intended update| / |weight|; 0 for a weight of zeros.
  double ratio() const { return weight_squares > 0 ? std::sqrt(intended_squares / weight_squares) : 0; }
  // <made, intended> / |intended|^2: 1 where all arrives (effective descent quality: Collage, arXiv 2405.03637, sec.
  // 4). NaN where nothing is intended.
  double arriving() const { return product / intended_squares; }
  Update& operator+=(const Update& other);  // of several steps
  double vanished_percent() const { return percent_of(vanished, intended); }
  double flipped_percent() const { return percent_of(flipped, elements); }
};

// A rate of an optimizer's row, and what the dtype of its arithmetic holds of it: f32 (f64 for f64 parameters), the
// parameter's dtype under UpdateOptions::pure_arithmetic. There every product is rounded: a beta of 1 never forgets.
struct Scalar {
  std::string op = {}, name = {};  // "adam_step_", "1 - beta2"
  double value = 0, used = 0;
  DType dtype = DType::f32;
  bool lost() const { return used != value && (used == 0 || used == 1); }
  bool operator==(const Scalar&) const = default;
};
std::string to_string(const Scalar& s);  // "beta2 0.999 is 1 in bf16"

// The gradient of one layer's weights against the noise that the quantisers of its operands put into it, over the steps
// observed. The noise is the product (wgrad) of the rounded operands minus that of the same operands before rounding,
// both in f64. An operand that forward kept as codes counts as exact.
struct GradientNoise {
  std::string layer = {};  // the module's path
  double gradient_squares = 0, noise_squares = 0;

  double ratio() const { return std::sqrt(gradient_squares / noise_squares); }  // |gradient| / |noise|; Inf: no noise
  // Training gains little from gradients below sqrt(3) times their noise (arXiv 2505.19115, sec. 5).
  bool drowns() const { return gradient_squares < 3 * noise_squares; }
};

class UpdateMeter final : public Observer {
 public:
  explicit UpdateMeter(const nn::Module& model) : names_(model) {}
  // Measures a moving average too, average = decay * average + (1 - decay) * of, which the program writes in place, by
  // any ops, once a step after the optimizer. The intended update is this formula in f64.
  void watch_average(const std::string& name, const Tensor& average, const Tensor& of, double decay) {
    averages_.push_back({name, average, of, decay});
  }

  void before(const OpCall& call) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  // Of all steps observed since clear(), in order.
  const std::vector<Update>& updates() const { return updates_; }
  // "gradient step" and "weight decay", where there is one: what the row makes without decay, and what decay adds.
  // "first moment" (SGD's momentum) and "second moment": as they are kept between steps. "running mean" and "running
  // variance" of batch norm, under the module's path. "average": see watch_average().
  const std::vector<Update>& parts() const { return parts_; }
  const std::vector<Scalar>& scalars() const { return scalars_; }  // of the fused rows, each once
  const std::vector<GradientNoise>& gradient_noise() const { return noise_; }
  void clear() { updates_.clear(), parts_.clear(), scalars_.clear(), noise_.clear(), changes_.clear(); }

  std::string to_string() const;  // a table of sums over the steps, lost scalars, noise of gradients
  std::string to_csv() const;     // RFC 4180, a header line first; updates, then parts

 private:
  // A quantity that a step changes: by now - before, where intended - base was meant (all f64).
  struct Change {
    Update row;
    Tensor target = {}, master = {}, compensation = {};
    Tensor before = {}, base = {}, intended = {};
    std::size_t at = 0;  // of its row in updates_ or parts_
  };
  struct Average {
    std::string name;
    Tensor average, of;
    double decay;
  };
  // Of rounded weights, for each offset in the parameter: the last value of each element, and the one before that.
  struct Weight {
    bool quantised = false;               // by a quantiser of forward
    std::int64_t moved = 0, flipped = 0;  // not reported yet
    std::map<std::int64_t, std::pair<std::vector<double>, std::vector<double>>> values = {};
    void observe(std::int64_t offset, const Tensor& rounded);
  };

  static Change change(const OpCall& call, const std::string& name, const char* part, const Tensor& target,
                       const Tensor& intended);
  void fused(const OpCall& one, int k);
  void add_scalars(const OpCall& one);
  void written_by_ops(const OpCall& call);
  void begin_update(Update& row, const Tensor& parameter);
  void next_step() { ++step_, changes_.clear(); }
  // Whether this step has changed a part; parameter empty: of any.
  bool has_changed(std::string_view part, std::string_view parameter = "") const;
  std::vector<Update>& rows_of(const Change& c) { return c.row.part == "update" ? updates_ : parts_; }
  void measure(const Change& change);
  void add_noise(const OpCall& call);

  ParameterNames names_;
  std::vector<Average> averages_;
  std::vector<Update> updates_, parts_;
  std::vector<Scalar> scalars_;
  std::vector<GradientNoise> noise_;
  std::vector<bool> custom_ops_;  // that run: whether they are rewritten
  Mirror given_, exact_;          // operands of products after rounding and before it

  std::int64_t step_ = 0;
  std::vector<Change> pending_;  // of the call that runs
  std::vector<Change> changes_;  // of this step
  // Of an optimizer written with ops, of the parameter that it updates: its state, its master, a weight that was
  // rounded by chance and what it was before, and the storages of the weight and of what Kahan's compensation keeps.
  std::vector<Change> states_;
  Change master_;
  std::pair<Tensor, Tensor> rounded_;
  std::uint64_t next_ = 0, compensation_ = 0;
  std::map<std::string, Weight> weights_;  // by parameter
};

}  // namespace gradual::inspect
