#include "engine.h"

#include <algorithm>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "rule.h"

namespace gradual {

namespace autograd {

Engine::Engine(std::span<const Tensor> outputs, std::span<const Tensor> grad_outputs, GradOptions options,
               Segment segment)
    : options_(options), segment_(segment) {
  options_.retain_graph = options.retain_graph || options.create_graph;
  if (!grad_outputs.empty() && grad_outputs.size() != outputs.size())
    throwf("backward: {} outputs and {} gradients", outputs.size(), grad_outputs.size());
  const StageScope no_amp(chain().amp, nullptr);
  const StageScope recording(chain().autograd, options_.create_graph ? default_autograd() : nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) seed(outputs[i], grad_outputs.empty() ? Tensor() : grad_outputs[i]);
}

void Engine::seed(const Tensor& y, Tensor g) {
  if (!y.requires_grad())
    throwf("backward: the output {} does not depend on any tensor that requires grad", to_string(y.sizes()));
  if (!g.defined()) {
    if (y.numel() != 1)
      throwf("backward: an output of shape {} needs a gradient of that shape; only one-element outputs start from 1",
             to_string(y.sizes()));
    g = ones_like(y);
  } else if (g.sizes() != y.sizes() || !g.is_floating()) {
    throwf("backward: a gradient {} for an output {}", describe(g), describe(y));
  }
  deliver(grad_meta(y)->edge, g.dtype() == y.dtype() ? std::move(g) : cast(g, y.dtype()));
}

void Engine::capture(const std::vector<Tensor>& inputs) {
  stop_below_ = ~std::uint64_t{0};
  for (const Tensor& x : inputs) {
    if (!x.requires_grad()) throw_error("grad: an input " + to_string(x.sizes()) + " does not require grad");
    wanted_.push_back(grad_meta(x)->edge);
    stop_below_ = std::min(stop_below_, wanted_.back().node->sequence);
  }
  captured_.resize(inputs.size());
}

// The gradients that the edge's node has received, in the backward that will run it.
Engine::Pending& Engine::waiting_for(const Edge& edge) {
  Engine* engine = this;
  while (edge.node->sequence < engine->segment_.since) engine = engine->segment_.outer;
  Pending& waiting = engine->pending_[edge.node->sequence];
  waiting.node = edge.node;
  return waiting;
}

static GradientSums sums_of_leaf(const Node& node) {
  return node.leaf ? static_cast<const GradMeta*>(node.leaf->grad_meta)->sums : GradientSums::storage;
}

// A choice other than storage prevails, and that of the leaf over that of this backward.
GradientSums Engine::sums_of(const Node& node) const {
  const GradientSums leaf = sums_of_leaf(node);
  return leaf == GradientSums::storage ? options_.sums : leaf;
}

// True if the node is a leaf whose grad() takes the f32 sum as it is.
bool Engine::keeps_sum(const Node& node) const { return wanted_.empty() && sums_of_leaf(node) == GradientSums::f32; }

// Continues a sum in f32.
void Engine::Pending::widen(std::uint32_t output) {
  Tensor& sum = grads[output];
  if (size_of(sum.dtype()) >= size_of(DType::f32)) return;
  widened = true;
  own[output] = sum.dtype();
  sum = cast(sum, DType::f32);
}

// Rounds the sums that are in f32 to the dtypes of their tensors.
[[gnu::noinline]] void Engine::Pending::narrow() {
  for (int i = 0; i < kMaxOutputs; ++i)
    if (own[i]) grads[i] = cast(grads[i], *own[i]);
}

void Engine::deliver(const Edge& edge, Tensor grad) {
  Pending& waiting = waiting_for(edge);
  waiting.complete();
  Tensor& sum = waiting.grads[edge.output];
  if (!sum.defined()) {
    sum = std::move(grad);
    return;
  }
  const GradientSums sums = sums_of(*edge.node);
  if (sums == GradientSums::f32) {
    waiting.widen(edge.output);
    grad = cast(grad, sum.dtype());
  }
  if (is_f8(sum.dtype())) {  // f8 tensors do not add
    sum = cast(add(cast(sum, DType::f32), cast(grad, DType::f32)), sum.dtype());
  } else if (sums == GradientSums::stochastic && is_half(sum.dtype())) {
    sum = add_gradient(sum, grad, sums);
  } else {
    sum = add(std::move(sum), std::move(grad));  // reuses the memory of one, if it is not shared
  }
}

bool Engine::put_slice(Node& node, const SliceAttrs& a, const Tensor& grad) {
  const Node::Input& input = node.input(0);
  const GradientSums sums = sums_of(*input.edge.node);
  if (options_.create_graph || !waiting_for(input.edge).write_slice(input, a, grad, sums)) return false;
  if (!report_ && GradientObserver::installed().empty()) return true;
  // for the observer alone, not a part of backward
  const StageScope unseen(chain().observe, nullptr);
  const StageScope exact(chain().results, nullptr);
  hand_on(node, 0, call_row(OpId::slice_backward, a, grad)[0]);
  return true;
}

static void run_hooks(Node& node, Tensor* grads) {
  if (!node.hooks) return;
  const std::vector<Node::HookEntry> hooks = *node.hooks;  // a hook may remove itself
  for (const Node::HookEntry& h : hooks) {
    Tensor& g = grads[h.output];
    if (!g.defined()) continue;
    Tensor replaced = h.hook(g);
    if (!replaced.defined()) continue;
    if (replaced.sizes() != g.sizes() || !replaced.is_floating())
      throwf("a hook on {} returned {}; the gradient is {}", describe(node), describe(replaced), describe(g));
    g = replaced.dtype() == g.dtype() ? std::move(replaced) : cast(replaced, g.dtype());
  }
}

bool Engine::capture_gradients(Node& node, const Tensor* grads) {
  bool inner = false;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (wanted_[i].node.get() == &node) captured_[i] = grads[wanted_[i].output];
    inner = inner || wanted_[i].node->sequence < node.sequence;
  }
  return wanted_.empty() || inner;  // go on from here?
}

void Engine::gather(Node& node, Tensor grad) const {
  if (!node.leaf || !wanted_.empty()) return;
  auto& meta = *static_cast<GradMeta*>(node.leaf->grad_meta);
  ++meta.received;
  Tensor& sum = meta.grad;
  if (sum.defined() && size_of(sum.dtype()) < size_of(DType::f32) && meta.sums == GradientSums::f32) {
    sum = cast(sum, DType::f32);
    sum.set_category(Category::gradients);
  }
  if (sum.defined()) grad = cast(grad, sum.dtype());
  if (!sum.defined()) {
    // a copy, with create_graph too: the gradient may also go to another leaf, or belong to the user
    sum = sole_owner(grad) && grad.is_contiguous() ? std::move(grad) : clone(grad);
    sum.set_category(Category::gradients);
  } else if (options_.create_graph || (meta.sums == GradientSums::stochastic && is_half(sum.dtype()))) {
    sum = add_gradient(sum, grad, meta.sums);
    sum.set_category(Category::gradients);
  } else {
    sum.add_(grad);
  }
  if (options_.create_graph) sum = constant_on_tape(std::move(sum));
}

namespace {

using Gradients = std::vector<Tensor, PoolAllocator<Tensor>>;

// Runs the node's rule; converts each gradient to its input's shape, dtype and device.
Gradients gradients_of(Node& node, Tensor* grads, bool create_graph, bool frees) {
  Gradients results(static_cast<std::size_t>(node.input_count));
  backward_rules()[static_cast<int>(node.op)].backward(RuleContext(node, grads, results.data(), create_graph, frees));
  for (int i = 0; i < node.input_count; ++i) {
    const Node::Input& slot = node.input(i);
    Tensor& g = results[static_cast<std::size_t>(i)];
    if (!g.defined()) continue;
    if (g.sizes() != slot.sizes) g = sum_to(g, slot.sizes);
    if (g.dtype() != slot.dtype) g = cast(g, slot.dtype);
    if (g.device() != slot.device) g = to_device(g, slot.device);
  }
  return results;
}

// The gradients of a rule with a fused op and a composed form: the fused op's values, so that create_graph changes no
// bit, with the history of the composed form.
Gradients fused_gradients(Node& node, Tensor* grads) {
  Gradients numbers;
  {
    const NoGrad off;
    Tensor copies[kMaxOutputs];  // a rule may take a gradient
    for (int i = 0; i < kMaxOutputs; ++i)
      if (grads[i].defined()) copies[i] = grads[i].detach();
    numbers = gradients_of(node, copies, false, false);
  }
  Gradients composed = gradients_of(node, grads, true, false);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i].defined()) numbers[i] = with_history(numbers[i], composed[i]);
  return numbers;
}

}  // namespace

