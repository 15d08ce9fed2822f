#include "shard_weights.h"

#include "../core/support/throwf.h"

namespace gradual::dist {

Shard ShardWeights::shard(std::int64_t k) const {
  const double share = static_cast<double>(samples_of(k).size()) / static_cast<double>(whole_);
  return {.k = k, .share = share, .weight = share};
}

std::int64_t ShardWeights::first_with_samples(Range shards) const {
  std::int64_t k = shards.first;
  while (k < shards.last && samples_of(k).size() == 0) ++k;
  return k;
}

void ShardWeights::agree(const Unit& own) {
  const std::int64_t first = first_with_samples({0, shards_});
  int root = 0;
  while (part_of(shards_, ranks_.size(), root).last <= first) ++root;
  Unit unit = own;
  if (ranks_.size() > 1) ranks_.broadcast(&unit, sizeof unit, root);
  unit_ = unit;
}

void ShardWeights::agree_without_samples() { agree({}); }

void ShardWeights::weigh(Shard& shard, const ShardLoss& computed) {
  const auto samples = static_cast<double>(samples_of(shard.k).size());
  const std::optional<LossDivisor> known = computed.divisor ? computed.divisor : divisor_of(computed.value);
  shard.loss = computed.value;
  shard.divisor = known.value_or(LossDivisor{false, samples, samples});
  if (!unit_) {
    // Shards in lockstep of which a later one ends first: an Error follows.
    if (shard.k != first_with_samples(own_)) return;
    const double listed = shard.divisor.listed > 0 ? shard.divisor.listed : samples;
    agree({shard.divisor.is_sum ? 1.0 : 0.0, listed, samples});
  }
  const bool is_sum = shard.divisor.is_sum;
  if ((unit_->is_sum != 0) != is_sum)
    throwf("DataParallel: the loss of shard {} is a {} and that of the first shard a {}; all must be of one kind",
           shard.k, is_sum ? "sum" : "mean", is_sum ? "mean" : "sum");
  shard.weight = is_sum ? 1 : shard.divisor.counted * unit_->samples / (unit_->listed * static_cast<double>(whole_));
}

std::optional<double> ShardWeights::factor(double counted) const {
  if (unit_->is_sum != 0) return 1;
  if (counted == 0) return {};
  const double listed = unit_->listed * static_cast<double>(whole_);
  return listed == counted * unit_->samples ? 1 : listed / (counted * unit_->samples);
}

}  // namespace gradual::dist
