#include "f32_ops.h"

#include "../amp/rewrite.h"
#include "../core/ops/call_cause.h"
#include "../core/ops/ops.h"

namespace gradual::inspect {
namespace {

// The call with its inputs, each replaced by f(input).
template <class F> Outputs call_with(const OpCall& call, const F& f, Interceptor* below) {
  std::vector<Tensor> inputs;
  {
    const CauseScope scope(CauseKind::autocast, "intervention: ops in f32");
    for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(call[i].defined() ? f(call[i]) : call[i]);
  }
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  OpCall changed = call;
  changed.inputs = TensorRefs(refs.data(), call.inputs.size());
  return below ? below->call(changed) : next_below_amp(changed);
}

}  // namespace

bool computes(OpId op) {
  switch (op_info(op).kind) {
    case OpKind::Elementwise:
    case OpKind::Transcendental:
    case OpKind::Reduction:
    case OpKind::Contraction:
    case OpKind::Pooling:
    case OpKind::Normalization:
    case OpKind::Loss:
    case OpKind::Random:
    case OpKind::Composite: return op != OpId::cast;
    default: return false;
  }
}

std::shared_ptr<amp::OutsideAmp> F32Ops::over(std::shared_ptr<Interceptor> region) const {
  return std::shared_ptr<F32Ops>(new F32Ops(std::move(region), state_));
}

// The half dtype that the result would have; f32: none.
DType F32Ops::half_of(const OpCall& call) const {
  const amp::CastPolicy* const policy = policy_of(call.op);
  const bool lowers = policy && policy->kind == amp::PolicyKind::lower;
  const bool follows = !policy || policy->kind == amp::PolicyKind::pass || policy->kind == amp::PolicyKind::promote;
  if (!lowers && !follows) return DType::f32;
  DType half = DType::f32;
  for (int i = 0; i < call.inputs.size(); ++i) {
    if (!call[i].defined() || !amp::castable(call[i].dtype())) continue;
    DType dtype = lowers ? operand_dtype(call.op, call[i]) : call[i].dtype();
    if (!is_half(dtype)) dtype = made_for(call[i]);
    if (!is_half(dtype)) return DType::f32;
    half = dtype;
  }
  return half;
}

void F32Ops::note(const Outputs& out, DType half) {
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i)
    if (out[i].dtype() == DType::f32) state_->made[amp::storage_id(out[i])] = half;
}

Outputs F32Ops::in_f32(const OpCall& call, DType half) {
  const auto widened = [&](const Tensor& t) { return is_half(t.dtype()) ? cast(t, DType::f32, call.where) : t; };
  Outputs out = call_with(call, widened, nullptr);
  note(out, half);
  return out;
}

// The half dtype that an f32 result would have; f32: it is none.
DType F32Ops::made_for(const Tensor& t) const {
  if (!t.defined() || t.dtype() != DType::f32) return DType::f32;
  const auto made = state_->made.find(amp::storage_id(t));
  return made == state_->made.end() ? DType::f32 : made->second;
}

Outputs F32Ops::as_it_is(const OpCall& call) {
  DType half = DType::f32;
  for (int i = 0; i < call.inputs.size() && !is_half(half); ++i) half = made_for(call[i]);
  if (is_half(half) && computes(call.op)) {
    const auto narrowed = [&](const Tensor& t) {
      const DType dtype = made_for(t);
      return is_half(dtype) ? cast(t, dtype, call.where) : t;
    };
    return call_with(call, narrowed, amp.get());
  }
  Outputs out = amp ? amp->call(call) : next_below_amp(call);
  // What moves the numbers of such a result gives one, too.
  if (is_half(half) && call.op != OpId::cast) note(out, half);
  return out;
}

Outputs F32Ops::call(const OpCall& call) {
  if (context().phase != Phase::forward) return amp ? amp->call(call) : next_below_amp(call);
  const DType half = computes(call.op) ? half_of(call) : DType::f32;
  return is_half(half) && state_->wanted(call) ? in_f32(call, half) : as_it_is(call);
}

}  // namespace gradual::inspect
