// Losses as modules, for those who like to hold them as such: each is the function of ops.h.
#pragma once

#include "../core/ops.h"
#include "module.h"

namespace gradual::nn {

template <auto op, class Options> class Loss : public Layer {
 public:
  explicit Loss(Options options) : options_(options) {}
  Tensor operator()(const Tensor& x, const Tensor& target, Loc loc = Loc::current()) {
    const ModuleCall call(*this, loc);
    return call.leave(x, op(x, target, options_, Loc::current()));
  }

 private:
  Options options_;
};

// logits [N, C] or [N, C, d..], classes i64 [N] or [N, d..].
class CrossEntropyLoss : public Loss<cross_entropy, CrossEntropyOptions> {
 public:
  explicit CrossEntropyLoss(CrossEntropyOptions options = {}) : Loss(options) {}
};
// Input and target of one shape.
class MSELoss : public Loss<mse_loss, Reduction> {
 public:
  explicit MSELoss(Reduction reduction = Reduction::mean) : Loss(reduction) {}
};
class L1Loss : public Loss<l1_loss, Reduction> {
 public:
  explicit L1Loss(Reduction reduction = Reduction::mean) : Loss(reduction) {}
};
class BCELoss : public Loss<bce_loss, Reduction> {  // of probabilities
 public:
  explicit BCELoss(Reduction reduction = Reduction::mean) : Loss(reduction) {}
};
class BCEWithLogitsLoss : public Loss<bce_with_logits_loss, Reduction> {
 public:
  explicit BCEWithLogitsLoss(Reduction reduction = Reduction::mean) : Loss(reduction) {}
};

}  // namespace gradual::nn
