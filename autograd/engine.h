// Backward: nodes in falling sequence order, the tape read backwards. No recursion.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "autograd.h"
#include "node.h"
#include "slice_sum.h"

namespace gradual::autograd {

class Engine;

// A part of another backward (activation checkpointing): gradients of nodes recorded before `since` are not followed
// here but handed to `outer`, in whose step this engine runs.
struct Segment {
  Engine* outer = nullptr;
  std::uint64_t since = 0;
};

class Engine : Pinned {
 public:
  // What one step did.
  struct Step {
    Ref<Node> node;
    std::vector<Tensor> grads_out;  // arrived, by output
    std::vector<Tensor> grads_in;   // handed on, by input
  };

  // `grad_outputs`: none, or one for each output (undefined: 1).
  Engine(std::span<const Tensor> outputs, std::span<const Tensor> grad_outputs, GradOptions options,
         Segment segment = {});

  // Gradients are captured for these instead of gathered in leaves.
  void capture(const std::vector<Tensor>& inputs);
  const std::vector<Tensor>& captured() const { return captured_; }

  // The engine whose step runs on this thread, or null.
  static Engine* current();

  // Writes the gradient of a slice, made by input 0 of `node`, into the buffer that the slices of one tensor share. Adjacent
  // slices are copied into it, and only what no slice covers is set to zero. False, with nothing done, under create_graph,
  // where another handle to the buffer exists, and where the first slice does not start or end the dim.
  bool put_slice(Node& node, const SliceAttrs& attrs, const Tensor& grad);

  // Whether a node ran that an earlier backward recorded (create_graph): the outputs depend on gradients.
  bool saw_gradient() const { return saw_gradient_; }

  bool done() const;
  // Runs the newest node that waits; `report`, where given, is filled.
  void step(Step* report = nullptr);
  void run();

 private:
  struct Pending {
    Ref<Node> node;
    Tensor grads[kMaxOutputs];
    SliceSum slices = {};
  };

  void seed(const Tensor& output, Tensor grad);
  void deliver(const Edge& edge, Tensor grad);
  bool write_slice(const Edge& edge, const Node::Input& sliced, const SliceAttrs& attrs, const Tensor& grad);
  void hand_on(Node& node, int input, const Tensor& grad);
  bool capture_gradients(Node& node, const Tensor* grads);
  void gather(Node& node, Tensor grad) const;
  void run_rule(Node& node, Tensor* grads);

  GradOptions options_;
  Segment segment_;
  Step* report_ = nullptr;  // of the step that runs
  bool saw_gradient_ = false;
  std::map<std::uint64_t, Pending, std::greater<>, PoolAllocator<std::pair<const std::uint64_t, Pending>>>
      pending_;  // by sequence
  std::vector<Edge> wanted_;
  std::vector<Tensor> captured_;
  std::uint64_t stop_below_ = 0;  // no wanted node has a smaller sequence
};

// Gives `t` an entry on the tape, if it has none, whose own gradient is zero.
Tensor constant_on_tape(Tensor t);

}  // namespace gradual::autograd
