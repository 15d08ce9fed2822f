// The gradient of a sliced tensor. The gradients of its slices share one buffer.
#pragma once

#include "node.h"

namespace gradual::autograd {

// State of the buffer among a node's gradients `grads` that slices are copied into: elements [begin, end) of `dim` are
// written, the others are still uninitialised.
struct SliceSum {
  int output = -1;  // index of the buffer in `grads`; -1: none
  int dim = 0;
  std::int64_t begin = 0, end = 0;

  // Writes the gradient of a slice of output `to` into the buffer. Copies adjacent slices, adds others. Returns false
  // and does nothing if the buffer has another handle, or if the first slice neither starts nor ends the dim.
  bool write(Tensor* grads, int to, const Node::Input& sliced, const SliceAttrs& a, const Tensor& grad);
  // Sets the elements that no slice covers to zero.
  void complete(Tensor* grads) {
    if (output >= 0) fill_rest(grads);
  }

 private:
  void fill_rest(Tensor* grads);
};

// True if `t` is the only handle of its tensor and the tensor alone owns its memory.
bool sole_owner(const Tensor& t);

}  // namespace gradual::autograd
