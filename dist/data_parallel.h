// Data-parallel training with the same bits on any number of ranks.
//
//   int main() {
//     return dist::run([](dist::Communicator& ranks) {
//       amp::RecipeRun run(amp::recipe("amp-bf16"), model, optim::AdamWOptions{});
//       dist::DataParallel parallel(ranks, run);
//       for (const data::Batch& batch : loader)
//         parallel.step(batch, [&](const data::Batch& part) {
//           return cross_entropy(model(part.inputs), part.targets);
//         });
//       return 0;
//     });
//   }
//
// The way of a step: every batch is cut into shards, a fixed number, and each rank computes the gradient of its shards,
// one after the other. Random numbers (dropout, stochastic rounding) are keyed by step and shard. Gradients and losses
// are weighted by what the shard's loss divides by (loss_divisor.h), what layers add to their buffers by samples, and
// both are summed over a fixed tree of shards (shard_sum.h). So the gradient is that of the whole batch's loss, if some
// targets are ignored or masked too; a shard without a valid target adds nothing. Then each rank has the same gradient
// and makes the same step: clipping sees the global norm, and an overflow on one rank makes all skip. A recipe with an
// exchange sums the ranks' gradients in low precision instead (rank_sum.h); those bits depend on the number of ranks.
//
// Per shard: the statistics of batch norm, unless they are synchronised (the running ones are the weighted mean over
// shards), and scales of quantizers that follow from the present tensor. Shared: histories of delayed scaling, which
// take the largest amax of all shards. Bits do not depend on threads under set_deterministic(true).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../amp/recipe.h"
#include "../data/data_loader.h"
#include "loss_divisor.h"
#include "rank_sum.h"

namespace gradual::dist {

struct DataParallelOptions {
  int shards = 0;          // of a batch, at most kMostShards; 0: 8, or the number of ranks if that is larger
  int ranks_emulated = 0;  // of one process, for a recipe's exchange; 0: as many as there are
  DType sum = DType::f32;  // of the sums over shards; f64 for f64 parameters
  // Statistics of all shards, of all ranks, instead of each shard's own. Each shard needs a sample.
  bool synchronized_batch_norm = false;
  bool count = false;  // what the exchange's rounding does, for take_exchanged()
  // Gradients of parameters are put together in the order in which backward makes them. Once they have this size, in
  // the type of the sums, they are exchanged while backward goes on, on a thread of their own, which needs a core:
  // `loss` and its backward must not call the communicator then. 0: all after backward, as with
  // synchronized_batch_norm. No bit depends on it.
  std::int64_t bucket_bytes = 0;
  // What else must be equal on all ranks, by name, for example {"data", "digits"}. Version, program, recipe,
  // parameters, the optimizer with its rates and choices, clip_norm, the default generator and options are compared
  // always.
  Facts facts = {};
};

// The number of shards that options mean for this many ranks. Error if it is out of range.
int shards_of(const DataParallelOptions& options, int ranks);

class DataParallel : Pinned {
 public:
  // The loss of a part of the batch: a Tensor or a ShardLoss. If neither tape nor ShardLoss says what it divides by, it
  // counts as a mean over the part's samples.
  using Loss = std::function<ShardLoss(const data::Batch& part)>;

  // Checks that the ranks agree and copies rank 0's state to all. Error on every rank that names what differs. For a
  // loop of your own: `exchange` as in a recipe.
  DataParallel(Communicator& ranks, amp::RecipeRun& run, DataParallelOptions options = {});
  DataParallel(Communicator& ranks, nn::Module& model, DataParallelOptions options = {},
               std::optional<amp::Exchange> exchange = {});

  // One training step of the run on a batch, the same on all ranks (or each rank's part of it, see own_shards()). If
  // the loss or a gradient throws, gradients, buffers, histories and default_generator() are as before. In steps 1, 2,
  // 4, 8 and so on: Error on every rank if the sizes of their batches (before the step) or their parameters (after it)
  // differ.
  amp::RunStep step(const data::Batch& batch, const Loss& loss);
  // The gradient alone, added to the parameters' .grad. Returns the loss of the batch, detached, in the type of the
  // sums; NaN without a valid target.
  Tensor backward(const data::Batch& batch, const Loss& loss);

  Communicator& ranks() const { return ranks_; }
  int shards() const { return shards_; }
  Range own_shards() const { return part_of(shards_, ranks_.size(), ranks_.rank()); }
  // Of a recipe's exchanges since the last call, summed over ranks: what rounding did (options.count), and the bytes
  // that went to other ranks, with scales. Collective.
  struct Exchanged {
    CastCounts lost;
    std::uint64_t bytes = 0;
  };
  Exchanged take_exchanged();

  // The residuals of error feedback; else empty. Collective: all ranks get the whole state, one may write it. Loading:
  // Error for another number of ranks.
  StateDict state_dict();
  void load_state_dict(const StateDict& state);

 private:
  template <class T> struct Buckets;
  template <class T> struct Step;
  void copy_state();
  void fill_buckets();
  void check_batch(const data::Batch& batch) const;
  void check_step();

  Communicator& ranks_;
  amp::RecipeRun* run_ = nullptr;
  nn::Module& model_;
  DataParallelOptions options_;
  int shards_, emulated_;
  std::vector<std::pair<std::string, Tensor>> parameters_, buffers_;
  bool noise_ = false;                             // shards tell the noise of gradients (amp::measures_noise)
  std::int64_t about_ = 0;                         // header fields of a shard, before the gradients of the last bucket
  std::vector<std::vector<std::size_t>> buckets_;  // of parameters, ascending in each; the last waits for backward
  std::vector<std::size_t> order_;                 // of parameters, in rank 0's first backward
  bool ordered_ = false;                           // the ranks agree on order_
  std::optional<RankSum> exchange_;
  double factor_ = 1;  // of the sum over ranks
  std::uint64_t steps_ = 0;
};

// For DataLoader: makes of each batch this rank's shards alone. Random numbers are keyed by shard.
data::DataLoader::Fetch own_shards(const Communicator& ranks, int shards, data::DataLoader::Fetch fetch);

}  // namespace gradual::dist
