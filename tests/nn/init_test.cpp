// Bounds and moments of the initial values. A sample of n values has a mean within 5 sigma / sqrt(n) and a variance
// within 5 sqrt((kurtosis - 1) / n) of its own; the seeds are fixed.
#include <algorithm>

#include "helpers.h"

using namespace nn_test;

namespace {

struct Moments {
  double mean = 0;
  double variance = 0;
  double low = INFINITY;
  double high = -INFINITY;
  double n = 0;
};

Moments moments(const Tensor& t) {
  Moments m;
  const std::vector<double> v = values(t);
  m.n = static_cast<double>(v.size());
  for (double x : v) {
    m.mean += x / m.n;
    m.low = std::min(m.low, x);
    m.high = std::max(m.high, x);
  }
  for (double x : v) m.variance += (x - m.mean) * (x - m.mean) / m.n;
  return m;
}

void check_uniform(const Tensor& t, double bound) {
  const Moments m = moments(t);
  const double sigma = bound / std::sqrt(3.0);
  CHECK(m.low >= -bound);
  CHECK(m.high <= bound);
  CHECK(std::max(-m.low, m.high) > bound * (1 - 20 / m.n));  // something comes near the bound
  CHECK(std::abs(m.mean) < 5 * sigma / std::sqrt(m.n));
  CHECK(std::abs(m.variance / (sigma * sigma) - 1) < 5 * std::sqrt(0.8 / m.n));  // kurtosis 1.8
}

void check_normal(const Tensor& t, double sigma) {
  const Moments m = moments(t);
  CHECK(std::abs(m.mean) < 5 * sigma / std::sqrt(m.n));
  CHECK(std::abs(m.variance / (sigma * sigma) - 1) < 5 * std::sqrt(2 / m.n));  // kurtosis 3
  CHECK(m.high > 2.5 * sigma);
}

}  // namespace

TEST_CASE("layers start from PyTorch's distributions") {
  manual_seed(1);
  nn::Linear linear(50, 200);
  check_uniform(linear.weight, 1 / std::sqrt(50.0));
  check_uniform(linear.bias, 1 / std::sqrt(50.0));
  nn::Conv2d conv(8, 64, {3, 5}, {.groups = 2});
  check_uniform(conv.weight, 1 / std::sqrt(4.0 * 15));
  check_uniform(conv.bias, 1 / std::sqrt(4.0 * 15));
  check_normal(nn::Embedding(100, 64).weight, 1);
  nn::MultiheadAttention attention(32, 4);
  check_uniform(attention.in_proj_weight, std::sqrt(6.0 / (96 + 32)));
  check_uniform(attention.out_proj.weight, 1 / std::sqrt(32.0));
  for (double v : values(nn::BatchNorm2d(7).weight)) CHECK(v == 1);
  for (double v : values(nn::LayerNorm(7).bias)) CHECK(v == 0);
  for (double v : values(nn::RMSNorm(7).weight)) CHECK(v == 1);
}

TEST_CASE("the same seed makes the same model, another makes another") {
  const auto weight = [](std::uint64_t seed) {
    manual_seed(seed);
    return nn::Linear(10, 10).weight;
  };
  CHECK(same_bits(weight(4), weight(4)));
  CHECK_FALSE(same_bits(weight(4), weight(5)));
}

TEST_CASE("init's distributions follow their formulas") {
  Generator g(2);
  const Tensor w = empty({40, 30, 3, 3});  // fan in 270, fan out 360
  CHECK(nn::init::fans(w).in == 270);
  CHECK(nn::init::fans(w).out == 360);
  nn::init::xavier_uniform_(w, 2, g);
  check_uniform(w, 2 * std::sqrt(6.0 / 630));
  nn::init::xavier_normal_(w, 1, g);
  check_normal(w, std::sqrt(2.0 / 630));
  nn::init::kaiming_uniform_(w, {}, g);
  check_uniform(w, std::sqrt(6.0 / 270));
  nn::init::kaiming_normal_(w, {.slope = 0.2, .fan = nn::init::Fan::out}, g);
  check_normal(w, std::sqrt(2 / 1.04 / 360));
  nn::init::uniform_(w, -3, 3, g);
  check_uniform(w, 3);
  nn::init::normal_(w, 0, 0.02, g);
  check_normal(w, 0.02);
  nn::init::constant_(w, 0.5);
  CHECK(moments(w).low == 0.5);
  CHECK(moments(w).high == 0.5);
  CHECK(contains(message_of([] { nn::init::kaiming_uniform_(ones({3})); }), "at least two dims"));
}

TEST_CASE("parameters that require gradients can be reinitialised") {
  nn::Linear layer(4, 4);
  nn::init::constant_(layer.weight, 2);
  nn::init::normal_(layer.weight);
  CHECK(layer.weight.is_leaf());
  CHECK(layer.weight.requires_grad());
}
