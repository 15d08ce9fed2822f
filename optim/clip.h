// Gradient clipping. With an optimizer it works on the gradients that its next step takes: FP32 ones where the
// optimizer updates f16 or bf16 parameters by way of f32, otherwise .grad. With a GradScaler, call unscale_ before.
#pragma once

#include <utility>
#include <vector>

#include "optimizer.h"

namespace gradual::optim {

struct ClipOptions {
  double p = 2;  // above 0; infinity: the largest magnitude
  bool error_if_nonfinite = false;
};

// A norm, read from a GPU when it is asked for.
class GradNorm {
 public:
  GradNorm(double value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  explicit GradNorm(Tensor there) : there_(std::move(there)) {}
  operator double() const { return there_.defined() ? there_.item() : value_; }  // NOLINT(google-explicit-constructor)

 private:
  double value_ = 0;
  Tensor there_;  // f64 []
};

// Multiplies all gradients by max_norm / (norm + 1e-6) where that is below 1, norm being that of all of them seen as one
// vector, computed in f32 (f64 for f64) a tensor and in double across tensors. Returns the norm before clipping. A norm
// that is not finite is returned with the gradients left as they are, or is an Error. Gradients on one GPU are clipped there
// and nobody waits, unless the norm is read or has to be finite.
GradNorm clip_grad_norm_(Optimizer& optimizer, double max_norm, ClipOptions options = {});
GradNorm clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, ClipOptions options = {});

// Clamps every element of every gradient to [-limit, limit].
void clip_grad_value_(Optimizer& optimizer, double limit);
void clip_grad_value_(const std::vector<Tensor>& params, double limit);

}  // namespace gradual::optim
