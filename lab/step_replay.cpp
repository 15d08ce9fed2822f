#include "step_replay.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../inspect/mirror.h"
#include "../inspect/numbers.h"
#include "judge_bounds.h"
#include "tolerance_rules.h"

namespace gradual::lab {
namespace {

// Errors are floats, also those of indices and masks.
RecordedTensor as_error(RecordedTensor t) {
  t.dtype = DType::f64;
  return t;
}

bool is_product(const RecordedOp& op) { return roundings_of(op) > 0; }

Units units_of(const RecordedOp& op) {
  const DType dtype = op.outputs[0].is_floating() ? op.outputs[0].dtype : DType::f32;
  Units units = gradual::lab::units_of(dtype);
  units.least = float_info(dtype == DType::f64 ? DType::f64 : DType::f32).min_subnormal;
  if (!op.accumulator || dtype == DType::f64) return units;
  const Accumulator& a = *op.accumulator;
  if (a.f64) return units;
  const bool nearest = a.rounding.mode == RoundingMode::nearest_even;
  units.sum = std::max(units.sum, std::ldexp(nearest ? 0.5 : 1.0, -a.format.mantissa_bits));
  if (a.group > 0) units.sum = std::max(units.sum, std::ldexp(1.0, -a.fraction));
  units.least = std::max(units.least, std::ldexp(a.format.min_normal(), -a.format.mantissa_bits));
  return units;
}

// |R(y +- e) - R(y)| for the rounding R, which keeps order.
Tensor through_rounding(const Tensor& y, const Tensor& e, DType dtype) {
  constexpr double kOfF64 = 0x1p-50;
  const Tensor wide = where(gt(e, 0), add(e, mul(abs(finite(y)), kOfF64)), 0);
  const Tensor middle = rounded(y, dtype);
  const Tensor up = distance(rounded(add(y, wide), dtype), middle);
  const Tensor down = distance(rounded(sub(y, wide), dtype), middle);
  return where(isfinite(middle), maximum(up, down), 0);
}

}  // namespace

Tensor rounded(const Tensor& t, DType dtype) {
  if (dtype == DType::f64 || !t.is_floating()) return t;
  return cast(cast(t, dtype), DType::f64);
}

Tensor rounded_to_tf32(const Tensor& t) {
  const Tensor f32 = cast(t, DType::f32).contiguous().clone();
  for (std::int64_t i = 0; i < f32.numel(); ++i) {
    float& x = f32.data<float>()[i];
    std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    constexpr std::uint32_t kExponent = 0x7f800000;
    if ((bits & kExponent) == kExponent) continue;
    bits += 0xfff + (bits >> 13 & 1);
    x = std::bit_cast<float>(bits & ~std::uint32_t{0x1fff});
  }
  return cast(f32, DType::f64);
}

Tensor StepReplay::error(const RecordedTensor& t, std::size_t model) const { return errors_[model].read(as_error(t)); }

std::vector<Tensor> StepReplay::errors_of_inputs(const RecordedOp& op, std::size_t model) const {
  std::vector<Tensor> errors;
  for (const RecordedTensor& t : op.inputs)
    errors.push_back(t.defined() && errors_[model].knows(t) ? error(t, model) : Tensor());
  return errors;
}

ExactOp StepReplay::exact_of(const RecordedOp& op) const {
  ExactOp exact{.op = op, .x = {}, .error = {}, .y = {}, .units = units_of(op), .roundings_per_term = 1};
  for (const RecordedTensor& t : op.inputs) exact.x.push_back(values_.read(t));
  if (op.accumulator && op.accumulator->group > 0) exact.roundings_per_term = 3;
  return exact;
}

void StepReplay::write(const RecordedTensor& t, const Tensor& exact, const std::vector<Tensor>& errors) {
  if (!t.defined()) return;
  for (std::size_t model = 0; model < models_.size(); ++model) {
    const Tensor& e = errors[model];
    const Tensor known = e.defined() ? e : zeros(t.sizes, {.dtype = DType::f64});
    errors_[model].write(as_error(t), t.is_floating() ? through_rounding(exact, known, t.dtype) : known);
  }
  values_.write(t, rounded(exact, t.dtype));
}

void StepReplay::run(const RecordedOp& op) {
  const inspect::Unseen unseen;
  values_.start(op);
  for (RecordedNumbers& errors : errors_) errors.forget(op);
  const bool updates = op.op == OpId::sgd_step_ || op.op == OpId::adam_step_ || op.op == OpId::unscale_ ||
                       op.op == OpId::batch_norm_update_;
  if (op_info(op.op).kind == OpKind::View) return;
  if (updates) {
    run_update(op);
    return;
  }
  ExactOp exact = exact_of(op);
  const std::vector<Tensor> unrounded = exact.x;
  const bool tf32 = op.tf32 && is_product(op) && op.inputs[0].dtype == DType::f32;
  if (tf32)
    for (std::size_t i = 0; i < 2; ++i) exact.x[i] = rounded_to_tf32(unrounded[i]);
  const Outputs y = Operands::run(op, exact.x);
  for (std::size_t k = 0; k < kMaxOutputs; ++k) exact.y[k] = y[static_cast<int>(k)];
  std::array<std::vector<Tensor>, kMaxOutputs> errors;
  for (std::size_t model = 0; model < models_.size(); ++model) {
    exact.error = errors_of_inputs(op, model);
    for (std::size_t i = 0; i < 2 && tf32; ++i) {
      if (!exact.error[i].defined()) continue;
      const Tensor up = distance(rounded_to_tf32(add(unrounded[i], exact.error[i])), exact.x[i]);
      exact.error[i] = maximum(up, distance(rounded_to_tf32(sub(unrounded[i], exact.error[i])), exact.x[i]));
    }
    const std::array<Tensor, kMaxOutputs> found = error_of(exact, models_[model]);
    for (std::size_t k = 0; k < kMaxOutputs; ++k) errors[k].push_back(found[k]);
  }
  for (std::size_t k = 0; k < kMaxOutputs; ++k) write(op.outputs[k], exact.y[k], errors[k]);
}

// Ops that write several inputs.
void StepReplay::run_update(const RecordedOp& op) {
  ExactOp exact = exact_of(op);
  std::vector<Tensor> after;
  for (const Tensor& t : exact.x) after.push_back(t.defined() ? t.clone() : t);
  run_in_f64(op, after);
  const bool of_parameter = op.op == OpId::sgd_step_ || op.op == OpId::adam_step_;
  exact.y[0] = after[0];
  std::vector<std::vector<Tensor>> errors(op.inputs.size(), std::vector<Tensor>(models_.size()));
  for (std::size_t model = 0; model < models_.size(); ++model) {
    exact.error = errors_of_inputs(op, model);
    if (of_parameter) {
      const Tensor found = error_of(exact, models_[model])[0];
      errors[inspect::kWeight][model] = found;
      errors[inspect::kMaster][model] = found;
      errors[inspect::kGradient][model] = exact.error[inspect::kGradient];
    }
    for (std::size_t i = 1; op.op == OpId::unscale_ && i + 1 < op.inputs.size(); i += 2) {
      const Tensor& of_gradient = exact.error[i];
      errors[i][model] = of_gradient;
      if (!op.inputs[i + 1].defined() || !of_gradient.defined()) continue;
      errors[i + 1][model] = mul(of_gradient, op.attrs.get<UnscaleAttrs>().inverse_scale);
    }
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].defined()) write(op.inputs[i], after[i], errors[i]);
}

}  // namespace gradual::lab
