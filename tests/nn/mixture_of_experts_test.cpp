// A mixture of experts against a loop over tokens in plain doubles.
#include "../../nn/mixture_of_experts.h"

#include <gradual/dist/backends.h>
#include <gradual/dist/data_parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "helpers.h"

using namespace nn_test;

namespace {

constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kHidden = 6;
constexpr std::int64_t kExperts = 5;

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

Matrix matrix(const Tensor& t) {
  const Row all = values(t);
  Matrix rows;
  for (std::int64_t i = 0; i < t.size(0); ++i)
    rows.emplace_back(all.begin() + i * t.size(1), all.begin() + (i + 1) * t.size(1));
  return rows;
}

Row times(const Matrix& m, const Row& x) {
  Row y;
  for (const Row& row : m) y.push_back(std::inner_product(row.begin(), row.end(), x.begin(), 0.0));
  return y;
}

double silu_of(double x) { return x / (1 + std::exp(-x)); }
double gelu_of(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }

Row expert_of(nn::Module& expert, const Row& x) {
  if (auto* const swiglu = dynamic_cast<nn::SwiGlu*>(&expert)) {
    const Row gate = times(matrix(swiglu->gate.weight), x);
    Row hidden = times(matrix(swiglu->up.weight), x);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] *= silu_of(gate[i]);
    return times(matrix(swiglu->down.weight), hidden);
  }
  auto& mlp = dynamic_cast<nn::Mlp&>(expert);
  Row hidden = times(matrix(mlp.up.weight), x);
  for (double& h : hidden) h = gelu_of(h);
  return times(matrix(mlp.down.weight), hidden);
}

struct Token {
  std::vector<std::size_t> experts;
  Row probabilities;
  Row weights;
};

Token token_of(nn::MixtureOfExperts& layer, const Row& x) {
  const Row logits = times(matrix(layer.router.weight), x);
  Token t;
  double sum = 0;
  for (const double l : logits) sum += std::exp(l);
  for (const double l : logits) t.probabilities.push_back(std::exp(l) / sum);
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  order.resize(static_cast<std::size_t>(layer.options().chosen));
  t.experts = order;
  double chosen = 0;
  for (const std::size_t e : order) chosen += t.probabilities[e];
  if (order.size() == 1) chosen = 1;
  for (const std::size_t e : order) t.weights.push_back(t.probabilities[e] / chosen);
  return t;
}

// The layer's output, token by token. `taken`: how many choices an expert still takes.
Matrix reference(nn::MixtureOfExperts& layer, const Matrix& x, std::int64_t most) {
  Matrix y(x.size(), Row(kWidth, 0.0));
  std::vector<std::int64_t> left(kExperts, most);
  for (std::size_t j = 0; j < static_cast<std::size_t>(layer.options().chosen); ++j)
    for (std::size_t n = 0; n < x.size(); ++n) {
      const Token t = token_of(layer, x[n]);
      if (left[t.experts[j]]-- <= 0) continue;
      const Row out = expert_of(layer.experts[t.experts[j]], x[n]);
      for (std::size_t i = 0; i < kWidth; ++i) y[n][i] += t.weights[j] * out[i];
    }
  return y;
}

// Weights of size 1, so that probabilities differ.
nn::MixtureOfExperts layer_of(const nn::MixtureOptions& options, DType dtype = DType::f64) {
  manual_seed(1);
  nn::MixtureOfExperts layer(kWidth, options);
  std::uint64_t seed = 10;
  for (const Tensor& p : layer.parameters()) assign(p, noise(p.sizes(), seed++));
  layer.to(dtype);
  return layer;
}

double worst(const Tensor& y, const Matrix& reference) {
  const Matrix got = matrix(y);
  double most = 0;
  for (std::size_t n = 0; n < reference.size(); ++n)
    for (std::size_t i = 0; i < reference[n].size(); ++i) most = std::max(most, std::abs(got[n][i] - reference[n][i]));
  return most;
}

