// cross_entropy and its backward row against f64 loops; PyTorch's conventions for ignored rows.
#include <doctest/doctest.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../../support/cpu_isas.h"
#include "../../support/gradients.h"

using namespace gradual;

namespace {

constexpr std::int64_t kRows = 7;
constexpr std::int64_t kClasses = 5;

Tensor logits(DType dtype) {
  Generator g(1);
  return (randn({kRows, kClasses}, {.dtype = DType::f64}, g) * 2.0).to(dtype);
}
Tensor classes() { return from_data(std::vector<std::int64_t>{0, 4, -100, 2, 2, 1, -100}, {kRows}); }

struct Expected {
  std::vector<double> losses, gradient;  // of the sum
  double counted = 0;
};
Expected expected(const Tensor& x, const Tensor& y, double smoothing, std::int64_t ignore) {
  const std::vector<double> v = x.to_vector<double>();
  const std::vector<std::int64_t> labels = y.to_vector<std::int64_t>();
  const auto c = static_cast<std::size_t>(x.size(1));
  Expected e;
  for (std::size_t r = 0; r < labels.size(); ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < c; ++i) sum += std::exp(v[r * c + i]);
    double loss = 0;
    const bool counts = labels[r] != ignore;
    for (std::size_t i = 0; i < c; ++i) {
      const double own = static_cast<std::int64_t>(i) == labels[r] ? 1 - smoothing : 0;
      const double target = counts ? own + smoothing / static_cast<double>(c) : 0;
      loss -= target * (v[r * c + i] - std::log(sum));
      e.gradient.push_back(counts ? std::exp(v[r * c + i]) / sum - target : 0);
    }
    e.losses.push_back(loss);
    e.counted += counts;
  }
  return e;
}

// The same bits, whatever those of a NaN.
bool same_but_for_nan(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>();
  const std::vector<double> y = b.to_vector<double>();
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](double p, double q) {
    return std::bit_cast<std::uint64_t>(p) == std::bit_cast<std::uint64_t>(q) || (std::isnan(p) && std::isnan(q));
  });
}

}  // namespace

TEST_CASE("cross_entropy: every reduction, smoothing and ignored rows") {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const double tolerance = dtype == DType::f64   ? 1e-14
                             : dtype == DType::f32 ? 2e-6
                             : dtype == DType::f16 ? 4e-3
                                                   : 3e-2;
    const Tensor x = logits(dtype);
    for (double smoothing : {0.0, 0.1, 1.0}) {
      for (std::int64_t ignore : {-100, 2}) {
        const Tensor y = where(eq(classes(), -100), ignore, classes());
        const Expected e = expected(x, y, smoothing, ignore);
        double sum = 0;
        for (double l : e.losses) sum += l;
        const auto loss = [&](Reduction r) {
          return cross_entropy(x, y, {.reduction = r, .label_smoothing = smoothing, .ignore_index = ignore});
        };
        CHECK(std::abs(loss(Reduction::sum).item() - sum) <= tolerance * sum);
        CHECK(std::abs(loss(Reduction::mean).item() - sum / e.counted) <= tolerance * sum / e.counted);
        const std::vector<double> each = loss(Reduction::none).to_vector<double>();
        REQUIRE(each.size() == kRows);
        for (std::size_t i = 0; i < each.size(); ++i) CHECK(std::abs(each[i] - e.losses[i]) <= tolerance * 4);

        const Tensor logp = log_softmax(x, 1);
        const CrossEntropyAttrs attrs{{.label_smoothing = smoothing, .ignore_index = ignore}};
        const std::vector<double> dx =
            cross_entropy_backward(full({}, 2, {.dtype = dtype}), logp, y, attrs).to_vector<double>();
        for (std::size_t i = 0; i < dx.size(); ++i)
          REQUIRE(std::abs(dx[i] - 2 * e.gradient[i] / e.counted) <= 2 * tolerance);
      }
    }
  }
}

