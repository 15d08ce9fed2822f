// The engine's public face. Tensor::backward is the common way in.
#pragma once

#include <vector>

#include "../core/tensor/tensor.h"
#include "grad_mode.h"

namespace gradual {

struct Node;

namespace autograd {

struct GradOptions {
  bool retain_graph = false;  // keep what the nodes saved, for another backward
  // Record the backward itself (implies retain_graph). A leaf's grad() then keeps its graph, and that the leaf: drop it
  // with zero_grad(), or use autograd::grad.
  bool create_graph = false;
  bool allow_unused = false;  // an input the outputs do not depend on gets an undefined gradient, not an Error
};

// With create_graph a gradient that is constant, as that of a linear function, counts as differentiable: its own gradient
// is zero.
//
// The gradients of `outputs` (weighted with `grad_outputs`, by default 1 for one-element outputs) with respect to
// `inputs`, leaves or not. No leaf's grad() is touched.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs = {}, GradOptions options = {});
// Accumulates into the leaves' grad().
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs = {},
              GradOptions options = {});

// A gradient that a node handed on: what observers of gradients see.
struct GradientEvent {
  const Node& node;    // the node whose rule made it, or the leaf's own
  int input;           // which input of that node it belongs to; -1: gathered by a leaf
  const Tensor& grad;  // before hooks
};
// The leaf that the gradient is for, if casts and views alone lie between; else null.
const Node* leaf_of(const GradientEvent& event);
// Observers are told of every gradient of this thread's backward while their scope lives.
class GradientObserver : Pinned {
 public:
  GradientObserver();
  virtual ~GradientObserver();
  virtual void gradient(const GradientEvent& event) = 0;

  static bool any();                             // whether this thread has one
  static void tell(const GradientEvent& event);  // all of this thread's
};

}  // namespace autograd
}  // namespace gradual
