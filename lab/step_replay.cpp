#include "step_replay.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../inspect/mirror.h"
#include "../inspect/numbers.h"
#include "judge_bounds.h"
#include "ordered_op.h"
#include "quantizer_bounds.h"
#include "tolerance_rules.h"

namespace gradual::lab {
namespace {

// Errors are floats, also those of indices and masks.
RecordedTensor as_error(RecordedTensor t) {
  t.dtype = DType::f64;
  return t;
}

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
  // A product and the sum that takes it may each be zero instead of a number below the normal ones.
  if (a.adds == GroupSum::pairwise) units.least = std::max(units.least, 2 * a.format.min_normal());
  if (a.product) {
    units.sum = std::max(units.sum, std::ldexp(0.5, -a.product->mantissa_bits));
    units.least = std::max(units.least, a.product->min_positive());
  }
  return units;
}

// The most roundings for each product of a group (core/formats/accumulator.h), which may be a group of its own: it is
// cut, the sum so far is cut, their sum is rounded. Late sums are cut more often, which is less than one rounding more.
// Pairwise ones round as sums without groups do: each product and each addition.
struct GroupRoundings {
  GroupSum adds;
  double count;
};
constexpr GroupRoundings kGroupRoundings[] = {
    {GroupSum::aligned, 3}, {GroupSum::exact, 1},         {GroupSum::pairwise, 1},
    {GroupSum::late, 4},    {GroupSum::late_even_odd, 4},
};

void count_roundings(ExactOp& exact) {
  const std::optional<Accumulator>& a = exact.op.accumulator;
  if (!a) return;
  if (a->product) exact.roundings_per_product = 2;
  if (a->group == 0) return;
  const auto* const known = std::ranges::find(kGroupRoundings, a->adds, &GroupRoundings::adds);
  if (known == std::end(kGroupRoundings)) throwf("sums of groups in {} have no bound of rounding", to_string(*a));
  exact.roundings_per_addition = known->count;
  exact.roundings_per_product = known->count;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor known_or_infinite(const Tensor& e) { return where(isnan(e), kInfinity, e); }

// Whether what it reads or writes has few bits.
bool is_narrow(const RecordedOp& op) {
  const auto narrow = [](const RecordedTensor& t) { return t.is_floating() && size_of(t.dtype) < size_of(DType::f32); };
  return std::ranges::any_of(op.inputs, narrow) || std::ranges::any_of(op.outputs, narrow);
}

// Whether an element moves by no more than the rules say of the elements that it is made of: movements, functions of an
// element, dropout, max pools. Not if it jumps with another number, or adds up many.
bool carries_elements(const RecordedOp& op) {
  if (op.op == OpId::relu_backward || op.op == OpId::where || op.op == OpId::index_add || op.op == OpId::scatter_add)
    return false;
  if (op.op == OpId::max_pool2d) return true;
  const OpKind kind = op_info(op.op).kind;
  return kind == OpKind::Movement || kind == OpKind::Elementwise || kind == OpKind::Transcendental ||
         kind == OpKind::Random;
}

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

bool rounds_to_tf32(const RecordedOp& op) {
  return op.tf32 && roundings_of(op) > 0 && op.inputs[0].dtype == DType::f32;
}

Tensor rounded_to_tf32(const Tensor& t) {
  const Tensor f32 = cast(t, DType::f32).contiguous().clone();
  for (float& x : std::span(f32.data<float>(), static_cast<std::size_t>(f32.numel()))) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    constexpr std::uint32_t kExponent = 0x7f800000;
    if ((bits & kExponent) == kExponent) continue;
    bits += 0xfff + (bits >> 13 & 1);
    x = std::bit_cast<float>(bits & ~std::uint32_t{0x1fff});
  }
  return cast(f32, DType::f64);
}

Tensor StepReplay::error_at(const RecordedTensor& t, std::size_t kind) const { return errors_[kind].read(as_error(t)); }

Tensor StepReplay::error(const RecordedTensor& t, ErrorKind kind) const {
  return error_at(t, static_cast<std::size_t>(std::ranges::find(kinds_, kind) - kinds_.begin()));
}

std::vector<Tensor> StepReplay::errors_of_inputs(const RecordedOp& op, std::size_t kind) const {
  std::vector<Tensor> errors;
  for (const RecordedTensor& t : op.inputs)
    errors.push_back(t.defined() && errors_[kind].knows(t) ? error_at(t, kind) : Tensor());
  return errors;
}

StepReplay::StepReplay(const std::vector<ErrorKind>& kinds, double factor) : kinds_(kinds), factor_(factor) {
  kinds_.push_back(ErrorKind::always);
  errors_.resize(kinds_.size());
  if (std::ranges::find(kinds, ErrorKind::likely) != kinds.end()) simulations_.resize(kSimulations);
}

ExactOp StepReplay::exact_of(const RecordedOp& op, const RecordedNumbers& values) const {
  ExactOp exact{.op = op, .units = units_of(op)};
  for (const RecordedTensor& t : op.inputs) exact.x.push_back(values.read(t));
  count_roundings(exact);
  if (!rounds_to_tf32(op)) return exact;
  for (std::size_t i = 0; i < 2; ++i) exact.x[i] = rounded_to_tf32(exact.x[i]);
  return exact;
}

// A number of few bits that rounds otherwise moves an element far, and seldom. Behind it simulations know the elements
// that they moved; the rules know all of them.
StepReplay::Errors StepReplay::likely_of(const ExactOp& exact) {
  Errors found = simulated(exact);
  if (!is_narrow(exact.op) || !carries_elements(exact.op)) return found;
  const Errors carried = error_of(exact, ErrorKind::likely);
  for (std::size_t k = 0; k < kMaxOutputs; ++k)
    if (found[k].defined() && carried[k].defined()) found[k] = maximum(found[k], known_or_infinite(carried[k]));
  return found;
}

// What an implementation loses whose sums have their terms in a random order, one by one. Undefined: nothing.
StepReplay::Errors StepReplay::losses(const ExactOp& here, const Outputs& y) {
  const SumDraws draws{random_, {.parts = 1, .tree = TreeKind::one_by_one, .own_order = false}};
  const std::optional<Outputs> other = run_unrounded(here.op, here.x, draws);
  Errors all;
  if (!other) return all;
  for (std::size_t k = 0; k < kMaxOutputs; ++k) {
    const Tensor& z = (*other)[static_cast<int>(k)];
    if (!here.op.outputs[k].is_floating()) continue;
    const Tensor lost = sub(reshape(z, here.op.outputs[k].sizes), y[static_cast<int>(k)]);
    all[k] = where(isfinite(lost), lost, 0);
  }
  return all;
}

// A number of few bits that rounds otherwise moves an element far, and seldom: the runs show it in some elements only.
// So all elements have the largest error of the tensor.
Tensor StepReplay::likely(const Tensor& squares) const {
  if (squares.numel() == 0) return squares;
  return full(squares.sizes(), std::sqrt(max(squares).item() / kSimulations) * factor_, {.dtype = DType::f64});
}

StepReplay::Errors StepReplay::simulated(const ExactOp& exact) {
  const RecordedOp& op = exact.op;
  Errors squares;
  for (RecordedNumbers& values : simulations_) {
    const ExactOp here = exact_of(op, values);
    const Outputs y = Operands::run(op, here.x);
    const Errors lost = losses(here, y);
    const double size = kRoundingsOfOthers * random_sign();
    for (std::size_t k = 0; k < kMaxOutputs; ++k) {
      if (!op.outputs[k].defined()) continue;
      Tensor z = y[static_cast<int>(k)];
      if (lost[k].defined()) z = add(z, mul(lost[k], size));
      values.write(op.outputs[k], rounded(z, op.outputs[k].dtype));
      if (!z.is_floating()) continue;
      const Tensor square_of = square(distance(z, exact.y[k]));
      squares[k] = squares[k].defined() ? add(squares[k], square_of) : square_of;
    }
  }
  Errors errors;
  for (std::size_t k = 0; k < kMaxOutputs; ++k)
    if (squares[k].defined()) errors[k] = likely(squares[k]);
  return errors;
}

// The same of the inputs of an op that writes them. Those of few bits lose no more than the rounding to their dtype.
std::vector<Tensor> StepReplay::simulated_in_place(const RecordedOp& op, const std::vector<Tensor>& exact_after) {
  std::vector<Tensor> squares(op.inputs.size());
  for (RecordedNumbers& values : simulations_) {
    const ExactOp here = exact_of(op, values);
    const std::vector<Tensor> rounded_after = run_in_place(op, here.x);
    run_in_f64(op, here.x);
    const double size = kRoundingsOfOthers * random_sign();
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      Tensor z = here.x[i];
      if (!z.defined()) continue;
      const DType dtype = op.inputs[i].dtype;
      if (dtype == DType::f32) z = add(z, mul(sub(rounded_after[i], z), size));
      values.write(op.inputs[i], rounded(z, dtype));
      if (!z.is_floating()) continue;
      const Tensor square_of = square(distance(z, exact_after[i]));
      squares[i] = squares[i].defined() ? add(squares[i], square_of) : square_of;
    }
  }
  for (Tensor& t : squares)
    if (t.defined()) t = likely(t);
  return squares;
}

