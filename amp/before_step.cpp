#include "before_step.h"

#include <cstddef>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"

namespace gradual::amp {
namespace {

// Keeping and restoring is no part of the training: it is not recorded, cast, rounded or observed.
struct Bookkeeping {
  NoGrad off;
  StageScope amp{chain().amp, nullptr};
  StageScope observe{chain().observe, nullptr};
  StageScope results{chain().results, nullptr};
};

}  // namespace

BeforeStep::BeforeStep(std::vector<Tensor> buffers, std::vector<Tensor> parameters, Gradients gradients,
                       QuantizationState* state, RandomKey start)
    : changed_(std::move(buffers)), parameters_(std::move(parameters)), state_(state), start_(start) {
  if (state_) hidden_ = state_->hidden();
  const Bookkeeping unseen;
  for (const Tensor& b : changed_) values_.push_back(b.defined() ? b.detach().clone() : Tensor());
  for (const Tensor& p : parameters_) {
    const Tensor g = p.grad();
    gradients_.push_back(g.defined() && gradients == Gradients::added_to ? g.clone() : g);
  }
}

void BeforeStep::restore_buffers() const {
  const Bookkeeping unseen;
  for (std::size_t i = 0; i < changed_.size(); ++i)
    if (values_[i].defined()) changed_[i].copy_(values_[i]);
}

void BeforeStep::restore() const {
  default_generator().set_state(start_);
  restore_buffers();
  for (std::size_t i = 0; i < gradients_.size(); ++i) parameters_[i].set_grad(gradients_[i]);
  if (!state_) return;
  state_->forget_staged();
  state_->put_hidden(hidden_);
}

}  // namespace gradual::amp
