// Reductions against sums in double, over every kind of geometry; edges; the same bits for any number of threads.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "gradual/core/support/error.h"
#include "support/cpu_isas.h"
#include "support/tensors.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

constexpr double kInf = INFINITY;

// The elements of each output, in row-major order of the outputs.
std::vector<std::vector<double>> groups(const Tensor& x, const Shape& dims) {
  std::uint32_t mask = dims.empty() ? ~0u : 0;
  for (std::int64_t d : dims) mask |= 1u << (d < 0 ? d + x.dim() : d);
  std::int64_t outputs = 1;
  for (int d = 0; d < x.dim(); ++d)
    if (!(mask >> d & 1)) outputs *= x.sizes()[d];
  std::vector<std::vector<double>> all(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t o = 0;
    std::int64_t step = 1;
    std::int64_t rest = i;
    for (int d = x.dim() - 1; d >= 0; --d) {
      if (!(mask >> d & 1)) {
        o += rest % x.sizes()[d] * step;
        step *= x.sizes()[d];
      }
      rest /= x.sizes()[d];
    }
    all[static_cast<std::size_t>(o)].push_back(at(x, i));
  }
  return all;
}

struct Summary {
  double sum = 0;
  double magnitude = 0;
  double mean = NAN;
  double var = NAN;
  double max = -kInf;
  double min = kInf;
  double logsumexp = -kInf;
  double norm1 = 0;
  double norm2 = 0;
  double norm3 = 0;
  double nonzero = 0;
  double largest = 0;
};
// In long double, so that the reference's own error does not count.
Summary summarize(const std::vector<double>& v) {
  Summary s;
  long double total = 0;
  long double one = 0;
  long double two = 0;
  long double three = 0;
  long double squares = 0;
  long double exponentials = 0;
  for (double x : v) {
    const long double m = std::fabs(x);
    total += x;
    one += m;
    two += m * m;
    three += m * m * m;
    s.nonzero += x != 0;
    s.max = std::fmax(s.max, x);
    s.min = std::fmin(s.min, x);
    s.largest = std::fmax(s.largest, std::fabs(x));
  }
  const auto n = static_cast<long double>(v.size());
  for (double x : v) {
    squares += (x - total / n) * (x - total / n);
    exponentials += std::exp(static_cast<long double>(x) - s.max);
  }
  s.sum = static_cast<double>(total);
  s.mean = static_cast<double>(total / n);
  s.var = static_cast<double>(squares / std::fmax(0.0L, n - 1));
  if (!v.empty()) s.logsumexp = static_cast<double>(s.max + std::log(exponentials));
  s.norm1 = static_cast<double>(one);
  s.magnitude = static_cast<double>(one);
  s.norm2 = static_cast<double>(std::sqrt(two));
  s.norm3 = static_cast<double>(std::cbrt(three));
  return s;
}

// Geometries: the last dims, the first, outer and inner ones, interleaved, strided, long rows, many columns.
std::vector<std::pair<Tensor, Shape>> cases(DType d) {
  Generator g(5);
  const auto make = [&](const Shape& s) { return randn(s, {}, g).to(d); };
  std::vector<std::pair<Tensor, Shape>> all = {{make({}), {}},
                                               {make({1}), {0}},
                                               {make({5}), {}},
                                               {make({40}), {0}},
                                               {make({3000}), {0}},
                                               {make({6, 7}), {0}},
                                               {make({6, 7}), {1}},
                                               {make({6, 7}), {}},
                                               {make({7, 6}).t(), {0}},
                                               {make({7, 6}).t(), {1}},
                                               {make({70, 33}), {0}},
                                               {make({33, 70}), {1}},
                                               {make({3, 4, 5, 6}), {1, 3}},
                                               {make({3, 4, 5, 6}), {0, 2}},
                                               {make({2, 20, 8, 9}), {0, 2, 3}},
                                               {make({2, 8, 9, 20}).permute({0, 3, 1, 2}), {0, 2, 3}},
                                               {make({2, 8, 9, 20}).permute({0, 3, 1, 2}), {2, 3}},
                                               {make({20, 60}).index({Slice{0, {}, 3}, Slice{0, {}, 2}}), {0}},
                                               {make({20, 60}).index({Slice{0, {}, 3}, Slice{0, {}, 2}}), {1}},
                                               {make({1, 50}).expand({30, 50}), {0}},
                                               {make({50, 1}).expand({50, 30}), {1}},
                                               {make({300, 700}), {0}},
                                               {make({4, 130, 300}), {1}},
                                               {make({300, 5}), {1}},
                                               {make({40, 7, 2}), {1, 2}},
                                               {make({1, 3}).expand({50, 3}), {1}},
                                               {make({3, 1100}), {-1}}};
  return all;
}

