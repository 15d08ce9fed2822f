// Compares gradients with central differences, for tests of ops and of user-defined functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../core/tensor/tensor.h"

namespace gradual::autograd {

struct GradcheckOptions {
  double eps = 1e-6;   // of the central difference
  double atol = 1e-5;  // analytic and numeric may differ by atol + rtol * |numeric|
  double rtol = 1e-3;
};
struct GradcheckResult {
  bool ok = true;
  std::string message;  // names input, element, analytic and numeric value; empty if ok
};

using CheckedFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// Compares the gradients of `f`'s floating outputs with differences of its values, for every input that
// requires a gradient: the whole Jacobian for few outputs, else its product with random vectors.
// `f` must be smooth around the inputs and give the same outputs each time. Error if no input requires a
// gradient, or one that does is not f64.
GradcheckResult gradcheck(const CheckedFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions options = {});
// The same for the gradient function, built with create_graph: second derivatives, with respect to the
// inputs and to the gradients of the outputs.
GradcheckResult gradgradcheck(const CheckedFunction& f, const std::vector<Tensor>& inputs,
                              GradcheckOptions options = {});

}  // namespace gradual::autograd
