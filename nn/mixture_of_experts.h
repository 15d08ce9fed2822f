// A mixture of experts: a router sends each token to a few of many feed-forward layers (Shazeer et al. 2017, arXiv
// 1701.06538; GShard, arXiv 2006.16668; Switch, arXiv 2101.03961). Of these papers a summary of Switch was read.
#pragma once

#include "attention.h"
#include "auxiliary_loss.h"
#include "feedforward.h"
#include "sequential.h"

namespace gradual::nn {

enum class ExpertKind : std::uint8_t { swiglu, mlp };

struct MixtureOptions {
  std::int64_t experts = 8;
  std::int64_t chosen = 2;  // experts of a token
  std::int64_t hidden = 0;  // width of an expert's hidden layer; 0: four times the width
  ExpertKind kind = ExpertKind::swiglu;
  // An expert takes at most ceil(capacity * chosen * tokens / experts) choices of a call; 0: all. First choices of all
  // tokens come before second ones, and earlier tokens before later ones (GShard). A choice beyond it adds nothing.
  double capacity = 0;
  double balance = 0.01;  // factor of the balance loss; 0: none
};

// Where T tokens go, of E experts to k each.
struct Routing {
  Tensor logits;         // [T, E]
  Tensor probabilities;  // [T, E], softmax of the logits
  Tensor experts;        // i64 [T, k], the largest logit first; of equal ones the expert of the lowest number
  // [T, k]: of each choice. For k = 1 its probability (Switch); for more these probabilities, divided by their sum
  // (GShard). A single one divided by itself would teach the router nothing.
  Tensor weights;
  // A scalar, E sum over experts of f P, with f the share of the choices that an expert gets and P its mean probability
  // (Switch, for k = 1): 1 where both are even. f has no gradient.
  Tensor balance;
};

// The experts of the k largest logits of each row, i64 [.., k], in the order of Routing::experts; NaN counts as the
// largest. Error for k below 1 or above the last size.
Tensor chosen_experts(const Tensor& logits, std::int64_t k);

// y = sum over the chosen experts of weight * expert(token), for x [.., width]. In training it adds balance *
// Routing::balance to the AuxiliaryLossScope. Balance and capacity are those of a call: of a shard in data-parallel
// training, of a part in accumulated steps. An expert without tokens runs on none, so all parameters have gradients.
//
// The host reads which experts were chosen: on a GPU it waits for that, and a cuda::Graph cannot record the layer
// (Error). The router is a layer of its own: a recipe's `modules` may name PATH.router.
class MixtureOfExperts : public Layer {
 public:
  explicit MixtureOfExperts(std::int64_t width, MixtureOptions options = {});
  Tensor forward(const Tensor& x) override;
  // Of tokens [T, width].
  Routing route(const Tensor& tokens);

  const MixtureOptions& options() const { return options_; }
  // The most choices that an expert takes of so many tokens.
  std::int64_t most_choices(std::int64_t tokens) const;

  Linear& router;  // weight [experts, width], without a bias
  Sequential& experts;

 private:
  Tensor mixed(const Tensor& tokens, const Routing& routing);

  std::int64_t width_;
  MixtureOptions options_;
};

// x += attention(norm1(x)); x += mixture(norm2(x)), for x [.., L, E]: TransformerBlock with a mixture for its
// feed-forward layer.
class MixtureBlock : public Layer {
 public:
  MixtureBlock(std::int64_t embed_dim, std::int64_t heads, bool causal, MixtureOptions options = {});
  Tensor forward(const Tensor& x) override { return run(x, {.causal = causal_}); }
  // x are tokens that follow those in the cache. Error if the block is not causal.
  Tensor forward(const Tensor& x, KeyValueCache& cache) { return run(x, {.causal = causal_, .cache = &cache}); }
  using Module::operator();
  Tensor operator()(const Tensor& x, KeyValueCache& cache, SourceLocation loc = SourceLocation::current()) {
    const ModuleCall call(*this, loc);
    return call.leave(x, forward(x, cache));
  }

  MultiheadAttention& self_attn;
  MixtureOfExperts& mixture;
  LayerNorm& norm1;
  LayerNorm& norm2;

 private:
  Tensor run(const Tensor& x, const AttentionCall& how);

  bool causal_;
};

}  // namespace gradual::nn
