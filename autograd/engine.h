// Backward: runs nodes in descending sequence order, which reads the tape backwards. No recursion.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "autograd.h"
#include "node.h"

namespace gradual::autograd {

// A part of another backward (activation checkpointing). This engine runs inside a step of `outer`. It passes gradients
// of nodes recorded before `since` to `outer` and does not follow them.
struct Segment {
  Engine* outer = nullptr;
  std::uint64_t since = 0;
};

// True if `t` is the only handle of its tensor and the tensor alone owns its memory.
bool sole_owner(const Tensor& t);

class Engine : Pinned {
 public:
  // What one step did.
  struct Step {
    Ref<Node> node;
    std::vector<Tensor> grads_out;  // received, by output
    std::vector<Tensor> grads_in;   // passed on, by input
  };

  // `grad_outputs`: none, or one for each output (undefined: 1).
  Engine(std::span<const Tensor> outputs, std::span<const Tensor> grad_outputs, GradOptions options,
         Segment segment = {});

  // Captures the gradients of these tensors instead of accumulating gradients in leaves.
  void capture(const std::vector<Tensor>& inputs);
  const std::vector<Tensor>& captured() const { return captured_; }

  // The engine whose step is running on this thread, or null.
  static constexpr auto current = per_thread<Engine*, struct CurrentEngine>;

  // Writes the gradient of a slice into the buffer that all slices of one tensor share; `node` is the slice's node.
  // Copies adjacent slices; only elements that no slice covers are set to zero. Returns false and does nothing under
  // create_graph, if the buffer has another handle, or if the first slice neither starts nor ends the dim.
  bool put_slice(Node& node, const SliceAttrs& attrs, const Tensor& grad);

  // True if a node ran that an earlier backward recorded (create_graph): the outputs depend on gradients.
  bool saw_gradient() const { return saw_gradient_; }
  GradientSums sums() const { return options_.sums; }

  // The sequence number of the node that runs next, or 0. Nodes of higher numbers have run, or get no gradient.
  std::uint64_t newest() const { return pending_.empty() ? 0 : pending_.begin()->first; }
  bool done() const { return newest() < stop_below_; }
  // Runs the newest pending node, if not done(); fills `report` if given. leaf: runs this leaf ahead of its turn, if it
  // has received a gradient. That is right once no node is left that would add to it.
  void step(Step* report = nullptr, const Node* leaf = nullptr);
  void run();

 private:
  struct Pending {
    Ref<Node> node;
    Tensor grads[kMaxOutputs];
    // The gradients of slices of output `sliced` share the buffer grads[sliced] (-1: none): elements [begin, end) of
    // `dim` are written, the others are still uninitialised.
    int sliced = -1;
    int dim = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool widened = false;                        // one of the sums is in f32
    std::optional<DType> own[kMaxOutputs] = {};  // of a sum that is kept in f32: the tensor's own dtype

    bool write_slice(const Node::Input& input, const SliceAttrs& a, const Tensor& grad, GradientSums sums);
    void widen(std::uint32_t output);
    void narrow();
    void complete() {
      if (sliced >= 0) fill_rest();
    }
    void fill_rest();
  };

  void seed(const Tensor& output, Tensor grad);
  Pending& waiting_for(const Edge& edge);
  void deliver(const Edge& edge, Tensor grad);
  GradientSums sums_of(const Node& node) const;
  bool keeps_sum(const Node& node) const;
  void hand_on(Node& node, int input, const Tensor& grad);
  bool capture_gradients(Node& node, const Tensor* grads);
  void gather(Node& node, Tensor grad) const;
  void run_rule(Node& node, Tensor* grads);

  GradOptions options_;
  Segment segment_;
  Step* report_ = nullptr;  // of the running step
  bool saw_gradient_ = false;
  std::map<std::uint64_t, Pending, std::greater<>, PoolAllocator<std::pair<const std::uint64_t, Pending>>>
      pending_;  // by sequence
  std::vector<Edge> wanted_;
  std::vector<Tensor> captured_;
  std::uint64_t stop_below_ = 1;  // no wanted node has a smaller sequence
};

// If `t` has no node, gives it one whose gradient is zero.
Tensor constant_on_tape(Tensor t);

}  // namespace gradual::autograd
