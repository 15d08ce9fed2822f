// Losses as modules. Each calls the function of the same name in ops.h.
#pragma once

#include "../core/ops/ops.h"
#include "module.h"

namespace gradual::nn {

template <auto op, class Options = Reduction> class Loss : public Layer {
 public:
  explicit Loss(Options options = {Reduction::mean}) : options_(options) {}
  Tensor operator()(const Tensor& x, const Tensor& target, Loc loc = Loc::current()) {
    const ModuleCall call(*this, loc);
    return call.leave(x, op(x, target, options_, Loc::current()));
  }

 private:
  Options options_;
};

// logits [N, C] or [N, C, d..], classes i64 [N] or [N, d..].
using CrossEntropyLoss = Loss<cross_entropy, CrossEntropyOptions>;
// Input and target have one shape. The reduction is the mean by default: MSELoss(Reduction::sum).
using MSELoss = Loss<mse_loss>;
using L1Loss = Loss<l1_loss>;
using BCELoss = Loss<bce_loss>;  // of probabilities
using BCEWithLogitsLoss = Loss<bce_with_logits_loss>;

}  // namespace gradual::nn
