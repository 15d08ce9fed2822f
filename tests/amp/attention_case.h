// What attention's tests attend to, and a model that they train.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "../../amp/cast_stats.h"
#include "../../amp/recipe.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../core/observe/observer.h"
#include "../../nn/attention.h"
#include "support.h"

namespace gradual::attention_test {

struct Case {
  const char* what;
  Shape q, k, v;
  Tensor mask = {};
  AttentionOptions options = {};
};

inline Tensor visible(const Shape& sizes) { return gt(random(sizes, 77), -0.5); }
inline Tensor hides_all_of_row(int row) {
  const Tensor mask = random({5, 9}, 78);
  mask.narrow(0, row, 1).fill_(-HUGE_VAL);
  return mask;
}

struct Net : nn::Module {
  nn::TransformerBlock& block = register_module("block", nn::TransformerBlock(16, 2, {.dropout = 0.1, .causal = true}));
  bool checkpointed = false;
  Tensor forward(const Tensor& x) override {
    if (!checkpointed) return block(x);
    return checkpoint([this](const Tensor& t) { return block(t); }, x);
  }
};

struct Circumstances {
  bool checkpointed = false;
  Observer* observer = nullptr;
  amp::CastStatsTable* counts = nullptr;
};
// The parameters after two steps.
inline std::vector<Tensor> trained(const amp::Recipe& recipe, const Circumstances& in = {}) {
  default_generator() = Generator(5);
  Net net;
  net.checkpointed = in.checkpointed;
  amp::RecipeRun run(recipe, net, optim::AdamOptions{.lr = 1e-2});
  std::optional<ObserverScope> scope;
  std::optional<amp::CastStatsScope> counting;
  if (in.observer) scope.emplace(*in.observer);
  if (in.counts) counting.emplace(*in.counts);
  for (std::uint64_t i = 0; i < 2; ++i) {
    const Tensor x = random({2, 20, 16}, i);
    run.step([&] { return square(net(x)).mean(); });
  }
  std::vector<Tensor> all;
  for (const auto& [name, p] : net.named_parameters()) all.push_back(p.detach().clone());
  return all;
}

inline bool all_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = same_bits(a[i], b[i]);
  return same;
}

}  // namespace gradual::attention_test
