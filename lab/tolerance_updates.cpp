#include "tolerance_updates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "../core/kernels/update_rules.h"
#include "../core/ops/ops.h"
#include "../inspect/mirror.h"

namespace gradual::lab {
namespace {

// Units of rounding of the operations of an update.
constexpr double kUpdate = 16;

// The dtype of the operations: f32, or the parameter's where each of them rounds to it.
FloatInfo info_of(const ExactOp& exact, const UpdateAttrs& a) {
  const DType parameter = exact.op.inputs[0].dtype;
  const bool f32 = parameter != DType::f64 && !a.pure;
  return float_info(f32 ? DType::f32 : parameter);
}

double unit_of(const ExactOp& exact, const UpdateAttrs& a) { return info_of(exact, a).epsilon / 2; }
// What numbers that are too small for the dtype may add up to.
double least_of(const ExactOp& exact, const UpdateAttrs& a) { return 4 * info_of(exact, a).min_subnormal; }

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

// The largest |m| / sqrt(v), by Cauchy's inequality over the gradients of all steps, with the roundings of m and v.
// Infinite where the moments need not satisfy it: of 16 bits, v may underflow to 0 while m does not.
double largest_step(const ExactOp& exact, const AdamAttrs& a, double u) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double ratio = a.beta1 * a.beta1 / a.beta2;
  if (!(ratio < 1)) return kInfinity;
  for (std::size_t i = inspect::kMoment; i < inspect::kMoment + 2; ++i) {
    const DType dtype = exact.op.inputs[i].dtype;
    if (dtype != DType::f32 && dtype != DType::f64) return kInfinity;
  }
  const double rounded = 1 + 4 * u / (1 - a.beta1) + 4 * u / (1 - a.beta2);
  return (1 - a.beta1) / std::sqrt((1 - a.beta2) * (1 - ratio)) * a.correction2_root * rounded;
}

}  // namespace

std::array<Tensor, kMaxOutputs> of_sgd(const ExactOp& exact, ErrorKind, const Operands& in) {
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
  error = add(error, mul(abs(exact.y[0]), u + extra_of(exact, a.update)));
  return {add(error, least_of(exact, a.update))};
}

// The step starts from m and v without errors, so that its result is a function of the gradient alone. m and v are each
// taken at both ends of what the gradient allows.
std::array<Tensor, kMaxOutputs> of_adam(const ExactOp& exact, ErrorKind, const Operands& in) {
  const auto& a = exact.op.attrs.get<AdamAttrs>();
  const double u = unit_of(exact, a.update);
  const bool master = exact.x[inspect::kMaster].defined();
  const Tensor& before = exact.x[master ? inspect::kMaster : inspect::kWeight];
  const Tensor error = in.error(inspect::kGradient);
  Tensor all = zeros_like(exact.y[0]);
  const double rate = a.lr / a.correction1;
  const double most = largest_step(exact, a, u);
  const double least = least_of(exact, a.update);
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
    const double of_moment = 4 * u * (std::abs(a.beta1 * m[i]) + (1 - a.beta1) * std::abs(d));
    const double reach = (1 - a.beta1) * open + of_moment + least;
    const double nearest = std::max(0.0, std::abs(d) - open);
    const double square = a.beta2 * v[i] + (1 - a.beta2) * d * d;
    const double farthest = std::abs(d) + open;
    const double of_nearest = (a.beta2 * v[i] + (1 - a.beta2) * nearest * nearest) * (1 - 4 * u);
    const double low = std::max(0.0, of_nearest - least);
    const double high = (a.beta2 * v[i] + (1 - a.beta2) * farthest * farthest) * (1 + 4 * u) + least;
    const Step step{moment, square, a.correction2_root, a.eps};
    const double centre = step.at(moment, square);
    const double top = moment + reach;
    const double bottom = moment - reach;
    const double limit = std::max(most, std::abs(centre));
    const double highest = std::min(step.at(top, top > 0 ? low : high), limit);
    const double lowest = std::max(step.at(bottom, bottom > 0 ? high : low), -limit);
    const double apart = std::max({highest - centre, centre - lowest, 0.0});
    const double moved = std::abs(centre) + apart;
    all.data<double>()[i] = rate * (apart + kUpdate * u * moved) + 2 * u * std::abs(w[i]) * a.lr * a.weight_decay +
                            (u + extra_of(exact, a.update)) * (std::abs(w[i]) + std::abs(y[i])) + least;
  }
  return {all};
}

}  // namespace gradual::lab
