#include "node.h"

#include <algorithm>
#include <new>

#include "../core/support/throwf.h"
#include "function.h"

namespace gradual {

static std::atomic<std::uint64_t> sequences{1};
constexpr int kInline = 2;

Node::Input::Input(const Tensor& t) : present(t.defined()) {
  if (!present) return;
  const TensorImpl& impl = *t.unsafe_impl();
  if (const GradMeta* m = grad_meta(t); m && m->requires_grad) edge = m->edge;
  dtype = impl.dtype;
  device = impl.storage->device;
  sizes = impl.sizes;
}

Node::Node(OpId o, TensorRefs inputs) : op(o), input_count(inputs.size()), sequence(add_to(sequences, 1)) {
  inputs_ = static_cast<Input*>(input_count <= kInline ? inline_inputs_ : memory::allocate(input_bytes()));
  for (int i = 0; i < input_count; ++i) new (inputs_ + i) Input(inputs[i]);
}

Node::~Node() {
  function.reset();  // other owners keep it and its saved tensors
  release_saved();
  for (int i = 0; i < input_count; ++i) inputs_[i].~Input();
  if (input_count > kInline) memory::free(inputs_, input_bytes());
}

void Node::destroy(Node* node) {
  // Destroying a node destroys its edges and saved tensors, which may destroy further nodes: these go to a list.
  struct List {
    Node* first = nullptr;
    bool running = false;
  };
  [[gnu::tls_model("initial-exec")]] constinit thread_local List own;
  List& waiting = own;
  node->next_waiting_ = waiting.first;
  waiting.first = node;
  if (waiting.running) return;
  waiting.running = true;
  while (waiting.first) {
    Node* next = waiting.first;
    waiting.first = next->next_waiting_;
    delete next;
  }
  waiting.running = false;
}

template <class F> void Node::each_saved(F f) const {
  for (int i = 0; i < input_count; ++i)
    if (inputs_[i].saved.defined()) f(inputs_[i].saved);
  for (const Tensor& t : saved_outputs)
    if (t.defined()) f(const_cast<Tensor&>(t));
}

void Node::save_output(int i, const Tensor& t) {
  saved_outputs[i] = detached(t);
  output_versions[i] = t.version();
  t.unsafe_impl()->storage->add_saved();
}

void Node::release_saved() {
  each_saved([&](Tensor& t) { release(t); });
  if (function) function->release();
}

std::vector<Tensor> Node::saved_tensors() const {
  std::vector<Tensor> tensors;
  if (function) std::ranges::copy_if(function->saved_, std::back_inserter(tensors), &Tensor::defined);
  each_saved([&](const Tensor& t) { tensors.push_back(t); });
  return tensors;
}

GradMeta::~GradMeta() {
  if (edge.node && edge.node->is_leaf()) edge.node->leaf = nullptr;
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
  // A former leaf that now becomes a result: older nodes must not accumulate gradients in it.
  if (m.edge.node && m.edge.node->is_leaf()) m.edge.node->leaf = nullptr;
  m.edge.node = std::move(node);
  m.edge.output = output;
  m.requires_grad = true;
}

Tensor with_history(const Tensor& t, const Tensor& other) {
  const GradMeta* m = grad_meta(other);
  if (!m || !m->requires_grad) return t;
  Tensor numbers = detached(t);
  set_history(numbers, m->edge.node, m->edge.output);
  return numbers;
}

Ref<Node> make_node(const OpCall& call) {
  auto node = Ref<Node>::adopt(new Node(call.op, call.inputs));
  const Context& c = context();
  node->where = call.where;
  node->module = c.module;
  node->cause = c.cause;
  node->attrs = *call.attrs;
  node->of_backward = c.phase == Phase::backward;
  return node;
}

Ref<Node> make_leaf(TensorImpl* owner) {
  auto node = Ref<Node>::adopt(new Node(OpId::leaf));
  node->leaf = owner;
  return node;
}

std::uint64_t next_sequence() { return sequences.load(std::memory_order_relaxed); }

std::string op_name(const Node& node) {
  return node.function ? node.function->name() : std::string(to_string(node.op));
}

std::string describe(const Node& node) {
  if (node.is_leaf()) return "leaf";
  return op_name(node) + " at " + file_line(node.where) + (*node.module ? std::string(" in ") + node.module : "");
}

std::string kind_of(const Shape& sizes, DType d) { return fmt::format("{} {}", to_string(sizes), to_string(d)); }

void fail_changed(const std::string& who, const Tensor& t, std::uint32_t version) {
  throwf("{}: a saved tensor {} was changed in place since (version {}, saved at version {}); clone() it first", who,
         describe(t), t.version(), version);
}

}  // namespace gradual
