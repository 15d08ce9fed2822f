// What a loss divides by. Shards of a batch are weighted by it, so that their sum is the loss of the whole batch.
#pragma once

#include <optional>

#include "../core/tensor/tensor.h"

namespace gradual::dist {

// A mean: the loss is a sum divided by `counted`. A sum: it is divided by nothing.
struct LossDivisor {
  bool is_sum = false;
  double counted = 1;  // valid targets, their class weights, tokens, ..; 0: the loss is 0 / 0
  double listed = 1;   // with the targets that are left out
};

// Reads the divisor from the tape of a scalar loss. From the loss it follows casts, numbers that multiply or divide, and
// additions, to
//
//   cross_entropy                      by its reduction: the targets that are not ignored, or a sum
//   mse_loss, l1_loss, bce_..          by their reduction: elements, or a sum
//   sum(..) / t, t a scalar tensor     the value of t, such as the sum of a mask or of class weights
//   mean(..), sum(..)                  elements, a sum
//
// The last two count only where nothing is added. In an addition the losses of the first two lines decide and all other
// terms, such as a penalty on weights, follow them. None: the tape tells nothing. Error if losses that are added divide
// by different things, and for a sum that a number scales: the number may be this shard's count or a constant.
std::optional<LossDivisor> divisor_of(const Tensor& loss);

// What a loss function of DataParallel returns: a loss whose divisor is read from its tape, or given.
struct ShardLoss {
  ShardLoss(Tensor loss) : value(std::move(loss)) {}  // NOLINT(google-explicit-constructor)
  // The loss is a sum divided by `counted`, at least 0.
  ShardLoss(Tensor loss, double counted) : value(std::move(loss)), divisor{{false, counted, counted}} {}
  // The batch's loss is the sum of its shards' losses.
  static ShardLoss summed(Tensor loss) {
    ShardLoss out(std::move(loss));
    out.divisor = LossDivisor{.is_sum = true};
    return out;
  }

  Tensor value;
  std::optional<LossDivisor> divisor = {};  // none: read from the tape; if that tells nothing, the part's samples
};

}  // namespace gradual::dist
