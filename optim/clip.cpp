#include "clip.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::optim {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& params) {
  std::vector<Tensor> out;
  for (const Tensor& p : params)
    if (const Tensor gradient = p.grad(); gradient.defined()) out.push_back(gradient);
  return out;
}

// At least FP32.
Tensor norm_of(const Tensor& gradient, double p) {
  return norm(gradient.dtype() == DType::f64 ? gradient : cast(gradient, DType::f32), p);
}

bool on_one_gpu(const std::vector<Tensor>& gradients) {
  return !gradients.empty() && std::ranges::all_of(gradients, [&](const Tensor& g) {
    return g.device().is_cuda() && g.device() == gradients[0].device();
  });
}

// The factor is a number on the GPU; 1 if no clipping is needed.
GradNorm clip_there(const std::vector<Tensor>& gradients, double max_norm, double p) {
  std::vector<Tensor> norms = {zeros({1}, {.dtype = DType::f64, .device = gradients[0].device()})};
  for (const Tensor& g : gradients) norms.push_back(reshape(cast(norm_of(g, p), DType::f64), {1}));
  const Tensor total = norm(cat(norms), p);
  const Tensor factor = max_norm / (total + 1e-6);
  const Tensor clips = logical_and(lt(total, std::numeric_limits<double>::infinity()), lt(factor, 1.0));
  const Tensor by = where(clips, factor, 1.0);
  for (const Tensor& g : gradients) g.mul_(cast(by, g.dtype() == DType::f64 ? DType::f64 : DType::f32));
  return GradNorm(total);
}

GradNorm clip_norm(const std::vector<Tensor>& gradients, double max_norm, const ClipOptions& options) {
  if (!(max_norm >= 0) || !(options.p > 0))
    throwf("clip_grad_norm_: max_norm must be at least 0 and p above 0, given {} and {}", max_norm, options.p);
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  if (!options.error_if_nonfinite && on_one_gpu(gradients)) return clip_there(gradients, max_norm, options.p);
  std::vector<double> norms = {0};
  for (const Tensor& g : gradients) norms.push_back(norm_of(g, options.p).item());
  const double total =
      norm(from_data(norms, {static_cast<std::int64_t>(norms.size())}, {.dtype = DType::f64}), options.p).item();
  if (!std::isfinite(total) && options.error_if_nonfinite)
    throwf("clip_grad_norm_: the norm of the gradients is {}, which error_if_nonfinite refuses", total);
  const double factor = max_norm / (total + 1e-6);
  if (std::isfinite(total) && factor < 1)
    for (const Tensor& g : gradients) g.mul_(factor);
  return total;
}

void clip_value(const std::vector<Tensor>& gradients, double limit) {
  if (!(limit >= 0)) throwf("clip_grad_value_: the limit must be at least 0, given {}", limit);
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  for (const Tensor& g : gradients) g.copy_(clamp(g, -limit, limit));
}

}  // namespace

GradNorm clip_grad_norm_(Optimizer& optimizer, double max_norm, ClipOptions options) {
  return clip_norm(optimizer.step_gradients(), max_norm, options);
}
GradNorm clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, ClipOptions options) {
  return clip_norm(gradients_of(params), max_norm, options);
}
void clip_grad_value_(Optimizer& optimizer, double limit) { clip_value(optimizer.step_gradients(), limit); }
void clip_grad_value_(const std::vector<Tensor>& params, double limit) { clip_value(gradients_of(params), limit); }

}  // namespace gradual::optim