Tensor constant_on_tape(Tensor t) {
  if (!t.defined() || t.requires_grad()) return t;
  Tensor constant = detached(t);
  const Ref<Node> node = make_leaf(nullptr);
  node->of_backward = true;
  set_history(constant, node, 0);
  return constant;
}

void Engine::hand_on(Node& node, int input, const Tensor& grad) {
  GradientObserver::tell({node, input, grad});
  if (!report_) return;
  report_->grads_in.resize(static_cast<std::size_t>(node.input_count));
  report_->grads_in[static_cast<std::size_t>(input)] = grad;
}

void Engine::run_rule(Node& node, Tensor* grads) {
  Gradients results = options_.create_graph && backward_rules()[static_cast<int>(node.op)].fused
                          ? fused_gradients(node, grads)
                          : gradients_of(node, grads, options_.create_graph, !options_.retain_graph);
  for (int i = 0; i < node.input_count; ++i) {
    Tensor& g = results[static_cast<std::size_t>(i)];
    if (!g.defined()) continue;
    hand_on(node, i, g);
    deliver(node.input(i).edge, std::move(g));
  }
  if (!options_.retain_graph) node.release_saved();
}

void Engine::step(Step* report, const Node* leaf) {
  ensure_registered();
  auto taken = leaf ? pending_.extract(leaf->sequence) : pending_.extract(pending_.begin());
  if (taken.empty()) return;
  Node& node = *taken.mapped().node;
  Tensor* grads = taken.mapped().grads;
  // Below amp, recording only under create_graph, with the line and module of the forward op.
  const Scoped engine(current(), this);
  const Scoped reporting(report_, report);
  saw_gradient_ = saw_gradient_ || node.of_backward;
  const StageScope no_amp(chain().amp, nullptr);
  const StageScope recording(chain().autograd, options_.create_graph ? default_autograd() : nullptr);
  const Scoped around(context(), Context{.module = node.module,
                                         .cause = node.cause,
                                         .phase = Phase::backward,
                                         .line = node.where,
                                         .backward_of = node.is_leaf() ? "" : to_string(node.op).data()});
  taken.mapped().complete();
  if (taken.mapped().widened && !keeps_sum(node)) taken.mapped().narrow();
  if (node.is_leaf()) GradientObserver::tell({node, -1, grads[0]});
  run_hooks(node, grads);
  if (report) {
    report->node = taken.mapped().node;
    report->grads_out.assign(grads, grads + kMaxOutputs);
    report->grads_in.clear();
  }
  const bool go_on = capture_gradients(node, grads);
  if (node.is_leaf()) {
    gather(node, std::move(grads[0]));
  } else if (go_on) {
    run_rule(node, grads);
  }
}

void Engine::run() {
  while (!done()) {
    if (options_.between) options_.between(*this);
    if (!done()) step();  // between() may have run the last leaves
  }
}

}  // namespace autograd
}  // namespace gradual
