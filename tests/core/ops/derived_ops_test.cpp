// Functions made of other ops: values as in PyTorch, gradients of those that have one.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <cmath>

using namespace gradual;

namespace {

bool same(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && all(a == b).item() != 0;
}
const Tensor kOdd = tensor({1.0, NAN, INFINITY, -INFINITY, -0.0});
const DType kBool = DType::bool_;

}  // namespace

TEST_CASE("isnan, isinf and isfinite") {
  CHECK(same(isnan(kOdd), tensor({0, 1, 0, 0, 0}).to(kBool)));
  CHECK(same(isinf(kOdd), tensor({0, 0, 1, 1, 0}).to(kBool)));
  CHECK(same(isfinite(kOdd), tensor({1, 0, 0, 0, 1}).to(kBool)));
  for (const DType d : {DType::i64, DType::u8, kBool, DType::f16}) {
    CAPTURE(to_string(d));
    const Tensor whole = tensor({0, 1}).to(d);
    CHECK_FALSE(any(isnan(whole)).item() != 0);
    CHECK(all(isfinite(whole)).item() != 0);
  }
}

TEST_CASE("any and all, over all or some dims; NaN is not 0, and of nothing all is true") {
  const Tensor x = tensor({{0, 1}, {0, 0}});
  CHECK(same(any(x, 1), tensor({1, 0}).to(kBool)));
  CHECK(same(all(x, 0, true), tensor({{0, 0}}).to(kBool)));
  CHECK(all(kOdd.narrow(0, 1, 2)).item() == 1);
  CHECK(all(zeros(0)).item() == 1);
  CHECK(any(zeros(0)).item() == 0);
}

TEST_CASE("stddev is the root of the variance, with its gradient") {
  Tensor x = tensor({1.0, 2.0, 4.0, 8.0}).to(DType::f64);
  x.set_requires_grad();
  CHECK(stddev(x).item() == doctest::Approx(3.0956959368344519));
  CHECK(stddev(x, {}, false, 0).item() == doctest::Approx(2.6809513236909));
  CHECK(autograd::gradcheck([](const std::vector<Tensor>& in) { return std::vector{stddev(in[0])}; }, {x}).ok);
}

TEST_CASE("allclose: relative to b, infinities by value, NaN never") {
  CHECK(allclose(tensor({1.0, 100.0}), tensor({1.0 + 1e-6, 100.0005})));
  CHECK_FALSE(allclose(tensor({1.0}), tensor({1.0001})));
  CHECK(allclose(tensor({INFINITY}), tensor({INFINITY})));
  CHECK_FALSE(allclose(tensor({INFINITY}), tensor({-INFINITY})));
  CHECK_FALSE(allclose(tensor({1.0}), tensor({INFINITY})));
  CHECK_FALSE(allclose(tensor({NAN}), tensor({NAN})));
  CHECK(allclose(zeros({2, 3}), zeros(3)));
}

TEST_CASE("masked_fill and triu") {
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  CHECK(same(masked_fill(x, x > 4, 0), tensor({{1, 2, 3}, {4, 0, 0}})));
  CHECK(same(triu(x), tensor({{1, 2, 3}, {0, 5, 6}})));
  CHECK(same(triu(x, 1), tensor({{0, 2, 3}, {0, 0, 6}})));
  CHECK(same(triu(x, -1), x));
  CHECK(same(triu(tensor({{1.0, 1.0}, {INFINITY, NAN}})), tensor({{1.0, 1.0}, {0.0, NAN}})) == false);  // NaN stays
  CHECK(triu(tensor({{1.0, 1.0}, {INFINITY, 2.0}}))[1][0].item() == 0);
  CHECK_THROWS_WITH_AS(triu(zeros(3)), "triu: a matrix or a batch of matrices is required, not [3]", Error);
}

TEST_CASE("flip, roll, repeat and chunk") {
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  CHECK(same(flip(x, {0, 1}), tensor({{6, 5, 4}, {3, 2, 1}})));
  CHECK(same(flip(x, -1), tensor({{3, 2, 1}, {6, 5, 4}})));
  CHECK(same(roll(x, 1, 1), tensor({{3, 1, 2}, {6, 4, 5}})));
  CHECK(same(roll(x, -4, 1), tensor({{2, 3, 1}, {5, 6, 4}})));
  CHECK(same(repeat(x, {1, 2}), tensor({{1, 2, 3, 1, 2, 3}, {4, 5, 6, 4, 5, 6}})));
  CHECK(repeat(x, {2, 1, 1}).sizes() == Shape{2, 2, 3});
  CHECK(repeat(x, {0, 1}).sizes() == Shape{0, 3});
  CHECK(same(repeat(tensor({7}), {3}), tensor({7, 7, 7})));
  CHECK(repeat(zeros({1, 1, 1, 1, 1, 1, 1, 1}), {2, 1, 1, 1, 1, 1, 1, 3}).numel() == 6);
  const auto parts = chunk(x, 2, 1);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].sizes() == Shape{2, 2});
  CHECK(parts[1].sizes() == Shape{2, 1});
  CHECK(chunk(x, 5, 1).size() == 3);
  CHECK_THROWS_WITH_AS(repeat(x, {2}), "repeat: [2] has fewer entries than [2, 3] has dims", Error);
  CHECK_THROWS_WITH_AS(chunk(x, 0), "chunk: count 0 is not allowed; it must be at least 1", Error);
  Tensor y = randn({2, 3}, DType::f64);
  y.set_requires_grad();
  const auto f = [](const std::vector<Tensor>& in) {
    return std::vector{roll(flip(triu(in[0]), 0), 1, 1) * repeat(in[0], {1, 1})};
  };
  CHECK(autograd::gradcheck(f, {y}).ok);
}

TEST_CASE("full_like, randn_like and bernoulli keep sizes and dtype") {
  const Tensor x = zeros({200, 50}, DType::bf16);
  CHECK(all(full_like(x, 2.5) == 2.5).item() == 1);
  CHECK(full_like(x, 2.5).dtype() == DType::bf16);
  Generator g(3);
  const Tensor n = randn_like(x, g);
  CHECK(n.dtype() == DType::bf16);
  CHECK(stddev(n.to(DType::f32)).item() == doctest::Approx(1).epsilon(0.05));
  const Tensor b = bernoulli(full({10000}, 0.25), g);
  CHECK(b.mean().item() == doctest::Approx(0.25).epsilon(0.1));
  CHECK(all((b == 0) | (b == 1)).item() == 1);
  CHECK(all(bernoulli(ones(100), g)).item() == 1);
  CHECK_FALSE(any(bernoulli(zeros(100), g)).item() != 0);
}
