// The Autograd stage: runs what lies below and records a node where a gradient will be wanted.
#include "autograd.h"

#include "../core/ops.h"
#include "engine.h"
#include "function.h"
#include "grad_meta.h"
#include "rule.h"

namespace gradual {

GradMeta::~GradMeta() {
  if (edge.node && edge.node->is_leaf) edge.node->leaf = nullptr;
}

GradMeta& ensure_grad_meta(const Tensor& t) {
  TensorImpl* impl = t.unsafe_impl();
  if (!impl->grad_meta) {
    impl->grad_meta = std::make_unique<GradMeta>();
    std::atomic<std::int32_t>& count = impl->storage->differentiable;
    if (impl->storage->refs.load(std::memory_order_relaxed) == 1) {
      count.store(1, std::memory_order_relaxed);  // fresh: nobody else sees it
    } else {
      count.fetch_add(1, std::memory_order_relaxed);
    }
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

void record_saves(Node& node, const OpCall& call, const Outputs& out, const Rule& rule, std::uint32_t needs) {
  std::uint16_t saves = 0;
  for (int i = 0; i < call.inputs.size(); ++i)
    if (needs & (1u << (i < 31 ? i : 31))) saves |= rule.saves[i < 5 ? i : 4];
  for (int i = 0; i < 8 && i < call.inputs.size(); ++i)
    if (saves & in(i)) node.save_input(i, call[i]);
  for (int i = 0; i < kMaxOutputs; ++i)
    if (saves & gradual::out(i)) node.save_output(i, out[i]);
}

Ref<Node> make_node(const OpCall& call) {
  const int n = call.inputs.size();
  auto node = Ref<Node>::adopt(new Node(call.op, n));
  const Context& c = context();
  node->where = call.where;
  node->module = c.module;
  node->cause = c.cause;
  node->attrs = *call.attrs;
  for (int i = 0; i < n; ++i) {
    const Tensor& t = call[i];
    if (!t.defined()) continue;
    Node::Input& slot = node->input(i);
    slot.present = true;
    slot.sizes = t.sizes();
    slot.dtype = t.dtype();
    if (const GradMeta* m = grad_meta(t); m && m->requires_grad) slot.edge = m->edge;
  }
  return node;
}

void finish_node(Node& node, const Tensor& first) {
  node.output_sizes = first.sizes();
  node.output_dtype = first.dtype();
}

// A copy of `t` that stands for it on the tape: what a rule needs of a tensor that is about to be overwritten.
Tensor copy_before_write(const Tensor& t, const OpCall& call) {
  Tensor copy;
  {
    const NoGrad off;
    const CauseScope cause(intern("kept for the backward of " + std::string(name(call.op))));
    copy = clone(t, call.where);
  }
  if (const GradMeta* m = grad_meta(t); m && m->requires_grad) set_history(copy, m->edge.node, m->edge.output);
  return copy;
}

void check_in_place(const OpCall& call, const Rule& rule) {
  const Tensor& x = call[0];
  const GradMeta* m = grad_meta(x);
  const Storage& storage = *x.unsafe_impl()->storage;
  const auto refuse = [&](const std::string& why) {
    std::string op(name(call.op));
    if (op.ends_with('_')) op.pop_back();
    fail(describe(call) + ": " + why + "; use the functional form x = " + op + "(x, ..), or write under NoGrad");
  };
  if (m && m->requires_grad && m->edge.node->is_leaf) refuse("a leaf that requires grad cannot be written in place");
  if (storage.differentiable.load() > (m ? 1 : 0))
    refuse("the tensor shares storage with another differentiable tensor");
  if (!(m && m->requires_grad) && storage.refs.load() > 1)
    refuse("the tensor shares storage with another one, which would not carry the gradient");
  if (!x.is_floating()) refuse("only floating tensors carry gradients");
  if (!rule.backward) refuse(rule.reason ? rule.reason : "this op has no gradient");
}

Outputs call_in_place(const OpCall& call, const Rule& rule, std::uint32_t needs) {
  check_in_place(call, rule);
  const Tensor& x = call[0];
  const Ref<Node> node = make_node(call);
  std::uint16_t saves = 0;
  for (int i = 0; i < call.inputs.size(); ++i)
    if (needs & (1u << i)) saves |= rule.saves[i];
  for (int i = 0; i < call.inputs.size(); ++i) {
    if (!(saves & in(i)) || !call[i].defined()) continue;
    node->save_input(i, call[i].shares_storage(x) ? copy_before_write(call[i], call) : call[i]);
  }
  Outputs out = next_below_autograd(call);
  finish_node(*node, x);
  set_history(x, node, 0);
  return out;
}

class Autograd final : public Interceptor {
 public:
  Outputs call(const OpCall& call) override {
    std::uint32_t needs = 0;
    for (int i = 0; i < call.inputs.size(); ++i)
      if (needs_grad(call[i])) needs |= 1u << (i < 31 ? i : 31);
    if (!needs) return next_below_autograd(call);
    const Rule& rule = table[static_cast<int>(call.op)];
    if (info(call.op).kind == OpKind::InPlace) return call_in_place(call, rule, needs);
    if (!rule.backward && !rule.reason)
      fail(std::string(name(call.op)) + ": no backward rule; run it under NoGrad or on detach()ed inputs");
    Outputs out = next_below_autograd(call);
    if (!rule.backward) return out;
    const auto carries = [&](int i) {
      return (rule.differentiable >> i & 1) && out[i].defined() && out[i].is_floating();
    };
    int last = kMaxOutputs - 1;
    while (last >= 0 && !carries(last)) --last;
    if (last < 0) return out;
    Ref<Node> node = make_node(call);
    finish_node(*node, out[0]);
    if (call.op == OpId::custom) node->function = function_of(call);
    record_saves(*node, call, out, rule, needs);
    for (int i = 0; i < last; ++i)
      if (carries(i)) set_history(out[i], node, static_cast<std::uint32_t>(i));
    set_history(out[last], std::move(node), static_cast<std::uint32_t>(last));
    return out;
  }
};

}  // namespace

Interceptor* default_autograd() {
  static Autograd autograd;
  return &autograd;
}

bool grad_enabled() { return chain().autograd != nullptr; }
EnableGrad::EnableGrad() : StageScope(chain().autograd, default_autograd()) {}

Rule* rules() { return table; }
void set_rule(OpId op, RuleFn backward, std::initializer_list<std::uint16_t> saves) {
  Rule& r = table[static_cast<int>(op)];
  r.backward = backward;
  int i = 0;
  for (std::uint16_t s : saves) r.saves[i++] = s;
}
void set_no_rule(OpId op, const char* reason) { table[static_cast<int>(op)].reason = reason; }

void register_rules() {
  register_elementwise_rules();
  register_reduction_rules();
  register_contraction_rules();
  register_normalization_rules();
  register_movement_rules();
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
    fail("set_requires_grad: only f64, f32, f16 and bf16 tensors carry gradients, this one is " +
         std::string(name(dtype())));
  GradMeta& m = ensure_grad_meta(*this);
  if (m.requires_grad == value) return *this;
  if (!value && !m.edge.node->is_leaf)
    fail("set_requires_grad(false): the tensor is the result of " + describe(*m.edge.node) + "; use detach()");
  if (value && !m.edge.node) {
    auto node = Ref<Node>::adopt(new Node(OpId::custom, 0));
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
    fail("set_grad: a gradient of shape " + gradual::to_string(grad.sizes()) + " for a tensor of shape " +
         gradual::to_string(sizes()));
  ensure_grad_meta(*this).grad = grad;
}

void Tensor::zero_grad() const {
  if (GradMeta* m = grad_meta(*this)) m->grad = Tensor();
}

Tensor Tensor::detach() const { return detached(*this); }

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  autograd::Engine engine({this, 1}, {&gradient, gradient.defined() ? std::size_t{1} : 0},
                          {.retain_graph = retain_graph, .create_graph = create_graph});
  engine.run();
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
