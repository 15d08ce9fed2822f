// MultiheadAttention, and the transformer block built on it. Parameters are named as PyTorch names them.
#pragma once

#include "dropout.h"
#include "key_value_cache.h"
#include "linear.h"
#include "norm.h"

namespace gradual::nn {

struct MultiheadAttentionOptions {
  double dropout = 0;   // of the attention's probabilities
  bool causal = false;  // for the call with one tensor; other calls set it in AttentionCall
  bool bias = true;
};

// The mask of one call. mask broadcasts to [N, heads, L, S] ([N, L, S]: the same for all heads). bool: true if the
// query may attend. Floating: added to the scores (-Inf for all keys gives 0). causal: query i attends to keys 0 to i.
// cache: of the tokens before; keeps those of this call too. For causal self-attention without a mask.
struct AttentionCall {
  Tensor mask = {};
  bool causal = false;
  KeyValueCache* cache = nullptr;
};

// Vaswani et al. 2017; batch first. query [.., L, E], key and value [.., S, E] -> [.., L, E].
// Parameters in_proj_weight [3E, E] (Xavier uniform; q, k, v in this order), in_proj_bias [3E] (0), out_proj.weight
// [E, E] (as Linear), out_proj.bias [E] (0).
class MultiheadAttention : public Layer {
 public:
  MultiheadAttention(std::int64_t embed_dim, std::int64_t heads, MultiheadAttentionOptions options = {});

  Tensor forward(const Tensor& x) override {  // self-attention, causal as the options say
    return forward(x, x, x, {.mask = {}, .causal = options_.causal});
  }
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionCall& how = {});
  using Module::operator();
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionCall& how = {},
                    SourceLocation loc = SourceLocation::current()) {
    const ModuleCall call(*this, loc);
    return call.leave(query, forward(query, key, value, how));
  }

  Tensor& in_proj_weight;
  Tensor& in_proj_bias;
  Linear& out_proj;

 private:
  std::int64_t embed_dim_, heads_;
  MultiheadAttentionOptions options_;
};

struct TransformerBlockOptions {
  std::int64_t feedforward = 0;  // width of the hidden layer; 0: four times the embedding
  double dropout = 0;            // of the attention's probabilities, the hidden layer and both branches
  bool causal = false;
  bool bias = true;         // of linear layers and norms
  Gelu gelu = Gelu::exact;  // tanh: GPT-2's form, which a GPU fuses with the product
  std::int64_t hidden(std::int64_t embed_dim) const { return feedforward ? feedforward : 4 * embed_dim; }
};

// Pre-norm (Xiong et al. 2020): x += attention(norm1(x)); x += linear2(gelu(linear1(norm2(x)))). x [.., L, E].
// The names and the function are those of PyTorch's TransformerEncoderLayer with norm_first, gelu and batch_first.
class TransformerBlock : public Layer {
 public:
  TransformerBlock(std::int64_t embed_dim, std::int64_t heads, TransformerBlockOptions options = {});
  Tensor forward(const Tensor& x) override { return forward(x, Tensor()); }
  Tensor forward(const Tensor& x, const Tensor& mask) {  // the mask of AttentionCall
    return forward(x, {.mask = mask, .causal = causal_});
  }
  // x are tokens that follow those in the cache. Error if the block is not causal.
  Tensor forward(const Tensor& x, KeyValueCache& cache) { return forward(x, {.causal = causal_, .cache = &cache}); }
  using Module::operator();
  Tensor operator()(const Tensor& x, KeyValueCache& cache, SourceLocation loc = SourceLocation::current()) {
    const ModuleCall call(*this, loc);
    return call.leave(x, forward(x, cache));
  }
  Tensor operator()(const Tensor& x, const Tensor& mask, SourceLocation loc = SourceLocation::current()) {
    const ModuleCall call(*this, loc);
    return call.leave(x, forward(x, mask));
  }

  MultiheadAttention& self_attn;
  Linear& linear1;
  Linear& linear2;
  LayerNorm& norm1;
  LayerNorm& norm2;
  Dropout& dropout;
  Dropout& dropout1;
  Dropout& dropout2;

 private:
  Tensor forward(const Tensor& x, const AttentionCall& how);

  bool causal_;
  Gelu gelu_;
};

}  // namespace gradual::nn
