// One entry of the tape: an op that ran, where its gradients go, and what it keeps for backward. And a tensor's place
// on the tape.
#pragma once

#include <memory>
#include <vector>

#include "../core/ops/op.h"

namespace gradual {

struct Node;
class Function;

// Where a gradient flows: into output `output` of `node`. Null: nobody needs it.
struct Edge {
  Ref<Node> node;
  std::uint32_t output = 0;
};

using Hook = std::function<Tensor(const Tensor&)>;

struct Node : Pooled<Node>, Pinned {
  // What the node knows of one input of its op.
  struct Input {
    explicit Input(const Tensor& t);
    Edge edge;
    bool present = false;  // not an absent optional input, nor a number
    DType dtype = DType::f32;
    Device device;
    Shape sizes;
    Tensor saved;               // where a rule asked for it
    std::uint32_t version = 0;  // of the saved tensor's storage, when it was saved
  };
  struct HookEntry {
    std::uint32_t output;
    std::uint64_t id;
    Hook hook;
  };

  explicit Node(OpId op, TensorRefs inputs = {});
  ~Node();
  // Destruction is iterative: a tape of a million nodes needs no deep stack.
  static void destroy(Node* node);

  bool is_leaf() const { return op == OpId::leaf; }
  Input& input(int i) { return inputs_[i]; }
  const Input& input(int i) const { return inputs_[i]; }
  void save_input(int i, const Tensor& t);
  void save_output(int i, const Tensor& t);  // kept detached
  // After backward, unless the graph is retained. What a user's function saved included, as in saved_tensors().
  void release_saved();
  void release_output(int i);  // a saved one
  std::vector<Tensor> saved_tensors() const;

  std::atomic<std::uint32_t> refs{1};
  OpId op;
  int input_count;
  bool released = false;
  std::uint64_t sequence;  // grows in the order of recording; backward takes nodes in falling order
  SourceLocation where;    // none in a leaf
  const char* module = "";
  const char* cause = "";
  Attrs attrs;
  TensorImpl* leaf = nullptr;  // a leaf's node: the tensor that gathers the gradient (null once it is gone)
  bool of_backward = false;    // recorded while a backward ran: create_graph
  Tensor saved_outputs[kMaxOutputs];
  std::uint32_t output_versions[kMaxOutputs] = {};
  Shape output_sizes;  // of output 0
  DType output_dtype = DType::f32;
  std::shared_ptr<Function> function;             // custom
  std::unique_ptr<std::vector<HookEntry>> hooks;  // called with the gradient of an output

 private:
  std::size_t input_bytes() const { return sizeof(Input) * static_cast<std::size_t>(input_count); }
  template <class F> void each_saved(F f) const;
  void release(Tensor& saved);
  Node* next_waiting_ = nullptr;  // while destroyed: the next one that waits
  Input* inputs_;
  alignas(Input) std::byte inline_inputs_[2 * sizeof(Input)];
};

// The op's name; a user function's own.
std::string name(const Node& node);
// "op at file:line in module"
std::string describe(const Node& node);
// "[2, 3] f32"
std::string kind_of(const Shape& sizes, DType dtype);
// The bit of input `i` in a mask: inputs past the 31st share one.
constexpr std::uint32_t input_bit(int i) { return 1u << (i < 31 ? i : 31); }
// The error of a saved tensor that was written since.
[[noreturn]] void fail_changed(const std::string& who, const Tensor& saved, std::uint32_t version);
// Nodes recorded from now on, on any thread, have at least this sequence number.
std::uint64_t next_sequence();

// What autograd keeps with a tensor: its place on the tape and its gradient.
struct GradMeta final : GradMetaBase {
  ~GradMeta() override;
  Tensor grad;  // leaves only
  Edge edge;    // where this tensor's gradient flows; a leaf's own node gathers it
  bool requires_grad = false;
};

static_assert(sizeof(GradMeta) <= GradMetaBase::kBytes);

// Null where autograd knows nothing of the tensor.
inline GradMeta* grad_meta(const Tensor& t) {
  return t.defined() ? static_cast<GradMeta*>(t.unsafe_impl()->grad_meta) : nullptr;
}
GradMeta& ensure_grad_meta(const Tensor& t);
inline bool needs_grad(const Tensor& t) {
  const GradMeta* m = grad_meta(t);
  return m && m->requires_grad;
}
// The tape's entry of a call, with its edges, and without what its rule saves.
Ref<Node> make_node(const OpCall& call);
// A leaf's node: `owner` gathers the gradient (null: nobody does).
Ref<Node> make_leaf(TensorImpl* owner);
// Makes `t` output `output` of `node`.
void set_history(const Tensor& t, Ref<Node> node, std::uint32_t output);
// The numbers of `t` with the history of `other`, where that has one.
Tensor with_history(const Tensor& t, const Tensor& other);
// The same numbers without history.
Tensor detached(const Tensor& t);

}  // namespace gradual
