#include "ordered_op.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/ops/compute_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../inspect/numbers.h"
#include "quantizer_bounds.h"
#include "random_order.h"

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
  bool of_products = false;
};
constexpr Exchange kExchanges[] = {
    {OpId::matmul, {{0, -1}, {1, -2}}, {}, true},
    {OpId::linear, {{0, -1}, {1, -1}}, {}, true},
    {OpId::linear_backward_weight, {{0, 0}, {1, 0}}, {}, true},
    {OpId::conv2d, {{0, 1}, {1, 1}}, {}, true},
    {OpId::conv2d_backward_input, {{0, 1}, {1, 0}}, {}, true},
    {OpId::conv2d_backward_weight, {{0, 0}, {1, 0}}, {}, true},
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
  if (softmax) {
    const auto& a = op.attrs.get<DimAttrs>();
    return !a.causal && a.dim == op.inputs[0].sizes.size() - 1;
  }
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

const Exchange* products_of(OpId op) {
  const auto found = std::ranges::find_if(kExchanges, [op](const Exchange& e) { return e.op == op && e.of_products; });
  return found == std::end(kExchanges) ? nullptr : &*found;
}

Tensor in_f32(const Tensor& t) {
  const bool narrow = t.defined() && t.is_floating() && size_of(t.dtype()) < size_of(DType::f32);
  return narrow ? cast(t, DType::f32) : t;
}

Tensor part_of(const Tensor& t, int dim, std::int64_t start, std::int64_t stop) {
  return contiguous(narrow(t, counted(dim, t.dim()), start, stop - start));
}

}  // namespace

// Products of narrow numbers are exact in f32, in which they add up.
Outputs OrderedStep::run_products(const RecordedOp& op, std::vector<Tensor> inputs) {
  const Exchange& e = *products_of(op.op);
  const std::int64_t length = allows(op, e) ? length_of(e, inputs) : 0;
  if (length < 2) return run_as_is(op, inputs);
  const DType dtype = op.outputs[0].dtype;
  exchange(inputs, e, random_order(length, random_));
  if (op.accumulator) return run_as_is(op, inputs);
  for (Tensor& t : inputs) t = in_f32(t);
  const std::int64_t wanted = parts_ > 0 ? parts_ : std::int64_t{1} << random_() % 4;
  const std::int64_t parts = std::min(wanted, length);
  Tensor bias;
  if (inputs.size() > 2) bias = std::exchange(inputs[2], Tensor());
  Outputs all;
  for (std::int64_t p = 0; p < parts; ++p) {
    std::vector<Tensor> part = inputs;
    for (const Place& place : e.inputs) {
      if (place.tensor < 0) continue;
      Tensor& t = part[static_cast<std::size_t>(place.tensor)];
      t = part_of(t, place.dim, length * p / parts, length * (p + 1) / parts);
    }
    const Outputs sums = run_as_is(op, part);
    for (int k = 0; k < kMaxOutputs; ++k)
      if (sums[k].defined()) all[k] = all[k].defined() ? add(all[k], sums[k]) : sums[k];
  }
  if (bias.defined()) {
    const bool images = op.op == OpId::conv2d;
    all[0] = add(all[0], images ? reshape(bias, {1, bias.numel(), 1, 1}) : bias);
  }
  for (int k = 0; k < kMaxOutputs; ++k)
    if (all[k].defined())
      all[k] =
          cast(all[k], op.outputs[static_cast<std::size_t>(k)].defined() ? op.outputs[static_cast<std::size_t>(k)].dtype
                                                                         : dtype);
  return all;
}

Outputs OrderedStep::run_exchanged(const RecordedOp& op, std::vector<Tensor> inputs) {
  if (op.op == OpId::sum || op.op == OpId::mean) {
    const auto& a = op.attrs.get<ReduceAttrs>();
    for (int d = 0; d < inputs[0].dim(); ++d)
      if (a.dims >> d & 1) inputs[0] = index_select(inputs[0], d, random_order(inputs[0].size(d), random_));
    return run_as_is(op, inputs);
  }
  std::vector<std::pair<const Exchange*, Tensor>> back;
  for (const Exchange& e : kExchanges) {
    if (e.op != op.op || !allows(op, e)) continue;
    const std::int64_t length = length_of(e, inputs);
    if (length < 2) continue;
    const Tensor order = random_order(length, random_);
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

void OrderedStep::run(const RecordedOp& op) {
  const inspect::Unseen unseen;
  values_.start(op);
  if (op.kind == Recorded::quantizer) {
    const auto y = run_quantizer(op, values_.read(op.inputs[0]));
    for (std::size_t k = 0; k < kMaxOutputs; ++k) values_.write(op.outputs[k], y[k]);
  }
  if (op.kind != Recorded::op) return;
  std::vector<Tensor> inputs;
  for (const RecordedTensor& t : op.inputs) {
    const Tensor numbers = values_.read(t);
    inputs.push_back(t.is_floating() ? cast(numbers, t.dtype) : numbers);
  }
  const Outputs out = products_of(op.op) ? run_products(op, inputs) : run_exchanged(op, inputs);
  const auto in_f64 = [](const Tensor& t) { return t.is_floating() ? cast(t, DType::f64) : t; };
  if (op_info(op.op).kind == OpKind::InPlace) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) values_.write(op.inputs[i], in_f64(inputs[i]));
    return;
  }
  for (std::size_t k = 0; k < kMaxOutputs; ++k)
    if (op.outputs[k].defined()) values_.write(op.outputs[k], in_f64(out[static_cast<int>(k)]));
}

}  // namespace gradual::lab
