// The Autograd stage of the dispatch chain: runs the stages below and records a node if a gradient is needed.
#include <bit>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "function.h"
#include "grad_mode.h"
#include "rule.h"

namespace gradual {
namespace {

// A copy of `t` that replaces it on the tape, for a rule that needs a tensor that is about to be overwritten.
Tensor copy_before_write(const Tensor& t, const OpCall& call) {
  const NoGrad off;
  const CauseScope cause(CauseKind::kept_for_backward, fmt::format("kept for the backward of {}", to_string(call.op)));
  return with_history(clone(t, call.where), t);
}

void check_in_place(const OpCall& call, const BackwardRule& rule) {
  const Tensor& x = call[0];
  const GradMeta* m = grad_meta(x);
  const Storage& storage = *x.unsafe_impl()->storage;
  const auto refuse = [&](const char* why) {
    std::string_view op = to_string(call.op);
    if (op.ends_with('_')) op.remove_suffix(1);
    throwf("{}: {}; use the functional form x = {}(x, ..), or write under NoGrad", describe(call), why, op);
  };
  if (x.requires_grad() && x.is_leaf()) refuse("a leaf that requires grad cannot be written in place");
  if (storage.differentiable.load() > (m ? 1 : 0))
    refuse("the tensor shares storage with another differentiable tensor");
  if (!x.requires_grad() && storage.refs.load() > 1)
    refuse("the tensor shares storage with another one, which would not carry the gradient");
  if (!x.is_floating()) refuse("only floating tensors carry gradients");
  if (!rule.backward) refuse(rule.reason ? rule.reason : "this op has no gradient");
}

// For an op without a backward rule. Error if nothing says why it has none. An in-place op is refused later.
bool runs_unrecorded(const OpCall& call, const BackwardRule& rule) {
  if (op_info(call.op).kind == OpKind::InPlace) return false;
  if (!rule.reason) throwf("{}: no backward rule; run it under NoGrad or on detach()ed inputs", to_string(call.op));
  return true;
}

// Separate from Autograd::call(), so that its result is constructed in place.
Outputs record(const OpCall& call, const BackwardRule& rule, std::uint32_t needs) {
  const bool in_place = op_info(call.op).kind == OpKind::InPlace;
  if (in_place) check_in_place(call, rule);
  Ref<Node> node = make_node(call);
  const int saves = saves_of(rule, needs);
  for (int left = saves & 255; left != 0; left &= left - 1) {
    const int i = std::countr_zero(static_cast<unsigned>(left));
    if (i >= call.inputs.size() || !call[i].defined()) continue;
    if (in_place && call[i].shares_storage(call[0])) node->save_input(i, copy_before_write(call[i], call));
    else node->save_input(i, call[i]);
  }
  if (call.op == OpId::custom) node->function = call.get<CustomAttrs>().function->shared_from_this();
  call.node = node->sequence;
  Outputs out = next_below_autograd(call);
  node->output_sizes = out[0].sizes();
  node->output_dtype = out[0].dtype();
  const auto place = [&](int i, Ref<Node> of) {
    if (saves & gradual::out(i)) of->save_output(i, out[i]);
    if ((rule.differentiable >> i & 1) && out[i].defined() && out[i].is_floating())
      set_history(out[i], std::move(of), static_cast<std::uint32_t>(i));
  };
  for (int i = op_info(call.op).outputs - 1; i > 0; --i) place(i, node);
  place(0, std::move(node));
  return out;
}

struct Autograd final : Interceptor {
  Outputs call(const OpCall& call) override {
    std::uint32_t needs = 0;
    for (int i = 0; i < call.inputs.size(); ++i)
      if (needs_grad(call[i])) needs |= input_bit(i);
    const BackwardRule& rule = backward_rules()[static_cast<int>(call.op)];
    if (!needs || (!rule.backward && runs_unrecorded(call, rule))) return next_below_autograd(call);
    return record(call, rule, needs);
  }
};

}  // namespace

Interceptor* default_autograd() {
  static Autograd autograd;
  return &autograd;
}

}  // namespace gradual
