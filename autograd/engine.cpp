#include "engine.h"

#include <algorithm>

#include "../core/ops.h"
#include "function.h"
#include "rule.h"

namespace gradual {

void RuleContext::check(const Tensor& t, std::uint32_t version) const {
  if (!t.defined()) {
    fail("backward of " + describe(node_) +
         (node_.released ? ": what it saved is freed already; pass retain_graph to the first backward"
                         : ": internal: the rule asks for a tensor it did not save"));
  }
  if (t.version() != version) {
    fail("backward of " + describe(node_) + ": a saved tensor " + to_string(t.sizes()) + " " +
         std::string(name(t.dtype())) + " was changed in place since (version " + std::to_string(t.version()) +
         ", saved at version " + std::to_string(version) + "); clone() it first or write the functional form");
  }
}

Tensor RuleContext::input(int i) const {
  const Node::Input& slot = node_.input(i);
  check(slot.saved, slot.version);
  return slot.saved;
}

Tensor RuleContext::output(int i) const {
  check(node_.saved_outputs[i], node_.output_versions[i]);
  if (!create_graph_) return node_.saved_outputs[i];
  Tensor t = detached(node_.saved_outputs[i]);
  set_history(t, Ref<Node>::share(&node_), static_cast<std::uint32_t>(i));
  return t;
}

namespace autograd {
namespace {
thread_local GradientObserver* observers = nullptr;
}

GradientObserver::GradientObserver() : next_(observers) { observers = this; }
GradientObserver::~GradientObserver() {
  GradientObserver** link = &observers;
  while (*link && *link != this) link = &(*link)->next_;
  if (*link) *link = next_;
}
void notify(const GradientEvent& event) {
  for (GradientObserver* o = observers; o; o = o->next_) o->gradient(event);
}

namespace {

std::size_t hash(const Node* node) {
  return static_cast<std::size_t>((reinterpret_cast<std::uintptr_t>(node) >> 6) * 0x9E3779B97F4A7C15u >> 20);
}

// In backward an op's line and module are those of the forward op.
class NodeScope {
 public:
  explicit NodeScope(const Node& node) : saved_(context()) {
    Context& c = context();
    c.module = node.module;
    c.cause = node.cause;
    c.phase = Phase::backward;
    c.line = node.where;
  }
  ~NodeScope() { context() = saved_; }
  NodeScope(const NodeScope&) = delete;
  NodeScope& operator=(const NodeScope&) = delete;

 private:
  Context saved_;
};

// The engine's vectors, kept between runs so that a small backward touches no heap. A nested run finds them taken.
struct Buffers {
  std::vector<std::uint32_t> free, heap, table;
};
thread_local Buffers spare;

}  // namespace

Engine::Engine(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs, GradOptions options)
    : options_(options) {
  options_.retain_graph = options.retain_graph || options.create_graph;
  free_.swap(spare.free);
  heap_.swap(spare.heap);
  table_.swap(spare.table);
  free_.clear();
  heap_.clear();
  if (table_.size() < 64) table_.resize(64);
  std::fill(table_.begin(), table_.end(), 0);
  if (!grad_outputs.empty() && grad_outputs.size() != outputs.size())
    fail("backward: " + std::to_string(outputs.size()) + " outputs and " + std::to_string(grad_outputs.size()) +
         " gradients");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i];
    if (!y.requires_grad())
      fail("backward: the output " + to_string(y.sizes()) + " does not depend on any tensor that requires grad");
    Tensor g = grad_outputs.empty() ? Tensor() : grad_outputs[i];
    if (!g.defined()) {
      if (y.numel() != 1)
        fail("backward: an output of shape " + to_string(y.sizes()) +
             " needs a gradient of that shape; only one-element outputs start from 1");
      g = ones_like(y);
    } else if (g.sizes() != y.sizes() || g.dtype() != y.dtype()) {
      fail("backward: a gradient " + to_string(g.sizes()) + " " + std::string(name(g.dtype())) + " for an output " +
           to_string(y.sizes()) + " " + std::string(name(y.dtype())));
    }
    deliver(grad_meta(y)->edge, std::move(g));
  }
}

Engine::~Engine() {
  free_.swap(spare.free);
  heap_.swap(spare.heap);
  table_.swap(spare.table);
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

bool Engine::done() const { return heap_.empty() || slots_[heap_.front()].node->sequence < stop_below_; }

Engine::Pending& Engine::pending(const Ref<Node>& node) {
  std::size_t mask = table_.size() - 1;
  std::size_t at = hash(node.get()) & mask;
  while (table_[at]) {
    if (slots_[table_[at] - 1].node == node) return slots_[table_[at] - 1];
    at = (at + 1) & mask;
  }
  std::uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  slots_[slot].node = node;
  table_[at] = slot + 1;
  heap_.push_back(slot);
  std::push_heap(heap_.begin(), heap_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return slots_[a].node->sequence < slots_[b].node->sequence;
  });
  if (heap_.size() * 2 > table_.size()) {  // grow: the table holds exactly what the heap holds
    table_.assign(table_.size() * 4, 0);
    mask = table_.size() - 1;
    for (std::uint32_t s : heap_) {
      at = hash(slots_[s].node.get()) & mask;
      while (table_[at]) at = (at + 1) & mask;
      table_[at] = s + 1;
    }
  }
  return slots_[slot];
}

