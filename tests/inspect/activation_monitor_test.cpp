// Kurtosis of activations, and logits and entropy of attention, against plain loops.
#include "../../inspect/activation_monitor.h"

#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace gradual;
using inspect::ActivationMonitor;
using inspect::ActivationRow;
using inspect::ProbabilityRow;

namespace {

Tensor normal(const Shape& sizes, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {}, g);
}

template <class F> ActivationMonitor seen(const F& run) {
  ActivationMonitor monitor;
  const ObserverScope scope(monitor);
  run();
  return monitor;
}

const ActivationRow& row(const ActivationMonitor& m, const std::string& layer, const std::string& operand) {
  const auto is = [&](const ActivationRow& r) { return r.layer == layer && r.operand == operand; };
  const auto found = std::ranges::find_if(m.activations(), is);
  REQUIRE_MESSAGE(found != m.activations().end(), layer, " ", operand);
  return *found;
}

double kurtosis_by_loop(const std::vector<double>& x) {
  double squares = 0;
  double fourths = 0;
  for (const double v : x) {
    squares += v * v;
    fourths += v * v * v * v;
  }
  return static_cast<double>(x.size()) * fourths / (squares * squares);
}

struct Attention {
  double largest = -HUGE_VAL;
  std::vector<double> heads;  // mean entropy of each
};

// q, k [B, H, L, E]; sees(query, key).
Attention attention_by_loop(const Tensor& q, const Tensor& k, const auto& sees) {
  const std::vector<double> a = q.to_vector<double>();
  const std::vector<double> b = k.to_vector<double>();
  const auto size = [&](const Tensor& t, int dim) { return static_cast<std::size_t>(t.size(dim)); };
  const std::size_t width = size(q, 3);
  Attention all{.heads = std::vector<double>(size(q, 1))};
  for (std::size_t n = 0; n < size(q, 0); ++n)
    for (std::size_t h = 0; h < size(q, 1); ++h)
      for (std::size_t i = 0; i < size(q, 2); ++i) {
        std::vector<double> logits;
        for (std::size_t j = 0; j < size(k, 2); ++j) {
          if (!sees(i, j)) continue;
          double dot = 0;
          for (std::size_t e = 0; e < width; ++e)
            dot += a[((n * size(q, 1) + h) * size(q, 2) + i) * width + e] *
                   b[((n * size(q, 1) + h) * size(k, 2) + j) * width + e];
          logits.push_back(dot / std::sqrt(static_cast<double>(width)));
        }
        double sum = 0;
        for (const double l : logits) sum += std::exp(l);
        for (const double l : logits) {
          all.largest = std::max(all.largest, l);
          all.heads[h] -= std::exp(l) / sum * std::log(std::exp(l) / sum) / static_cast<double>(q.size(0) * q.size(2));
        }
      }
  return all;
}

void check_attention(const ProbabilityRow& got, const Attention& want) {
  double mean = 0;
  for (const double h : want.heads) mean += h / static_cast<double>(want.heads.size());
  CHECK(got.largest_logit == doctest::Approx(want.largest).epsilon(1e-5));
  CHECK(got.entropy() == doctest::Approx(mean).epsilon(1e-5));
  CHECK(got.lowest_entropy() == doctest::Approx(*std::ranges::min_element(want.heads)).epsilon(1e-5));
}

// Tokens [2, 12, 16] to classes, with an attention, in modules "0" and "1".
std::shared_ptr<nn::Sequential> small_transformer() {
  manual_seed(5);
  return std::make_shared<nn::Sequential>(nn::TransformerBlock(16, 2, {.causal = true}), nn::Linear(16, 4));
}
Tensor loss_of(nn::Sequential& model, const Tensor& x) {
  const Tensor logits = model(x).reshape({-1, 4});
  return cross_entropy(logits, zeros({logits.size(0)}, {.dtype = DType::i64}));
}

}  // namespace

