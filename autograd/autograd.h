// The public interface of backward. Most programs call Tensor::backward.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "../core/tensor/tensor.h"
#include "grad_mode.h"

namespace gradual {

struct Node;

namespace autograd {

class Engine;

// The dtype in which the gradients of an f16, bf16 or f8 tensor add up where it has several.
enum class GradientSums : std::uint8_t {
  storage,  // the tensor's own: every addition rounds, small terms vanish and f16 overflows above 65504
  f32,      // f32; the sum is rounded once
  // The tensor's own, each addition rounded to one of two neighbours at random: small terms count on average. Draws
  // one key of default_generator() per addition.
  stochastic
};
std::string_view to_string(GradientSums sums);

struct GradOptions {
  bool retain_graph = false;  // keep saved tensors for another backward
  // Record the backward itself (implies retain_graph). A leaf's grad() then owns its graph, which owns the leaf: break
  // the cycle with zero_grad(), or use autograd::grad.
  bool create_graph = false;
  GradientSums sums = GradientSums::storage;  // within this backward; a leaf has its own choice too
  bool allow_unused = false;  // an input that the outputs do not depend on gets an undefined gradient, not an Error
  std::function<void(Engine&)> between = {};  // called before each step of backward
};

// Returns the gradients of `outputs` (weighted with `grad_outputs`, by default 1 for one-element outputs) with respect
// to `inputs`, leaves or not. Does not change any leaf's grad().
//
// With create_graph a constant gradient, such as that of a linear function, counts as differentiable: its gradient is
// zero.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs = {}, GradOptions options = {});
// Accumulates into the leaves' grad().
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs = {},
              GradOptions options = {});

// How the gradients of a leaf add up, within one backward and over several. Default: storage. With f32 the grad() of an
// f16 or bf16 leaf has the leaf's dtype after one gradient, and is f32 (4 bytes per element) once two have been added:
// that sum is not rounded. An optimizer with FP32 masters sets f32 for its parameters. Error for a tensor that is no
// floating leaf.
void set_gradient_sums(const Tensor& leaf, GradientSums sums);
GradientSums gradient_sums(const Tensor& leaf);
// sum + gradient, in the dtype of `sum`. stochastic: of f16 and bf16 sums the f32 result is rounded at random.
Tensor add_gradient(const Tensor& sum, const Tensor& gradient, GradientSums sums);
// The number of times that a backward has set or added to the leaf's grad().
std::uint32_t gradients_received(const Tensor& leaf);

// A gradient that a node passed on, as gradient observers see it.
struct GradientEvent {
  const Node& node;    // the node whose rule made it, or the leaf's own
  int input;           // index of the node's input that it is for; -1: accumulated by a leaf
  const Tensor& grad;  // before hooks
};
// The leaf that the gradient is for, if only casts and views are between; else null.
const Node* leaf_of(const GradientEvent& event);
// Receives every gradient of this thread's backward while it lives.
struct GradientObserver : Pinned {
  GradientObserver();
  virtual ~GradientObserver();
  virtual void gradient(const GradientEvent& event) = 0;

  static std::vector<GradientObserver*>& installed();  // on this thread
  // Calls all observers of this thread.
  static void tell(const GradientEvent& event);
};

}  // namespace autograd
}  // namespace gradual
