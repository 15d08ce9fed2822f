// The Autograd stage: runs what lies below and records a node where a gradient will be wanted.
#include "autograd.h"

#include <algorithm>
#include <bit>

#include "../core/ops/ops.h"
#include "../core/support/failf.h"
#include "engine.h"
#include "function.h"
#include "rule.h"

namespace gradual {

GradMeta::~GradMeta() {
  if (edge.node && edge.node->is_leaf) edge.node->leaf = nullptr;
}

GradMeta& ensure_grad_meta(const Tensor& t) {
  TensorImpl* impl = t.unsafe_impl();
  if (!impl->grad_meta) {
    impl->grad_meta = new (impl->grad_space) GradMeta;
    std::atomic<std::int32_t>& count = impl->storage->differentiable;
    if (impl->storage->refs.load(std::memory_order_relaxed) == 1) count.store(1, std::memory_order_relaxed);  // fresh
    else add_to(count, 1);
  }
  return static_cast<GradMeta&>(*impl->grad_meta);
}

void set_history(const Tensor& t, Ref<Node> node, std::uint32_t output) {
  GradMeta& m = ensure_grad_meta(t);
  // A leaf that stopped requiring grad and now becomes a result: older nodes must not gather here.
  if (m.edge.node && m.edge.node->is_leaf) m.edge.node->leaf = nullptr;
  m.edge.node = std::move(node);
  m.edge.output = output;
  m.requires_grad = true;
}

Tensor detached(const Tensor& t) { return as_strided(t, t.sizes(), t.strides(), t.offset()); }

namespace {

Rule table[kOpCount];

// A copy of `t` that stands for it on the tape: what a rule needs of a tensor that is about to be overwritten.
Tensor copy_before_write(const Tensor& t, const OpCall& call) {
  Tensor copy;
  {
    const NoGrad off;
    const CauseScope cause(intern(fmt::format("kept for the backward of {}", name(call.op))));
    copy = clone(t, call.where);
  }
  if (const GradMeta* m = grad_meta(t); m && m->requires_grad) set_history(copy, m->edge.node, m->edge.output);
  return copy;
}

void check_in_place(const OpCall& call, const Rule& rule) {
  const Tensor& x = call[0];
  const GradMeta* m = grad_meta(x);
  const Storage& storage = *x.unsafe_impl()->storage;
  const auto refuse = [&](const char* why) {
    std::string_view op = name(call.op);
    if (op.ends_with('_')) op.remove_suffix(1);
    failf("{}: {}; use the functional form x = {}(x, ..), or write under NoGrad", describe(call), why, op);
  };
  if (x.requires_grad() && x.is_leaf()) refuse("a leaf that requires grad cannot be written in place");
  if (storage.differentiable.load() > (m ? 1 : 0))
    refuse("the tensor shares storage with another differentiable tensor");
  if (!x.requires_grad() && storage.refs.load() > 1)
    refuse("the tensor shares storage with another one, which would not carry the gradient");
  if (!x.is_floating()) refuse("only floating tensors carry gradients");
  if (!rule.backward) refuse(rule.reason ? rule.reason : "this op has no gradient");
}

class Autograd final : public Interceptor {
 public:
  Outputs call(const OpCall& call) override {
    std::uint32_t needs = 0;
    for (int i = 0; i < call.inputs.size(); ++i)
      if (needs_grad(call[i])) needs |= input_bit(i);
    const Rule& rule = table[static_cast<int>(call.op)];
    if (!needs || (!rule.backward && rule.reason && info(call.op).kind != OpKind::InPlace))
      return next_below_autograd(call);
    return record(call, rule, needs);
  }

