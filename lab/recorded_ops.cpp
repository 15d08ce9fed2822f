#include "recorded_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "../amp/rewrite.h"
#include "../core/ops/accumulator_of.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/f8_operands.h"
#include "../core/ops/ops.h"
#include "../core/ops/parameter_inputs.h"
#include "../core/support/throwf.h"
#include "../inspect/mirror.h"
#include "../inspect/numbers.h"

namespace gradual::lab {
namespace {

std::int64_t elements_of(const Tensor& t) {
  return static_cast<std::int64_t>(t.unsafe_impl()->storage->bytes / size_of(t.dtype()));
}

std::uint32_t version_of(const Tensor& t) { return t.unsafe_impl()->storage->version.load(); }

// The matrix of a Hadamard transform, a constant that no op makes: all its magnitudes are 1 / sqrt(n).
bool is_hadamard_matrix(const Tensor& t) {
  if (t.dim() != 2 || t.size(0) != t.size(1)) return false;
  if (std::ranges::find(kHadamardSizes, t.size(0)) == std::end(kHadamardSizes)) return false;
  const auto size = static_cast<float>(1 / std::sqrt(static_cast<double>(t.size(0))));
  return all(eq(abs(inspect::f64_of(t)), static_cast<double>(size))).item<bool>();
}

}  // namespace

std::int64_t RecordedTensor::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes) n *= size;
  return n;
}

RecordedTensor RecordedOps::recorded(const Tensor& t) {
  if (!t.defined() || t.numel() == 0) return {};
  return {.storage = amp::storage_id(t),
          .elements = elements_of(t),
          .sizes = t.sizes(),
          .strides = t.strides(),
          .offset = t.offset(),
          .dtype = t.dtype()};
}

bool RecordedOps::is_known(const Tensor& t) const {
  const auto known = versions_.find(amp::storage_id(t));
  return known != versions_.end() && known->second == version_of(t);
}

void RecordedOps::know(const Tensor& t) {
  if (t.defined() && t.numel() > 0) versions_[amp::storage_id(t)] = version_of(t);
}

RecordedOp RecordedOps::begun(const Context& where, Recorded kind, OpId op) const {
  RecordedOp begun;
  begun.kind = kind;
  begun.op = op;
  begun.inside = rewritten_ > 0;
  begun.module = where.module;
  begun.phase = where.phase;
  return begun;
}

void RecordedOps::start(RecordedOp& op, const Tensor& t) {
  if (!t.defined() || t.numel() == 0 || is_known(t)) return;
  if (op.inside && t.is_floating() && !is_hadamard_matrix(t))
    throwf("{} in '{}' under a quantiser computes with numbers of {} that no op gave: for these there are no bounds",
           to_string(op.op), op.module, to_string(t.sizes()));
  op.starts.emplace_back(amp::storage_id(t), inspect::f64_of(as_strided(t, {elements_of(t)}, {1}, 0)));
  know(t);
}

// Views read and write no numbers.
void RecordedOps::before(const OpCall& call, const CallRecord& record) {
  if (op_info(call.op).kind == OpKind::View) return;
  if (call.op == OpId::custom && !record.replaced)
    throwf("{} in '{}': a user's function has no bounds of rounding", called(call), record.context.module);
  if (call.attrs->is<F8Attrs>())
    throwf("{} in '{}' multiplies by f8 instructions, for which there are no bounds; without fast f8 it has",
           called(call), record.context.module);
  const ParameterInputs parameters = parameter_inputs(call);
  if (parameters.count > 1)
    throwf("{}: updates {} parameters at once; record under UnfusedScope", called(call), parameters.count);
  RecordedOp op = begun(record.context, record.replaced ? Recorded::rewritten_begins : Recorded::op, record.op);
  if (!record.replaced) op.attrs = *call.attrs;
  op.accumulator = accumulator_of(call.op);
  op.tf32 = modes().matmul_precision == MatmulPrecision::tf32;
  const inspect::Unseen unseen;
  for (int i = 0; i < call.inputs.size(); ++i) {
    start(op, call[i]);
    op.inputs.push_back(recorded(call[i]));
  }
  if (parameters.count == 1) op.parameter = names_.of(call[parameters.first]);
  if (record.replaced) ++rewritten_;
  running_.push_back(ops_.size());
  ops_.push_back(std::move(op));
}