void near(const Tensor& got, std::int64_t i, double want, double tolerance) {
  const double g = at(got, i);
  INFO("got " << g << ", want " << want << ", tolerance " << tolerance);
  if (std::isnan(want)) REQUIRE(std::isnan(g));
  else REQUIRE((g == want || std::fabs(g - want) <= tolerance));
}

}  // namespace

TEST_CASE("reductions match sums in double over every geometry") {
  for (DType d : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const double eps = float_info(d).epsilon;                // of the rounding at the end
    const double acc = d == DType::f64 ? 0x1p-52 : 0x1p-23;  // of the accumulator
    for (const auto& one : cases(d)) {
      const Tensor& x = one.first;
      const Shape& dims = one.second;
      CAPTURE(to_string(d));
      CAPTURE(to_string(x.sizes()));
      CAPTURE(to_string(x.strides()));
      CAPTURE(to_string(dims));
      const auto all = groups(x, dims);
      const Tensor s = sum(x, dims);
      const Tensor m = mean(x, dims);
      const Tensor v = var(x, dims);
      const Tensor hi = max(x, dims);
      const Tensor lo = min(x, dims);
      const Tensor l = logsumexp(x, dims.empty() && x.dim() == 0 ? Shape{} : dims);
      const Tensor n1 = norm(x, 1, dims);
      const Tensor n2 = norm(x, 2, dims);
      const Tensor n3 = norm(x, 3, dims);
      const Tensor n0 = norm(x, 0, dims);
      const Tensor ni = norm(x, kInf, dims);
      REQUIRE(s.numel() == static_cast<std::int64_t>(all.size()));
      REQUIRE(s.dtype() == d);
      for (std::int64_t i = 0; i < s.numel(); ++i) {
        const Summary want = summarize(all[static_cast<std::size_t>(i)]);
        const auto n = static_cast<double>(all[static_cast<std::size_t>(i)].size());
        // Lanes of up to 64 additions, then pairwise.
        const double length = std::fmin(n, 64) + std::log2(n + 1);
        const double slack = acc * length * want.magnitude;
        near(s, i, want.sum, eps * std::fabs(want.sum) + slack);
        near(m, i, want.mean, eps * std::fabs(want.mean) + slack / n);
        near(v, i, want.var, (eps + 2 * acc * length) * want.var + 4 * std::pow(slack / n + acc * want.largest, 2));
        near(hi, i, want.max, 0);
        near(lo, i, want.min, 0);
        near(l, i, want.logsumexp, (eps + 4 * acc) * (std::fabs(want.logsumexp) + 1) + acc * length);
        const double norm_slack = eps + 0x1p-52 * (length + 4);  // norms add in doubles
        near(n1, i, want.norm1, norm_slack * want.norm1);
        near(n2, i, want.norm2, norm_slack * want.norm2);
        near(n3, i, want.norm3, norm_slack * want.norm3);
        near(n0, i, want.nonzero, 2 * eps * want.nonzero);
        near(ni, i, want.largest, 0);
      }
      CHECK(same_bits(sum(x, dims, true).reshape(s.sizes()), s));
    }
  }
}

TEST_CASE("the error of a long sum grows as the logarithm of its length") {
  // One after another, 2^22 times 0.1f misses by more than 5%.
  const std::int64_t n = 1 << 22;
  const double exact = static_cast<double>(0.1f) * static_cast<double>(n);
  CHECK(std::fabs(full({n}, 0.1).sum().item() / exact - 1) < 64 * 0x1p-24);
  const Tensor columns = full({n / 16, 16}, 0.1).sum({0});
  for (double v : values(columns)) CHECK(std::fabs(v / (exact / 16) - 1) < 64 * 0x1p-24);
  CHECK(ones({4096}, {.dtype = DType::f16}).sum().item() == 4096);
  CHECK(full({1 << 20}, 0.5, {.dtype = DType::f16}).mean().item() == 0.5);  // the sum is beyond f16
}

TEST_CASE("variance does not cancel") {
  const Tensor x = randn({10000}, {.dtype = DType::f64});
  CHECK(var(x + 1e8).item() == doctest::Approx(var(x).item()).epsilon(1e-6));
  const Tensor y = from_data(std::vector<double>{1, 2, 3, 4}, {4});
  CHECK(var(y).item() == doctest::Approx(5.0 / 3));
  CHECK(var(y, {}, false, 0).item() == doctest::Approx(1.25));
  CHECK(std::isnan(var(scalar(3)).item()));
  CHECK(var(scalar(3), {}, false, 0).item() == 0);
}