void Engine::deliver(const Edge& edge, Tensor grad) {
  Tensor& sum = pending(edge.node).grads[edge.output];
  if (!sum.defined()) {
    sum = std::move(grad);
  } else if (!options_.create_graph && sum.unsafe_impl()->refs.load() == 1 &&
             sum.unsafe_impl()->storage->refs.load() == 1 && sum.is_contiguous()) {
    sum.add_(grad);
  } else {
    sum = add(sum, grad);
  }
}

void Engine::run_hooks(Node& node, Tensor* grads) {
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
  Tensor& sum = static_cast<GradMeta*>(node.leaf->grad_meta.get())->grad;
  if (!sum.defined()) {
    const bool own = options_.create_graph ||
                     (grad.unsafe_impl()->refs.load() == 1 && grad.unsafe_impl()->storage->refs.load() == 1);
    sum = own && (grad.is_contiguous() || options_.create_graph) ? std::move(grad) : clone(grad);
    sum.set_category(Category::gradients);
  } else if (options_.create_graph) {
    sum = add(sum, grad);
  } else {
    sum.add_(grad);
  }
}

void Engine::run_rule(Node& node, const Tensor* grads, Step* report) {
  constexpr int kInline = 8;
  Tensor few[kInline];
  std::vector<Tensor> many(node.input_count > kInline ? static_cast<std::size_t>(node.input_count) : 0);
  Tensor* results = many.empty() ? few : many.data();
  rules()[static_cast<int>(node.op)].backward(RuleContext(node, grads, results, options_.create_graph));
  for (int i = 0; i < node.input_count; ++i) {
    const Node::Input& slot = node.input(i);
    if (!slot.edge.node || !results[i].defined()) continue;
    Tensor g = std::move(results[i]);
    if (g.sizes() != slot.sizes) g = sum_to(g, slot.sizes);
    if (g.dtype() != slot.dtype)
      fail("backward of " + describe(node) + ": a gradient " + std::string(name(g.dtype())) + " for input " +
           std::to_string(i) + ", which is " + std::string(name(slot.dtype)));
    if (observers) notify({node, i, g});
    if (report) {
      report->grads_in.resize(static_cast<std::size_t>(node.input_count));
      report->grads_in[static_cast<std::size_t>(i)] = g;
    }
    deliver(slot.edge, std::move(g));
  }
  if (!options_.retain_graph) {
    node.release_saved();
    if (node.function) release_function(*node.function);
  }
}

void Engine::step(Step* report) {
  ensure_registered();
  std::pop_heap(heap_.begin(), heap_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return slots_[a].node->sequence < slots_[b].node->sequence;
  });
  const std::uint32_t slot = heap_.back();
  heap_.pop_back();
  const Ref<Node> node = std::move(slots_[slot].node);
  Tensor grads[kMaxOutputs];
  for (int i = 0; i < kMaxOutputs; ++i) grads[i] = std::move(slots_[slot].grads[i]);
  // Out of the table: close the gap that linear probing leaves.
  const std::size_t mask = table_.size() - 1;
  std::size_t at = hash(node.get()) & mask;
  while (table_[at] != slot + 1) at = (at + 1) & mask;
  for (std::size_t next = (at + 1) & mask; table_[next]; next = (next + 1) & mask) {
    const std::size_t home = hash(slots_[table_[next] - 1].node.get()) & mask;
    if (((next - home) & mask) >= ((next - at) & mask)) {
      table_[at] = table_[next];
      at = next;
    }
  }
  table_[at] = 0;
  free_.push_back(slot);

  Chain& c = chain();
  const StageScope no_amp(c.amp, nullptr);
  const StageScope recording(c.autograd, options_.create_graph ? default_autograd() : nullptr);
  const NodeScope scope(*node);
  if (node->is_leaf && observers) notify({*node, -1, grads[0]});
  run_hooks(*node, grads);
  if (report) {
    report->node = node;
    report->grads_out.assign(grads, grads + kMaxOutputs);
    report->grads_in.clear();
  }
  const bool go_on = capture_gradients(*node, grads);
  if (node->is_leaf) {
    gather(*node, std::move(grads[0]));
  } else if (go_on) {
    run_rule(*node, grads, report);
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
      fail("grad: input " + std::to_string(i) + " " + to_string(inputs[i].sizes()) +
           " was not used for the outputs; pass allow_unused for an undefined gradient");
  return engine.captured();
}

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs, GradOptions options) {
  Engine engine(outputs, grad_outputs, options);
  engine.run();
}

}  // namespace autograd
}  // namespace gradual
