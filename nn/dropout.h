// Dropout.
#pragma once

#include "../core/ops/dispatch.h"
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
  std::optional<OpId> ends_in() const override { return drops() ? only<Dropout>(OpId::dropout) : std::nullopt; }
  Tensor forward_fused(const Operand& x, const Fusion& fusion, const Attrs& second, const Tensor& other) override {
    const Attrs own = DropoutAttrs{p_, default_generator().next()};
    const Tensor* const inputs[] = {x.tensor, &other};
    return dispatch1(fusion.whole, TensorRefs(inputs, 2, x.temporary ? 1u : 0u), fusion.whole_attrs(own, second),
                     x.where);
  }

 private:
  bool drops() const { return training() && p_ > 0; }

  double p_;
};

}  // namespace gradual::nn