TEST_CASE("norms neither overflow nor vanish") {
  CHECK(norm(full({4}, 60000, {.dtype = DType::f16})).item() == kInf);  // 120000 is beyond f16
  CHECK(norm(full({1}, 60000, {.dtype = DType::f16})).item() == 59968 + 32);
  CHECK(norm(full({4}, 1e30)).item() == doctest::Approx(2e30));
  CHECK(norm(full({4}, 1e-30)).item() == doctest::Approx(2e-30));
  CHECK(norm(from_data(std::vector<double>{3, -4}, {2}), -kInf).item() == 3);
  CHECK(std::isnan(norm(from_data(std::vector<double>{3, NAN}, {2}), kInf).item()));
}

TEST_CASE("integers sum in 64 bits, bools count") {
  const Tensor u = full({1000}, 255, {.dtype = DType::u8});
  CHECK(u.sum().dtype() == DType::i64);
  CHECK(u.sum().item() == 255000);
  CHECK((arange(0, 10) > 3).sum().item() == 6);
  CHECK(full({2, 3}, 0x1p63, {.dtype = DType::i64}).max().item<std::int64_t>() == INT64_MAX);
  CHECK(values(arange(0, 12).reshape({3, 4}).sum({0})) == std::vector<double>{12, 15, 18, 21});
  CHECK(u.max().dtype() == DType::u8);
}

TEST_CASE("empty ranges") {
  const Tensor e = zeros({0, 3});
  CHECK(e.sum().item() == 0);
  CHECK(values(e.sum({0})) == std::vector<double>{0, 0, 0});
  CHECK(e.sum({1}).sizes() == Shape{0});
  CHECK(std::isnan(e.mean().item()));
  CHECK(std::isnan(var(e).item()));
  CHECK(norm(e).item() == 0);
  CHECK(norm(e, kInf).item() == 0);
  CHECK(logsumexp(e, {0}).sizes() == Shape{3});
  CHECK(at(logsumexp(e, {0}), 1) == -kInf);
  CHECK(e.max({1}).sizes() == Shape{0});
  CHECK_THROWS_WITH_AS(e.max(), doctest::Contains("empty range"), Error);
  CHECK_THROWS_WITH_AS(e.argmax(0), doctest::Contains("empty range"), Error);
  CHECK(e.argmax(1).sizes() == Shape{0});
}

TEST_CASE("NaN and Inf") {
  const Tensor x = from_data(std::vector<double>{1, NAN, 3, kInf, 5, -kInf}, {2, 3});
  CHECK(std::isnan(x.max().item()));
  CHECK(std::isnan(x.min({1})[0].item()));
  CHECK(x.max({1})[1].item() == kInf);
  CHECK(x.min({1})[1].item() == -kInf);
  for (std::int64_t n : {3, 40, 2000}) {  // wherever the NaN stands
    for (std::int64_t k : {std::int64_t{0}, n / 2, n - 1}) {
      const Tensor y = arange(0, static_cast<double>(n), 1, {.dtype = DType::f32});
      y[k].fill_(NAN);
      CHECK(std::isnan(y.max().item()));
      CHECK(std::isnan(y.min().item()));
      CHECK(argmax(y, 0).item() == static_cast<double>(k));
      CHECK(argmin(y, 0).item() == static_cast<double>(k));
      CHECK(std::isnan(y.sum().item()));
    }
  }
  CHECK(logsumexp(full({3}, -kInf), {0}).item() == -kInf);
  CHECK(logsumexp(from_data(std::vector<double>{1, kInf}, {2}), {0}).item() == kInf);
  CHECK(std::isnan(logsumexp(from_data(std::vector<double>{kInf, NAN}, {2}), {0}).item()));
  CHECK(logsumexp(full({2}, 1e30), {0}).item() == doctest::Approx(1e30));
  CHECK(logsumexp(full({2}, -1e4, {.dtype = DType::f16}), {0}).item() == doctest::Approx(-1e4).epsilon(1e-3));
}

