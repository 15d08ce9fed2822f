// Backward rules: one entry an op in a table, written with the public ops, so that gradients of gradients come free.
#pragma once

#include "../core/ops/dispatch.h"
#include "node.h"

namespace gradual {

// What a rule sees while it runs.
class RuleContext {
 public:
  // frees: what the node saved is freed after the rule.
  RuleContext(Node& node, Tensor* grads, Tensor* results, bool create_graph, bool frees = false)
      : node_(node), grads_(grads), results_(results), create_graph_(create_graph), frees_(frees) {}

  const Tensor& grad(int output = 0) const { return grads_[output]; }  // undefined where none arrived
  // The same for the last time: what is computed from it may be written over it.
  Tensor take_grad() const { return std::move(grads_[0]); }
  bool needs(int i) const { return i < node_.input_count && node_.input(i).edge.node; }
  int inputs() const { return node_.input_count; }
  Tensor input(int i) const;        // saved; Error where it was changed since or freed
  Tensor output(int i) const;       // saved; on the tape again where a graph of the backward is wanted
  Tensor take_output(int i) const;  // the same for the last time: freed while the rule goes on
  // As input(); undefined where the op had no such input, or a number.
  Tensor optional_input(int i) const { return node_.input(i).present ? input(i) : Tensor(); }
  const Shape& sizes(int i) const { return node_.input(i).sizes; }
  DType dtype(int i) const { return node_.input(i).dtype; }
  bool create_graph() const { return create_graph_; }
  Node& node() const { return node_; }
  template <class T> const T& get() const { return node_.attrs.get<T>(); }
  double scalar() const { return get<ScalarAttrs>().value; }
  // The gradient of input i, where one is needed. The engine sums it down to the input's shape where the op broadcast
  // it, casts it to the input's dtype where the op took mixed ones, and brings it to the input's device.
  void set(int i, Tensor g) const {
    if (needs(i)) results_[i] = std::move(g);
  }
  // Instead of set(0, ..): writes the gradient of a slice into its place in the gradient of input 0. False, with nothing
  // done, where the rule must call set().
  bool put_slice(const SliceAttrs& attrs, const Tensor& g) const;

 private:
  void check(const Tensor& t, std::uint32_t version) const;

  Node& node_;
  Tensor* grads_;
  Tensor* results_;
  bool create_graph_, frees_;
};

// A gradient row of what arrived, over whose memory it may write, and of a saved tensor: relu_backward, gelu_backward.
Tensor slope_row(const RuleContext& c, OpId op, const Attrs& attrs, const Tensor& saved);
// What arrived times gelu's slope at x: one row, with the history of the composed form under create_graph.
Tensor gelu_gradient(const RuleContext& c, const Tensor& x);

using RuleFn = void (*)(const RuleContext&);

// Bits of Rule::saves.
constexpr int in(int i) { return 1 << i; }
constexpr int out(int i) { return 256 << i; }

struct Rule {
  RuleFn backward = nullptr;
  int saves[5] = {};                // what the gradient of input i needs: only that is kept
  const char* reason = nullptr;     // why there is no backward: "integer result", "in place, outside the graph"
  std::uint8_t differentiable = 1;  // outputs (bits) that carry gradients
  bool fused = false;               // a fused row computes the gradient; a composed form gives create_graph its graph
};

// The column, by OpId. A row with neither backward nor reason is a hole.
Rule* rules();
void set_rule(OpId op, std::initializer_list<int> saves, RuleFn backward);
// Says that these rules have a fused row and, under create_graph, a composed form.
void set_fused(std::initializer_list<OpId> ops);
void set_no_rule(std::initializer_list<OpId> ops, const char* reason);
// What a call keeps whose inputs `needs` (input_bit) want gradients: bits as in Rule::saves.
int saves_of(const Rule& rule, std::uint32_t needs);
void register_rules();  // calls the following
void register_elementwise_rules();
void register_shape_rules();
void register_contraction_rules();
void register_normalization_rules();

}  // namespace gradual
