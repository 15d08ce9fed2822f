#include "f32_ops.h"

#include <algorithm>
#include <optional>

#include "../amp/rewrite.h"
#include "../core/ops/call_cause.h"
#include "../core/ops/ops.h"

namespace gradual::inspect {
namespace {

// The call with its inputs from `first` on, each replaced by f(input).
template <class F> Outputs call_with(const OpCall& call, int first, const F& f, Interceptor* below) {
  std::vector<Tensor> inputs;
  {
    const CauseScope scope(CauseKind::autocast, "intervention: ops in f32");
    for (int i = 0; i < call.inputs.size(); ++i)
      inputs.push_back(i >= first && call[i].defined() ? f(call[i]) : call[i]);
  }
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  OpCall changed = call;
  changed.inputs = TensorRefs(refs.data(), call.inputs.size());
  return below ? below->call(changed) : next_below_amp(changed);
}

// A tensor of t's sizes with a dtype. All its elements are one, which is not written.
Tensor stand_in(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  const Tensor one = empty({1}, {.dtype = dtype, .device = t.device()});
  return as_strided(one, t.sizes(), Shape::filled(t.dim(), 0), 0);
}

// Autocast leaves attention's mask as it is.
int castable_inputs(const OpCall& call) {
  return call.op == OpId::scaled_dot_product_attention ? 3 : call.inputs.size();
}

// As dispatch promotes inputs.
void apply_rule(const OpCall& call, std::vector<Tensor>& inputs) {
  const DTypeRule rule = op_info(call.op).dtype_rule;
  if (rule == DTypeRule::Explicit || rule == DTypeRule::Same || rule == DTypeRule::Logical) return;
  const auto begin = inputs.begin() + (call.op == OpId::where ? 1 : 0);
  std::optional<DType> common;
  for (auto t = begin; t != inputs.end(); ++t)
    if (t->defined()) common = common ? promote(*common, t->dtype()) : t->dtype();
  if (!common) return;
  if (rule == DTypeRule::Float && !is_floating(*common)) common = DType::f32;
  for (auto t = begin; t != inputs.end(); ++t)
    if (t->defined()) *t = stand_in(*t, *common);
}

// Whether the op only moves numbers. A cast rounds them.
bool moves_numbers(OpId op) { return op_info(op).kind == OpKind::Movement && op != OpId::cast; }

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

bool F32Ops::is_left_to_amp(OpId op) const {
  const amp::CastPolicy* const policy = policy_of(op);
  if (!policy) return false;
  constexpr amp::PolicyKind kTaken[] = {amp::PolicyKind::lower, amp::PolicyKind::pass, amp::PolicyKind::promote};
  return std::ranges::find(kTaken, policy->kind) == std::end(kTaken);
}

// As PolicyTable::runs_whole.
bool F32Ops::runs_whole(const Fusion& fusion) const {
  const amp::CastPolicy* const first = policy_of(fusion.first);
  const amp::CastPolicy* const second = policy_of(fusion.second);
  if (!first || !second) return true;
  const bool passes = second->kind == amp::PolicyKind::pass;
  if (fusion.others() == 0) return first->kind != amp::PolicyKind::rewrite && passes;
  return first->kind == amp::PolicyKind::pass && (passes || second->kind == amp::PolicyKind::promote);
}

void F32Ops::apply_policy(const OpCall& call, std::vector<Tensor>& inputs) const {
  const amp::CastPolicy* const policy = policy_of(call.op);
  if (!policy) return;
  const auto n = static_cast<std::size_t>(castable_inputs(call));
  amp::OperandDTypes operands;
  for (std::size_t i = 0; i < n; ++i)
    if (inputs[i].defined()) operands.add(inputs[i].dtype());
  const bool promotes = policy->kind == amp::PolicyKind::promote;
  for (std::size_t i = 0; i < n; ++i) {
    Tensor& t = inputs[i];
    if (t.defined() && amp::castable(t.dtype()))
      t = stand_in(t, promotes ? operands.widest : operand_dtype(call.op, t));
  }
}

// Of an op that computes, or moves numbers. Its error if the recipe cannot run it.
F32Ops::Recipe F32Ops::recipe_of(const OpCall& call) const {
  Recipe recipe;
  for (int i = 0; i < call.inputs.size(); ++i) {
    const DType half = made_for(call[i]);
    recipe.inputs.push_back(is_half(half) ? stand_in(call[i], half) : call[i]);
  }
  apply_policy(call, recipe.inputs);
  apply_rule(call, recipe.inputs);
  if (op_info(call.op).kind == OpKind::Composite) {  // its result has the dtype of its first input
    recipe.results[0].dtype = recipe.inputs[0].dtype();
    return recipe;
  }
  const std::vector<const Tensor*> refs = pointers_to(recipe.inputs);
  OpCall typed = call;
  typed.inputs = TensorRefs(refs.data(), call.inputs.size());
  columns().infer[static_cast<int>(call.op)](typed, recipe.results);
  return recipe;
}

Outputs F32Ops::in_f32(const OpCall& call, const Recipe& recipe) {
  const auto widened = [&](const Tensor& t) { return is_half(t.dtype()) ? cast(t, DType::f32, call.where) : t; };
  Outputs out = call_with(call, 0, widened, nullptr);
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i)
    if (const DType half = recipe.results[i].dtype; is_half(half) && out[i].dtype() == DType::f32)
      state_->made[amp::storage_id(out[i])] = half;
  return out;
}

// The half dtype that an f32 result would have; f32: it is none.
DType F32Ops::made_for(const Tensor& t) const {
  if (!t.defined() || t.dtype() != DType::f32) return DType::f32;
  const auto made = state_->made.find(amp::storage_id(t));
  return made == state_->made.end() ? DType::f32 : made->second;
}

bool F32Ops::any_made(const OpCall& call) const {
  for (int i = 0; i < call.inputs.size(); ++i)
    if (is_half(made_for(call[i]))) return true;
  return false;
}

Outputs F32Ops::below_amp(const OpCall& call) const { return amp ? amp->call(call) : next_below_amp(call); }

Outputs F32Ops::as_it_is(const OpCall& call) const {
  const OpInfo& row = op_info(call.op);
  const bool in_place = row.kind == OpKind::InPlace;
  // Views have the storage of their tensor. Ops in place of other numbers of inputs write more than the first.
  if (row.kind == OpKind::View || (in_place && row.inputs != 2) || !any_made(call)) return below_amp(call);
  const auto narrowed = [&](const Tensor& t) {
    const DType dtype = made_for(t);
    return is_half(dtype) ? cast(t, dtype, call.where) : t;
  };
  return call_with(call, in_place ? 1 : 0, narrowed, amp.get());
}

Outputs F32Ops::call(const OpCall& call) {
  if (context().phase != Phase::forward) return below_amp(call);
  const Fusion* const fusion = fusion_of(call);
  if (fusion && !runs_whole(*fusion))
    return run_parts(*fusion, call, [this](const OpCall& part) { return this->call(part); });
  const bool moved = moves_numbers(call.op) && any_made(call);
  if ((!computes(call.op) && !moved) || is_left_to_amp(call.op)) return as_it_is(call);
  const Recipe recipe = recipe_of(call);
  if (moved) return is_half(recipe.results[0].dtype) ? in_f32(call, recipe) : as_it_is(call);
  // A fusion rounds between its parts.
  const bool rounds = is_half(recipe.results[0].dtype) || (fusion && is_half(recipe.inputs[0].dtype()));
  return rounds && state_->wanted(call) ? in_f32(call, recipe) : as_it_is(call);
}

}  // namespace gradual::inspect
