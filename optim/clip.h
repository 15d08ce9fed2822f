// Gradient clipping. With an optimizer it works on the gradients that its next step takes: FP32 ones where the
// optimizer updates f16 or bf16 parameters by way of f32, otherwise .grad. With a GradScaler, call unscale_ before.
#pragma once

#include <vector>

#include "optimizer.h"

namespace gradual::optim {

struct ClipOptions {
  double p = 2;  // above 0; infinity: the largest magnitude
  bool error_if_nonfinite = false;
};

// Multiplies all gradients by max_norm / (norm + 1e-6) where that is below 1, norm being that of all of them seen as one
// vector, computed in f32 (f64 for f64) a tensor and in double across tensors. Returns the norm before clipping. A norm
// that is not finite is returned with the gradients left as they are, or is an Error.
double clip_grad_norm(Optimizer& optimizer, double max_norm, ClipOptions options = {});
double clip_grad_norm(const std::vector<Tensor>& params, double max_norm, ClipOptions options = {});

// Clamps every element of every gradient to [-limit, limit].
void clip_grad_value(Optimizer& optimizer, double limit);
void clip_grad_value(const std::vector<Tensor>& params, double limit);

}  // namespace gradual::optim
