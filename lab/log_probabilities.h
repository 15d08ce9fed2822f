// How far rounding may move logarithms of softmax, whatever the order of the sums. docs/judge.md derives the bound.
#pragma once

#include "../core/tensor/tensor.h"
#include "judge_units.h"

namespace gradual::lab {

// Logarithms of the softmax along the last dim, and by how much they and their exponentials may differ.
struct LogProbabilities {
  Tensor y, error;
  Tensor p, p_error;
};

// Of rows x whose elements err by x_error (undefined: none). Tensors are f64.
LogProbabilities log_probabilities(const Tensor& x, const Tensor& x_error, const Units& units);

}  // namespace gradual::lab
