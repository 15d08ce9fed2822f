#include "ordered_op.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../core/ops/compute_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../inspect/numbers.h"
#include "ordered_kernels.h"
#include "quantizer_bounds.h"
#include "random_order.h"
#include "softmax_rows.h"
#include "step_replay.h"
#include "tolerance_bounds.h"

namespace gradual::lab {
namespace {

// A dim of an input or output, counted from the front, or from the back if it is negative.
struct Place {
  int tensor = -1;
  int dim = 0;
};

// Terms that can be exchanged: the same order along all dims of `inputs`, and back along those of `outputs`.
struct Exchange {
  OpId op;
  Place inputs[4];
  Place outputs[3];
};
constexpr Exchange kExchanges[] = {
    {OpId::matmul, {{0, -1}, {1, -2}}, {}},
    {OpId::linear, {{0, -1}, {1, -1}}, {}},
    {OpId::linear_backward_weight, {{0, 0}, {1, 0}}, {}},
    {OpId::conv2d, {{0, 1}, {1, 1}}, {}},
    {OpId::conv2d_backward_input, {{0, 1}, {1, 0}}, {}},
    {OpId::conv2d_backward_weight, {{0, 0}, {1, 0}}, {}},
    {OpId::softmax, {{0, -1}}, {{0, -1}}},
    {OpId::softmax_backward, {{0, -1}, {1, -1}}, {{0, -1}}},
    {OpId::log_softmax, {{0, -1}}, {{0, -1}}},
    {OpId::log_softmax_backward, {{0, -1}, {1, -1}}, {{0, -1}}},
    {OpId::cross_entropy, {{0, 0}, {1, 0}}, {{1, 0}}},
    {OpId::layer_norm, {{0, -1}, {1, -1}, {2, -1}}, {{0, -1}}},
    {OpId::layer_norm_backward, {{0, -1}, {1, -1}, {2, -1}}, {{0, -1}, {1, -1}, {2, -1}}},
    {OpId::layer_norm_backward, {{0, 0}, {1, 0}, {3, 0}, {4, 0}}, {{0, 0}}},
    {OpId::rms_norm, {{0, -1}, {1, -1}}, {{0, -1}}},
    {OpId::rms_norm_backward, {{0, -1}, {1, -1}, {2, -1}}, {{0, -1}, {1, -1}}},
    {OpId::batch_norm, {{0, 0}}, {{0, 0}}},
    {OpId::batch_norm_backward, {{0, 0}, {1, 0}}, {{0, 0}}},
    {OpId::flash_attention, {{0, -1}, {1, -1}}, {}},
    {OpId::flash_attention_backward, {{1, -1}, {2, -1}}, {{0, -1}, {1, -1}}},
    {OpId::index_add, {{0, 0}, {1, 0}}, {}},
};

int counted(int dim, int dims) { return dim < 0 ? dim + dims : dim; }

// The length of the dims that are exchanged; 0: they cannot be.
std::int64_t length_of(const Exchange& e, const std::vector<Tensor>& inputs) {
  std::int64_t length = 0;
  for (const Place& p : e.inputs) {
    if (p.tensor < 0 || static_cast<std::size_t>(p.tensor) >= inputs.size()) continue;
    const Tensor& t = inputs[static_cast<std::size_t>(p.tensor)];
    if (!t.defined()) continue;
    const int dim = counted(p.dim, t.dim());
    if (dim < 0 || dim >= t.dim()) return 0;
    if (length != 0 && t.size(dim) != length) return 0;
    length = t.size(dim);
  }
  return length;
}

// Whether this call's terms can be exchanged so.
bool allows(const RecordedOp& op, const Exchange& e) {
  const bool softmax = op.op == OpId::softmax || op.op == OpId::softmax_backward || op.op == OpId::log_softmax ||
                       op.op == OpId::log_softmax_backward;
  if (softmax) return !op.attrs.get<DimAttrs>().causal && is_along_last(op);
  const bool conv = op.op == OpId::conv2d || op.op == OpId::conv2d_backward_input;
  if (conv) return op.attrs.get<ConvAttrs>().groups == 1;
  if (op.op == OpId::batch_norm || op.op == OpId::batch_norm_backward) return op.attrs.get<NormAttrs>().training;
  if (op.op == OpId::cross_entropy) return op.inputs[0].sizes.size() == 2;
  if (op.op == OpId::index_add) return op.attrs.get<IndexAttrs>().dim == 0;
  const bool norm = op_info(op.op).kind == OpKind::Normalization;
  if (norm) return op.attrs.get<NormAttrs>().dims == 1 && op.inputs[0].sizes.size() > (e.inputs[0].dim == 0 ? 1 : 0);
  if (op.op == OpId::flash_attention || op.op == OpId::flash_attention_backward)
    return op.attrs.get<AttentionAttrs>().scale != 0 || e.inputs[0].dim == -1;
  return true;
}

void exchange(std::vector<Tensor>& inputs, const Exchange& e, const Tensor& order) {
  for (const Place& p : e.inputs) {
    if (p.tensor < 0 || static_cast<std::size_t>(p.tensor) >= inputs.size()) continue;
    Tensor& t = inputs[static_cast<std::size_t>(p.tensor)];
    if (t.defined()) t = index_select(t, counted(p.dim, t.dim()), order);
  }
}

Outputs run_as_is(const RecordedOp& op, const std::vector<Tensor>& inputs) {
  const AccumulatorScope accumulator(op.accumulator);
  const MatmulPrecisionScope precision(op.tf32 ? MatmulPrecision::tf32 : MatmulPrecision::f32);
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  return dispatch(op.op, TensorRefs(refs.data(), static_cast<int>(refs.size())), op.attrs, {});
}

// Operands of products in TF32 have 10 bits behind the point.
std::vector<Tensor> in_f32(const RecordedOp& op, const std::vector<Tensor>& inputs) {
  const bool tf32 = rounds_to_tf32(op);
  std::vector<Tensor> wide;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    const bool floating = t.defined() && t.is_floating();
    wide.push_back(floating ? cast(tf32 && i < 2 ? rounded_to_tf32(cast(t, DType::f64)) : t, DType::f32) : t);
  }
  return wide;
}

bool is_f64(const RecordedTensor& t) { return t.defined() && t.dtype == DType::f64; }

// Whether its sums are in f32.
bool adds_in_f32(const RecordedOp& op) { return !op.accumulator && std::ranges::none_of(op.inputs, is_f64); }

std::vector<Tensor> in_dtypes(const RecordedOp& op, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    all.push_back(op.inputs[i].is_floating() ? cast(inputs[i], op.inputs[i].dtype).clone() : inputs[i]);
  return all;
}

Tensor in_f64(const Tensor& t) { return t.defined() && t.is_floating() ? cast(t, DType::f64) : t; }

Outputs in_f64(Outputs out) {
  for (Tensor& t : out.values) t = in_f64(t);
  return out;
}

// The terms exchanged, and added up by Gradual's own kernel.
Outputs run_exchanged(const RecordedOp& op, std::vector<Tensor> inputs, std::mt19937_64& random) {
  if (op.op == OpId::sum || op.op == OpId::mean) {
    const auto& a = op.attrs.get<ReduceAttrs>();
    for (int d = 0; d < inputs[0].dim(); ++d)
      if (a.dims >> d & 1) inputs[0] = index_select(inputs[0], d, random_order(inputs[0].size(d), random));
    return run_as_is(op, inputs);
  }
  std::vector<std::pair<const Exchange*, Tensor>> back;
  for (const Exchange& e : kExchanges) {
    if (e.op != op.op || !allows(op, e)) continue;
    const std::int64_t length = length_of(e, inputs);
    if (length < 2) continue;
    const Tensor order = random_order(length, random);
    exchange(inputs, e, order);
    back.emplace_back(&e, inverse_order(order));
  }
  Outputs out = run_as_is(op, inputs);
  for (const auto& [e, order] : back)
    for (const Place& p : e->outputs)
      if (p.tensor >= 0 && out[p.tensor].defined() && out[p.tensor].numel() > 0)
        out[p.tensor] = index_select(out[p.tensor], counted(p.dim, out[p.tensor].dim()), order);
  return out;
}

// Ops that only move numbers, or compare them, round nothing.
bool is_exact(const RecordedOp& op) {
  const OpKind kind = op_info(op.op).kind;
  return kind == OpKind::Movement || kind == OpKind::Comparison;
}

}  // namespace