std::vector<std::int64_t> integers(const Tensor& t) { return t.to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("chosen_experts: the largest first, of equal ones the lowest number, in every dtype") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const Tensor logits = tensor({{1.0, 3.0, 2.0, 3.0}, {0.0, 0.0, 0.0, 0.0}, {-1.0, -4.0, -2.0, 5.0}}).to(dtype);
    CHECK(integers(nn::chosen_experts(logits, 3)) == std::vector<std::int64_t>{1, 3, 2, 0, 1, 2, 3, 0, 2});
    CHECK(integers(nn::chosen_experts(logits, 1)) == std::vector<std::int64_t>{1, 0, 3});
  }
  CHECK(contains(message_of([] { nn::chosen_experts(zeros({2, 3}), 4); }), "4 of logits [2, 3]"));
  CHECK(contains(message_of([] { nn::chosen_experts(zeros({2, 3}), 0); }), "allowed are 1 to the last size"));
}

TEST_CASE("a mixture of experts is the weighted sum of each token's experts") {
  const Tensor x = noise({3, 7, kWidth}, 2, DType::f64);
  const Matrix tokens = matrix(x.reshape({21, kWidth}));
  for (const nn::ExpertKind kind : {nn::ExpertKind::swiglu, nn::ExpertKind::mlp})
    for (const std::int64_t k : {1, 2, 5})
      for (const double capacity : {0.0, 1.0, 0.4}) {
        CAPTURE(k);
        CAPTURE(capacity);
        nn::MixtureOfExperts layer =
            layer_of({.experts = kExperts, .chosen = k, .hidden = kHidden, .kind = kind, .capacity = capacity});
        const auto most = static_cast<std::int64_t>(std::ceil(capacity * static_cast<double>(k) * 21 / kExperts));
        const Matrix want = reference(layer, tokens, capacity == 0 ? 21 : most);
        const Tensor y = layer(x);
        CHECK(y.sizes() == x.sizes());
        CHECK(worst(y.reshape({21, kWidth}), want) < 1e-13);
      }
}

TEST_CASE("a mixture of experts: gradients of tokens, router and experts against differences") {
  for (const std::int64_t k : {1, 2}) {
    nn::MixtureOfExperts layer = layer_of({.experts = 3, .chosen = k, .hidden = kHidden});
    std::vector<Tensor> inputs = layer.parameters();
    inputs.push_back(noise({5, kWidth}, 3, DType::f64).set_requires_grad());
    const auto f = [&](const std::vector<Tensor>& in) {
      const nn::AuxiliaryLossScope losses;
      const Tensor y = layer(in.back());
      return std::vector{y, losses.sum() * 100.0};
    };
    const autograd::GradcheckResult result = autograd::gradcheck(f, inputs);
    CHECK_MESSAGE(result.ok, result.message);
  }
}

