#include "mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"

namespace gradual::nn {
namespace {

// Numbers of choices: that of token t's j-th expert is t * k + j.
using Choices = std::vector<std::int64_t>;

// What each expert takes: first choices before second ones, at most `most` of an expert.
std::vector<Choices> taken_by_experts(const Tensor& chosen, std::int64_t experts, std::int64_t most) {
  const std::int64_t k = chosen.size(1);
  const std::vector<std::int64_t> numbers = chosen.to(Device::cpu()).to_vector<std::int64_t>();
  std::vector<Choices> taken(static_cast<std::size_t>(experts));
  for (std::int64_t j = 0; j < k; ++j)
    for (std::int64_t c = j; c < chosen.numel(); c += k) {
      Choices& of_expert = taken[static_cast<std::size_t>(numbers[static_cast<std::size_t>(c)])];
      if (static_cast<std::int64_t>(of_expert.size()) < most) of_expert.push_back(c);
    }
  return taken;
}

Tensor indices(const Choices& values, Device device) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = DType::i64}).to(device);
}

std::shared_ptr<Module> make_expert(std::int64_t width, const MixtureOptions& o) {
  const std::int64_t hidden = o.hidden != 0 ? o.hidden : 4 * width;
  if (o.kind == ExpertKind::mlp) return std::make_shared<Mlp>(width, hidden);
  return std::make_shared<SwiGlu>(width, hidden);
}

// The share of the choices that each expert gets, [E], in the dtype of the probabilities.
Tensor shares(const Routing& r) {
  const Tensor picked = one_hot(r.experts, r.probabilities.size(1));
  return mean(picked.to(r.probabilities.dtype()), {0, 1});
}

}  // namespace

Tensor chosen_experts(const Tensor& logits, std::int64_t k) {
  if (logits.dim() < 1 || k < 1 || k > logits.size(-1))
    throwf("chosen_experts: {} of logits {}; allowed are 1 to the last size", k, to_string(logits.sizes()));
  return topk(logits.detach(), k).indices;
}

MixtureOfExperts::MixtureOfExperts(std::int64_t width, MixtureOptions o)
    : router(register_module("router", Linear(count("MixtureOfExperts", "width", width),
                                              count("MixtureOfExperts", "experts", o.experts), {.bias = false}))),
      experts(register_module("experts", Sequential())),
      width_(width),
      options_(o) {
  if (o.chosen < 1 || o.chosen > o.experts)
    throwf("MixtureOfExperts: {} chosen of {} experts; allowed are 1 to {}", o.chosen, o.experts, o.experts);
  if (o.hidden < 0) throwf("MixtureOfExperts: hidden is {}; allowed are 0 and positive widths", o.hidden);
  for (const double factor : {o.capacity, o.balance})
    if (!(factor >= 0 && std::isfinite(factor)))
      throwf("MixtureOfExperts: capacity is {} and balance {}; allowed are 0 and finite positive numbers", o.capacity,
             o.balance);
  for (std::int64_t e = 0; e < o.experts; ++e) experts.push_back(make_expert(width, o));
}

std::int64_t MixtureOfExperts::most_choices(std::int64_t tokens) const {
  const std::int64_t choices = options_.chosen * tokens;
  if (options_.capacity == 0) return choices;
  const auto all = static_cast<double>(choices);
  const double most = options_.capacity * all / static_cast<double>(options_.experts);
  constexpr double kRounding = 4 * std::numeric_limits<double>::epsilon();  // 1.1 * 50 is 55, and no more
  return static_cast<std::int64_t>(std::min(std::ceil(most * (1 - kRounding)), all));
}

Routing MixtureOfExperts::route(const Tensor& tokens) {
  if (tokens.dim() != 2 || tokens.size(1) != width_)
    throwf("MixtureOfExperts: tokens {}; allowed is [tokens, {}]", to_string(tokens.sizes()), width_);
  Routing r;
  r.logits = router(tokens);
  r.probabilities = softmax(r.logits, -1);
  r.experts = chosen_experts(r.logits, options_.chosen);
  r.weights = gather(r.probabilities, -1, r.experts);
  if (options_.chosen > 1) r.weights = r.weights / sum(r.weights, {-1}, true);
  r.balance = mul(sum(mul(shares(r), mean(r.probabilities, {0}))), static_cast<double>(options_.experts));
  return r;
}

Tensor MixtureOfExperts::mixed(const Tensor& tokens, const Routing& r) {
  const std::int64_t k = options_.chosen;
  const std::vector<Choices> taken = taken_by_experts(r.experts, options_.experts, most_choices(tokens.size(0)));
  const Tensor weights = reshape(r.weights, {-1, 1});
  std::vector<Tensor> results;
  Choices to;
  for (std::size_t e = 0; e < taken.size(); ++e) {
    Choices from;
    for (const std::int64_t c : taken[e]) from.push_back(c / k);
    const Tensor y = experts[e](index_select(tokens, 0, indices(from, tokens.device())));
    results.push_back(y * index_select(weights, 0, indices(taken[e], tokens.device())));
    to.insert(to.end(), from.begin(), from.end());
  }
  return index_add(cat(results, 0), 0, indices(to, tokens.device()), tokens.size(0));
}

Tensor MixtureOfExperts::forward(const Tensor& x) {
  if (x.dim() < 1 || x.size(-1) != width_)
    throwf("MixtureOfExperts: input {}; allowed is [.., {}]", to_string(x.sizes()), width_);
  const Tensor tokens = reshape(x, {x.numel() / width_, width_});
  const Routing r = route(tokens);
  if (training() && options_.balance > 0 && tokens.size(0) > 0) add_auxiliary_loss(mul(r.balance, options_.balance));
  return reshape(mixed(tokens, r), x.sizes());
}

MixtureBlock::MixtureBlock(std::int64_t embed_dim, std::int64_t heads, bool causal, MixtureOptions options)
    : self_attn(register_module("self_attn", MultiheadAttention(embed_dim, heads))),
      mixture(register_module("mixture", MixtureOfExperts(embed_dim, options))),
      norm1(register_module("norm1", LayerNorm(embed_dim))),
      norm2(register_module("norm2", LayerNorm(embed_dim))),
      causal_(causal) {}

Tensor MixtureBlock::run(const Tensor& x, const AttentionCall& how) {
  const Tensor normed = norm1(x);
  const Tensor y = x + self_attn(normed, normed, normed, how);
  return y + mixture(norm2(y));
}

}  // namespace gradual::nn
