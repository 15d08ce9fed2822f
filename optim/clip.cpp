#include "clip.h"

#include <algorithm>
#include <cmath>

#include "../autograd/grad_mode.h"
#include "../core/dispatch.h"
#include "../core/ops.h"

namespace gradual::optim {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& params) {
  std::vector<Tensor> out;
  for (const Tensor& p : params)
    if (const Tensor gradient = p.grad(); gradient.defined()) out.push_back(gradient);
  return out;
}

double norm_of(const Tensor& gradient, double p) {
  if (gradient.numel() == 0) return 0;
  const Tensor wide = gradient.dtype() == DType::f64 ? gradient : cast(gradient, DType::f32);
  return std::isinf(p) ? max(abs(wide)).item() : norm(wide, p).item();
}

double clip_norm(const std::vector<Tensor>& gradients, double max_norm, const ClipOptions& options) {
  if (!(max_norm >= 0) || !(options.p > 0))
    fail("clip_grad_norm: max_norm must be at least 0 and p above 0, given " + std::to_string(max_norm) + " and " +
         std::to_string(options.p));
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  double total = 0;
  for (const Tensor& g : gradients) {
    const double n = norm_of(g, options.p);
    if (!std::isinf(options.p)) {
      total += std::pow(n, options.p);
    } else if (!(n <= total)) {  // NaN too, and it stays
      total = n;
    }
    if (std::isnan(total)) break;
  }
  if (!std::isinf(options.p)) total = std::pow(total, 1 / options.p);
  if (!std::isfinite(total)) {
    if (options.error_if_nonfinite)
      fail("clip_grad_norm: the norm of the gradients is " + std::to_string(total) +
           "; look for the overflow, or allow it with error_if_nonfinite = false");
    return total;
  }
  const double factor = max_norm / (total + 1e-6);
  if (factor < 1)
    for (const Tensor& g : gradients) g.mul_(factor);
  return total;
}

void clip_value(const std::vector<Tensor>& gradients, double limit) {
  if (!(limit >= 0)) fail("clip_grad_value: the limit must be at least 0, given " + std::to_string(limit));
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  for (const Tensor& g : gradients) g.copy_(clamp(g, -limit, limit));
}

}  // namespace

double clip_grad_norm(Optimizer& optimizer, double max_norm, ClipOptions options) {
  return clip_norm(optimizer.step_gradients(), max_norm, options);
}
double clip_grad_norm(const std::vector<Tensor>& params, double max_norm, ClipOptions options) {
  return clip_norm(gradients_of(params), max_norm, options);
}
void clip_grad_value(Optimizer& optimizer, double limit) { clip_value(optimizer.step_gradients(), limit); }
void clip_grad_value(const std::vector<Tensor>& params, double limit) { clip_value(gradients_of(params), limit); }

}  // namespace gradual::optim