TEST_CASE("kurtosis: of all elements and of features' norms, as a loop gives it") {
  nn::Linear layer(6, 2);
  const Tensor x = normal({3, 5, 6}, 1);
  const ActivationMonitor m = seen([&] { layer(x); });
  REQUIRE(m.activations().size() == 1);
  const ActivationRow& r = m.activations()[0];
  CHECK(r.elements == 90);
  CHECK(r.kurtosis() == doctest::Approx(kurtosis_by_loop(x.to_vector<double>())).epsilon(1e-9));
  std::vector<double> norms(6);
  const std::vector<double> all = x.to_vector<double>();
  for (std::size_t i = 0; i < all.size(); ++i) norms[i % 6] += all[i] * all[i] / 15;
  for (double& n : norms) n = std::sqrt(n);
  CHECK(r.feature_kurtosis() == doctest::Approx(kurtosis_by_loop(norms)).epsilon(1e-9));
  CHECK(r.largest == doctest::Approx(absmax(x)));
}

TEST_CASE("kurtosis: 3 of normal numbers, and what a planted outlier makes of it") {
  nn::Linear layer(64, 2);
  const Tensor x = normal({4000, 64}, 2);
  CHECK(row(seen([&] { layer(x); }), "", "x").kurtosis() == doctest::Approx(3).epsilon(0.02));
  CHECK(row(seen([&] { layer(x); }), "", "x").feature_kurtosis() == doctest::Approx(1).epsilon(0.01));
  Tensor outliers = x.clone();
  outliers.narrow(1, 7, 1).mul_(1000);  // a feature that is always large
  CHECK(row(seen([&] { layer(outliers); }), "", "x").feature_kurtosis() == doctest::Approx(64).epsilon(0.01));
  Tensor one = zeros({10, 64});
  one.narrow(0, 3, 1).narrow(1, 5, 1).fill_(2);
  CHECK(row(seen([&] { layer(one); }), "", "x").kurtosis() == doctest::Approx(640));
  CHECK(std::isnan(row(seen([&] { layer(zeros({10, 64})); }), "", "x").kurtosis()));
}

TEST_CASE("kurtosis: convolutions by channel, matmuls by operand and size, f16 beyond its squares") {
  nn::Conv2d conv(3, 2, 3);
  Tensor image = normal({2, 3, 5, 5}, 3);
  image.narrow(1, 1, 1).mul_(1e4);
  CHECK(row(seen([&] { conv(image); }), "", "x").feature_kurtosis() == doctest::Approx(3).epsilon(1e-6));
  nn::ConvTranspose2d up(3, 2, 3);
  const ActivationMonitor transposed = seen([&] { sum(up(image.set_requires_grad())).backward(); });
  CHECK(row(transposed, "", "x").elements == image.numel());
  CHECK(row(transposed, "", "x").feature_kurtosis() == doctest::Approx(3).epsilon(1e-6));
  const ActivationMonitor m = seen([&] { matmul(normal({4, 3}, 4), matmul(normal({3, 8}, 5), normal({8, 2}, 6))); });
  std::vector<std::string> operands;
  for (const ActivationRow& r : m.activations()) operands.push_back(r.operand);
  CHECK(operands == std::vector<std::string>{"a 3x8", "b 8x2", "a 4x3", "b 3x2"});
  const Tensor half = (normal({100, 8}, 7) * 1e4).to(DType::f16);
  const ActivationRow r = row(seen([&] { matmul(half, zeros({8, 2}, {.dtype = DType::f16})); }), "", "a 100x8");
  CHECK(r.kurtosis() == doctest::Approx(kurtosis_by_loop(half.to_vector<double>())).epsilon(1e-9));
}

