// Dynamic loss scaling (Micikevicius et al. 2018): the loss is multiplied by a scale so that small gradients survive
// f16, and the gradients are divided by it. A step whose gradients overflowed is skipped, and the scale is adjusted.
//
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);         // only to clip
//   clip_grad_norm_(optimizer, 1.0);
//   scaler.step(optimizer);
//   scaler.update();
//   optimizer.zero_grad();
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/kernels/loss_scale.h"
#include "../core/tensor/device_mirror.h"
#include "optimizer.h"

namespace gradual::optim {

using GradScalerOptions = LossScaleOptions;

// The result of a step, read from a GPU on demand. For a step that a cuda::Graph recorded: the result of the last
// replay.
class StepResult {
 public:
  StepResult() = default;
  StepResult(Optimizer& optimizer, Tensor found) : optimizer_(&optimizer), found_(std::move(found)) {}
  bool applied() const { return nonfinite() == 0; }
  bool skipped() const { return !applied(); }
  // The number of elements of all gradients that were Inf or NaN, and of hidden().
  std::int64_t nonfinite() const { return found_.defined() ? found_[0].item<std::int64_t>() : 0; }
  // What GradScaler::note() counted: tensors with Inf or NaN that rounding made finite before a gradient had it.
  std::int64_t hidden() const;
  // Adam's second moments in low precision as the optimizer has them now: parameters that no longer move, and those
  // whose steps are too large. The optimizer must still exist.
  MomentFaults moments() const { return optimizer_ ? optimizer_->moment_faults() : MomentFaults(); }
  // The first parameter with such an element, in the optimizer's order: its index, and its name ("" if the step was
  // applied, or all are hidden()). The optimizer must still exist.
  std::optional<std::size_t> index() const;
  std::string param() const {
    const auto i = index();
    return i ? optimizer_->param_name(*i) : std::string();
  }

 private:
  Optimizer* optimizer_ = nullptr;
  Tensor found_;
};

// With losses and parameters on a GPU, the scale and its state are in GPU memory: kernels scale, divide, skip and
// update there, and no call waits. Functions that return the state (scale(), history(), state_dict(), ..) read it and
// wait for the GPU. A scaler that a cuda::Graph recorded must outlive the graph and must not be moved.
class GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(const GradScaler& other);  // the copy starts on the CPU
  GradScaler& operator=(const GradScaler& other);

  Tensor scale(const Tensor& loss, SourceLocation loc = SourceLocation::current());
  // Divides the optimizer's gradients by the scale and checks for Inf and NaN. Optional, once before each step: to clip
  // or to inspect gradients. If f16 and bf16 parameters are updated in f32, it fills FP32 gradients and leaves .grad
  // scaled; otherwise it divides .grad itself.
  // Error: called twice or after step() without update(); no scale() yet; f16 gradients without an FP32 path.
  void unscale_(Optimizer& optimizer);
  // Of the next check, by unscale_() or step(): a count of what was Inf or NaN and cannot be seen in the gradients, i64
  // [1] on the optimizer's device. If it is above 0, the step is skipped too.
  void note(const Tensor& hidden) { hidden_ = hidden; }
  // The optimizer's step; skipped if a gradient overflowed. Gradients that are not unscaled yet are divided within the
  // update, and .grad keeps the scale. Error: called twice without update(), no scale() yet, or no gradients at all; a
  // backward after unscale_().
  StepResult step(Optimizer& optimizer, SourceLocation loc = SourceLocation::current());
  // Ends the iteration: shrinks the scale after an overflow in any optimizer, grows it after growth_interval clean
  // iterations, or sets `new_scale`. Error if no gradients were checked since the last update().
  void update(std::optional<double> new_scale = {});

  bool enabled() const { return options_.enabled; }
  double scale() const { return options_.enabled ? static_cast<double>(now().scale) : 1; }  // the current one
  std::int64_t growth_tracker() const { return now().growth_tracker; }                      // clean iterations in a row
  const GradScalerOptions& options() const { return options_; }

  // Each value of the scale, with the number of update()s before it. Between two reads of the state, at most the last
  // DeviceLossScale::kKept changes by a GPU are kept.
  const std::vector<ScaleChange>& history() const {
    there_.read();
    return history_;
  }

  // Empty if disabled. Error on loading an empty one into an enabled scaler.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  struct PerOptimizer {
    const Optimizer* optimizer;
    Stage stage = Stage::ready;
    // i64: [0] all non-finite elements, [1 + i] those of parameter i, last the hidden ones; undefined until checked
    Tensor found;
  };
  PerOptimizer& of(const Optimizer& optimizer);
  void check(PerOptimizer& o, Optimizer& optimizer, bool write);
  void need_scale(const std::string& what) const {
    if (!used_)
      throw_error("GradScaler: " + what + ": no scale yet: scale(loss) was not used earlier in the iteration");
  }
  void remember();

  void upload(void* to, Device device) const;
  void take(const void* bytes) const;  // sets the fields from the GPU's state
  const LossScale& now() const {
    there_.read();
    return state_;
  }
  bool scales_on_gpu(
      const Optimizer& optimizer);  // true if the optimizer reads the scale on the GPU; else moves it to the CPU
  DeviceLossScale* on_gpu() const { return static_cast<DeviceLossScale*>(there_.raw()); }

  GradScalerOptions options_;
  bool used_ = false;  // scale() was called
  Tensor hidden_;      // of note(); undefined once a check has taken it
  std::vector<PerOptimizer> optimizers_;
  mutable LossScale state_;
  mutable std::vector<ScaleChange> history_;
  mutable std::int64_t seen_ = 0;  // of the GPU's changes
  mutable DeviceMirror there_{[this](void* to, Device device) { upload(to, device); },
                              [this](const void* bytes) { take(bytes); }};  // a DeviceLossScale
};

}  // namespace gradual::optim
