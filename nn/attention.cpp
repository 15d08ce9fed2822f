#include "attention.h"

#include "../core/support/throwf.h"

namespace gradual::nn {

MultiheadAttention::MultiheadAttention(std::int64_t embed_dim, std::int64_t heads, MultiheadAttentionOptions o)
    : in_proj_weight(register_parameter("in_proj_weight",
                                        empty({3 * count("MultiheadAttention", "embed_dim", embed_dim), embed_dim}))),
      in_proj_bias(register_parameter("in_proj_bias", o.bias ? zeros({3 * embed_dim}) : Tensor())),
      out_proj(register_module("out_proj", Linear(embed_dim, embed_dim, {.bias = o.bias}))),
      embed_dim_(embed_dim),
      heads_(heads),
      options_(o) {
  if (heads < 1 || embed_dim % heads)
    throwf("MultiheadAttention: {} heads do not divide an embedding of {}", heads, embed_dim);
  if (!(o.dropout >= 0 && o.dropout <= 1)) throwf("MultiheadAttention: dropout is {}; allowed are 0 to 1", o.dropout);
  init::xavier_uniform_(in_proj_weight);
  if (o.bias) init::constant_(out_proj.bias, 0);
}

// Of queries that are the last of the keys: each attends to its own key and those before.
static Tensor causal_mask(std::int64_t queries, std::int64_t keys, Device device) {
  const auto numbers = [&](std::int64_t from) {
    return arange(static_cast<double>(from), static_cast<double>(keys), 1, {.dtype = DType::i64, .device = device});
  };
  return ge(numbers(keys - queries).reshape({-1, 1}), numbers(0));
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionCall& how) {
  for (const Tensor* t : {&query, &key, &value})
    if (t->dim() < 2 || t->size(-1) != embed_dim_)
      throwf("MultiheadAttention: input {}; allowed is [.., length, {}]", to_string(t->sizes()), embed_dim_);
  // The rows of the packed projection are those of q, k and v: one product if they have the same input.
  const bool one = query.is_same(key) && key.is_same(value);
  const Tensor packed = one ? linear(query, in_proj_weight, in_proj_bias) : Tensor();
  const auto heads_of = [&](const Tensor& x, int part) {  // [.., L, E] -> [.., heads, L, E / heads]
    const auto own = [&](const Tensor& t, int dim) {
      return t.defined() ? narrow(t, dim, part * embed_dim_, embed_dim_) : t;
    };
    const Tensor projected = one ? own(packed, -1) : linear(x, own(in_proj_weight, 0), own(in_proj_bias, 0));
    Shape sizes = x.sizes();
    sizes[x.dim() - 1] = heads_;
    sizes.push_back(embed_dim_ / heads_);
    return transpose(reshape(projected, sizes), -3, -2);
  };
  const Tensor q = heads_of(query, 0);
  KeyValues seen = {heads_of(key, 1), heads_of(value, 2)};
  Tensor mask = how.mask.defined() && how.mask.dim() == 3 ? unsqueeze(how.mask, 1) : how.mask;
  bool causal = how.causal;
  if (how.cache) {
    if (!one || !how.causal || how.mask.defined())
      throw_error("MultiheadAttention: a cache is for causal self-attention without a mask");
    seen = how.cache->append(seen);
    const std::int64_t queries = q.size(-2);
    causal = seen.keys.size(-2) == queries;
    if (!causal && queries > 1) mask = causal_mask(queries, seen.keys.size(-2), q.device());
  }
  const double dropout = training() ? options_.dropout : 0;
  const Tensor heads =
      scaled_dot_product_attention(q, seen.keys, seen.values, mask, {.causal = causal, .dropout = dropout});
  return out_proj(flatten(transpose(heads, -3, -2), -2, -1));
}

TransformerBlock::TransformerBlock(std::int64_t embed_dim, std::int64_t heads, TransformerBlockOptions o)
    : self_attn(
          register_module("self_attn", MultiheadAttention(embed_dim, heads, {.dropout = o.dropout, .bias = o.bias}))),
      linear1(register_module("linear1", Linear(embed_dim, o.hidden(embed_dim), {.bias = o.bias}))),
      linear2(register_module("linear2", Linear(o.hidden(embed_dim), embed_dim, {.bias = o.bias}))),
      norm1(register_module("norm1", LayerNorm(embed_dim, {.bias = o.bias}))),
      norm2(register_module("norm2", LayerNorm(embed_dim, {.bias = o.bias}))),
      dropout(register_module("dropout", Dropout(o.dropout))),
      dropout1(register_module("dropout1", Dropout(o.dropout))),
      dropout2(register_module("dropout2", Dropout(o.dropout))),
      causal_(o.causal),
      gelu_(o.gelu) {}

// gelu(layer(x)), as one op if the two fuse.
static Tensor gelu_after(Linear& layer, const Tensor& x, Gelu form) {
  const Tensor y = layer.call_fused(x, OpId::gelu, form);
  return y.defined() ? y : gelu(layer(x), form);
}

// residual + layer(x), as one op if the two fuse.
static Tensor add_dropped(Dropout& layer, const Operand& x, const Tensor& residual) {
  const Tensor y = layer.call_fused(x, OpId::add, {}, residual);
  return y.defined() ? y : residual + layer(*x.tensor);
}

Tensor TransformerBlock::forward(const Tensor& x, const AttentionCall& how) {
  const Tensor normed = norm1(x);
  const Tensor y = add_dropped(dropout1, self_attn(normed, normed, normed, how), x);
  return add_dropped(dropout2, linear2(dropout(gelu_after(linear1, norm2(y), gelu_))), y);
}

}  // namespace gradual::nn
