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

// Reads the divisor from the tape of a scalar loss. From there it follows casts, numbers that multiply or divide, and
// additions, to
//
//   cross_entropy                      by its reduction: the targets that are not ignored, or a sum
//   sum(..) / t, t a scalar tensor     the value of t, such as the sum of a mask or of class weights
//   mean(..), sum(..)                  elements, a sum; mse_loss, l1_loss and the binary cross entropies are these
//
// Terms of an addition that see no data, such as a penalty on weights, follow the others. None: the tape tells nothing.
// Error if terms divide by different things, and for a sum that a number scales: the number may be this shard's count
// or a constant. Such a sum beside other terms follows them, unless it is of cross_entropy.
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
