// softmax and log_softmax against f64 loops, along every dim and layout.
#include <doctest/doctest.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../../support/gradients.h"

using namespace gradual;

namespace {

Tensor random(const Shape& sizes, DType dtype, std::uint64_t seed, double scale = 3) {
  Generator g(seed);
  return (randn(sizes, {.dtype = DType::f64}, g) * scale).to(dtype);
}

constexpr double kInf = std::numeric_limits<double>::infinity();

// Elements of row-major [outer, n, inner]; f(row in, row out).
template <class F> std::vector<double> by_rows(const Tensor& x, int dim, const F& f) {
  const std::vector<double> in = x.to_vector<double>();
  std::vector<double> out(in.size());
  std::size_t inner = 1;
  for (int d = dim + 1; d < x.dim(); ++d) inner *= static_cast<std::size_t>(x.size(d));
  const auto n = static_cast<std::size_t>(x.size(dim));
  for (std::size_t start = 0; start < in.size(); ++start) {
    if (start / inner % n != 0) continue;
    std::vector<double> row(n);
    for (std::size_t i = 0; i < n; ++i) row[i] = in[start + i * inner];
    const std::vector<double> result = f(row);
    for (std::size_t i = 0; i < n; ++i) out[start + i * inner] = result[i];
  }
  return out;
}

std::vector<double> softmax_row(const std::vector<double>& x) {
  double largest = -kInf;
  for (double v : x) largest = std::max(largest, v);
  double sum = 0;
  std::vector<double> y;
  for (double v : x) sum += std::exp(v - largest);
  for (double v : x) y.push_back(std::exp(v - largest) / sum);
  return y;
}
std::vector<double> log_softmax_row(const std::vector<double>& x) {
  std::vector<double> y = softmax_row(x);
  for (double& v : y) v = std::log(v);
  return y;
}

double epsilon(DType d) {
  switch (d) {
    case DType::f64: return std::ldexp(1, -52);
    case DType::f32: return std::ldexp(1, -23);
    case DType::f16: return std::ldexp(1, -10);
    default: return std::ldexp(1, -7);
  }
}

// Rounding of the result, and of the f32 (f64) arithmetic: exp's argument of size m carries m units, and the logarithm
// of the sum (`log_sum` bounds it) is an addend of its own.
void check_near(const Tensor& got, const std::vector<double>& want, double magnitude, double log_sum) {
  const std::vector<double> values = got.to_vector<double>();
  const double inner = got.dtype() == DType::f64 ? std::ldexp(1, -52) : std::ldexp(1, -23);
  const double tiny = got.dtype() == DType::f16 ? std::ldexp(1, -24) : 0;
  REQUIRE(values.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    REQUIRE(std::abs(values[i] - want[i]) <=
            (epsilon(got.dtype()) + 2 * magnitude * inner) * std::abs(want[i]) + 2 * log_sum * inner + tiny);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0;
}

}  // namespace

TEST_CASE("softmax and log_softmax along any dim, in any dtype") {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor x = random({5, 17, 3}, dtype, 1);
    for (int dim = 0; dim < 3; ++dim) {
      CAPTURE(dim);
      check_near(softmax(x, dim), by_rows(x, dim, softmax_row), 16, 0);
      check_near(log_softmax(x, dim), by_rows(x, dim, log_softmax_row), 16, 3);
    }
  }
}

TEST_CASE("softmax of strided inputs and of single numbers") {
  const Tensor x = random({6, 40}, DType::f32, 2);
  CHECK(same_bits(softmax(clone(x.t()).t(), 1), softmax(x, 1)));
  CHECK(same_bits(softmax(x.t(), 0), clone(softmax(x, 1).t())));
  CHECK(softmax(scalar(5), 0).item() == 1);
  CHECK(log_softmax(scalar(5), 0).item() == 0);
  CHECK(softmax(zeros({0, 4}), 1).sizes() == Shape{0, 4});
  CHECK(softmax(zeros({4, 0}), 1).sizes() == Shape{4, 0});
}

TEST_CASE("softmax: large numbers are shifted, masked ones are exact zeros, a row of -Inf is NaN") {
  const Tensor x =
      from_data(std::vector<double>{1e30, 1e30, -kInf, -kInf, -kInf, -kInf, kInf, 0, 0, NAN, 1, 2}, {4, 3});
  const std::vector<double> y = softmax(x, 1).to_vector<double>();
  CHECK(y[0] == 0.5);
  CHECK(y[1] == 0.5);
  CHECK(y[2] == 0);
  for (std::size_t i = 3; i < 6; ++i) CHECK(std::isnan(y[i]));
  CHECK(std::isnan(y[6]));
  for (std::size_t i = 9; i < 12; ++i) CHECK(std::isnan(y[i]));
  const std::vector<double> l = log_softmax(x, 1).to_vector<double>();
  CHECK(l[0] == doctest::Approx(-std::log(2)).epsilon(1e-6));
  CHECK(l[2] == -kInf);
  CHECK(std::isnan(l[3]));
}

TEST_CASE("softmax rows give the same bits on any number of threads") {
  const Tensor x = random({3000, 70}, DType::f32, 3);
  const auto on = [&](int threads) {
    const ThreadsScope scope(threads);
    return softmax(x, 1);
  };
  CHECK(same_bits(on(1), on(6)));
}

TEST_CASE("the backward rows are the Jacobian's transpose") {
  for (DType dtype : {DType::f64, DType::f32, DType::f16}) {
    const Tensor y = softmax(random({4, 9}, dtype, 4), 1);
    const Tensor l = log_softmax(random({4, 9}, dtype, 4), 1);
    const Tensor dy = random({4, 9}, dtype, 5);
    const std::vector<double> yv = y.to_vector<double>();
    const std::vector<double> lv = l.to_vector<double>();
    const std::vector<double> g = dy.to_vector<double>();
    const std::vector<double> dx = softmax_backward(dy, y, 1).to_vector<double>();
    const std::vector<double> dl = log_softmax_backward(dy, l, 1).to_vector<double>();
    for (std::size_t r = 0; r < 4; ++r)
      for (std::size_t i = 0; i < 9; ++i) {
        double want = 0;
        double want_log = 0;
        double size = 0;
        for (std::size_t j = 0; j < 9; ++j) {
          const double own = i == j ? 1 : 0;
          want += g[r * 9 + j] * yv[r * 9 + j] * (own - yv[r * 9 + i]);
          want_log += g[r * 9 + j] * (own - std::exp(lv[r * 9 + i]));
          size += std::abs(g[r * 9 + j]);
        }
        REQUIRE(std::abs(dx[r * 9 + i] - want) <= epsilon(dtype) * size * 2);
        REQUIRE(std::abs(dl[r * 9 + i] - want_log) <= epsilon(dtype) * size * 2);
      }
  }
}
