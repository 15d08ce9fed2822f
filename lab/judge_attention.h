// How far rounding may move attention, softmax and their gradients, whatever the order of the sums: bounds of first
// order in the units of rounding. Attention may keep its probabilities, or compute them again in backward from the
// logarithm of their sum (Dao 2023), and take the mean of each row of P dP from P and dP or from dO and O.
#pragma once

#include "judge_units.h"

namespace gradual::lab {

// Tensors are f64. Errors may be undefined: none.
struct AttentionStep {
  Tensor q, k, v;  // [.., L, E], [.., S, E], [.., S, Ev]; k and v may have fewer heads
  Tensor q_error, k_error, v_error;
  Tensor mask;  // f64, added to the scores; undefined: none
  Tensor mask_error;
  double scale = 1;
};

// The bound of the output [.., L, Ev].
Tensor attention_bound(const AttentionStep& a, const Units& units);

struct AttentionGradientBounds {
  Tensor q, k, v;
  Tensor mask;  // undefined without a mask
};
AttentionGradientBounds attention_gradient_bounds(const AttentionStep& a, const Tensor& gradient,
                                                  const Tensor& gradient_error, const Units& units);

// y = softmax(x) along the last dim.
Tensor softmax_bound(const Tensor& x, const Tensor& error, const Units& units);
Tensor softmax_gradient_bound(const Tensor& x, const Tensor& error, const Tensor& gradient,
                              const Tensor& gradient_error, const Units& units);

}  // namespace gradual::lab
