#include "autograd.h"

#include "../core/ops/ops.h"
#include "../core/quantize/quantizer.h"
#include "../core/support/message_text.h"
#include "../core/support/rounding_draws.h"
#include "../core/support/throwf.h"
#include "engine.h"
#include "node.h"

namespace gradual {

// Tensor's autograd members.

bool Tensor::requires_grad() const { return needs_grad(*this); }

bool Tensor::is_leaf() const {
  const GradMeta* m = grad_meta(*this);
  return !m || !m->requires_grad || m->edge.node->is_leaf();
}

Tensor& Tensor::set_requires_grad(bool value) {
  if (!value && !grad_meta(*this)) return *this;
  if (value && (!is_floating() || is_f8(dtype())))
    throwf("set_requires_grad: only f64, f32, f16 and bf16 tensors carry gradients, this one is {}",
           to_string(dtype()));
  GradMeta& m = ensure_grad_meta(*this);
  if (m.requires_grad == value) return *this;
  if (!value && !m.edge.node->is_leaf())
    throw_error("set_requires_grad(false): the tensor is the result of " + describe(*m.edge.node) + "; use detach()");
  if (value && !m.edge.node) { m.edge = {make_leaf(impl_.get()), 0}; }
  m.requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const {
  const GradMeta* m = grad_meta(*this);
  return m ? m->grad : Tensor();
}

void Tensor::set_grad(const Tensor& grad) const {
  if (grad.defined() && (grad.sizes() != sizes() || grad.device() != device() || !grad.is_floating() || !is_floating()))
    throwf("set_grad: a gradient {} on {} for a tensor {} on {}; both are floating, of one shape and on one device",
           gradual::describe(grad), to_string(grad.device()), gradual::describe(*this), to_string(device()));
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
  if (!m || !m->requires_grad) throw_error("register_hook: the tensor does not require grad");
  static std::atomic<std::uint64_t> next_id{1};
  Node& node = *m->edge.node;
  if (!node.hooks) node.hooks = std::make_unique<std::vector<Node::HookEntry>>();
  node.hooks->push_back({m->edge.output, next_id.fetch_add(1), not_null(std::move(hook), "register_hook: the hook")});
  return node.hooks->back().id;
}

void Tensor::remove_hook(std::uint64_t id) const {
  const GradMeta* m = grad_meta(*this);
  if (!m || !m->edge.node || !m->edge.node->hooks) return;
  std::erase_if(*m->edge.node->hooks, [id](const Node::HookEntry& h) { return h.id == id; });
}

namespace autograd {

std::string_view to_string(GradientSums sums) { return enum_name(sums, {"storage", "f32", "stochastic"}); }

void set_gradient_sums(const Tensor& leaf, GradientSums sums) {
  if (!leaf.defined() || !leaf.is_floating() || !leaf.is_leaf())
    throwf("set_gradient_sums: {}; it must be a floating leaf", leaf.defined() ? describe(leaf) : "(undefined)");
  if (!grad_meta(leaf) && sums == GradientSums::storage) return;
  ensure_grad_meta(leaf).sums = sums;
}

GradientSums gradient_sums(const Tensor& leaf) {
  const GradMeta* m = grad_meta(leaf);
  return m ? m->sums : GradientSums::storage;
}

Tensor add_gradient(const Tensor& sum, const Tensor& gradient, GradientSums sums) {
  const Tensor term = cast(gradient, sum.dtype());
  if (sums != GradientSums::stochastic || !is_half(sum.dtype())) return add(sum, term);
  const Tensor plain = needs_grad(sum) || needs_grad(term) ? add(sum, term) : Tensor();  // create_graph
  const NoGrad off;
  const StageScope once(chain().results, nullptr);
  const Rounding at_random{.mode = RoundingMode::stochastic};
  const Tensor exact = add(cast(sum, DType::f32), cast(term, DType::f32));
  const Tensor rounded =
      fake_quantize(exact, format_of(sum.dtype()), at_random, Overflow::ieee, rounding_generator().next());
  const Tensor stored = cast(rounded, sum.dtype());
  return plain.defined() ? with_history(stored, plain) : stored;
}

std::uint32_t gradients_received(const Tensor& leaf) {
  const GradMeta* m = grad_meta(leaf);
  return m ? m->received : 0;
}

const Node* leaf_of(const GradientEvent& event) {
  const Node* node = event.input < 0 ? &event.node : event.node.input(event.input).edge.node.get();
  while (node && !node->is_leaf() && (node->op == OpId::cast || op_info(node->op).kind == OpKind::View))
    node = node->input(0).edge.node.get();
  return node && node->is_leaf() ? node : nullptr;
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, GradOptions options) {
  Engine engine(outputs, grad_outputs, options);
  engine.capture(inputs);
  engine.run();
  std::vector<Tensor> grads = engine.captured();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!grads[i].defined() && options.allow_unused) continue;
    if (!grads[i].defined() && !engine.saw_gradient())
      throwf("grad: input {} {} was not used for the outputs; pass allow_unused for an undefined gradient", i,
             to_string(inputs[i].sizes()));
    if (!grads[i].defined()) grads[i] = zeros_like(inputs[i]);  // the derivative of a constant gradient
    if (options.create_graph) grads[i] = constant_on_tape(std::move(grads[i]));
  }
  return grads;
}

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs, GradOptions options) {
  Engine(outputs, grad_outputs, options).run();
}

GradientObserver::GradientObserver() { installed().push_back(this); }
GradientObserver::~GradientObserver() { std::erase(installed(), this); }

std::vector<GradientObserver*>& GradientObserver::installed() {
  thread_local std::vector<GradientObserver*> observers;
  return observers;
}

void GradientObserver::tell(const GradientEvent& event) {
  for (GradientObserver* observer : installed()) observer->gradient(event);
}

}  // namespace autograd
}  // namespace gradual
