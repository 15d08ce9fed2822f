// The gradient of a tensor of which slices were taken: their gradients share one buffer.
#pragma once

#include "node.h"

namespace gradual::autograd {

// Of a node's gradients by output, `grads`, the one that slices are copied into: the elements [begin, end) of `dim` are
// written so far, the others are not.
struct SliceSum {
  int output = -1;  // -1: none is
  int dim = 0;
  std::int64_t begin = 0, end = 0;

  // Writes the gradient of a slice of output `to` into the buffer. Adjacent slices are copied, others are added. False,
  // with nothing done, where another handle to the buffer exists, and where the first slice does not start or end the dim.
  bool write(Tensor* grads, int to, const Node::Input& sliced, const SliceAttrs& a, const Tensor& grad);
  // Sets what no slice covers to zero.
  void complete(Tensor* grads) {
    if (output >= 0) fill_rest(grads);
  }

 private:
  void fill_rest(Tensor* grads);
};

// Whether nothing else holds the tensor or its memory.
bool sole_owner(const Tensor& t);

}  // namespace gradual::autograd