void RecordedOps::after(const OpCall& call, const gradual::Outputs& out, const CallRecord& record) {
  if (op_info(call.op).kind == OpKind::View) return;
  const inspect::Unseen unseen;
  const std::size_t at = running_.back();
  running_.pop_back();
  if (record.replaced) {
    --rewritten_;
    ops_.push_back(begun(record.context, Recorded::rewritten_ends, record.op));
  }
  RecordedOp& op = record.replaced ? ops_.back() : ops_[at];
  for (int i = 0; i < kMaxOutputs; ++i) {
    op.outputs[static_cast<std::size_t>(i)] = recorded(out[i]);
    if (!out[i].defined() || out[i].numel() == 0) continue;
    know(out[i]);
    if (out[i].is_floating()) op.given[static_cast<std::size_t>(i)] = inspect::f64_of(out[i]);
  }
  for (int i = 0; i < call.inputs.size(); ++i) know(call[i]);
  if (op.parameter.empty()) return;
  for (int i = 0; i < call.inputs.size(); ++i)
    op.inputs_after.push_back(call[i].defined() && call[i].is_floating() ? inspect::f64_of(call[i]) : Tensor());
}

// Codes without a scale of their own are numbers that were rounded before, so that nothing is lost.
void RecordedOps::decoded(const QuantizerCall& call) {
  const auto found = codes_.find(amp::storage_id(call.from));
  if (found == codes_.end()) return;  // of an earlier step: their numbers are known when an op first reads them
  RecordedOp op = begun(context(), Recorded::op, OpId::clone);
  op.inside = true;  // of the products that read them
  if (!found->second.defined())
    throwf("quantised numbers in '{}' are kept as codes and read again in the same step: these have no bounds",
           op.module);
  op.inputs = {found->second};
  op.outputs[0] = recorded(call.to);
  op.given[0] = inspect::f64_of(call.to);
  know(call.to);
  ops_.push_back(std::move(op));
}

void RecordedOps::quantized(const QuantizerCall& call) {
  const inspect::Unseen unseen;
  if (call.kind == QuantizerCall::decode) {
    decoded(call);
    return;
  }
  if (call.kind == QuantizerCall::encode) {
    const bool exact = is_any<NoScale>(call.quantizer->scaling) && is_known(call.from);
    codes_[amp::storage_id(call.to)] = exact ? recorded(call.from) : RecordedTensor();
    return;
  }
  RecordedOp op = begun(context(), Recorded::quantizer, OpId::custom);
  op.quantizer = {*call.quantizer, call.axis, call.circumstances};
  Scaling& scaling = op.quantizer->quantizer.scaling;
  const bool delayed = is_any<DelayedScale>(scaling);
  if (delayed && call.circumstances.factor == 0)
    throw_error("delayed scales have bounds of rounding on the CPU only, where they are known");
  if (delayed) scaling = FixedScale{.value = call.circumstances.factor, .product = product_of(scaling)};
  start(op, call.from);
  op.inputs.push_back(recorded(call.from));
  op.outputs = {recorded(call.to), recorded(call.scale), RecordedTensor()};
  op.given = {inspect::f64_of(call.to), inspect::f64_of(call.scale), Tensor()};
  know(call.to);
  know(call.scale);
  ops_.push_back(std::move(op));
}

void RecordedNumbers::start(const RecordedOp& op) {
  for (const auto& [id, numbers] : op.starts) storages_[id] = numbers.clone();
}

void RecordedNumbers::forget(const RecordedOp& op) {
  for (const auto& start : op.starts) storages_.erase(start.first);
}

Tensor RecordedNumbers::read(const RecordedTensor& t) const {
  if (!t.defined()) return {};
  const auto found = storages_.find(t.storage);
  if (found == storages_.end()) return zeros(t.sizes, {.dtype = t.is_floating() ? DType::f64 : t.dtype});
  return contiguous(as_strided(found->second, t.sizes, t.strides, t.offset)).clone();
}

void RecordedNumbers::write(const RecordedTensor& t, const Tensor& numbers) {
  if (!t.defined()) return;
  Tensor& all = storages_[t.storage];
  if (!all.defined() || all.numel() != t.elements)
    all = zeros({t.elements}, {.dtype = t.is_floating() ? DType::f64 : t.dtype});
  as_strided(all, t.sizes, t.strides, t.offset).copy_(numbers);
}

}  // namespace gradual::lab
