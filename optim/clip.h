// Gradient clipping. It works on the gradients that the optimizer's next step uses: FP32 gradients if the optimizer
// updates f16 or bf16 parameters in f32, otherwise .grad. With a GradScaler, call unscale_ first.
#pragma once

#include <utility>
#include <vector>

#include "optimizer.h"

namespace gradual::optim {

struct ClipOptions {
  double p = 2;  // above 0; infinity: the largest magnitude
  bool error_if_nonfinite = false;
};

// A norm, read from a GPU on demand.
class GradNorm {
 public:
  explicit GradNorm(Tensor norm) : norm_(std::move(norm)) {}
  operator double() const { return norm_.item(); }  // NOLINT(google-explicit-constructor)

 private:
  Tensor norm_;  // f64 []
};

// Multiplies all gradients by max_norm / (norm + 1e-6) if that is below 1. norm is that of all gradients as one vector,
// computed in f32 (f64 for f64) per tensor and in double across tensors. Returns the norm before clipping. If the norm
// is not finite, the gradients stay unchanged, or it is an Error (options). Gradients on a GPU are clipped there
// without waiting, unless the norm is read or must be finite.
GradNorm clip_grad_norm_(Optimizer& optimizer, double max_norm, ClipOptions options = {});
GradNorm clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, ClipOptions options = {});

// Clamps every element of every gradient to [-limit, limit].
void clip_grad_value_(Optimizer& optimizer, double limit);
void clip_grad_value_(const std::vector<Tensor>& params, double limit);

}  // namespace gradual::optim
