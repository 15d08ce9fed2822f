#include "tolerance_updates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../core/kernels/update_rules.h"
#include "../core/ops/ops.h"
#include "../inspect/mirror.h"

namespace gradual::lab {
namespace {

// Units of rounding of the operations of an update.
constexpr double kUpdate = 16;

// The unit of the operations: f32, or the parameter's dtype where each of them rounds to it.
double unit_of(const ExactOp& exact, const UpdateAttrs& a) {
  const DType parameter = exact.op.inputs[0].dtype;
  const bool f32 = parameter != DType::f64 && !a.pure;
  return float_info(f32 ? DType::f32 : parameter).epsilon / 2;
}

// What a parameter of few bits adds: a compensation or a random rounding moves its result by a unit more.
double extra_of(const ExactOp& exact, const UpdateAttrs& a) {
  const bool compensated = exact.op.inputs[inspect::kCompensation].defined();
  if (!a.stochastic && !a.pure && !compensated) return 0;
  return 2 * float_info(exact.op.inputs[0].dtype).epsilon;
}

// An element of Adam's update before the rate: m / (sqrt(v) / root + eps).
struct Step {
  double m, v, root, eps;
  double at(double moment, double square) const { return moment / (std::sqrt(square) / root + eps); }
};

}  // namespace

std::array<Tensor, kMaxOutputs> of_sgd(const ExactOp& exact, const ErrorModel&, const Operands& in) {
  const auto& a = exact.op.attrs.get<SgdAttrs>();
  const bool momentum = exact.op.inputs.size() > inspect::kMoment && exact.op.inputs[inspect::kMoment].defined();
  const double fresh = momentum ? 1 - a.dampening : 1;
  const double factor = a.lr * (a.nesterov && momentum ? 1 + a.momentum * fresh : fresh);
  const bool master = exact.x[inspect::kMaster].defined();
  const Tensor& before = exact.x[master ? inspect::kMaster : inspect::kWeight];
  const Tensor moved = abs(sub(exact.y[0], before));
  const double u = unit_of(exact, a.update);
  Tensor error = mul(in.error(inspect::kGradient), std::abs(factor * a.update.inverse_scale));
  // Weight decay and momentum may cancel the gradient.
  Tensor size = add(moved, mul(abs(exact.x[inspect::kGradient]), std::abs(factor * a.update.inverse_scale)));
  size = add(size, mul(abs(before), a.lr * a.weight_decay));
  error = add(error, mul(size, kUpdate * u));
  return {add(error, mul(abs(exact.y[0]), u + extra_of(exact, a.update)))};
}

// The step starts from m and v without errors, so that its result is a function of the gradient alone. m and v are each
// taken at both ends of what the gradient allows. |m| / sqrt(v) has a largest value, by Cauchy's inequality over the
// gradients of all steps.
std::array<Tensor, kMaxOutputs> of_adam(const ExactOp& exact, const ErrorModel&, const Operands& in) {
  const auto& a = exact.op.attrs.get<AdamAttrs>();
  const double u = unit_of(exact, a.update);
  const bool master = exact.x[inspect::kMaster].defined();
  const Tensor& before = exact.x[master ? inspect::kMaster : inspect::kWeight];
  const Tensor error = in.error(inspect::kGradient);
  Tensor all = zeros_like(exact.y[0]);
  const double rate = a.lr / a.correction1;
  const double ratio = a.beta1 * a.beta1 / a.beta2;
  const double most = (1 - a.beta1) / std::sqrt((1 - a.beta2) * std::max(1e-12, 1 - ratio)) * a.correction2_root;
  const double* const w = before.data<double>();
  const double* const g = exact.x[inspect::kGradient].data<double>();
  const double* const m = exact.x[inspect::kMoment].data<double>();
  const double* const v = exact.x[inspect::kMoment + 1].data<double>();
  const double* const e = error.data<double>();
  const double* const y = exact.y[0].data<double>();
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const double decay = a.decoupled ? 0 : a.weight_decay * w[i];
    const double d = g[i] * a.update.inverse_scale + decay;
    const double open = e[i] * std::abs(a.update.inverse_scale) + 4 * u * (std::abs(d) + std::abs(decay));
    const double moment = a.beta1 * m[i] + (1 - a.beta1) * d;
    const double reach = (1 - a.beta1) * open + 4 * u * (std::abs(a.beta1 * m[i]) + (1 - a.beta1) * std::abs(d));
    const double nearest = std::max(0.0, std::abs(d) - open);
    const double square = a.beta2 * v[i] + (1 - a.beta2) * d * d;
    const double low = (a.beta2 * v[i] + (1 - a.beta2) * nearest * nearest) * (1 - 4 * u);
    const double high = (a.beta2 * v[i] + (1 - a.beta2) * (std::abs(d) + open) * (std::abs(d) + open)) * (1 + 4 * u);
    const Step step{moment, square, a.correction2_root, a.eps};
    const double centre = step.at(moment, square);
    const double top = moment + reach;
    const double bottom = moment - reach;
    const double highest = std::min(step.at(top, top > 0 ? low : high), most);
    const double lowest = std::max(step.at(bottom, bottom > 0 ? high : low), -most);
    const double apart = std::max({highest - centre, centre - lowest, 0.0});
    const double moved = std::abs(centre) + apart;
    all.data<double>()[i] = rate * (apart + kUpdate * u * moved) + 2 * u * std::abs(w[i]) * a.lr * a.weight_decay +
                            (u + extra_of(exact, a.update)) * (std::abs(w[i]) + std::abs(y[i]));
  }
  return {all};
}

}  // namespace gradual::lab
