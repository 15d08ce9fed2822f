#include "rewrite.h"

#include <algorithm>

#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../autograd/rule.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/rounding_draws.h"
#include "../core/support/throwf.h"
#include "whole_operands.h"

namespace gradual::amp {
namespace {

// Data about a storage in the running backward; the rule passes it on as views and copies.
struct Known {
  std::uint64_t storage;
  const void* data;  // tells views of one storage apart
  Role role;
  std::optional<Tensor> scale;  // of values that were saved as codes
};
struct Backward {
  std::vector<Known> known;
  std::shared_ptr<void> data;
  std::optional<RandomKey> key;
  std::shared_ptr<WholeOperands> whole;
  // depth: 2 in the backward of a backward
  std::uint32_t depth = 1;
  std::uint32_t drawn = 0;

  void know(const Tensor& t, Role role, const std::optional<Tensor>& scale) {
    known.push_back({storage_id(t), t.raw(), role, scale});
  }
  const Known* find(const Tensor& t) const {
    if (!t.defined()) return nullptr;
    const Known* found = nullptr;
    for (const Known& k : known)
      if (k.storage == storage_id(t) && (!found || (found->data != t.raw() && k.data == t.raw()))) found = &k;
    return found;
  }
};
thread_local Backward* current_backward = nullptr;
thread_local std::shared_ptr<WholeOperands> current_whole;

// SplitMix64's output function (Steele et al. 2014).
std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

constexpr int kKinds = 3;  // of saved tensors that each input may have: itself or codes, slopes, a direction

// While its backward runs, it intercepts the calls of the op's rule.
struct Rewritten final : Function, Interceptor {
  // parameters: the number of inputs after those of the call.
  Rewritten(const CastPolicy& policy, const OpCall& call, int parameters)
      : policy_(policy), node_(make_node(call)), replaced_{call.op}, parameters_(parameters) {
    const Backward* outer = current_backward;
    context_.gradient = outer != nullptr;
    context_.recorded = outer || grad_enabled();
    whole_ = outer ? outer->whole : current_whole;
    if (outer) {
      context_.data = outer->data;
      depth_ = outer->depth + 1;
    }
    for (int i = 0; i < call.inputs.size(); ++i) {
      const Known* k = outer ? outer->find(call[i]) : nullptr;
      Role role = i == 0 ? Role::activation : Role::weight;
      if (outer) role = Role::error;  // unless it is known, the rule has computed it from the gradient
      roles_.push_back(k ? k->role : role);
      context_.saved_scales.push_back(k ? k->scale : std::nullopt);
    }
    std::copy_n(roles_.begin(), std::min<std::size_t>(roles_.size(), 2), replaced_.operands);
    codes_.resize(roles_.size());
    again_.resize(roles_.size());
    gradients_.resize(roles_.size());
  }

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    const std::vector<const Tensor*> refs = pointers_to(inputs);
    const OpCall call{node_->op, TensorRefs(refs.data(), node_->input_count), &node_->attrs, node_->where};
    OutSpec spec[kMaxOutputs];
    columns().infer[static_cast<int>(call.op)](call, spec);  // its checks, and the expected shape
    const Scoped scope(running, this);
    const Scoped<Backward*> within(outer_, current_backward);
    const Scoped<Backward*> outside(current_backward, nullptr);
    const Outputs out = (*policy_.function)(call);
    if (!out[0].defined() || !out[0].is_floating() || out[0].sizes() != spec[0].sizes)
      throwf("{}: must give a floating tensor of shape {}, gave {}", name(), to_string(spec[0].sizes),
             describe(out[0]));
    save(call);
    return {out[0]};
  }

