// Dropout.
#pragma once

#include "module.h"

namespace gradual::nn {

// In training each element is zero with probability p and divided by 1 - p otherwise (Srivastava et al. 2014); in
// eval the input itself. Draws from `generator`, which must outlive the layer, or from the thread's default. A
// checkpointed segment replays the default generator only, so a generator of one's own is an error in there.
class Dropout : public Layer {
 public:
  explicit Dropout(double p = 0.5, Generator* generator = nullptr);
  Tensor forward(const Tensor& x) override;

 private:
  double p_;
  Generator* generator_;
};

}  // namespace gradual::nn