TEST_CASE("cross_entropy: the gradient of each row where nothing is reduced") {
  const Tensor x = logits(DType::f64);
  const Tensor dy = arange(1, kRows + 1).to(DType::f64);
  const Expected e = expected(x, classes(), 0, -100);
  const CrossEntropyAttrs attrs{{.reduction = Reduction::none}};
  const std::vector<double> dx = cross_entropy_backward(dy, log_softmax(x, 1), classes(), attrs).to_vector<double>();
  for (std::size_t i = 0; i < dx.size(); ++i) {
    const std::size_t row = i / kClasses;
    CHECK(dx[i] == doctest::Approx(e.gradient[i] * static_cast<double>(row + 1)).epsilon(1e-12));
  }
}

TEST_CASE("cross_entropy: rows that all are ignored leave NaN as a mean and 0 as a sum") {
  const Tensor y = full({kRows}, -100, {.dtype = DType::i64});
  CHECK(std::isnan(cross_entropy(logits(DType::f32), y).item()));
  CHECK(cross_entropy(logits(DType::f32), y, {.reduction = Reduction::sum}).item() == 0);
  CHECK(std::isnan(cross_entropy(zeros({0, 3}), zeros({0}, {.dtype = DType::i64})).item()));
}

TEST_CASE("cross_entropy: a class out of range names row, class and range") {
  const Tensor y = from_data(std::vector<std::int64_t>{0, 4, 5, 2, 2, 1, 0}, {kRows});
  CHECK_THROWS_WITH_AS(cross_entropy(logits(DType::f32), y),
                       doctest::Contains("class 5 in row 2; classes must be 0 to 4"), Error);
  const Tensor negative = from_data(std::vector<std::int64_t>{0, -1, 0, 0, 0, 0, 0}, {kRows});
  CHECK_THROWS_WITH_AS(cross_entropy(logits(DType::f32), negative), doctest::Contains("class -1 in row 1"), Error);
}

TEST_CASE("cross_entropy: strided logits and classes, any number of threads") {
  Generator g(2);
  const Tensor x = randn({4000, 20}, {}, g);
  const Tensor y = randint(0, 20, {4000}, {.dtype = DType::i64}, g);
  const Tensor twice = zeros({8000}, {.dtype = DType::i64});
  slice(twice, 0, {.start = {}, .stop = {}, .step = 2}).copy_(y);
  const auto loss = [&](int threads) {
    const ThreadsScope scope(threads);
    return cross_entropy(x, y).item();
  };
  const double one = loss(1);
  CHECK(loss(6) == one);
  CHECK(cross_entropy(clone(x.t()).t(), slice(twice, 0, {.start = {}, .stop = {}, .step = 2})).item() == one);
}

TEST_CASE("cross_entropy: many short rows have the bits of each alone") {
  reference::for_each_isa([](CpuIsa isa) {
    CAPTURE(to_string(isa));
    Generator g(3);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const std::int64_t n : {1, 10, 16, 63, 64})
        for (const std::int64_t rows : {2, 16, 33}) {
          CAPTURE(to_string(dtype));
          CAPTURE(n);
          CAPTURE(rows);
          const Tensor x = (randn({rows, n}, {.dtype = DType::f64}, g) * 5.0).to(dtype);
          narrow(narrow(x, 0, 1, 1), 1, 0, (n + 1) / 2).fill_(-INFINITY);
          narrow(narrow(x, 0, rows / 2, 1), 1, n / 2, 1).fill_(NAN);
          const Tensor y = randint(0, n, {rows}, {.dtype = DType::i64}, g);
          const Tensor dy = randn({rows}, {.dtype = DType::f64}, g).to(dtype);
          const CrossEntropyAttrs attrs{{.reduction = Reduction::none, .label_smoothing = 0.1, .ignore_index = 1}};
          const auto run = [&](std::int64_t from, std::int64_t to) {
            const auto part = [&](const Tensor& t) { return narrow(t, 0, from, to - from).contiguous(); };
            const Tensor logp = log_softmax(part(x), 1);
            return std::vector<Tensor>{cross_entropy(part(x), part(y), attrs),
                                       cross_entropy_backward(part(dy), logp, part(y), attrs)};
          };
          const std::vector<Tensor> all = run(0, rows);
          int wrong = 0;
          for (std::int64_t row = 0; row < rows; ++row) {
            const std::vector<Tensor> alone = run(row, row + 1);
            for (std::size_t i = 0; i < all.size(); ++i)
              wrong += !same_but_for_nan(narrow(all[i], 0, row, 1), alone[i]);
          }
          CHECK(wrong == 0);
        }
  });
}