TEST_CASE("the balance loss: 1 where experts are even, E times f P where they are not, and a gradient of P alone") {
  nn::MixtureOfExperts layer = layer_of({.experts = kExperts, .chosen = 2, .balance = 0.5});
  const Tensor x = noise({9, kWidth}, 4, DType::f64);
  std::vector<double> shares(kExperts, 0);
  std::vector<double> means(kExperts, 0);
  for (const Row& row : matrix(x)) {
    const Token t = token_of(layer, row);
    for (const std::size_t e : t.experts) shares[e] += 1.0 / 18;
    for (std::size_t e = 0; e < kExperts; ++e) means[e] += t.probabilities[e] / 9;
  }
  const double want = kExperts * std::inner_product(shares.begin(), shares.end(), means.begin(), 0.0);
  CHECK(layer.route(x).balance.item() == doctest::Approx(want).epsilon(1e-12));
  {
    const nn::AuxiliaryLossScope outer;
    const nn::AuxiliaryLossScope losses;
    layer(x);
    layer(x);
    CHECK(losses.sum().item() == doctest::Approx(want).epsilon(1e-12));  // twice a half
    CHECK_FALSE(outer.sum().defined());
    layer.eval();
    layer(x);
    CHECK(losses.sum().item() == doctest::Approx(want).epsilon(1e-12));
  }
  assign(layer.router.weight, zeros({kExperts, kWidth}));  // all choose experts 0 and 1, with even probabilities
  CHECK(layer.route(x).balance.item() == doctest::Approx(1));
  CHECK(integers(layer.route(x).experts.narrow(0, 0, 1)) == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("an expert without tokens has gradients of 0, and so has a layer without any") {
  nn::MixtureOfExperts layer = layer_of({.experts = kExperts, .chosen = 1, .hidden = kHidden});
  for (const std::int64_t tokens : {1, 0}) {
    layer.zero_grad();
    const Tensor y = layer(noise({tokens, kWidth}, 5, DType::f64));
    CHECK(y.sizes() == Shape{tokens, kWidth});
    y.sum().backward();
    int zero = 0;
    for (const Tensor& p : layer.parameters()) {
      REQUIRE(p.grad().defined());
      zero += abs(p.grad()).max().item() == 0;
    }
    CHECK(zero == (tokens == 1 ? 3 * (kExperts - 1) : 3 * kExperts + 1));
  }
}

TEST_CASE("a mixture trains under every recipe, with the same bits twice") {
  const Tensor x = noise({32, 16}, 6);
  const Tensor classes = argmax(x.narrow(1, 0, 4), 1);
  const auto losses_of = [&](const amp::Recipe& recipe) {
    manual_seed(3);
    nn::Sequential model{nn::MixtureOfExperts(16, {.experts = 4, .hidden = 32}), nn::Linear(16, 4)};
    amp::RecipeRun run(recipe, model, optim::AdamWOptions{.lr = 0.01, .eps = 1e-4});
    const auto step_on = [&](std::int64_t tokens) {
      const auto loss = [&] {
        const nn::AuxiliaryLossScope auxiliary;
        const Tensor main = cross_entropy(model(x.narrow(0, 0, tokens)), classes.narrow(0, 0, tokens));
        return main + auxiliary.sum();
      };
      return run.step(loss).loss.item();
    };
    std::vector<double> losses;
    for (int step = 0; step < 12; ++step) losses.push_back(step_on(32));
    CHECK(std::isfinite(step_on(1)));  // two experts have no token
    losses.push_back(step_on(32));
    return losses;
  };
  for (const std::string& name : amp::recipe_names()) {
    CAPTURE(name);
    const std::vector<double> losses = losses_of(amp::recipe(name));
    CHECK(std::isfinite(losses.back()));
    CHECK(losses.back() < losses.front());
    CHECK(losses == losses_of(amp::recipe(name)));
  }
}

TEST_CASE("a recipe's modules leave the router out, which then has f32's logits and choices") {
  const Tensor x = noise({64, 16}, 7);
  manual_seed(3);
  nn::Sequential model{nn::MixtureOfExperts(16, {.experts = 8}), nn::Linear(16, 4)};
  auto& layer = dynamic_cast<nn::MixtureOfExperts&>(model[0]);
  const auto logits_under = [&](const amp::Recipe& recipe) {
    Tensor logits;
    const std::uint64_t hook = layer.router.register_forward_hook(
        [&](nn::Module&, const Tensor&, const Tensor& y) { logits = y.detach().to(DType::f32); });
    const amp::RecipeScope scope(recipe);
    model(x);
    layer.router.remove_forward_hook(hook);
    return logits;
  };
  const Tensor exact = logits_under(amp::recipe("fp32"));
  const Tensor rounded = logits_under(amp::recipe("mxfp4"));
  CHECK(distance(exact, rounded) > 0);
  CHECK(integers(nn::chosen_experts(exact, 2)) != integers(nn::chosen_experts(rounded, 2)));
  amp::Recipe excluded = amp::recipe("mxfp4");
  excluded.name = "mxfp4, router in f32";
  excluded.quantization->modules = {{"0.router", "fp32"}};
  CHECK(same_bits(logits_under(excluded), exact));
}

TEST_CASE("a mixture under data-parallel training: shards are weighted by the loss's targets") {
  manual_seed(3);
  nn::Sequential model{nn::MixtureOfExperts(16, {.experts = 4, .hidden = 8}), nn::Linear(16, 4)};
  const Tensor x = noise({16, 16}, 8);
  const Tensor classes = argmax(x.narrow(1, 0, 4), 1).to(DType::f32);
  const Tensor ignored = cat({full({13}, -100.0), zeros({3})}, 0);
  const data::Batch batch{x, where(ignored < 0, -100, classes).to(DType::i64), {}};
  amp::RecipeRun run(amp::recipe("fp32"), model, optim::SGDOptions{.lr = 0.0});
  const auto ranks = dist::single();
  dist::DataParallel parallel(*ranks, run, {.shards = 2});
  const auto loss_on = [&](const data::Batch& part) {
    const nn::AuxiliaryLossScope auxiliary;
    const Tensor loss = cross_entropy(model(part.inputs), part.targets);
    return loss + auxiliary.sum();
  };
  const double got = parallel.backward(batch, loss_on).item();
  // The last three of 16 samples count, all in the second shard.
  const double second = loss_on({x.narrow(0, 8, 8), batch.targets.narrow(0, 8, 8), {}}).item();
  CHECK(got == doctest::Approx(second).epsilon(1e-6));
}

TEST_CASE("a block with a mixture: a cache of keys and values gives what all tokens at once give") {
  manual_seed(1);
  nn::MixtureBlock block(8, 2, true, {.experts = 4, .hidden = 8});
  block.to(DType::f64);
  block.eval();
  const NoGrad off;
  const Tensor x = noise({2, 6, 8}, 9, DType::f64);
  nn::KeyValueCache cache;
  const Tensor first = block(x.narrow(1, 0, 4), cache);
  const Tensor second = block(x.narrow(1, 4, 2), cache);
  CHECK(distance(cat({first, second}, 1), block(x)) < 1e-13);
}

TEST_CASE("a mixture's capacity: the decimal number that was given, and never more than all choices") {
  const auto most = [](double capacity, std::int64_t tokens) {
    return nn::MixtureOfExperts(4, {.experts = 4, .chosen = 2, .capacity = capacity}).most_choices(tokens);
  };
  CHECK(most(1.1, 100) == 55);
  CHECK(most(1.1, 101) == 56);
  CHECK(most(1, 3) == 2);
  CHECK(most(1e30, 100) == 200);
  CHECK(most(0, 100) == 200);
}

TEST_CASE("a mixture names what is wrong with its options and inputs") {
  const auto made = [](const nn::MixtureOptions& o) { return message_of([&] { nn::MixtureOfExperts(4, o); }); };
  CHECK(contains(made({.experts = 3, .chosen = 4}), "4 chosen of 3 experts; allowed are 1 to 3"));
  CHECK(contains(made({.chosen = 0}), "0 chosen of 8 experts"));
  CHECK(contains(made({.hidden = -1}), "hidden is -1"));
  CHECK(contains(made({.capacity = -1.0}), "capacity is -1"));
  CHECK(contains(made({.balance = INFINITY}), "balance inf"));
  nn::MixtureOfExperts layer(4);
  CHECK(contains(message_of([&] { layer(zeros({2, 5})); }), "input [2, 5]; allowed is [.., 4]"));
  CHECK(contains(message_of([&] { layer.route(zeros({1, 2, 4})); }), "tokens [1, 2, 4]; allowed is [tokens, 4]"));
}
