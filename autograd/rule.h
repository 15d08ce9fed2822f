// Backward rules: a table with one entry per op. Rules use the public ops, so gradients of gradients need no extra
// code.
#pragma once

#include "../core/ops/dispatch.h"
#include "node.h"

namespace gradual {

// The interface of a running rule.
class RuleContext {
 public:
  // frees: the saved tensors are freed after the rule.
  RuleContext(Node& node, Tensor* grads, Tensor* results, bool create_graph, bool frees = false)
      : node_(node), grads_(grads), results_(results), create_graph_(create_graph), frees_(frees) {}

  const Tensor& grad(int output = 0) const { return grads_[output]; }  // undefined if there is none
  // The same, for the last use: the next op may reuse its memory.
  Tensor take_grad() const { return std::move(grads_[0]); }
  bool needs(int i) const { return i < node_.input_count && node_.input(i).edge.node; }
  int inputs() const { return node_.input_count; }
  Tensor input(int i) const;         // a saved one; Error if it was changed since or freed
  Tensor output(int i) const;        // a saved one; reattached to the tape under create_graph
  Tensor take_output(int i) const {  // the same, for the last use: the node releases it at once
    Tensor t = output(i);
    if (frees_) node_.release(node_.saved_outputs[i]);
    return t;
  }
  // As input(); undefined if the op had no such input, or a number.
  Tensor optional_input(int i) const { return node_.input(i).present ? input(i) : Tensor(); }
  const Shape& sizes(int i) const { return node_.input(i).sizes; }
  DType dtype(int i) const { return node_.input(i).dtype; }
  bool create_graph() const { return create_graph_; }
  Node& node() const { return node_; }
  template <class T> const T& get() const { return node_.attrs.get<T>(); }
  double scalar() const { return get<ScalarAttrs>().value; }
  // Sets the gradient of input i, if one is needed. The engine sums it to the input's shape if the op broadcast it,
  // casts it to the input's dtype if the op took mixed dtypes, and moves it to the input's device.
  void set(int i, Tensor g) const {
    if (needs(i)) results_[i] = std::move(g);
  }
  // The same for the first inputs, from the outputs of a gradient op.
  void set_all(const Outputs& gradients) const {
    for (int i = 0; i < kMaxOutputs; ++i) set(i, gradients[i]);
  }

 private:
  Node& node_;
  Tensor* grads_;
  Tensor* results_;
  bool create_graph_, frees_;
};

// Gradients that several rules share. Calls a gradient op (relu_backward, gelu_backward) on the received gradient,
// whose memory it may reuse, and a saved tensor.
Tensor times_slope(const RuleContext& c, OpId op, const Attrs& attrs, const Tensor& saved);
// The received gradient times gelu's slope at x: one op, with the history of the composed form under create_graph.
Tensor gelu_gradient(const RuleContext& c, const Tensor& x);

using RuleFn = void (*)(const RuleContext&);

// Bits of BackwardRule::saves.
constexpr int in(int i) { return 1 << i; }
constexpr int out(int i) { return 256 << i; }

struct BackwardRule {
  RuleFn backward = nullptr;
  int saves[5] = {};                // tensors that the gradient of input i needs; only these are saved
  const char* reason = nullptr;     // why there is no backward: "integer result", "in place, outside the graph"
  std::uint8_t differentiable = 1;  // outputs (bits) that carry gradients
  bool fused = false;               // a fused op computes the gradient; a composed form is recorded under create_graph
};

// The column, by OpId. A test fails for an op with neither backward nor reason.
inline BackwardRule backward_rule_table[kOpCount];
inline BackwardRule* backward_rules() { return backward_rule_table; }
BackwardRule& set_rule(OpId op, std::initializer_list<int> saves, RuleFn backward);
void set_no_rule(std::initializer_list<OpId> ops, const char* reason);
// The tensors that a call saves if its inputs `needs` (input_bit) require gradients: bits as in BackwardRule::saves.
int saves_of(const BackwardRule& rule, std::uint32_t needs);
void register_rules();  // calls the following
void register_elementwise_rules();
void register_shape_rules();
void register_contraction_rules();
void register_normalization_rules();

}  // namespace gradual
