#include "rewrite.h"

#include <utility>

#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../autograd/rule.h"
#include "../core/ops.h"

namespace gradual::amp {
namespace {

std::uint64_t storage_id(const Tensor& t) { return t.unsafe_impl()->storage->id; }

// Which storages have which role in the backward that runs: the rule hands them on as views.
using Roles = std::vector<std::pair<std::uint64_t, Role>>;
thread_local const Roles* backward_roles = nullptr;

class Rewritten final : public Function {
 public:
  Rewritten(const CastPolicy& policy, const OpCall& call)
      : function_(policy.function), name_(policy.text), op_(call.op), attrs_(*call.attrs), where_(call.where) {
    for (int i = 0; i < call.inputs.size(); ++i) roles_.push_back(role_of(call[i], i));
  }

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override;
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override;
  std::string name() const override { return std::string(gradual::name(op_)) + " rewritten by " + name_; }

  Role role(int input) const { return roles_.at(static_cast<std::size_t>(input)); }
  static thread_local const Rewritten* running;

 private:
  static Role role_of(const Tensor& t, int input) {
    if (!backward_roles) return input == 0 ? Role::activation : Role::weight;
    for (const auto& [id, role] : *backward_roles)
      if (t.defined() && storage_id(t) == id) return role;
    return Role::error;  // made from the gradient by the rule
  }

  std::shared_ptr<const Rewrite> function_;
  std::string name_;
  OpId op_;
  Attrs attrs_;
  SourceLocation where_;
  std::vector<Role> roles_;
  struct Input {
    bool present;
    Shape sizes;
    DType dtype;
  };
  std::vector<Input> inputs_;
};

thread_local const Rewritten* Rewritten::running = nullptr;

// Sets a variable for as long as it lives.
template <class T> class Assigned {
 public:
  Assigned(T& variable, T value) : variable_(variable), saved_(std::exchange(variable, value)) {}
  ~Assigned() { variable_ = saved_; }
  Assigned(const Assigned&) = delete;
  Assigned& operator=(const Assigned&) = delete;

 private:
  T& variable_;
  T saved_;
};

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
  for (const Tensor& t : inputs) {
    refs.push_back(&t);
    inputs_.push_back(t.defined() ? Input{true, t.sizes(), t.dtype()} : Input{false, {}, DType::f32});
  }
  const OpCall call{op_, TensorRefs(refs.data(), static_cast<int>(refs.size())), &attrs_, where_};
  OutSpec spec[kMaxOutputs];
  columns().infer[static_cast<int>(op_)](call, spec);  // its checks, and the shape that must come out
  Outputs out;
  {
    const Assigned scope(running, static_cast<const Rewritten*>(this));
    const Assigned outside(backward_roles, static_cast<const Roles*>(nullptr));
    out = (*function_)(call);
  }
  if (!out[0].defined() || !out[0].is_floating() || out[0].sizes() != spec[0].sizes)
    fail(name() + ": must give a floating tensor of shape " + to_string(spec[0].sizes) + ", gave " +
         (out[0].defined() ? to_string(out[0].sizes()) + " " + std::string(gradual::name(out[0].dtype())) : "none"));
  std::uint16_t saves = 0;
  for (std::size_t i = 0; i < inputs.size() && i < 5; ++i)
    if (needs_input_grad(static_cast<int>(i))) saves |= rules()[static_cast<int>(op_)].saves[i];
  std::vector<Tensor> kept(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (i < 8 && (saves & in(static_cast<int>(i)))) kept[i] = inputs[i];
  save_for_backward(std::move(kept));
  return {out[0]};
}

// The op's own rule on a node made for the occasion, under an interceptor that rewrites its contractions.
std::vector<Tensor> Rewritten::backward(const std::vector<Tensor>& grads) {
  const std::vector<Tensor>& kept = saved();
  const int n = static_cast<int>(inputs_.size());
  const auto somewhere = Ref<Node>::adopt(new Node(OpId::custom, 0));
  Node node(op_, n);
  node.attrs = attrs_;
  node.where = where_;
  Roles roles;
  if (grads[0].defined()) roles.emplace_back(storage_id(grads[0]), Role::error);
  for (int i = 0; i < n; ++i) {
    const auto k = static_cast<std::size_t>(i);
    node.input(i).present = inputs_[k].present;
    node.input(i).sizes = inputs_[k].sizes;
    node.input(i).dtype = inputs_[k].dtype;
    if (needs_input_grad(i)) node.input(i).edge = {somewhere, 0};
    node.save_input(i, kept[k]);
    if (kept[k].defined()) roles.emplace_back(storage_id(kept[k]), roles_[k]);
  }
  CastPolicy policy = CastPolicy::rewrite(name_, *function_);
  Contractions rewriting(policy);
  const StageScope amp(chain().amp, &rewriting);
  const Assigned scope(backward_roles, static_cast<const Roles*>(&roles));
  std::vector<Tensor> results(inputs_.size());
  rules()[static_cast<int>(op_)].backward(RuleContext(node, grads.data(), results.data(), grad_enabled()));
  for (std::size_t i = 0; i < results.size(); ++i)
    if (results[i].defined()) results[i] = cast(sum_to(results[i], inputs_[i].sizes), inputs_[i].dtype);
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
