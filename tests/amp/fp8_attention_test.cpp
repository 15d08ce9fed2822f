// The recipe fp8-attention: attention's products on numbers that a table of e4m3's values rounds.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "support.h"

using namespace gradual;

namespace {

// All finite magnitudes of e4m3 (OCP OFP8): 2^-9 m, and 2^(e-7) (1 + m/8), without the last code, which is NaN.
std::vector<double> e4m3_values() {
  std::vector<double> all;
  for (int m = 0; m < 8; ++m) all.push_back(std::ldexp(m, -9));
  for (int e = 1; e < 16; ++e)
    for (int m = 0; m < 8; ++m)
      if (e < 15 || m < 7) all.push_back(std::ldexp(1 + m / 8.0, e - 7));
  return all;
}

// To the nearest value after the largest magnitude became 448; ties do not occur in these numbers.
std::vector<double> rounded(const std::vector<double>& x) {
  static const std::vector<double> values = e4m3_values();
  double amax = 0;
  for (const double v : x) amax = std::max(amax, std::abs(v));
  const double scale = amax / 448;
  std::vector<double> y;
  for (const double v : x) {
    const double magnitude = std::abs(v) / scale;
    const auto nearer = [&](double a, double b) { return std::abs(a - magnitude) < std::abs(b - magnitude); };
    y.push_back(std::copysign(*std::ranges::min_element(values, nearer) * scale, v));
  }
  return y;
}

constexpr std::size_t kLength = 9;
constexpr std::size_t kWidth = 5;

std::vector<double> attention(const std::vector<double>& q, const std::vector<double>& k,
                              const std::vector<double>& v) {
  std::vector<double> p(kLength * kLength);
  std::vector<double> sums(kLength);
  for (std::size_t i = 0; i < kLength; ++i) {
    double most = -HUGE_VAL;
    for (std::size_t j = 0; j < kLength; ++j) {
      double dot = 0;
      for (std::size_t e = 0; e < kWidth; ++e) dot += q[i * kWidth + e] * k[j * kWidth + e];
      p[i * kLength + j] = dot / std::sqrt(static_cast<double>(kWidth));
      most = std::max(most, p[i * kLength + j]);
    }
    for (std::size_t j = 0; j < kLength; ++j) {
      p[i * kLength + j] = std::exp(p[i * kLength + j] - most);
      sums[i] += p[i * kLength + j];
    }
  }
  const std::vector<double> p8 = rounded(p);
  std::vector<double> o(kLength * kWidth);
  for (std::size_t i = 0; i < kLength; ++i)
    for (std::size_t j = 0; j < kLength; ++j)
      for (std::size_t e = 0; e < kWidth; ++e) o[i * kWidth + e] += p8[i * kLength + j] * v[j * kWidth + e] / sums[i];
  return o;
}

}  // namespace

TEST_CASE("fp8-attention: q, k, v and probabilities are e4m3 numbers with one scale each") {
  const Shape sizes{static_cast<std::int64_t>(kLength), static_cast<std::int64_t>(kWidth)};
  const Tensor q = random(sizes, 1);
  const Tensor k = random(sizes, 2);
  const Tensor v = random(sizes, 3);
  const std::vector<double> want =
      attention(rounded(q.to_vector<double>()), rounded(k.to_vector<double>()), rounded(v.to_vector<double>()));
  const amp::RecipeScope scope(amp::recipe("fp8-attention"));
  const std::vector<double> got = scaled_dot_product_attention(q, k, v).to_vector<double>();
  double largest = 0;
  double from_exact = 0;
  const StageScope exact(chain().amp, nullptr);
  const std::vector<double> plain = scaled_dot_product_attention(q, k, v).to_vector<double>();
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(got[i] - want[i]));
    from_exact = std::max(from_exact, std::abs(got[i] - plain[i]));
  }
  CHECK(largest < 1e-5);
  CHECK(from_exact > 1e-3);
}

TEST_CASE("fp8-attention: its products are fp8-delayed's, its gradients of attention are in e5m2") {
  amp::Recipe r = amp::recipe("fp8-attention");
  const amp::AttentionPrecision inside = r.quantization->attention.value();
  CHECK(inside.d_s->format == format("e5m2"));
  CHECK(inside.d_p->format == format("e5m2"));
  CHECK(inside.d_o->format == format("e5m2"));
  r.quantization->attention.reset();
  CHECK(r.quantization == amp::recipe("fp8-delayed").quantization);
  CHECK(amp::recipe_from_json(amp::to_json(amp::recipe("fp8-attention"))).quantization ==
        amp::recipe("fp8-attention").quantization);
}
