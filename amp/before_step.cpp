#include "before_step.h"

#include <cstddef>
#include <utility>

#include "bookkeeping.h"

namespace gradual::amp {

BeforeStep::BeforeStep(std::vector<Tensor> buffers, std::vector<Tensor> parameters, Gradients gradients,
                       QuantizationState* state, RandomKey start)
    : changed_(std::move(buffers)), parameters_(std::move(parameters)), state_(state), start_(start) {
  if (state_) hidden_ = state_->hidden();
  if (state_) noise_ = state_->noise();
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
  state_->put_noise(noise_);
}

}  // namespace gradual::amp
