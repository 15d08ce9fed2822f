// The weights of a step's shards: what each loss divides by, over what all of them divide by (loss_divisor.h).
#pragma once

#include <optional>

#include "communicator.h"
#include "loss_divisor.h"
#include "shard_sum.h"

namespace gradual::dist {

// A shard of the batch that runs.
struct Shard {
  std::int64_t k = 0;                   // its number
  double share = 0;                     // of the batch's samples
  double weight = 0;                    // of its gradient and loss
  Tensor loss = {};                     // undefined: it adds no loss
  LossDivisor divisor = {false, 0, 0};  // of the loss
};

class ShardWeights {
 public:
  ShardWeights(Communicator& ranks, int shards, std::int64_t samples)
      : ranks_(ranks), shards_(shards), whole_(samples), own_(part_of(shards, ranks.size(), ranks.rank())) {}

  Range samples_of(std::int64_t k) const { return part_of(whole_, shards_, k); }
  // Before its forward: the weight is the share.
  Shard shard(std::int64_t k) const;

  // Sets loss, divisor and weight once a shard's forward has run. The weight is what the loss divides by, over what the
  // losses of all shards would divide by if each divided as much for a sample as that of the first shard that has
  // samples, valid targets and others. If all targets count, these are the shares of samples, to the bit. A sum: 1.
  // Collective: in its first call, or in agree_without_samples(), each rank takes part in a broadcast.
  void weigh(Shard& shard, const ShardLoss& computed);
  // Instead of weigh(), on a rank whose shards have no samples.
  void agree_without_samples();
  bool own_samples() const { return samples_of(own_.last - 1).last > samples_of(own_.first).first; }

  // The factor that makes of the weighted sum the loss of the batch, given the sum of what all losses divided by: 1 if
  // all targets count; none if none does.
  std::optional<double> factor(double counted) const;

 private:
  // What losses divide by, of the first shard that has samples.
  struct Unit {
    double is_sum = 0;  // 1: all losses are sums
    double listed = 1;
    double samples = 1;
  };
  void agree(const Unit& own);
  std::int64_t first_with_samples(Range shards) const;

  Communicator& ranks_;
  int shards_;
  std::int64_t whole_;
  Range own_;
  std::optional<Unit> unit_ = {};
};

}  // namespace gradual::dist
