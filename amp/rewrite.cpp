#include "rewrite.h"

#include <fmt/format.h>

#include <utility>

#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../autograd/rule.h"
#include "../core/assigned.h"
#include "../core/failf.h"
#include "../core/ops.h"

namespace gradual::amp {
namespace {

std::uint64_t storage_id(const Tensor& t) { return t.unsafe_impl()->storage->id; }

// Which storages have which role in the backward that runs: the rule hands them on as views.
using Roles = std::vector<std::pair<std::uint64_t, Role>>;
thread_local const Roles* backward_roles = nullptr;

class Rewritten final : public Function {
 public:
  Rewritten(const CastPolicy& policy, const OpCall& call) : policy_(policy), node_(make_node(call)) {
    for (int i = 0; i < call.inputs.size(); ++i) roles_.push_back(role_of(call[i], i));
  }

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override;
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override;
  std::string name() const override {
    return fmt::format("{} rewritten by {}", gradual::name(node_->op), policy_.text);
  }

  Role role(int input) const { return roles_.at(static_cast<std::size_t>(input)); }
  static thread_local const Rewritten* running;

 private:
  static Role role_of(const Tensor& t, int input) {
    if (!backward_roles) return input == 0 ? Role::activation : Role::weight;
    for (const auto& [id, role] : *backward_roles)
      if (t.defined() && storage_id(t) == id) return role;
    return Role::error;  // made from the gradient by the rule
  }

  CastPolicy policy_;
  Ref<Node> node_;  // of the op itself, as the tape would have it: what its rule runs on
  std::vector<Role> roles_;
};

thread_local const Rewritten* Rewritten::running = nullptr;

// Above a rule that runs: its contractions are rewritten too.
class Contractions final : public Interceptor {
 public:
  explicit Contractions(const CastPolicy& policy) : policy_(policy) {}
  Outputs call(const OpCall& call) override {
    return info(call.op).kind == OpKind::Contraction ? run_rewritten(policy_, call) : next_below_amp(call);
  }

 private:
  const CastPolicy& policy_;
};

std::vector<Tensor> Rewritten::forward(const std::vector<Tensor>& inputs) {
  std::vector<const Tensor*> refs;
  for (const Tensor& t : inputs) refs.push_back(&t);
  const OpCall call{node_->op, TensorRefs(refs.data(), node_->input_count), &node_->attrs, node_->where};
  OutSpec spec[kMaxOutputs];
  columns().infer[static_cast<int>(call.op)](call, spec);  // its checks, and the shape that must come out
  Outputs out;
  {
    const Assigned scope(running, this);
    const Assigned outside(backward_roles, nullptr);
    out = (*policy_.function)(call);
  }
  if (!out[0].defined() || !out[0].is_floating() || out[0].sizes() != spec[0].sizes)
    failf("{}: must give a floating tensor of shape {}, gave {}", name(), to_string(spec[0].sizes),
          out[0].defined() ? kind_of(out[0]) : "none");
  std::uint32_t needs = 0;
  for (int i = 0; i < node_->input_count; ++i)
    if (needs_input_grad(i)) needs |= input_bit(i);
  const int saves = saves_of(rules()[static_cast<int>(call.op)], needs);
  std::vector<Tensor> kept(inputs.size());
  for (int i = 0; i < node_->input_count && i < 8; ++i)
    if (saves & in(i)) kept[static_cast<std::size_t>(i)] = call[i];
  save_for_backward(std::move(kept));
  return {out[0]};
}

// The op's own rule, under an interceptor that rewrites its contractions.
std::vector<Tensor> Rewritten::backward(const std::vector<Tensor>& grads) {
  const std::vector<Tensor>& kept = saved();
  Roles roles;
  if (grads[0].defined()) roles.emplace_back(storage_id(grads[0]), Role::error);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    node_->save_input(static_cast<int>(i), kept[i]);
    if (kept[i].defined()) roles.emplace_back(storage_id(kept[i]), roles_[i]);
  }
  Contractions rewriting(policy_);
  const StageScope amp(chain().amp, &rewriting);
  const Assigned scope(backward_roles, &roles);
  std::vector<Tensor> results(kept.size());
  rules()[static_cast<int>(node_->op)].backward(RuleContext(*node_, grads.data(), results.data(), grad_enabled()));
  node_->release_saved();
  for (int i = 0; i < node_->input_count; ++i)
    if (Tensor& g = results[static_cast<std::size_t>(i)]; g.defined())
      g = cast(sum_to(g, node_->input(i).sizes), node_->input(i).dtype);
  return results;
}

}  // namespace

std::string_view name(Role role) {
  static constexpr std::string_view kNames[] = {"activation", "weight", "error"};
  return kNames[static_cast<int>(role)];
}

Role operand_role(int input) {
  if (!Rewritten::running) fail("operand_role: no rewrite is running");
  return Rewritten::running->role(input);
}

Outputs run_rewritten(const CastPolicy& policy, const OpCall& call) {
  std::vector<Tensor> inputs;
  for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(call[i]);
  Outputs out;
  out[0] = apply(std::make_shared<Rewritten>(policy, call), inputs, call.where)[0];
  return out;
}

}  // namespace gradual::amp
