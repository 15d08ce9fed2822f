// Dynamic loss scaling: the loss is multiplied by a scale so that small gradients survive f16, the gradients are divided
// by it again, a step whose gradients overflowed is skipped, and the scale follows (Micikevicius et al. 2018).
//
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);         // only to clip
//   clip_grad_norm_(optimizer, 1.0);
//   scaler.step(optimizer);
//   scaler.update();
//   optimizer.zero_grad();
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/kernels/loss_scale.h"
#include "../core/tensor/device_mirror.h"
#include "optimizer.h"

namespace gradual::optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;             // above 1
  double backoff_factor = 0.5;          // below 1
  std::int64_t growth_interval = 2000;  // clean steps in a row before the scale grows
  int hysteresis = 1;                   // overflows before it shrinks; clean steps make up for them
  double min_scale = 0x1p-126;          // its inverse is finite still
  double max_scale = std::numeric_limits<float>::max();
  bool dynamic = true;  // false: the scale stays, steps with overflow are skipped all the same
  bool enabled = true;  // false: everything is the identity
};

// What became of a step. Nothing is read back before somebody asks; of a step that a cuda::Graph recorded, its last replay's.
class StepResult {
 public:
  StepResult() = default;
  StepResult(const Optimizer& optimizer, Tensor found) : optimizer_(&optimizer), found_(std::move(found)) {}
  bool applied() const { return nonfinite() == 0; }
  bool skipped() const { return !applied(); }
  std::int64_t nonfinite() const;  // how many elements of all gradients were Inf or NaN
  // The first parameter with such an element, in the optimizer's order: its index; its name ("" where the step was
  // applied), for which the optimizer must still live.
  std::optional<std::size_t> index() const;
  std::string param() const;

 private:
  const Optimizer* optimizer_ = nullptr;
  Tensor found_;
};

// With losses and parameters on a GPU the scale and all that moves it live in its memory: kernels scale, divide, skip and
// update there, and no call waits. What this class tells of it then (scale(), history(), state_dict(), ..) is read when it
// is asked, which waits for the GPU. A scaler that a cuda::Graph recorded must outlive it and stay where it is.
class GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(const GradScaler& other);  // the copy starts on the CPU
  GradScaler& operator=(const GradScaler& other);

  Tensor scale(const Tensor& loss, SourceLocation loc = SourceLocation::current());
  // Divides the optimizer's gradients by the scale and looks for Inf and NaN. Optional, once before each step: to clip
  // or to look at gradients. Where f16 and bf16 parameters are updated by way of f32, FP32 gradients are filled and
  // .grad stays scaled; elsewhere .grad itself is divided.
  // Error: called twice or after step() without update(); no scale() yet; f16 gradients that have no FP32 path.
  void unscale_(Optimizer& optimizer);
  // The optimizer's step, unless a gradient overflowed: then nothing of it happens. Gradients that were not unscaled are
  // divided within the update, and .grad keeps the scale. Error: called twice without update(), no scale() yet, or no
  // gradients at all.
  StepResult step(Optimizer& optimizer, SourceLocation loc = SourceLocation::current());
  // Ends the iteration: shrinks the scale after an overflow in any optimizer, grows it after growth_interval clean
  // iterations, or sets the one given. Error where no gradients were checked since the last update().
  void update(std::optional<double> new_scale = {});

  bool enabled() const { return options_.enabled; }
  double scale() const;                 // the present one
  std::int64_t growth_tracker() const;  // clean iterations in a row
  const GradScalerOptions& options() const { return options_; }

  // Each value the scale had, with the number of update()s before it; of the changes that a GPU made since somebody asked
  // (for any of these figures), the last DeviceLossScale::kKept.
  using Change = ScaleChange;
  const std::vector<Change>& history() const;

  // Empty where disabled. Error on loading an empty one into an enabled scaler.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  struct PerOptimizer {
    const Optimizer* optimizer;
    Stage stage = Stage::ready;
    Tensor found;  // i64: [0] all non-finite elements, [1 + i] those of parameter i; undefined until checked
  };
  PerOptimizer& of(const Optimizer& optimizer);
  void check(PerOptimizer& o, Optimizer& optimizer, bool write);
  void need_scale(const char* what) const;
  template <class F> static void for_state(GradScalerOptions& options, LossScale& state, const F& f);
  LossScaleRule rule() const;
  void remember();

  void upload(void* to, Device device) const;
  void take(const void* bytes) const;  // what the GPU has
  const LossScale& now() const {
    there_.read();
    return state_;
  }
  bool rules(const Optimizer& optimizer);  // whether the optimizer reads the scale on the GPU; else it is here now
  DeviceLossScale* on_gpu() const { return static_cast<DeviceLossScale*>(there_.raw()); }

  GradScalerOptions options_;
  bool used_ = false;  // scale() was called
  std::vector<PerOptimizer> optimizers_;
  mutable LossScale state_;
  mutable std::vector<Change> history_;
  mutable std::int64_t seen_ = 0;  // of the GPU's changes
  mutable DeviceMirror there_{[this](void* to, Device device) { upload(to, device); },
                              [this](const void* bytes) { take(bytes); }};  // a DeviceLossScale
};

}  // namespace gradual::optim
