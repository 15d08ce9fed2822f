#include "engine.h"

#include <algorithm>
#include <utility>

#include "../core/formats/cast_counts.h"
#include "../core/ops/ops.h"
#include "../core/support/failf.h"
#include "../core/support/scoped.h"
#include "rule.h"

namespace gradual {

void RuleContext::check(const Tensor& t, std::uint32_t version) const {
  if (!t.defined())
    failf("backward of {}: {}", describe(node_),
          node_.released ? "what it saved is freed already; pass retain_graph to the first backward"
                         : "internal: the rule asks for a tensor it did not save");
  if (t.version() != version) fail_changed("backward of " + describe(node_), t, version);
}

Tensor RuleContext::input(int i) const {
  const Node::Input& slot = node_.input(i);
  check(slot.saved, slot.version);
  return slot.saved;
}

Tensor RuleContext::output(int i) const {
  check(node_.saved_outputs[i], node_.output_versions[i]);
  if (!create_graph_ || !node_.saved_outputs[i].is_floating()) return node_.saved_outputs[i];
  Tensor t = detached(node_.saved_outputs[i]);
  set_history(t, Ref<Node>::share(&node_), static_cast<std::uint32_t>(i));
  return t;
}

Tensor RuleContext::take_output(int i) const {
  Tensor t = output(i);
  if (frees_) node_.release_output(i);
  return t;
}

bool RuleContext::put_slice(int i, const SliceAttrs& attrs, const Tensor& g) const {
  autograd::Engine* const engine = autograd::Engine::current();
  return engine && needs(i) && engine->put_slice(node_.input(i).edge, node_.input(i), attrs, g);
}

namespace autograd {
namespace {
thread_local std::vector<GradientObserver*> observers;
}

const Node* leaf_of(const GradientEvent& event) {
  const Node* node = event.input < 0 ? &event.node : event.node.input(event.input).edge.node.get();
  while (node && !node->is_leaf && (node->op == OpId::cast || info(node->op).kind == OpKind::View))
    node = node->input(0).edge.node.get();
  return node && node->is_leaf ? node : nullptr;
}

GradientObserver::GradientObserver() { observers.push_back(this); }
GradientObserver::~GradientObserver() { std::erase(observers, this); }

namespace {

thread_local Engine* current_engine = nullptr;

void notify(const GradientEvent& event) {
  for (GradientObserver* o : observers) o->gradient(event);
}

bool owned(const Tensor& t) {  // nobody else can see the numbers, not as memory of his own either
  const Storage& storage = *t.unsafe_impl()->storage;
  return t.unsafe_impl()->refs.load(std::memory_order_relaxed) == 1 &&
         storage.refs.load(std::memory_order_relaxed) == 1 && !storage.deleter;
}

}  // namespace

Engine* Engine::current() { return current_engine; }

Engine::Engine(std::span<const Tensor> outputs, std::span<const Tensor> grad_outputs, GradOptions options,
               Segment segment)
    : options_(options), segment_(segment) {
  options_.retain_graph = options.retain_graph || options.create_graph;
  if (!grad_outputs.empty() && grad_outputs.size() != outputs.size())
    failf("backward: {} outputs and {} gradients", outputs.size(), grad_outputs.size());
  const StageScope no_amp(chain().amp, nullptr);
  const StageScope recording(chain().autograd, options_.create_graph ? default_autograd() : nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) seed(outputs[i], grad_outputs.empty() ? Tensor() : grad_outputs[i]);
}

void Engine::seed(const Tensor& y, Tensor g) {
  if (!y.requires_grad())
    failf("backward: the output {} does not depend on any tensor that requires grad", to_string(y.sizes()));
  if (!g.defined()) {
    if (y.numel() != 1)
      failf("backward: an output of shape {} needs a gradient of that shape; only one-element outputs start from 1",
            to_string(y.sizes()));
    g = ones_like(y);
  } else if (g.sizes() != y.sizes() || g.dtype() != y.dtype()) {
    failf("backward: a gradient {} for an output {}", describe(g), describe(y));
  }
  deliver(grad_meta(y)->edge, std::move(g));
}

void Engine::capture(const std::vector<Tensor>& inputs) {
  stop_below_ = ~std::uint64_t{0};
  for (const Tensor& x : inputs) {
    if (!x.requires_grad()) fail("grad: an input " + to_string(x.sizes()) + " does not require grad");
    wanted_.push_back(grad_meta(x)->edge);
    stop_below_ = std::min(stop_below_, wanted_.back().node->sequence);
  }
  captured_.resize(inputs.size());
}

bool Engine::done() const { return pending_.empty() || pending_.begin()->first < stop_below_; }

void Engine::deliver(const Edge& edge, Tensor grad) {
  if (edge.node->sequence < segment_.since) return segment_.outer->deliver(edge, std::move(grad));
  Pending& waiting = pending_[edge.node->sequence];
  waiting.node = edge.node;
  complete(waiting);
  Tensor& sum = waiting.grads[edge.output];
  if (!sum.defined()) {
    sum = std::move(grad);
  } else if (is_f8(sum.dtype())) {  // f8 tensors do not add
    sum = cast(add(cast(sum, DType::f32), cast(grad, DType::f32)), sum.dtype());
  } else {
    sum = add(std::move(sum), std::move(grad));  // in the memory of one that nobody else holds
  }
}

bool Engine::put_slice(const Edge& edge, const Node::Input& sliced, const SliceAttrs& a, const Tensor& grad) {
  if (edge.node->sequence < segment_.since) return segment_.outer->put_slice(edge, sliced, a, grad);
  if (options_.create_graph || watched_ || !observers.empty() || chain().observe || cast_counts()) return false;
  if (is_f8(grad.dtype()) || grad.dtype() != sliced.dtype || grad.device() != sliced.device) return false;
  Pending& waiting = pending_[edge.node->sequence];
  waiting.node = edge.node;
  auto& part = waiting.part;
  Tensor& sum = waiting.grads[edge.output];
  const auto place = [&] { return slice(sum, a.dim, {a.start, a.stop, a.step}); };
  if (!sum.defined()) {
    const bool at_end = a.start == 0 || a.stop == a.size;
    if (part.output >= 0 || a.step != 1 || !at_end || grad.numel() == 0) return false;
    sum = empty(sliced.sizes, {.dtype = grad.dtype(), .device = grad.device()});
    part = {static_cast<int>(edge.output), a.dim, a.start, a.stop};
  } else if (part.output == static_cast<int>(edge.output) && part.dim == a.dim && a.step == 1 &&
             (a.start == part.end || a.stop == part.begin)) {
    part.begin = std::min(part.begin, a.start);
    part.end = std::max(part.end, a.stop);
  } else {
    complete(waiting);
    // an expanded sum, as that of a mean is, has one number for many elements
    if (!owned(sum) || !sum.is_contiguous()) return false;
    place().add_(grad);
    return true;
  }
  place().copy_(grad);
  if (part.begin == 0 && part.end == a.size) part.output = -1;
  return true;
}

// Zeros where no slice was written.
void Engine::complete(Pending& waiting) {
  auto& part = waiting.part;
  if (part.output < 0) return;
  const Tensor& sum = waiting.grads[std::exchange(part.output, -1)];
  const std::int64_t size = sum.size(part.dim);
  if (part.begin > 0) slice(sum, part.dim, {0, part.begin, 1}).fill_(0);
  if (part.end < size) slice(sum, part.dim, {part.end, size, 1}).fill_(0);
}

namespace {

void run_hooks(Node& node, Tensor* grads) {
  if (!node.hooks) return;
  const std::vector<Node::HookEntry> hooks = *node.hooks;  // a hook may remove itself
  for (const Node::HookEntry& h : hooks) {
    Tensor& g = grads[h.output];
    if (!g.defined()) continue;
    Tensor replaced = h.hook(g);
    if (!replaced.defined()) continue;
    if (replaced.sizes() != g.sizes() || replaced.dtype() != g.dtype())
      fail("a hook on " + describe(node) + " returned a gradient of another shape or dtype");
    g = std::move(replaced);
  }
}

}  // namespace

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
  Tensor& sum = static_cast<GradMeta*>(node.leaf->grad_meta)->grad;
  if (!sum.defined()) {
    // a memory of its own, with create_graph too: what arrives may have arrived at another leaf, or be the user's
    sum = owned(grad) && grad.is_contiguous() ? std::move(grad) : clone(grad);
    sum.set_category(Category::gradients);
  } else if (options_.create_graph) {
    sum = add(sum, grad);
    sum.set_category(Category::gradients);
  } else {
    sum.add_(grad);
  }
}

void Engine::run_rule(Node& node, Tensor* grads, Step* report) {
  std::vector<Tensor, PoolAllocator<Tensor>> results(static_cast<std::size_t>(node.input_count));
  rules()[static_cast<int>(node.op)].backward(
      RuleContext(node, grads, results.data(), options_.create_graph, !options_.retain_graph));
  for (int i = 0; i < node.input_count; ++i) {
    const Node::Input& slot = node.input(i);
    Tensor& g = results[static_cast<std::size_t>(i)];
    if (!g.defined()) continue;
    if (g.sizes() != slot.sizes) g = sum_to(g, slot.sizes);
    if (g.dtype() != slot.dtype) g = cast(g, slot.dtype);
    if (g.device() != slot.device) g = to_device(g, slot.device);
    notify({node, i, g});
    if (report) {
      report->grads_in.resize(results.size());
      report->grads_in[static_cast<std::size_t>(i)] = g;
    }
    deliver(slot.edge, std::move(g));
  }
  if (!options_.retain_graph) node.release_saved();
}

void Engine::step(Step* report) {
  ensure_registered();
  auto taken = pending_.extract(pending_.begin());
  Node& node = *taken.mapped().node;
  Tensor* grads = taken.mapped().grads;
  // Below amp, recording only where a graph of the backward is wanted, with the line and module of the forward op.
  const Scoped engine(current_engine, this);
  const StageScope no_amp(chain().amp, nullptr);
  const StageScope recording(chain().autograd, options_.create_graph ? default_autograd() : nullptr);
  const Scoped around(context(), Context{.module = node.module,
                                         .cause = node.cause,
                                         .phase = Phase::backward,
                                         .line = node.where,
                                         .backward_of = node.is_leaf ? "" : name(node.op).data()});
  complete(taken.mapped());
  if (node.is_leaf) notify({node, -1, grads[0]});
  run_hooks(node, grads);
  if (report) {
    report->node = taken.mapped().node;
    report->grads_out.assign(grads, grads + kMaxOutputs);
    report->grads_in.clear();
  }
  const bool go_on = capture_gradients(node, grads);
  watched_ = report != nullptr;
  if (node.is_leaf) {
    gather(node, std::move(grads[0]));
  } else if (go_on) {
    run_rule(node, grads, report);
  }
}

void Engine::run() {
  while (!done()) step();
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, GradOptions options) {
  Engine engine(outputs, grad_outputs, options);
  engine.capture(inputs);
  engine.run();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!engine.captured()[i].defined() && !options.allow_unused)
      failf("grad: input {} {} was not used for the outputs; pass allow_unused for an undefined gradient", i,
            to_string(inputs[i].sizes()));
  return engine.captured();
}

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs, GradOptions options) {
  Engine(outputs, grad_outputs, options).run();
}

}  // namespace autograd
}  // namespace gradual
