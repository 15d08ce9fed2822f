#include "dropout.h"

#include "../autograd/checkpoint.h"
#include "../core/ops.h"

namespace gradual::nn {

Dropout::Dropout(double p, Generator* generator) : p_(p), generator_(generator) {
  if (!(p >= 0 && p <= 1)) fail("Dropout: p is " + std::to_string(p) + "; allowed are 0 to 1");
}

Tensor Dropout::forward(const Tensor& x) {
  if (!training() || p_ == 0) return x;
  if (generator_ && recomputing())
    fail(
        "Dropout: a recomputation cannot replay a generator of the layer's own; use the default one in a "
        "checkpoint");
  return dropout(x, p_, generator_ ? *generator_ : default_generator());
}

}  // namespace gradual::nn
