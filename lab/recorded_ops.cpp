#include "recorded_ops.h"

#include <string>
#include <utility>

#include "../amp/rewrite.h"
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

void RecordedOps::start(RecordedOp& op, const Tensor& t) {
  if (!t.defined() || t.numel() == 0) return;
  const std::uint64_t id = amp::storage_id(t);
  const auto known = versions_.find(id);
  if (known != versions_.end() && known->second == version_of(t)) return;
  op.starts.emplace_back(id, inspect::f64_of(as_strided(t, {elements_of(t)}, {1}, 0)));
  versions_[id] = version_of(t);
}

void RecordedOps::before(const OpCall& call, const CallRecord& record) {
  if (op_info(call.op).kind == OpKind::Custom)
    throwf("{} in '{}': a user's function and a rewritten op have no bounds of rounding", called(call),
           record.context.module);
  const ParameterInputs parameters = parameter_inputs(call);
  if (parameters.count > 1)
    throwf("{}: updates {} parameters at once; record under UnfusedScope", called(call), parameters.count);
  RecordedOp op;
  op.op = call.op;
  op.attrs = *call.attrs;
  op.module = record.context.module;
  op.phase = record.context.phase;
  op.accumulator = current_accumulator();
  op.tf32 = modes().matmul_precision == MatmulPrecision::tf32;
  const inspect::Unseen unseen;
  for (int i = 0; i < call.inputs.size(); ++i) {
    start(op, call[i]);
    op.inputs.push_back(recorded(call[i]));
  }
  if (parameters.count == 1) op.parameter = names_.of(call[parameters.first]);
  ops_.push_back(std::move(op));
}

void RecordedOps::after(const OpCall& call, const gradual::Outputs& out, const CallRecord&) {
  const inspect::Unseen unseen;
  RecordedOp& op = ops_.back();
  for (int i = 0; i < kMaxOutputs; ++i) {
    op.outputs[static_cast<std::size_t>(i)] = recorded(out[i]);
    if (!out[i].defined() || out[i].numel() == 0) continue;
    versions_[amp::storage_id(out[i])] = version_of(out[i]);
    if (out[i].is_floating() && op_info(op.op).kind != OpKind::View)
      op.given[static_cast<std::size_t>(i)] = inspect::f64_of(out[i]);
  }
  for (int i = 0; i < call.inputs.size(); ++i)
    if (call[i].defined() && call[i].numel() > 0) versions_[amp::storage_id(call[i])] = version_of(call[i]);
  if (op.parameter.empty()) return;
  for (int i = 0; i < call.inputs.size(); ++i)
    op.inputs_after.push_back(call[i].defined() && call[i].is_floating() ? inspect::f64_of(call[i]) : Tensor());
}

void RecordedOps::quantized(const QuantizerCall&) {
  throw_error("quantised operands and results have no bounds of rounding yet; recipes without quantizers have");
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
