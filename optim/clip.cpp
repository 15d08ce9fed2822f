#include "clip.h"

#include <cmath>

#include "../autograd/grad_mode.h"
#include "../core/dispatch.h"
#include "../core/failf.h"
#include "../core/ops.h"

namespace gradual::optim {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& params) {
  std::vector<Tensor> out;
  for (const Tensor& p : params)
    if (const Tensor gradient = p.grad(); gradient.defined()) out.push_back(gradient);
  return out;
}

double clip_norm(const std::vector<Tensor>& gradients, double max_norm, const ClipOptions& options) {
  if (!(max_norm >= 0) || !(options.p > 0))
    failf("clip_grad_norm: max_norm must be at least 0 and p above 0, given {} and {}", max_norm, options.p);
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  std::vector<double> norms = {0};
  for (const Tensor& g : gradients)
    norms.push_back(norm(g.dtype() == DType::f64 ? g : cast(g, DType::f32), options.p).item());
  const double total =
      norm(from_data(norms, {static_cast<std::int64_t>(norms.size())}, {.dtype = DType::f64}), options.p).item();
  if (!std::isfinite(total) && options.error_if_nonfinite)
    failf("clip_grad_norm: the norm of the gradients is {}, which error_if_nonfinite refuses", total);
  const double factor = max_norm / (total + 1e-6);
  if (std::isfinite(total) && factor < 1)
    for (const Tensor& g : gradients) g.mul_(factor);
  return total;
}

void clip_value(const std::vector<Tensor>& gradients, double limit) {
  if (!(limit >= 0)) failf("clip_grad_value: the limit must be at least 0, given {}", limit);
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
