// Unit scaling: factors forward and backward against plain sums, and the size of numbers when training begins.
#include "../../nn/unit_scaling.h"

#include "helpers.h"

using namespace nn_test;

namespace {

double rms(const Tensor& t) { return std::sqrt(square(t.detach().to(DType::f64)).mean().item<double>()); }

Tensor normal(const Shape& sizes, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {}, g);
}

}  // namespace

TEST_CASE("scale_apart multiplies a value and its gradient by numbers of their own") {
  const Tensor x = normal({3, 4}, 1).set_requires_grad();
  const Tensor y = nn::scale_apart(x, 3, 5);
  y.backward(full({3, 4}, 2.0));
  CHECK(values(y) == values(x.detach() * 3));
  CHECK(values(x.grad()) == std::vector<double>(12, 10));
  CHECK(nn::scale_apart(x, 1, 1).is_same(x));
}

TEST_CASE("UnitLinear: products of size 1, their results multiplied") {
  constexpr std::int64_t kIn = 6;
  constexpr std::int64_t kOut = 3;
  for (const bool readout : {false, true})
    for (const bool constrained : {false, true}) {
      nn::UnitLinear layer(kIn, kOut, {.bias = true, .readout = readout, .constrained = constrained});
      CHECK(values(layer.bias) == std::vector<double>(3, 0));
      const Tensor x = normal({4, kIn}, 1).set_requires_grad();
      const Tensor dy = normal({4, kOut}, 2);
      const Tensor y = layer(x);
      y.backward(dy);
      const double forward = readout ? 1.0 / kIn : 1 / std::sqrt(double{kIn});
      const double backward = constrained ? forward : 1 / std::sqrt(double{kOut});
      const auto X = values(x);
      const auto W = values(layer.weight);
      const auto D = values(dy);
      for (std::size_t n = 0; n < 4; ++n)
        for (std::size_t o = 0; o < kOut; ++o) {
          double sum = 0;
          for (std::size_t i = 0; i < kIn; ++i) sum += X[n * kIn + i] * W[o * kIn + i];
          CHECK(values(y)[n * kOut + o] == doctest::Approx(sum * forward).epsilon(1e-5));
        }
      for (std::size_t n = 0; n < 4; ++n)
        for (std::size_t i = 0; i < kIn; ++i) {
          double sum = 0;
          for (std::size_t o = 0; o < kOut; ++o) sum += D[n * kOut + o] * W[o * kIn + i];
          CHECK(values(x.grad())[n * kIn + i] == doctest::Approx(sum * backward).epsilon(1e-5));
        }
      for (std::size_t o = 0; o < kOut; ++o)
        for (std::size_t i = 0; i < kIn; ++i) {
          double sum = 0;
          for (std::size_t n = 0; n < 4; ++n) sum += D[n * kOut + o] * X[n * kIn + i];
          CHECK(values(layer.weight.grad())[o * kIn + i] == doctest::Approx(sum).epsilon(1e-5));
        }
    }
}

TEST_CASE("unit_cross_entropy is cross_entropy with a gradient of size 1") {
  const Tensor classes = from_data(std::vector<std::int64_t>{0, 3, 1, 2, 4}, {5}, {.dtype = DType::i64});
  const Tensor logits = normal({5, 10}, 3).set_requires_grad();
  const Tensor same = logits.detach().clone().set_requires_grad();
  const Tensor loss = nn::unit_cross_entropy(logits, classes);
  const Tensor plain = cross_entropy(same, classes);
  loss.backward();
  plain.backward();
  CHECK(values(loss) == values(plain));
  const std::vector<double> got = values(logits.grad());
  const std::vector<double> want = values(same.grad());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i] * 50 / 3).epsilon(1e-5));
  const Tensor equal = zeros({5, 10}).set_requires_grad();
  nn::unit_cross_entropy(equal, classes).backward();
  CHECK(rms(equal.grad()) == doctest::Approx(1));
  CHECK_THROWS_WITH_AS(nn::unit_cross_entropy(zeros({5, 1}), classes),
                       doctest::Contains("allowed are [N, C] with C at least 2"), Error);
}

TEST_CASE("all operands of products begin with a size near 1") {
  default_generator() = Generator(1);
  nn::UnitLinear first(64, 512);
  nn::UnitLinear second(512, 256);
  nn::UnitLinear last(256, 10);
  nn::UnitReLU act;
  const Tensor x = normal({400, 64}, 5);
  const Tensor a = first(x);
  const Tensor b = act(a);
  const Tensor c = second(b);
  const Tensor d = act(c);
  std::vector<std::int64_t> labels(400);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i % 10);
  const Tensor loss = nn::unit_cross_entropy(last(d), from_data(labels, {400}, {.dtype = DType::i64}));
  for (const Tensor& t : {a, b, c, d}) CHECK(rms(t) == doctest::Approx(1).epsilon(0.15));
  for (const Tensor& dy : autograd::grad({loss}, {a, b, c, d})) CHECK(rms(dy) == doctest::Approx(1).epsilon(0.25));
  for (const nn::UnitLinear* layer : {&first, &second, &last})
    CHECK(rms(layer->weight) == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("a unit-scaled step under unscaled-fp8 reads its weights as weights and trains") {
  default_generator() = Generator(2);
  nn::Sequential model{nn::UnitLinear(16, 64), nn::UnitReLU(), nn::UnitLinear(64, 4)};
  amp::RecipeRun run(amp::recipe("unscaled-fp8"), model, optim::AdamOptions{.lr = 0.02});
  const Tensor x = normal({128, 16}, 7);
  const Tensor classes = argmax(x.narrow(1, 0, 4), 1);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    last = run.step([&] { return nn::unit_cross_entropy(model(x), classes); }).loss.item();
    if (step == 0) first = last;
  }
  CHECK(last < first / 3);
  std::vector<std::string> sites;
  for (const auto& site : run.quantization()->sites()) sites.push_back(to_string(site->name));
  CHECK(sites == std::vector<std::string>{"0", "2"});
}