 private:
  // Apart from call(), so that what it returns is made in its place.
  static Outputs record(const OpCall& call, const Rule& rule, std::uint32_t needs) {
    const bool in_place = info(call.op).kind == OpKind::InPlace;
    if (in_place) check_in_place(call, rule);
    if (!rule.backward) failf("{}: no backward rule; run it under NoGrad or on detach()ed inputs", name(call.op));
    Ref<Node> node = make_node(call);
    const int saves = saves_of(rule, needs);
    for (int left = saves & 255; left != 0; left &= left - 1) {
      const int i = std::countr_zero(static_cast<unsigned>(left));
      if (i >= call.inputs.size() || !call[i].defined()) continue;
      if (in_place && call[i].shares_storage(call[0])) node->save_input(i, copy_before_write(call[i], call));
      else node->save_input(i, call[i]);
    }
    if (call.op == OpId::custom) node->function = call.get<CustomAttrs>().function->shared_from_this();
    Outputs out = next_below_autograd(call);
    node->output_sizes = out[0].sizes();
    node->output_dtype = out[0].dtype();
    const auto place = [&](int i, Ref<Node> of) {
      if (saves & gradual::out(i)) of->save_output(i, out[i]);
      if ((rule.differentiable >> i & 1) && out[i].defined() && out[i].is_floating())
        set_history(out[i], std::move(of), static_cast<std::uint32_t>(i));
    };
    for (int i = info(call.op).outputs - 1; i > 0; --i) place(i, node);
    place(0, std::move(node));
    return out;
  }
};

}  // namespace

Ref<Node> make_node(const OpCall& call) {
  auto node = Ref<Node>::adopt(new Node(call.op, call.inputs));
  const Context& c = context();
  node->where = call.where;
  node->module = c.module;
  node->cause = c.cause;
  node->attrs = *call.attrs;
  return node;
}

int saves_of(const Rule& rule, std::uint32_t needs) {
  int saves = 0;
  for (int i = 0; i < 5 && needs >> i != 0; ++i)
    if (needs & input_bit(i)) saves |= rule.saves[i];
  return saves;
}

Interceptor* default_autograd() {
  static Autograd autograd;
  return &autograd;
}

bool grad_enabled() { return chain().autograd != nullptr; }
EnableGrad::EnableGrad() : StageScope(chain().autograd, default_autograd()) {}

Rule* rules() { return table; }
void set_rule(OpId op, std::initializer_list<int> saves, RuleFn backward) {
  Rule& r = table[static_cast<int>(op)];
  r.backward = backward;
  std::ranges::copy(saves, r.saves);
}
void set_no_rule(std::initializer_list<OpId> ops, const char* reason) {
  for (OpId op : ops) table[static_cast<int>(op)].reason = reason;
}

void register_rules() {
  register_elementwise_rules();
  register_shape_rules();
  register_contraction_rules();
  register_normalization_rules();
  register_custom();
}

// Tensor's autograd members.

bool Tensor::requires_grad() const { return needs_grad(*this); }

bool Tensor::is_leaf() const {
  const GradMeta* m = grad_meta(*this);
  return !m || !m->requires_grad || m->edge.node->is_leaf;
}

Tensor& Tensor::set_requires_grad(bool value) {
  if (!value && !grad_meta(*this)) return *this;
  if (value && (!is_floating() || is_f8(dtype())))
    failf("set_requires_grad: only f64, f32, f16 and bf16 tensors carry gradients, this one is {}", name(dtype()));
  GradMeta& m = ensure_grad_meta(*this);
  if (m.requires_grad == value) return *this;
  if (!value && !m.edge.node->is_leaf)
    fail("set_requires_grad(false): the tensor is the result of " + describe(*m.edge.node) + "; use detach()");
  if (value && !m.edge.node) {
    auto node = Ref<Node>::adopt(new Node(OpId::custom));
    node->is_leaf = true;
    node->leaf = impl_.get();
    m.edge = {node, 0};
  }
  m.requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const {
  const GradMeta* m = grad_meta(*this);
  return m ? m->grad : Tensor();
}

void Tensor::set_grad(const Tensor& grad) const {
  if (grad.defined() && grad.sizes() != sizes())
    failf("set_grad: a gradient of shape {} for a tensor of shape {}", gradual::to_string(grad.sizes()),
          gradual::to_string(sizes()));
  ensure_grad_meta(*this).grad = grad;
}

void Tensor::zero_grad() const {
  if (GradMeta* m = grad_meta(*this)) m->grad = Tensor();
}

Tensor Tensor::detach() const { return detached(*this); }

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  autograd::Engine({this, 1}, {&gradient, 1}, {.retain_graph = retain_graph, .create_graph = create_graph}).run();
}

std::uint64_t Tensor::register_hook(Hook hook) const {
  const GradMeta* m = grad_meta(*this);
  if (!m || !m->requires_grad) fail("register_hook: the tensor does not require grad");
  static std::atomic<std::uint64_t> next_id{1};
  Node& node = *m->edge.node;
  if (!node.hooks) node.hooks = std::make_unique<std::vector<Node::HookEntry>>();
  node.hooks->push_back({m->edge.output, next_id.fetch_add(1), std::move(hook)});
  return node.hooks->back().id;
}

void Tensor::remove_hook(std::uint64_t id) const {
  const GradMeta* m = grad_meta(*this);
  if (!m || !m->edge.node || !m->edge.node->hooks) return;
  std::erase_if(*m->edge.node->hooks, [id](const Node::HookEntry& h) { return h.id == id; });
}

}  // namespace gradual
