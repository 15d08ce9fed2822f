#include "step_replay.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../inspect/mirror.h"
#include "../inspect/numbers.h"
#include "judge_bounds.h"
#include "quantizer_bounds.h"
#include "tolerance_rules.h"

namespace gradual::lab {
namespace {

// Errors are floats, also those of indices and masks.
RecordedTensor as_error(RecordedTensor t) {
  t.dtype = DType::f64;
  return t;
}

bool is_product(const RecordedOp& op) { return roundings_of(op) > 0; }

bool rounds_to_tf32(const RecordedOp& op) { return op.tf32 && is_product(op) && op.inputs[0].dtype == DType::f32; }

Units units_of(const RecordedOp& op) {
  const DType dtype = op.outputs[0].is_floating() ? op.outputs[0].dtype : DType::f32;
  Units units = gradual::lab::units_of(dtype);
  units.least = float_info(dtype == DType::f64 ? DType::f64 : DType::f32).min_subnormal;
  if (!op.accumulator || dtype == DType::f64) return units;
  const Accumulator& a = *op.accumulator;
  if (a.f64) return units;
  const bool nearest = a.rounding.mode == RoundingMode::nearest_even;
  units.sum = std::max(units.sum, std::ldexp(nearest ? 0.5 : 1.0, -a.format.mantissa_bits));
  if (a.fraction > 0) units.sum = std::max(units.sum, std::ldexp(1.0, -a.fraction));
  units.least = std::max(units.least, a.format.min_positive());
  return units;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor known_or_infinite(const Tensor& e) { return where(isnan(e), kInfinity, e); }

bool writes_inputs(const RecordedOp& op) {
  return op.op == OpId::sgd_step_ || op.op == OpId::adam_step_ || op.op == OpId::unscale_ ||
         op.op == OpId::batch_norm_update_;
}

// |R(y +- e) - R(y)| for the rounding R, which keeps order. Infinite where only one of them overflows.
Tensor through_rounding(const Tensor& y, const Tensor& e, DType dtype) {
  constexpr double kOfF64 = 0x1p-50;
  const Tensor wide = where(gt(e, 0), add(e, mul(abs(finite(y)), kOfF64)), 0);
  const Tensor middle = rounded(y, dtype);
  const Tensor up = distance(rounded(add(y, wide), dtype), middle);
  const Tensor down = distance(rounded(sub(y, wide), dtype), middle);
  const Tensor error = where(isnan(e), kInfinity, maximum(up, down));
  return where(isnan(middle), 0, error);
}

// The norms of the rows' errors after the rounding: two numbers round to numbers that are apart by them and one
// spacing, if they do not round to the same one. rows: before it; undefined: those of the elements.
Tensor rows_through_rounding(const Tensor& y, const Tensor& e, const Tensor& stored, const Tensor& rows, DType dtype) {
  const Tensor of_elements = y.dim() == 0 ? reshape(stored, {1}) : norm_of_rows(stored);
  if (!rows.defined() || y.dim() == 0) return of_elements;
  const FloatInfo info = float_info(dtype);
  const Tensor spacing = add(mul(add(abs(finite(y)), e), info.epsilon), info.min_subnormal);
  const Tensor moved = where(gt(stored, 0), spacing, 0);
  const Tensor open = amax(stored, {-1}, true);
  const Tensor all = add(rows, dtype == DType::f64 ? zeros_like(of_elements) : norm_of_rows(moved));
  return where(isinf(open), kInfinity, minimum(all, of_elements));
}

// Of y = g s with the scale s: it is rounded to f32, and then the product.
Tensor unscaled_error(const Tensor& g_error, const Tensor& y, double scale) {
  const FloatInfo f32 = float_info(DType::f32);
  const Tensor own = add(mul(abs(finite(y)), f32.epsilon), where(ne(y, 0), f32.min_subnormal, 0));
  return add(mul(g_error, std::abs(scale)), own);
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

StepReplay::StepReplay(const std::vector<ErrorModel>& models) : models_(models) {
  models_.push_back({ErrorKind::always, 0});
  errors_.resize(models_.size());
  if (std::ranges::any_of(models, [](const ErrorModel& m) { return m.probable(); })) simulations_.resize(kSimulations);
}

ExactOp StepReplay::exact_of(const RecordedOp& op, const RecordedNumbers& values) const {
  ExactOp exact{.op = op, .units = units_of(op)};
  for (const RecordedTensor& t : op.inputs) exact.x.push_back(values.read(t));
  if (op.accumulator && op.accumulator->group > 0) exact.roundings_per_term = 3;
  if (!rounds_to_tf32(op)) return exact;
  for (std::size_t i = 0; i < 2; ++i) exact.x[i] = rounded_to_tf32(exact.x[i]);
  return exact;
}

Tensor StepReplay::random_signs(const Shape& sizes) {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes) n *= size;
  std::vector<double> signs(static_cast<std::size_t>(n));
  for (double& sign : signs) sign = (random_() & 1) != 0 ? 1 : -1;
  return from_data(signs, sizes, {.dtype = DType::f64});
}

// Of that size, with random signs. What the elements of a row or channel share has one sign.
Tensor StepReplay::random_errors(const RecordedOp& op, const Tensor& size) {
  const Tensor own = mul(size, random_signs(size.sizes()));
  const Sums sums = sums_of(op.op);
  if (sums == Sums::of_elements || size.dim() < 2) return own;
  Shape shared = size.sizes();
  for (int d = 0; d < shared.size(); ++d) {
    const bool along = sums == Sums::of_rows ? d == shared.size() - 1 : d != 1;
    if (along) shared[d] = 1;
  }
  return add(own, mul(size, random_signs(shared)));
}

StepReplay::Errors StepReplay::simulated(const ExactOp& exact, double lambda) {
  const RecordedOp& op = exact.op;
  ExactOp unit = exact;
  unit.error.assign(exact.x.size(), Tensor());
  unit.units.lambda = 1;
  const Errors local = error_of(unit, {ErrorKind::probable, 1});
  Errors squares;
  for (RecordedNumbers& values : simulations_) {
    const ExactOp here = exact_of(op, values);
    const Outputs y = Operands::run(op, here.x);
    for (std::size_t k = 0; k < kMaxOutputs; ++k) {
      if (!op.outputs[k].defined()) continue;
      Tensor z = y[static_cast<int>(k)];
      if (local[k].defined() && z.is_floating()) z = add(z, random_errors(op, local[k]));
      values.write(op.outputs[k], rounded(z, op.outputs[k].dtype));
      if (!z.is_floating()) continue;
      const Tensor square_of = square(distance(z, exact.y[k]));
      squares[k] = squares[k].defined() ? add(squares[k], square_of) : square_of;
    }
  }
  Errors errors;
  for (std::size_t k = 0; k < kMaxOutputs; ++k) {
    if (!squares[k].defined()) continue;
    // A number of few bits that rounds otherwise moves an element far, and seldom: the runs show it in some elements
    // only. So all that move at all have the largest error of the tensor.
    const Tensor mean_square = mul(squares[k], 1.0 / kSimulations);
    errors[k] = where(gt(mean_square, 0), mul(sqrt(max(mean_square)), lambda), 0);
  }
  return errors;
}

// Ops that add up nothing err by their roundings.
void StepReplay::simulate_others(const RecordedOp& op) {
  for (RecordedNumbers& values : simulations_) {
    const ExactOp here = exact_of(op, values);
    if (writes_inputs(op)) {
      run_in_f64(op, here.x);
      for (std::size_t i = 0; i < here.x.size(); ++i)
        if (op.inputs[i].defined()) values.write(op.inputs[i], rounded(here.x[i], op.inputs[i].dtype));
      continue;
    }
    const Outputs y = Operands::run(op, here.x);
    for (std::size_t k = 0; k < kMaxOutputs; ++k)
      if (op.outputs[k].defined()) values.write(op.outputs[k], rounded(y[static_cast<int>(k)], op.outputs[k].dtype));
  }
}

void StepReplay::write(const RecordedTensor& t, const Tensor& exact, const std::vector<Tensor>& errors,
                       const Tensor& rows) {
  if (!t.defined()) return;
  for (std::size_t model = 0; model < models_.size(); ++model) {
    const Tensor& e = errors[model];
    const Tensor known = e.defined() ? e : zeros(t.sizes, {.dtype = DType::f64});
    const Tensor stored = t.is_floating() ? through_rounding(exact, known, t.dtype) : known;
    errors_[model].write(as_error(t), stored);
    if (model == 0) rows_.write(t, rows_through_rounding(exact, known, stored, rows, t.dtype));
  }
  values_.write(t, rounded(exact, t.dtype));
}

void StepReplay::read_rows(const RecordedOp& op, ExactOp& exact) const {
  exact.rows.assign(op.inputs.size(), Tensor());
  exact.columns.assign(op.inputs.size(), Tensor());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.inputs[i].is_floating()) continue;
    const Tensor e = error(op.inputs[i], 0);
    exact.rows[i] = rows_.rows(op.inputs[i], e);
    if (e.dim() > 1) exact.columns[i] = rows_.columns(op.inputs[i], e);
  }
}

void StepReplay::run(const RecordedOp& op) {
  const inspect::Unseen unseen;
  values_.start(op);
  for (RecordedNumbers& errors : errors_) errors.forget(op);
  rows_.forget(op);
  for (RecordedNumbers& values : simulations_) values.start(op);
  local_ = {};
  const bool begins = !op.inside && op.kind != Recorded::rewritten_ends;
  if (begins) errors_.back() = {};
  switch (op.kind) {
    case Recorded::op: run_op(op); break;
    case Recorded::quantizer: run_quantizer_call(op); break;
    case Recorded::rewritten_begins:
    case Recorded::rewritten_ends: break;
  }
  find_local(op);
}

void StepReplay::find_local(const RecordedOp& op) {
  for (std::size_t k = 0; k < kMaxOutputs; ++k)
    if (op.outputs[k].is_floating()) local_[k] = error(op.outputs[k], models_.size() - 1);
}

void StepReplay::run_op(const RecordedOp& op) {
  const bool sums = sums_of(op.op) != Sums::none;
  if (!sums) simulate_others(op);
  if (writes_inputs(op)) {
    run_update(op);
    return;
  }
  ExactOp exact = exact_of(op, values_);
  const Outputs y = Operands::run(op, exact.x);
  for (std::size_t k = 0; k < kMaxOutputs; ++k) exact.y[k] = y[static_cast<int>(k)];
  std::array<std::vector<Tensor>, kMaxOutputs> errors;
  Tensor rows;
  for (std::size_t model = 0; model < models_.size(); ++model) {
    exact.error = errors_of_inputs(op, model);
    if (rounds_to_tf32(op)) round_errors(op, exact);
    const bool simulates = sums && models_[model].probable();
    if (model == 0 && !rounds_to_tf32(op)) read_rows(op, exact);
    Errors found = simulates ? simulated(exact, models_[model].lambda) : error_of(exact, models_[model]);
    if (model == 0) {
      if (const std::optional<RowErrors> of_rows = row_errors_of(exact)) {
        rows = of_rows->rows;
        found[0] = minimum(known_or_infinite(found[0]), of_rows->elements);
      }
    }
    exact.rows.clear();
    exact.columns.clear();
    for (std::size_t k = 0; k < kMaxOutputs; ++k) errors[k].push_back(found[k]);
  }
  for (std::size_t k = 0; k < kMaxOutputs; ++k) write(op.outputs[k], exact.y[k], errors[k], k == 0 ? rows : Tensor());
}

void StepReplay::run_quantizer_call(const RecordedOp& op) {
  for (RecordedNumbers& values : simulations_) {
    const auto y = run_quantizer(op, values.read(op.inputs[0]));
    for (std::size_t k = 0; k < kMaxOutputs; ++k) values.write(op.outputs[k], y[k]);
  }
  const Tensor x = values_.read(op.inputs[0]);
  const auto y = run_quantizer(op, x);
  std::array<std::vector<Tensor>, kMaxOutputs> errors;
  for (std::size_t model = 0; model < models_.size(); ++model) {
    auto found = quantizer_error(op, x, error(op.inputs[0], model), y);
    for (std::size_t k = 0; k < kMaxOutputs; ++k) {
      Tensor& e = found[k];
      if (e.defined() && models_[model].kind == ErrorKind::of_norms)
        e = full(e.sizes(), max(e).item(), {.dtype = DType::f64});
      errors[k].push_back(e);
    }
  }
  for (std::size_t k = 0; k < kMaxOutputs; ++k) write(op.outputs[k], y[k], errors[k]);
}

// The errors of operands that TF32 rounds.
void StepReplay::round_errors(const RecordedOp& op, ExactOp& exact) const {
  for (std::size_t i = 0; i < 2; ++i) {
    Tensor& e = exact.error[i];
    if (!e.defined()) continue;
    const Tensor x = values_.read(op.inputs[i]);
    const Tensor up = distance(rounded_to_tf32(add(x, e)), exact.x[i]);
    e = maximum(up, distance(rounded_to_tf32(sub(x, e)), exact.x[i]));
  }
}

// Ops that write several inputs.
void StepReplay::run_update(const RecordedOp& op) {
  ExactOp exact = exact_of(op, values_);
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
      errors[i][model] = exact.error[i];
      if (!op.inputs[i + 1].defined()) continue;
      const Tensor known = or_zeros(exact.error[i], after[i + 1]);
      errors[i + 1][model] = unscaled_error(known, after[i + 1], op.attrs.get<UnscaleAttrs>().inverse_scale);
    }
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].defined()) write(op.inputs[i], after[i], errors[i]);
}

}  // namespace gradual::lab
