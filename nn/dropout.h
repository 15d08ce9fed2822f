// Dropout.
#pragma once

#include "../core/ops/ops.h"
#include "module.h"

namespace gradual::nn {

// In training each element is zero with probability p and divided by 1 - p otherwise (Srivastava et al. 2014); in
// eval the input itself. Draws from the thread's default generator.
class Dropout : public Layer {
 public:
  explicit Dropout(double p = 0.5) : p_(p) {
    if (!(p >= 0 && p <= 1)) throw_error("Dropout: p is " + std::to_string(p) + "; allowed are 0 to 1");
  }
  Tensor forward(const Tensor& x) override { return drops() ? dropout(x, p_) : x; }
  bool drops() const { return training() && p_ > 0; }
  Tensor forward_add(const Operand& x, const Tensor& residual) { return dropout_add(x, residual, p_); }

 private:
  double p_;
};

}  // namespace gradual::nn