  // The op's own rule, with its contractions rewritten too.
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    const std::vector<Tensor> kept(saved().begin(), saved().begin() + std::ssize(roles_));
    if (grad_enabled() && has_gradients())
      throwf("{}: a quantizer whose gradient is not straight has no second derivative", name());
    Backward here{.known = {}, .data = context_.data, .key = context_.backward_key, .whole = whole_, .depth = depth_};
    if (grads[0].defined()) here.know(grads[0], Role::error, {});
    for (std::size_t i = 0; i < kept.size(); ++i) {
      Tensor operand = kept[i];
      std::optional<Tensor> scale = context_.saved_scales[i];
      if (codes_[i]) {
        if (grad_enabled())
          throwf("{}: operands saved as codes have no second derivative; quantise with save_codes off", name());
        QuantizedTensor codes = *codes_[i];
        codes.codes = kept[i];
        operand = again_[i] ? codes.dequantize() : codes.decode();
        if (!again_[i])
          scale = codes.scales.defined() ? as_strided(codes.scales, {}, {}, codes.scales.offset()) : Tensor();
        operand = with_more_codes(static_cast<int>(i), operand);
      }
      node_->save_input(static_cast<int>(i), operand);
      if (operand.defined()) here.know(operand, roles_[i], scale);
    }
    const UnfusedScope parts;  // each product of the gradient is a call of its own
    const StageScope amp(chain().amp, this);
    const Scoped scope(current_backward, &here);
    std::vector<Tensor> results(kept.size());
    std::vector<Tensor> dy = grads;
    backward_rules()[static_cast<int>(node_->op)].backward(
        RuleContext(*node_, dy.data(), results.data(), grad_enabled()));
    node_->release_saved();
    results.resize(kept.size() + static_cast<std::size_t>(parameters_));
    for (int i = 0; i < node_->input_count; ++i)
      if (Tensor& g = results[static_cast<std::size_t>(i)]; g.defined())
        g = cast(gradient_of(i, sum_to(g, node_->input(i).sizes), results), node_->input(i).dtype);
    return results;
  }
  Outputs call(const OpCall& call) override {
    const OpKind kind = op_info(call.op).kind;
    if (kind == OpKind::Contraction) return run_rewritten(policy_, call);
    Outputs out = next_below_amp(call);
    // A copy keeps the role of its source.
    if (kind == OpKind::Movement && call.inputs.size() == 1)
      if (const Known* from = current_backward->find(call[0])) current_backward->know(out[0], from->role, from->scale);
    return out;
  }
  std::string name() const override {
    return fmt::format("{} rewritten by {}", gradual::to_string(node_->op), policy_.text);
  }

  const Replaced* replaces() const override { return &replaced_; }

  static inline thread_local Rewritten* running = nullptr;

  bool has_gradients() const {
    return std::any_of(saved().begin() + std::ssize(roles_), saved().begin() + kKinds * std::ssize(roles_),
                       [](const Tensor& t) { return t.defined(); });
  }

  // The operand plus what its further codes stand for.
  Tensor with_more_codes(int input, Tensor operand) const {
    for (std::size_t i = 0; i < more_.size(); ++i) {
      if (more_[i].first != input) continue;
      QuantizedTensor codes = more_[i].second;
      codes.codes = saved()[kKinds * roles_.size() + i];
      operand = operand + codes.dequantize();
    }
    return operand;
  }

  // A parameter needs the gradient of its operand, whether or not that needs one.
  std::uint32_t needed() {
    std::uint32_t bits = needs();
    for (int i = 0; i < std::ssize(gradients_); ++i) {
      const OperandGradient& g = gradients_[static_cast<std::size_t>(i)];
      if (!g.direction.defined() || !needs_input_grad(static_cast<int>(roles_.size()) + g.parameter)) continue;
      bits |= input_bit(i);
      if (!node_->input(i).edge.node) node_->input(i).edge = {make_leaf(nullptr), 0};
    }
    return bits;
  }

  // The gradient of an operand from that of its rounded numbers, and the part that goes to a parameter.
  Tensor gradient_of(int input, const Tensor& g, std::vector<Tensor>& results) const {
    const OperandGradient& about = gradients_[static_cast<std::size_t>(input)];
    const std::size_t slopes = roles_.size() + static_cast<std::size_t>(input);
    const std::size_t direction = slopes + roles_.size();
    if (saved()[direction].defined())
      results[roles_.size() + static_cast<std::size_t>(about.parameter)] =
          mul(sum(mul(cast(g, DType::f32), saved()[direction])), about.factor);
    return saved()[slopes].defined() ? mul(cast(g, DType::f32), saved()[slopes]) : g;
  }

