// The tape for inspection: a list of the recorded nodes, stepping through backward, a drawing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"

namespace gradual {

class Tape {
 public:
  // All nodes that `result` was computed from, oldest first, leaves included. Error if it does not require grad.
  static Tape of(const Tensor& result);

  const std::vector<Ref<Node>>& nodes() const { return nodes_; }
  // Bytes saved for backward, each storage counted once, including saved parameters and other leaves.
  std::int64_t saved_bytes() const;
  // Shows this name for a leaf or for the op that made the tensor.
  void set_name(const Tensor& t, const std::string& name) {
    if (const GradMeta* m = grad_meta(t); m && m->edge.node) names_.emplace_back(m->edge.node.get(), name);
  }
  std::string name_of(const Node& node) const;  // as set; else the op's name, or "leaf"

  // One row per node: sequence, op, the nodes of its inputs, shapes and dtypes, module, line, bytes saved, and the
  // cause of an op that the user did not write (such as a cast). The last line is the total.
  std::string to_string() const;
  // Graphviz: values as boxes, ops as ellipses, as micrograd draws them. `dot -Tsvg`.
  std::string to_dot() const;

  // Backward step by step: each next() runs one node, the newest first, and returns the gradients received and passed
  // on.
  //   for (Tape::Stepper s(loss); !s.done();) std::puts(to_string(s.next()).c_str());
  // Gradients are accumulated into the leaves as in backward(). It may be destroyed before it is done.
  class Stepper {
   public:
    using Step = autograd::Engine::Step;
    explicit Stepper(const Tensor& result, const Tensor& gradient = {}, autograd::GradOptions options = {})
        : engine_({&result, 1}, {&gradient, 1}, options) {}
    bool done() const { return engine_.done(); }
    const Step& next() {  // valid until the following next(); Error when done
      if (done()) throw_error("Tape::Stepper: the backward is done; ask done() first");
      engine_.step(&step_);
      return step_;
    }

   private:
    autograd::Engine engine_;
    Step step_;
  };

 private:
  std::vector<Ref<Node>> nodes_;
  std::vector<std::pair<const Node*, std::string>> names_;
};

// "mul at net.cpp:12: grad [2, 3] f32 -> [2, 3] f32, [3] f32", then the gradients themselves if they are small.
std::string to_string(const Tape::Stepper::Step& step);

}  // namespace gradual
