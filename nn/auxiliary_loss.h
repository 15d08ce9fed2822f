// Losses of layers, which a training adds to its own: the balance of a mixture of experts.
//
//   const nn::AuxiliaryLossScope losses;
//   const Tensor logits = model(x);
//   Tensor loss = cross_entropy(logits, y);
//   if (losses.sum().defined()) loss = loss + losses.sum();
//
// Without a scope on the thread these losses are dropped. Inside activation_checkpoint() a layer's loss has no
// gradient, because only what a segment returns has one.
#pragma once

#include "../core/support/scoped.h"
#include "../core/tensor/tensor.h"

namespace gradual::nn {

// Collects the losses of the layers that this thread calls while it lives; of nested scopes the innermost one.
class AuxiliaryLossScope : Pinned {
 public:
  AuxiliaryLossScope();

  const Tensor& sum() const { return sum_; }  // a scalar; undefined: no layer has added one

 private:
  friend void add_auxiliary_loss(const Tensor& loss);

  Tensor sum_;
  Scoped<AuxiliaryLossScope*> innermost_;
};

// Called by layers in training, with a scalar that has its factor.
void add_auxiliary_loss(const Tensor& loss);

}  // namespace gradual::nn
