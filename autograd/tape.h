// The tape as a reader sees it: what was recorded, in order; stepping back through it; a drawing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"

namespace gradual {

class Tape {
 public:
  // Everything that `result` was computed from, oldest first, leaves included. Error where it does not require grad.
  static Tape of(const Tensor& result);

  const std::vector<Ref<Node>>& nodes() const { return nodes_; }
  // Bytes kept for backward, each storage once; parameters and other leaves' own numbers among them.
  std::int64_t saved_bytes() const;
  // Shows this name for a leaf or for the op that made the tensor.
  void set_name(const Tensor& t, const std::string& name);
  std::string name_of(const Node& node) const;  // as set; else the op's name, or "leaf"

  // A row a node: sequence, op, where its inputs come from, shapes and dtypes, module, line, bytes saved, and why the
  // op is there where the user did not write it (who cast what). The last line is the total.
  std::string to_string() const;
  // Graphviz: values as boxes, ops as ellipses, as micrograd draws them. `dot -Tsvg`.
  std::string to_dot() const;

  class Stepper;

 private:
  std::vector<Ref<Node>> nodes_;
  std::vector<std::pair<const Node*, std::string>> names_;
};

// Backward by hand: each next() runs one node, the newest first, and shows the gradients that came in and went out.
//   for (Tape::Stepper s(loss); !s.done();) std::puts(to_string(s.next()).c_str());
// Gradients are accumulated into the leaves as by backward(). Give it up at any time by letting it go.
class Tape::Stepper {
 public:
  using Step = autograd::Engine::Step;
  explicit Stepper(const Tensor& result, const Tensor& gradient = {}, autograd::GradOptions options = {});
  bool done() const { return engine_.done(); }
  const Step& next();  // valid until the following next(); Error when done

 private:
  autograd::Engine engine_;
  Step step_;
};

// "mul at net.cpp:12: grad [2, 3] f32 -> [2, 3] f32, [3] f32", then the gradients themselves where they are small.
std::string to_string(const Tape::Stepper::Step& step);

}  // namespace gradual
