// The lab's language model: it trains on whole sequences, and continues them with caches of keys and values.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "../nn/attention.h"
#include "../nn/embedding.h"
#include "../nn/sequential.h"
#include "models.h"

namespace gradual::lab {

// Token and position embeddings, pre-norm causal transformer blocks, a norm and a linear head (Radford et al. 2019).
// With experts, the blocks are nn::MixtureBlock; an expert's hidden layer is twice as wide as the model, so that two
// experts of a token multiply 1.5 times as much as the feed-forward layer that they replace.
class Gpt : public nn::Module {
 public:
  explicit Gpt(const GptOptions& options);

  // Tokens, i64 [B, T], to logits [B, T, outputs]. Error for more tokens than the context.
  Tensor forward(const Tensor& x) override;
  // The same for tokens that follow those in the caches, which then have these too. Error for caches that are not those
  // of empty_caches(), and for more tokens in all than the context. After an Error in a layer some caches may have the
  // tokens and others not: begin with empty ones.
  Tensor forward(const Tensor& x, nn::KeyValueCaches& caches);
  using Module::operator();
  Tensor operator()(const Tensor& x, nn::KeyValueCaches& caches, SourceLocation loc = SourceLocation::current()) {
    const nn::ModuleCall call(*this, loc);
    return call.leave(x, forward(x, caches));
  }
  // A cache for each block; none of them has a token.
  nn::KeyValueCaches empty_caches(const std::optional<Quantizer>& quantizer = {}) const;

  const GptOptions& options() const { return options_; }

  nn::Embedding& tokens;
  nn::Embedding& positions;
  nn::Sequential& blocks;
  nn::LayerNorm& norm;
  nn::Linear& head;

 private:
  // Of tokens that follow `before` others.
  Tensor embedded(const Tensor& x, std::int64_t before);
  Tensor through_blocks(const Tensor& x, nn::KeyValueCaches& caches);

  template <class Block> void add_block(std::shared_ptr<Block> block);

  GptOptions options_;
  // Calls of those of `blocks`, with their caches.
  std::vector<std::function<Tensor(const Tensor& x, nn::KeyValueCache& cache)>> layers_;
};

}  // namespace gradual::lab
