#include "node.h"

#include <new>

#include "function.h"

namespace gradual {
namespace {

std::atomic<std::uint64_t> next_sequence{1};
constexpr int kInline = 2;

}  // namespace

Node::Node(OpId o, int n)
    : op(o), input_count(n), sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)) {
  void* raw = n <= kInline ? static_cast<void*>(inline_inputs_)
                           : memory::allocate_object(sizeof(Input) * static_cast<std::size_t>(n));
  inputs_ = static_cast<Input*>(raw);
  for (int i = 0; i < n; ++i) new (inputs_ + i) Input;
}

Node::~Node() {
  release_saved();
  for (int i = 0; i < input_count; ++i) inputs_[i].~Input();
  if (input_count > kInline) memory::free_object(inputs_, sizeof(Input) * static_cast<std::size_t>(input_count));
}

void Node::destroy(Node* node) {
  // Dropping a node drops its edges and saved tensors, which may drop further nodes: those wait in this list.
  thread_local std::vector<Node*>* waiting = nullptr;
  if (waiting) {
    waiting->push_back(node);
    return;
  }
  std::vector<Node*> list{node};
  waiting = &list;
  while (!list.empty()) {
    Node* next = list.back();
    list.pop_back();
    delete next;
  }
  waiting = nullptr;
}

void Node::save_input(int i, const Tensor& t) {
  Input& slot = inputs_[i];
  if (slot.saved.defined() || !t.defined()) return;
  slot.saved = t;
  slot.version = t.version();
  t.unsafe_impl()->storage->add_saved();
}

void Node::save_output(int i, const Tensor& t) {
  if (saved_outputs[i].defined()) return;
  saved_outputs[i] = as_strided(t, t.sizes(), t.strides(), t.offset());
  output_versions[i] = t.version();
  t.unsafe_impl()->storage->add_saved();
}

void Node::release_saved() {
  for (int i = 0; i < input_count; ++i) {
    if (!inputs_[i].saved.defined()) continue;
    inputs_[i].saved.unsafe_impl()->storage->remove_saved();
    inputs_[i].saved = Tensor();
    released = true;
  }
  for (Tensor& t : saved_outputs) {
    if (!t.defined()) continue;
    t.unsafe_impl()->storage->remove_saved();
    t = Tensor();
    released = true;
  }
}

std::int64_t Node::saved_bytes() const {
  std::int64_t bytes = 0;
  for (int i = 0; i < input_count; ++i)
    if (inputs_[i].saved.defined()) bytes += static_cast<std::int64_t>(inputs_[i].saved.nbytes());
  for (const Tensor& t : saved_outputs)
    if (t.defined()) bytes += static_cast<std::int64_t>(t.nbytes());
  return bytes;
}

std::string describe(const Node& node) {
  if (node.is_leaf) return "leaf";
  std::string path = node.where.file_name();
  path = path.substr(path.rfind('/') + 1);
  std::string text(node.function ? node.function->name() : std::string(name(node.op)));
  text += " at " + path + ":" + std::to_string(node.where.line());
  if (*node.module) text += std::string(" in ") + node.module;
  return text;
}

}  // namespace gradual