TEST_CASE("attention: logits and entropy of the fused op, of its parts, and of attention in blocks") {
  const Tensor q = normal({2, 3, 7, 4}, 1) * 2.0;
  const Tensor k = normal({2, 3, 7, 4}, 2) * 2.0;
  const Tensor v = normal({2, 3, 7, 4}, 3);
  const auto causal = [](std::size_t i, std::size_t j) { return j <= i; };
  const auto all = [](std::size_t, std::size_t) { return true; };
  const auto odd = [](std::size_t i, std::size_t j) { return (i + j) % 2 == 1 || i == j; };
  Tensor mask = zeros({7, 7}, {.dtype = DType::bool_});
  Tensor added = zeros({7, 7});
  for (std::size_t i = 0; i < 7; ++i)
    for (std::size_t j = 0; j < 7; ++j) {
      mask.data<bool>()[i * 7 + j] = odd(i, j);
      added.data<float>()[i * 7 + j] = odd(i, j) ? 0 : -HUGE_VALF;
    }
  const auto one = [&](const ActivationMonitor& m) {
    REQUIRE(m.probabilities().size() == 1);
    return m.probabilities()[0];
  };
  const auto fused = [&](const Tensor& m, const AttentionOptions& o) {
    return one(seen([&] { scaled_dot_product_attention(q, k, v, m, o); }));
  };
  const auto blocks = [&](const Tensor& m, bool is_causal) {
    AttentionAttrs attrs;
    attrs.causal = is_causal;
    return one(seen([&] { amp::attention_in_blocks(q, k, v, m, attrs, {.block = 3}); }));
  };
  check_attention(fused({}, {}), attention_by_loop(q, k, all));
  check_attention(fused({}, {.causal = true}), attention_by_loop(q, k, causal));
  check_attention(fused(mask, {}), attention_by_loop(q, k, odd));
  check_attention(fused(added, {}), attention_by_loop(q, k, odd));
  check_attention(blocks({}, false), attention_by_loop(q, k, all));
  check_attention(blocks({}, true), attention_by_loop(q, k, causal));
  check_attention(blocks(mask, false), attention_by_loop(q, k, odd));
  check_attention(blocks(added, false), attention_by_loop(q, k, odd));
  // Queries that see nothing do not count.
  mask.narrow(0, 2, 1).fill_(0);
  CHECK(blocks(mask, false).queries == 2 * 3 * 6);
  CHECK(fused(mask, {}).queries == 2 * 3 * 6);
  // A head whose keys are alike has the entropy of an even choice.
  const ActivationMonitor even = seen([&] { scaled_dot_product_attention(q, zeros(k.sizes()), v); });
  CHECK(one(even).lowest_entropy() == doctest::Approx(std::log(7.0)));
}

TEST_CASE("attention: a NaN among the logits shows, a hidden one does not") {
  const Tensor k = normal({2, 3, 7, 4}, 2);
  Tensor q = normal({2, 3, 7, 4}, 1);
  q.narrow(1, 1, 1).narrow(2, 4, 1).fill_(NAN);
  const auto is_nan = [&](const ActivationMonitor& m) {
    REQUIRE(m.probabilities().size() == 1);
    const ProbabilityRow& r = m.probabilities()[0];
    CHECK(r.queries == 42);
    CHECK(std::isnan(r.largest_logit));
    CHECK(std::isnan(r.entropy()));
    CHECK(std::isnan(r.lowest_entropy()));
  };
  is_nan(seen([&] { scaled_dot_product_attention(q, k, k); }));
  is_nan(seen([&] { amp::attention_in_blocks(q, k, k, {}, {}, {.block = 3}); }));
  is_nan(seen([&] { softmax(matmul(q, transpose(k, -2, -1)), -1); }));
  Tensor hidden = k.clone();
  hidden.narrow(2, 6, 1).fill_(NAN);
  const ActivationMonitor m = seen([&] {
    AttentionAttrs attrs;
    attrs.causal = true;
    amp::attention_in_blocks(k.narrow(2, 0, 6), hidden, k, {}, attrs, {.block = 3});
  });
  CHECK(std::isfinite(m.probabilities().at(0).largest_logit));
  CHECK(std::isfinite(m.probabilities().at(0).lowest_entropy()));
}

