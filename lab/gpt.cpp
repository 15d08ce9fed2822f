#include "gpt.h"

#include <algorithm>
#include <utility>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../nn/mixture_of_experts.h"

namespace gradual::lab {

Gpt::Gpt(const GptOptions& o)
    : tokens(register_module("tokens", nn::Embedding(o.vocabulary, o.width))),
      positions(register_module("positions", nn::Embedding(o.context, o.width))),
      blocks(register_module("blocks", nn::Sequential())),
      norm(register_module("norm", nn::LayerNorm(o.width))),
      head(register_module("head", nn::Linear(o.width, o.outputs ? o.outputs : o.vocabulary, {.bias = false}))),
      options_(o) {
  for (std::int64_t i = 0; i < o.layers; ++i)
    if (o.experts > 0)
      add_block(std::make_shared<nn::MixtureBlock>(o.width, o.heads, true,
                                                   nn::MixtureOptions{.experts = o.experts, .hidden = 2 * o.width}));
    else
      add_block(std::make_shared<nn::TransformerBlock>(o.width, o.heads, nn::TransformerBlockOptions{.causal = true}));
  // Small embeddings, as GPT-2 draws them: a residual stream that starts at 1 trains slowly.
  const auto scale_down = [](const Tensor& t) { t.detach().mul_(0.02); };
  scale_down(tokens.weight);
  scale_down(positions.weight);
}

template <class Block> void Gpt::add_block(std::shared_ptr<Block> block) {
  layers_.push_back([block](const Tensor& x, nn::KeyValueCache& cache) { return (*block)(x, cache); });
  blocks.push_back(std::move(block));
}

Tensor Gpt::embedded(const Tensor& x, std::int64_t before) {
  if (x.dim() != 2) throwf("gpt: tokens {}; allowed is [batch, length]", to_string(x.sizes()));
  const std::int64_t length = before + x.size(1);
  if (length > options_.context) throwf("gpt: a sequence of {} tokens, the context is {}", length, options_.context);
  const Tensor at =
      arange(static_cast<double>(before), static_cast<double>(length), 1, {.dtype = DType::i64, .device = x.device()});
  return tokens(x) + positions(at);
}

Tensor Gpt::forward(const Tensor& x) { return head(norm(blocks(embedded(x, 0)))); }

Tensor Gpt::through_blocks(const Tensor& x, nn::KeyValueCaches& caches) {
  const nn::ModuleCall call(blocks, SourceLocation::current());
  Tensor y = x;
  for (std::size_t i = 0; i < layers_.size(); ++i) y = layers_[i](y, caches[i]);
  return call.leave(x, y);
}

Tensor Gpt::forward(const Tensor& x, nn::KeyValueCaches& caches) {
  const std::int64_t before = caches.empty() ? 0 : caches.front().length();
  const bool alike = std::all_of(caches.begin(), caches.end(), [&](const auto& c) { return c.length() == before; });
  if (caches.size() != layers_.size() || !alike)
    throwf("gpt: {} caches{}; allowed are {} with the same tokens", caches.size(), alike ? "" : " of different lengths",
           layers_.size());
  return head(norm(through_blocks(embedded(x, before), caches)));
}

nn::KeyValueCaches Gpt::empty_caches(const std::optional<Quantizer>& quantizer) const {
  return nn::KeyValueCaches(layers_.size(), nn::KeyValueCache(quantizer));
}

}  // namespace gradual::lab
