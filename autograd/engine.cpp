#include "engine.h"

#include <algorithm>
#include <utility>

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
  if (!create_graph_ || !node_.saved_outputs[i].is_floating()) return node_.saved_outputs[i];
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

thread_local Engine* current_engine = nullptr;

// What every step runs under: below amp, recording only where a graph of the backward is wanted, and with the line and
// the module of the forward op.
class StepScope {
 public:
  StepScope(Engine* engine, const Node& node, bool create_graph)
      : engine_(current_engine), chain_(chain()), context_(context()) {
    current_engine = engine;
    Chain& ch = chain();
    ch.amp = nullptr;
    ch.autograd = create_graph ? default_autograd() : nullptr;
    Context& c = context();
    c.module = node.module;
    c.cause = node.cause;
    c.phase = Phase::backward;
    c.line = node.where;
    c.backward_of = node.is_leaf ? "" : name(node.op).data();
  }
  ~StepScope() {
    current_engine = engine_;
    chain().amp = chain_.amp;
    chain().autograd = chain_.autograd;
    context() = context_;
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  Engine* engine_;
  Chain chain_;
  Context context_;
};

bool owned(const Tensor& t) {  // nobody else can see the numbers
  return t.unsafe_impl()->refs.load(std::memory_order_relaxed) == 1 &&
         t.unsafe_impl()->storage->refs.load(std::memory_order_relaxed) == 1;
}

}  // namespace

Engine::Buffers& Engine::spare() {
  thread_local Buffers buffers;
  return buffers;
}

Engine* Engine::current() { return current_engine; }

Engine::Engine(std::span<const Tensor> outputs, std::span<const Tensor> grad_outputs, GradOptions options,
               Segment segment)
    : options_(options), segment_(segment), b_(std::exchange(spare(), {})) {
  options_.retain_graph = options.retain_graph || options.create_graph;
  if (b_.table.empty()) b_.table.resize(64);
  if (!grad_outputs.empty() && grad_outputs.size() != outputs.size())
    fail("backward: " + std::to_string(outputs.size()) + " outputs and " + std::to_string(grad_outputs.size()) +
         " gradients");
  Chain& c = chain();
  const StageScope no_amp(c.amp, nullptr);
  const StageScope recording(c.autograd, options_.create_graph ? default_autograd() : nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) seed(outputs[i], grad_outputs.empty() ? Tensor() : grad_outputs[i]);
}

void Engine::seed(const Tensor& y, Tensor g) {
  if (!y.requires_grad())
    fail("backward: the output " + to_string(y.sizes()) + " does not depend on any tensor that requires grad");
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

Engine::~Engine() {
  if (!b_.heap.empty()) {  // stopped early: what is pending goes
    b_.heap.clear();
    b_.free.clear();
    b_.slots.clear();
    std::fill(b_.table.begin(), b_.table.end(), 0);
  }
  constexpr std::size_t kKeep = 1 << 16;
  if (b_.table.size() <= kKeep) spare() = std::move(b_);
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

bool Engine::done() const { return b_.heap.empty() || b_.slots[b_.heap.front()].node->sequence < stop_below_; }

Engine::Pending& Engine::pending(const Ref<Node>& node) {
  const std::size_t mask = b_.table.size() - 1;
  std::size_t at = hash(node.get()) & mask;
  while (const std::uint32_t entry = b_.table[at]) {
    if (b_.slots[entry - 1].node == node) return b_.slots[entry - 1];
    at = (at + 1) & mask;
  }
  if (b_.free.empty()) {
    b_.free.push_back(static_cast<std::uint32_t>(b_.slots.size()));
    b_.slots.emplace_back();
  }
  const std::uint32_t slot = b_.free.back();
  b_.free.pop_back();
  b_.slots[slot].node = node;
  b_.table[at] = slot + 1;
  b_.heap.push_back(slot);
  std::push_heap(b_.heap.begin(), b_.heap.end(), [this](std::uint32_t x, std::uint32_t y) {
    return b_.slots[x].node->sequence < b_.slots[y].node->sequence;
  });
  if (b_.heap.size() * 2 > b_.table.size()) grow_table();
  return b_.slots[slot];
}

void Engine::grow_table() {
  b_.table.assign(b_.table.size() * 4, 0);
  const std::size_t mask = b_.table.size() - 1;
  for (std::uint32_t slot : b_.heap) {
    std::size_t at = hash(b_.slots[slot].node.get()) & mask;
    while (b_.table[at]) at = (at + 1) & mask;
    b_.table[at] = slot + 1;
  }
}

// The pending node with the largest sequence number, out of the heap and the table.
Engine::Pending Engine::take() {
  std::pop_heap(b_.heap.begin(), b_.heap.end(), [this](std::uint32_t x, std::uint32_t y) {
    return b_.slots[x].node->sequence < b_.slots[y].node->sequence;
  });
  const std::uint32_t slot = b_.heap.back();
  b_.heap.pop_back();
  const std::size_t mask = b_.table.size() - 1;
  std::size_t at = hash(b_.slots[slot].node.get()) & mask;
  while (b_.table[at] != slot + 1) at = (at + 1) & mask;
  // Close the gap that linear probing leaves.
  for (std::size_t next = (at + 1) & mask; b_.table[next]; next = (next + 1) & mask) {
    const std::size_t home = hash(b_.slots[b_.table[next] - 1].node.get()) & mask;
    if (((next - home) & mask) >= ((next - at) & mask)) {
      b_.table[at] = b_.table[next];
      at = next;
    }
  }
  b_.table[at] = 0;
  b_.free.push_back(slot);
  return std::exchange(b_.slots[slot], {});
}

void Engine::deliver(const Edge& edge, Tensor grad) {
  if (edge.node->sequence < segment_.since) return segment_.outer->deliver(edge, std::move(grad));
  Tensor& sum = pending(edge.node).grads[edge.output];
  if (!sum.defined()) {
    sum = std::move(grad);
  } else if (is_f8(sum.dtype())) {  // f8 tensors do not add
    sum = cast(add(cast(sum, DType::f32), cast(grad, DType::f32)), sum.dtype());
  } else if (!options_.create_graph && owned(sum) && sum.is_contiguous()) {
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
    sum = options_.create_graph || (owned(grad) && grad.is_contiguous()) ? std::move(grad) : clone(grad);
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
  Pending taken = take();
  Node& node = *taken.node;
  Tensor* grads = taken.grads;
  const StepScope scope(this, node, options_.create_graph);
  if (node.is_leaf && observers) notify({node, -1, grads[0]});
  run_hooks(node, grads);
  if (report) {
    report->node = taken.node;
    report->grads_out.assign(grads, grads + kMaxOutputs);
    report->grads_in.clear();
  }
  const bool go_on = capture_gradients(node, grads);
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
