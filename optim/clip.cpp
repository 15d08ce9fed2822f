#include "clip.h"

#include <cmath>

#include "../autograd/grad_mode.h"
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
  return norm(cast(gradient, promote(gradient.dtype(), DType::f32)), p);
}

GradNorm clip_norm(const std::vector<Tensor>& gradients, double max_norm, const ClipOptions& options) {
  if (!(max_norm >= 0) || !(options.p > 0))
    throwf("clip_grad_norm_: max_norm must be at least 0 and p above 0, given {} and {}", max_norm, options.p);
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  const Device home = gradients.empty() ? Device::cpu() : gradients[0].device();
  std::vector<Tensor> norms = {zeros({1}, {.dtype = DType::f64, .device = home})};
  for (const Tensor& g : gradients) norms.push_back(reshape(cast(norm_of(g, options.p), DType::f64), 1).to(home));
  const Tensor total = norm(cat(norms), options.p);
  if (options.error_if_nonfinite && !std::isfinite(total.item()))
    throwf("clip_grad_norm_: the norm of the gradients is {}, which error_if_nonfinite refuses", total.item());
  const Tensor factor = max_norm / (total + 1e-6);
  const Tensor clips = logical_and(lt(total, std::numeric_limits<double>::infinity()), lt(factor, 1.0));
  if (home.is_cpu() && clips.item() == 0) return GradNorm(total);
  const Tensor by = where(clips, factor, 1.0);
  for (const Tensor& g : gradients) g.mul_(cast(by, promote(g.dtype(), DType::f32)).to(g.device()));
  return GradNorm(total);
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