std::optional<Outputs> run_unrounded(const RecordedOp& op, const std::vector<Tensor>& inputs, const SumDraws& draws) {
  if (!adds_in_f32(op)) return in_f64(run_exchanged(op, in_dtypes(op, inputs), draws.random));
  const std::vector<Tensor> wide = in_f32(op, inputs);
  if (const std::optional<Outputs> out = run_in_order(op, wide, draws)) return in_f64(*out);
  if (is_exact(op)) return {};
  return in_f64(run_exchanged(op, wide, draws.random));
}

std::vector<Tensor> run_in_place(const RecordedOp& op, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all = in_dtypes(op, inputs);
  run_as_is(op, all);
  for (Tensor& t : all) t = in_f64(t);
  return all;
}

Outputs OrderedStep::run_op(const RecordedOp& op, const std::vector<Tensor>& inputs) {
  if (adds_in_f32(op))
    if (const std::optional<Outputs> out = run_in_order(op, in_f32(op, inputs), {random_, options_})) return *out;
  return run_exchanged(op, in_dtypes(op, inputs), random_);
}

void OrderedStep::run(const RecordedOp& op) {
  const inspect::Unseen unseen;
  values_.start(op);
  if (op.kind == Recorded::quantizer) {
    const auto y = run_quantizer(op, values_.read(op.inputs[0]));
    for (std::size_t k = 0; k < kMaxOutputs; ++k) values_.write(op.outputs[k], y[k]);
  }
  if (op.kind != Recorded::op) return;
  std::vector<Tensor> inputs;
  for (const RecordedTensor& t : op.inputs) inputs.push_back(values_.read(t));
  if (op_info(op.op).kind == OpKind::InPlace) {
    const std::vector<Tensor> after = run_in_place(op, inputs);
    for (std::size_t i = 0; i < after.size(); ++i)
      if (after[i].defined()) values_.write(op.inputs[i], after[i]);
    return;
  }
  const Outputs out = run_op(op, inputs);
  for (std::size_t k = 0; k < kMaxOutputs; ++k) {
    const Tensor& t = out[static_cast<int>(k)];
    if (!op.outputs[k].defined()) continue;
    values_.write(op.outputs[k], t.is_floating() ? cast(cast(t, op.outputs[k].dtype), DType::f64) : t);
  }
}

}  // namespace gradual::lab