TEST_CASE("argmax and argmin take the first of equals") {
  const Tensor x = from_data(std::vector<double>{1, 3, 3, 0, 0, 2}, {2, 3});
  CHECK(values(argmax(x, 1)) == std::vector<double>{1, 2});
  CHECK(values(argmin(x, 1)) == std::vector<double>{0, 0});
  CHECK(values(argmax(x, 0)) == std::vector<double>{0, 0, 0});
  CHECK(argmax(x, -1, true).sizes() == Shape{2, 1});
  CHECK(argmax(scalar(4), 0).item() == 0);
  CHECK(x.argmax().item() == 1);  // without a dim: in row-major order
  CHECK(x.t().argmax().item() == 2);
  CHECK(x.argmin({}, true).sizes() == Shape{1, 1});
  CHECK(values(x.argmin({}, true)) == std::vector<double>{3});
  CHECK(argmax(scalar(4)).item() == 0);
  CHECK_THROWS_WITH_AS(zeros({0, 2}).argmax(), doctest::Contains("empty range"), Error);
  const Tensor y = randint(0, 50, {30, 2500});
  for (const Tensor& t : {y, y.t().clone().t(), y.to(DType::u8)}) {
    const Tensor a = argmax(t, 1);
    for (std::int64_t r = 0; r < 30; ++r) {
      std::int64_t best = 0;
      for (std::int64_t i = 1; i < 2500; ++i)
        if (at(t, r * 2500 + i) > at(t, r * 2500 + best)) best = i;
      REQUIRE(at(a, r) == static_cast<double>(best));
    }
  }
  CHECK(argmax(full({2}, -kInf), 0).item() == 0);
}

TEST_CASE("the bits of a reduction depend on neither threads nor alignment") {
  const Tensor flat = randn({500001});
  const Tensor x = randn({2100, 310});
  const Tensor h = randn({70, 8000}).to(DType::f16);
  const auto run = [&] {
    return std::vector<Tensor>{flat.sum(),    x.sum({0}),        x.sum({1}),     var(x, {0}), norm(flat),
                               h.sum({0, 1}), logsumexp(h, {1}), x.t().sum({0}), x.mean()};
  };
  const ThreadsScope scope(1);
  const std::vector<Tensor> want = run();
  for_thread_counts(run, [&](const std::vector<Tensor>& got) {
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(got[i], want[i]));
  });
  const Tensor room = zeros({500002});
  room.narrow(0, 1, 500001).copy_(flat);
  CHECK(same_bits(room.narrow(0, 1, 500001).sum(), want[0]));
}

TEST_CASE("sums of a small matrix's columns have the bits of those of a part of a larger one") {
  reference::for_each_isa([](CpuIsa isa) {
    CAPTURE(to_string(isa));
    Generator g(8);
    for (const std::int64_t rows : {1, 2, 31, 32, 33, 64, 100, 1000})
      for (const std::int64_t columns : {7, 8, 9, 15, 31, 32, 33, 72}) {
        CAPTURE(rows);
        CAPTURE(columns);
        const Tensor wide = randn({rows, columns + 3}, {}, g);
        const Tensor part = wide.narrow(1, 2, columns);
        CHECK(same_bits(part.contiguous().sum({0}), part.sum({0})));
      }
  });
}

TEST_CASE("norms whose powers leave the range of double") {
  const Tensor x = from_data(std::vector<double>{3, 4, 0, 0, -6, 8}, {3, 2}, {.dtype = DType::f64});
  for (const double factor : {0x1p900, 0x1p-900, 0x1p-1060}) {
    CAPTURE(factor);
    const Tensor far = x * factor;
    for (const double order : {2.0, 3.0, 20.0}) {
      CAPTURE(order);
      const std::vector<double> want = norm(x, order, {1}).to_vector<double>();
      const std::vector<double> got = norm(far, order, {1}).to_vector<double>();
      const double slack = factor == 0x1p-1060 ? 0x1p-13 : 0x1p-48;  // subnormal numbers hold few bits
      for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(got[i] / factor - want[i]) <= slack * want[i]);
    }
  }
  // The least number: no power of two of a double takes it to 1.
  const double least = 5e-324;
  for (const double order : {2.0, 20.0, 30.0})
    CHECK(norm(full({1}, least, {.dtype = DType::f64}), order).item() == least);
  const Tensor narrow = full({2, 5}, 1e30);
  CHECK(norm(narrow, 20, {1})[0].item() == doctest::Approx(1e30 * std::pow(5, 0.05)));
  const Tensor special = from_data(std::vector<double>{kInf, 1e300, NAN, 1e300}, {2, 2}, {.dtype = DType::f64});
  CHECK(norm(special, 2, {1})[0].item() == kInf);
  CHECK(std::isnan(norm(special, 2, {1})[1].item()));
}