void StepReplay::write(const RecordedTensor& t, const Tensor& exact, const std::vector<Tensor>& errors,
                       const Tensor& rows) {
  if (!t.defined()) return;
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    const Tensor& e = errors[kind];
    const Tensor known = e.defined() ? e : zeros(t.sizes, {.dtype = DType::f64});
    const Tensor stored = t.is_floating() ? through_rounding(exact, known, t.dtype) : known;
    errors_[kind].write(as_error(t), stored);
    if (kind == 0) rows_.write(t, rows_through_rounding(exact, known, stored, rows, t.dtype));
  }
  values_.write(t, rounded(exact, t.dtype));
}

void StepReplay::read_rows(const RecordedOp& op, ExactOp& exact) const {
  exact.rows.assign(op.inputs.size(), Tensor());
  exact.columns.assign(op.inputs.size(), Tensor());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.inputs[i].is_floating()) continue;
    const Tensor e = error_at(op.inputs[i], 0);
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
    if (op.outputs[k].is_floating()) local_[k] = error_at(op.outputs[k], kinds_.size() - 1);
}

void StepReplay::run_op(const RecordedOp& op) {
  if (writes_inputs(op)) {
    run_update(op);
    return;
  }
  ExactOp exact = exact_of(op, values_);
  const Outputs y = Operands::run(op, exact.x);
  for (std::size_t k = 0; k < kMaxOutputs; ++k) exact.y[k] = y[static_cast<int>(k)];
  std::array<std::vector<Tensor>, kMaxOutputs> errors;
  Tensor rows;
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    exact.error = errors_of_inputs(op, kind);
    if (rounds_to_tf32(op)) round_errors(op, exact);
    if (kind == 0 && !rounds_to_tf32(op)) read_rows(op, exact);
    Errors found = kinds_[kind] == ErrorKind::likely ? likely_of(exact) : error_of(exact, kinds_[kind]);
    if (kind == 0) {
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
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    auto found = quantizer_error(op, x, error_at(op.inputs[0], kind), y);
    for (std::size_t k = 0; k < kMaxOutputs; ++k) {
      Tensor& e = found[k];
      if (e.defined() && kinds_[kind] == ErrorKind::of_norms) e = full(e.sizes(), max(e).item(), {.dtype = DType::f64});
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
  std::vector<std::vector<Tensor>> errors(op.inputs.size(), std::vector<Tensor>(kinds_.size()));
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    if (kinds_[kind] == ErrorKind::likely) {
      const std::vector<Tensor> found = simulated_in_place(op, after);
      for (std::size_t i = 0; i < found.size(); ++i) errors[i][kind] = found[i];
      continue;
    }
    exact.error = errors_of_inputs(op, kind);
    if (of_parameter) {
      const Tensor found = error_of(exact, kinds_[kind])[0];
      errors[inspect::kWeight][kind] = found;
      errors[inspect::kMaster][kind] = found;
      errors[inspect::kGradient][kind] = exact.error[inspect::kGradient];
    }
    for (std::size_t i = 1; op.op == OpId::unscale_ && i + 1 < op.inputs.size(); i += 2) {
      errors[i][kind] = exact.error[i];
      if (!op.inputs[i + 1].defined()) continue;
      const Tensor known = or_zeros(exact.error[i], after[i + 1]);
      errors[i + 1][kind] = unscaled_error(known, after[i + 1], op.attrs.get<UnscaleAttrs>().inverse_scale);
    }
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i].defined()) write(op.inputs[i], after[i], errors[i]);
}

}  // namespace gradual::lab
