// Backward: nodes in falling sequence order from a heap, the tape read backwards. No recursion.
#pragma once

#include <memory>
#include <vector>

#include "autograd.h"
#include "grad_meta.h"

namespace gradual::autograd {

class Engine {
 public:
  // What one step did.
  struct Step {
    Ref<Node> node;
    std::vector<Tensor> grads_out;  // arrived, by output
    std::vector<Tensor> grads_in;   // handed on, by input
  };

  Engine(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs, GradOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Gradients are captured for these instead of gathered in leaves.
  void capture(const std::vector<Tensor>& inputs);
  const std::vector<Tensor>& captured() const { return captured_; }

  bool done() const;
  // Runs the node on top of the heap; `report`, where given, is filled.
  void step(Step* report = nullptr);
  void run();

 private:
  struct Pending {
    Ref<Node> node;
    Tensor grads[kMaxOutputs];
  };

  Pending& pending(const Ref<Node>& node);
  void deliver(const Edge& edge, Tensor grad);
  void run_hooks(Node& node, Tensor* grads);
  bool capture_gradients(Node& node, const Tensor* grads);
  void gather(Node& node, Tensor grad) const;
  void run_rule(Node& node, const Tensor* grads, Step* report);

  GradOptions options_;
  std::vector<Pending> slots_;         // free ones have no node
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> heap_;    // slot numbers, by falling sequence
  std::vector<std::uint32_t> table_;   // open addressing: node -> slot + 1
  std::vector<Edge> wanted_;
  std::vector<Tensor> captured_;
  std::uint64_t stop_below_ = 0;       // no wanted node has a smaller sequence
};

}  // namespace gradual::autograd