  // The tensors that the op's rule reads; codes replace operands that were saved as codes. After them those of the
  // gradients of operands: slopes, then directions. After these further codes.
  void save(const OpCall& call) {
    const int saves = saves_of(backward_rules()[static_cast<int>(call.op)], needed());
    std::vector<Tensor> kept(codes_.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const bool read = i < 8 && (saves & in(static_cast<int>(i)));
      if (!read) codes_[i].reset();
      else if (codes_[i]) kept[i] = std::exchange(codes_[i]->codes, Tensor());
      else kept[i] = call[static_cast<int>(i)];
    }
    for (OperandGradient& g : gradients_) kept.push_back(std::exchange(g.slopes, Tensor()));
    for (OperandGradient& g : gradients_) kept.push_back(std::exchange(g.direction, Tensor()));
    std::erase_if(more_, [&](const auto& more) { return !codes_[static_cast<std::size_t>(more.first)]; });
    for (auto& [input, codes] : more_) kept.push_back(std::exchange(codes.codes, Tensor()));
    save_for_backward(std::move(kept));
  }

  CastPolicy policy_;
  Ref<Node> node_;  // the exact op's node, which its rule runs on
  Replaced replaced_;
  RewriteContext context_;
  std::shared_ptr<WholeOperands> whole_;
  Backward* outer_ = nullptr;  // while forward runs
  std::uint32_t depth_ = 1;    // of Gradual's own backward
  std::vector<Role> roles_;
  std::vector<std::optional<QuantizedTensor>> codes_;
  std::vector<bool> again_;
  std::vector<std::pair<int, QuantizedTensor>> more_;  // further codes of inputs
  std::vector<OperandGradient> gradients_;             // their tensors are among the saved ones
  int parameters_ = 0;
};

Rewritten& running(const char* who) {
  if (!Rewritten::running) throw_error(std::string(who) + ": no rewrite is running");
  return *Rewritten::running;
}

}  // namespace

bool is_parameter(const Tensor& t) {
  return t.unsafe_impl()->storage->category == Category::parameters || (t.is_leaf() && t.requires_grad());
}

Role operand_role(int input) { return running("operand_role").roles_.at(static_cast<std::size_t>(input)); }
RewriteContext& rewrite_context() { return running("rewrite_context").context_; }
RandomKey rewrite_key() {
  Backward* const outer = running("rewrite_key").outer_;
  if (!outer || !outer->key) return rounding_generator().next();
  // The stream does not change: a recorded step advances it (cuda/runtime/random.h).
  const std::uint64_t draw = (std::uint64_t{outer->depth} << 32) + ++outer->drawn;
  return {outer->key->seed ^ mixed(draw * 0x9e3779b97f4a7c15), outer->key->stream};
}
void save_as_codes(int input, QuantizedTensor codes, bool again) {
  Rewritten& r = running("save_as_codes");
  if (again && r.codes_.at(static_cast<std::size_t>(input))) {
    r.more_.emplace_back(input, std::move(codes));
    return;
  }
  r.codes_.at(static_cast<std::size_t>(input)) = std::move(codes);
  r.again_.at(static_cast<std::size_t>(input)) = again;
}

void set_gradient(int input, OperandGradient gradient) {
  running("set_gradient").gradients_.at(static_cast<std::size_t>(input)) = std::move(gradient);
}

WholeOperandsScope::WholeOperandsScope(std::shared_ptr<WholeOperands> whole)
    : before_(std::exchange(current_whole, std::move(whole))) {}
const std::shared_ptr<WholeOperands>& whole_operands() { return running("whole_operands").whole_; }
WholeOperandsScope::~WholeOperandsScope() { current_whole = std::move(before_); }

Outputs run_rewritten(const CastPolicy& policy, const OpCall& call) {
  std::vector<Tensor> inputs;
  inputs.reserve(static_cast<std::size_t>(call.inputs.size()));
  for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(call[i]);
  int parameters = 0;
  if (policy.parameters && !current_backward)
    for (const Tensor& parameter : (*policy.parameters)(call)) {
      inputs.push_back(parameter);
      ++parameters;
    }
  return {{apply(std::make_shared<Rewritten>(policy, call, parameters), inputs, call.where)[0]}};
}

}  // namespace gradual::amp
