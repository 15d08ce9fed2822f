// One entry of the tape: an op that ran, the edges that its gradients follow, and what it saved for backward. Also a
// tensor's link to the tape.
#pragma once

#include <memory>
#include <vector>

#include "../core/ops/op.h"
#include "autograd.h"

namespace gradual {

struct Node;
class Function;

// The destination of a gradient: output `output` of `node`. Null: no gradient is needed.
struct Edge {
  Ref<Node> node;
  std::uint32_t output = 0;
};

using Hook = std::function<Tensor(const Tensor&)>;

struct Node : Pooled<Node>, Pinned {
  // The node's data about one input of its op.
  struct Input {
    explicit Input(const Tensor& t);
    Edge edge;
    bool present = false;  // false: an absent optional input, or a number
    DType dtype = DType::f32;
    Device device;
    Shape sizes;
    Tensor saved;               // if the rule asked for it
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
  void save_input(int i, const Tensor& t) {
    Input& slot = inputs_[i];
    if (slot.saved.defined() || !t.defined()) return;
    slot.saved = t;
    slot.version = t.version();
    t.unsafe_impl()->storage->add_saved();
  }
  void save_output(int i, const Tensor& t);  // stored detached
  // Called after backward, unless the graph is retained. Includes what a user's function saved, as in saved_tensors().
  void release_saved();
  void release(Tensor& saved) {  // one of the saved inputs or outputs
    saved.unsafe_impl()->storage->remove_saved();
    saved = Tensor();
    released = true;
  }
  std::vector<Tensor> saved_tensors() const;

  std::atomic<std::uint32_t> refs{1};
  OpId op;
  int input_count;
  bool released = false;
  std::uint64_t sequence;  // grows in the order of recording; backward takes nodes in descending order
  SourceLocation where;    // none in a leaf
  const char* module = "";
  const CallCause* cause = &causes::program;
  Attrs attrs;
  TensorImpl* leaf = nullptr;  // a leaf's node: the tensor that accumulates the gradient (null once destroyed)
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
  Node* next_waiting_ = nullptr;  // during destruction: the next node to destroy
  Input* inputs_;
  alignas(Input) std::byte inline_inputs_[2 * sizeof(Input)];
};

// The op's name, or the name of a user's function.
std::string op_name(const Node& node);
// "op at file:line in module"
std::string describe(const Node& node);
// "[2, 3] f32"
std::string kind_of(const Shape& sizes, DType dtype);
// The bit of input `i` in a mask: inputs past the 31st share one.
constexpr std::uint32_t input_bit(int i) { return 1u << (i < 31 ? i : 31); }
// Throws the Error about a saved tensor that was changed in place.
[[noreturn]] void fail_changed(const std::string& who, const Tensor& saved, std::uint32_t version);
// A lower bound of the sequence numbers of all nodes recorded later, on any thread.
std::uint64_t next_sequence();

// Autograd's data of a tensor: its link to the tape and its gradient.
struct GradMeta final : GradMetaBase {
  ~GradMeta() override;
  Tensor grad;  // leaves only
  Edge edge;    // the destination of this tensor's gradient; a leaf's own node accumulates it
  bool requires_grad = false;
  autograd::GradientSums sums = autograd::GradientSums::storage;  // leaves only
  std::uint32_t received = 0;                                     // how often backward has changed `grad`
};

static_assert(sizeof(GradMeta) <= GradMetaBase::kBytes);

// Null if autograd has no data of the tensor.
inline GradMeta* grad_meta(const Tensor& t) {
  return t.defined() ? static_cast<GradMeta*>(t.unsafe_impl()->grad_meta) : nullptr;
}
GradMeta& ensure_grad_meta(const Tensor& t);
inline bool needs_grad(const Tensor& t) {
  const GradMeta* m = grad_meta(t);
  return m && m->requires_grad;
}
// Makes the node of a call, with its edges but without saved tensors.
Ref<Node> make_node(const OpCall& call);
// Makes a leaf's node; `owner` accumulates the gradient (null: the gradient is dropped).
Ref<Node> make_leaf(TensorImpl* owner);
// Makes `t` output `output` of `node`.
void set_history(const Tensor& t, Ref<Node> node, std::uint32_t output);
// The numbers of `t` with the history of `other`, if it has one.
Tensor with_history(const Tensor& t, const Tensor& other);
// The same numbers without history.
inline Tensor detached(const Tensor& t) { return as_strided(t, t.sizes(), t.strides(), t.offset()); }

}  // namespace gradual