TEST_CASE("attention: the lowest entropy is a mean over the queries of its head") {
  // All choices are even. Head 0 has two queries that see a key, head 1 has four.
  Tensor mask = ones({2, 4, 4}, {.dtype = DType::bool_});
  mask.narrow(0, 0, 1).narrow(1, 0, 2).fill_(0);
  const Tensor q = zeros({1, 2, 4, 4});
  const ActivationMonitor m = seen([&] { amp::attention_in_blocks(q, q, q, mask, {}, {.block = 3}); });
  REQUIRE(m.probabilities().size() == 1);
  CHECK(m.probabilities()[0].queries == 6);
  CHECK(m.probabilities()[0].queries_of_heads == std::vector<double>{2, 4});
  CHECK(m.probabilities()[0].entropy() == doctest::Approx(std::log(4.0)));
  CHECK(m.probabilities()[0].lowest_entropy() == doctest::Approx(std::log(4.0)));
}

TEST_CASE("monitors read forward alone: what a recipe rounds before it does, and a recomputed segment once") {
  const Tensor x = normal({2, 12, 16}, 8);
  const auto model = small_transformer();
  const auto under = [&](const amp::Recipe& recipe) {
    return seen([&] {
      const amp::RecipeScope scope(recipe);
      loss_of(*model, x).backward();
    });
  };
  const ActivationMonitor exact = under(amp::recipe("fp32"));
  const ActivationMonitor rounded = under(amp::recipe("fp8-attention"));
  const auto same = [&](const std::string& layer, const std::string& operand) {
    return row(exact, layer, operand).kurtosis() == row(rounded, layer, operand).kurtosis();
  };
  CHECK(same("0.self_attn", "x"));                       // the first product's input
  CHECK_FALSE(same("0.self_attn.out_proj", "x"));        // comes from rounded products
  for (const ActivationMonitor* m : {&exact, &rounded})  // fused with gelu, and not
    CHECK(row(*m, "0.linear1", "x").elements == 2 * 12 * 16);
  for (const char* operand : {"q", "k", "v"}) CHECK(row(rounded, "0.self_attn", operand).elements == 2 * 12 * 16);
  CHECK(exact.probabilities().size() == 1);
  CHECK(rounded.probabilities().size() == 1);
  const ActivationMonitor again = seen([&] {
    const auto segment = [&](const Tensor& in) { return (*model)(in); };
    const Tensor y = checkpoint(segment, x.clone().set_requires_grad());
    sum(y).backward();
  });
  CHECK(row(again, "1", "x").elements == row(exact, "1", "x").elements);
}

TEST_CASE("monitors change no bit of a training") {
  const Tensor x = normal({2, 12, 16}, 9);
  const auto trained = [&](const std::string& recipe, bool observed) {
    const auto model = small_transformer();
    amp::RecipeRun run(amp::recipe(recipe), *model, optim::AdamWOptions{.lr = 0.01});
    ActivationMonitor monitor;
    for (int step = 0; step < 3; ++step) {
      std::optional<ObserverScope> scope;
      if (observed) scope.emplace(monitor);
      run.step([&] { return loss_of(*model, x); });
    }
    CHECK(monitor.activations().empty() != observed);
    std::vector<double> all;
    for (const auto& [name, value] : run.master_state_dict())
      for (const double v : run.master_state_dict().tensor(name).to_vector<double>()) all.push_back(v);
    return all;
  };
  for (const char* recipe : {"fp32", "amp-bf16", "amp-fp16", "fp8-attention", "bf16-flash", "nvfp4", "pure:e5m7"}) {
    CAPTURE(std::string(recipe));
    CHECK(trained(recipe, true) == trained(recipe, false));
  }
}
