// What a run of the lab trains on: a loss by name, or a function.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/tensor/tensor.h"
#include "../data/dataset.h"
#include "../nn/module.h"

namespace gradual::lab {

// The loss of a batch: a scalar, the mean over what the batch has. It runs under the recipe.
using LossFunction = std::function<Tensor(const Tensor& outputs, const Tensor& targets)>;

enum class KnownLoss : std::uint8_t { cross_entropy, mse, l1, huber, bce, kl, output };

// One of loss_names(), or a function with a name.
//   cross_entropy  of logits [N, C] with classes [N], or [N, T, C] with [N, T]; class -100 is ignored
//   mse, l1        means over all numbers of the squared differences, and of their magnitudes
//   huber          the same, squares below a difference of 1 and magnitudes above (Huber 1964); in f32 at least
//   bce            binary cross entropy of logits with targets from 0 to 1
//   kl             of softmax of the logits [.., C] from target probabilities [.., C], the mean over their rows
//   output         the model's first output is the loss: the data's fields are the arguments of its forward
struct Loss {
  Loss() = default;                                    // the data's own
  Loss(const char* known) : name(known) {}             // NOLINT(google-explicit-constructor)
  Loss(std::string known) : name(std::move(known)) {}  // NOLINT(google-explicit-constructor)
  Loss(std::string own, LossFunction f) : name(std::move(own)), function(std::move(f)) {}

  std::optional<KnownLoss> known() const;  // none for a function, for an unknown name, and for the data's own
  bool is_output() const { return known() == KnownLoss::output; }

  std::string name = {};  // empty: the data's own
  LossFunction function = {};
};
std::vector<std::string> loss_names();
// Error for an unknown name, with the allowed ones.
void check_known(const Loss& loss);
// The metric for a loss where none is chosen: "accuracy" for cross_entropy and bce, "rmse" for mse, ..
std::string metric_for(const Loss& loss);

// The outputs of a model for a batch, and the targets that they are compared with.
//   A model of the lab or of C++: one input, the batch's inputs; of fields, the first of two.
//   A model of torch.export: each argument of its forward is the field of that name. One field that is no argument is
//   the target. Without fields: the inputs, and for a second argument, of a model
//   that returns its loss, the targets.
// Inputs of another dtype than the exported model's are cast to it. Error naming the arguments and the fields if they
// do not fit. wants_target: Error if there is none.
struct Outputs {
  std::vector<Tensor> all;
  Tensor targets = {};
  Tensor auxiliary = {};  // in training, what layers add to the loss (nn/auxiliary_loss.h); undefined: nothing
};
Outputs outputs_of(nn::Module& model, const data::Batch& batch, bool wants_target);

// The loss for outputs and targets as a scalar, with the auxiliary one. Targets of another shape take that of the
// outputs, where one of them is [N, ..] with all sizes after the first as one, or lacks a last size of 1.
Tensor loss_of(const Loss& loss, const Outputs& outputs);
// Targets with the shape and the dtype that the loss compares the outputs with.
Tensor fitting_targets(const Loss& loss, const Tensor& outputs, const Tensor& targets);

}  // namespace gradual::lab
