// Pooling against loops over every window.
#include <doctest/doctest.h>
#include <gradual/autograd/autograd.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../../support/gradients.h"
#include "support/cpu_isas.h"

using namespace gradual;

namespace {

struct Case {
  Shape sizes;
  PoolAttrs attrs;
};
PoolAttrs attrs(std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  PoolAttrs a;
  a.kernel[0] = kernel;
  a.kernel[1] = kernel;
  a.stride[0] = stride;
  a.stride[1] = stride;
  a.padding[0] = pad;
  a.padding[1] = pad;
  return a;
}
PoolAttrs uneven() {
  PoolAttrs a = attrs(3, 2, 1);
  a.kernel[1] = 2;
  a.stride[1] = 1;
  a.padding[1] = 0;
  return a;
}
// Windows of two columns.
PoolAttrs pairs(std::int64_t height, std::int64_t row_stride) {
  PoolAttrs a = attrs(2, 2, 0);
  a.kernel[0] = height;
  a.stride[0] = row_stride;
  return a;
}
PoolAttrs tall() { return pairs(3, 1); }
const std::vector<Case> kCases = {
    {{1, 3, 6, 23}, attrs(2, 2, 0)}, {{2, 2, 7, 12}, tall()},        {{2, 3, 8, 8}, attrs(2, 2, 0)},
    {{2, 3, 7, 9}, attrs(2, 2, 0)},  {{1, 4, 6, 6}, attrs(3, 1, 1)}, {{2, 2, 9, 7}, attrs(3, 2, 1)},
    {{3, 1, 5, 6}, uneven()},        {{1, 1, 2, 2}, attrs(4, 3, 2)},
};

// Distinct numbers in disorder, so that the largest is unique.
Tensor numbers(const Shape& sizes, DType dtype) {
  Generator g(1);
  return (randperm(gradual::numel(sizes), g).to(DType::f64) - 100.0).reshape(sizes).to(dtype);
}
bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = contiguous(a);
  const Tensor y = contiguous(b);
  return x.dtype() == y.dtype() && x.sizes() == y.sizes() && std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}
PoolAttrs sized(PoolAttrs a, const Tensor& x) {
  a.size[0] = x.size(2);
  a.size[1] = x.size(3);
  return a;
}

// f(output index in the plane, input index in the plane) for every pair that meet.
template <class F> void windows(const Case& c, std::int64_t height, std::int64_t width, const F& f) {
  for (std::int64_t o = 0; o < height * width; ++o)
    for (std::int64_t i = 0; i < c.attrs.kernel[0]; ++i)
      for (std::int64_t j = 0; j < c.attrs.kernel[1]; ++j) {
        const std::int64_t y = o / width * c.attrs.stride[0] - c.attrs.padding[0] + i;
        const std::int64_t x = o % width * c.attrs.stride[1] - c.attrs.padding[1] + j;
        if (y >= 0 && y < c.sizes[2] && x >= 0 && x < c.sizes[3]) f(o, y * c.sizes[3] + x);
      }
}

}  // namespace

TEST_CASE("max_pool2d: values, indices, their gradient and its adjoint") {
  for (const Case& c : kCases) {
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      CAPTURE(to_string(c.sizes));
      const Tensor x = numbers(c.sizes, dtype);
      const auto [y, index] = max_pool2d_with_indices(x, c.attrs);
      const std::int64_t in = c.sizes[2] * c.sizes[3];
      const std::int64_t out = y.size(2) * y.size(3);
      const std::vector<double> xs = x.to_vector<double>();
      std::vector<double> want(static_cast<std::size_t>(y.numel()), -INFINITY);
      std::vector<std::int64_t> want_index(want.size(), -1);
      for (std::int64_t p = 0; p < c.sizes[0] * c.sizes[1]; ++p)
        windows(c, y.size(2), y.size(3), [&](std::int64_t o, std::int64_t i) {
          const auto at = static_cast<std::size_t>(p * out + o);
          const double v = xs[static_cast<std::size_t>(p * in + i)];
          if (v > want[at]) {
            want[at] = v;
            want_index[at] = i;
          }
        });
      CHECK(y.to_vector<double>() == want);
      CHECK(index.to_vector<std::int64_t>() == want_index);

      const Tensor dy = numbers(y.sizes(), dtype);
      const std::vector<double> g = dy.to_vector<double>();
      std::vector<double> dx(xs.size());
      for (std::size_t i = 0; i < g.size(); ++i)
        dx[i / static_cast<std::size_t>(out) * static_cast<std::size_t>(in) +
           static_cast<std::size_t>(want_index[i])] += g[i];
      if (dtype != DType::bf16 && dtype != DType::f16)  // sums of these do not round in f32
        CHECK(max_pool2d_backward(dy, index, sized(c.attrs, x)).to_vector<double>() == dx);

      const auto [yl, il] = max_pool2d_with_indices(channels_last(x), c.attrs);
      CHECK(same_bits(yl, y));
      CHECK(same_bits(il, index));
      CHECK(same_bits(max_pool2d_backward(channels_last(dy), channels_last(index), sized(c.attrs, x)),
                      max_pool2d_backward(dy, index, sized(c.attrs, x))));
    }
  }
}

TEST_CASE("max_pool2d: NaN wins, -Inf can be the largest, the first of equals is taken") {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = from_data(std::vector<double>{1, NAN, -inf, -inf, 2, 3, -inf, -inf}, {1, 1, 2, 4});
  const auto [y, index] = max_pool2d_with_indices(x, attrs(2, 2, 0));
  const std::vector<double> v = y.to_vector<double>();
  CHECK(std::isnan(v[0]));
  CHECK(v[1] == -inf);
  CHECK(index.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2});
  CHECK(max_pool2d_with_indices(ones({1, 1, 2, 2}), attrs(2, 2, 0)).second.item() == 0);
}

TEST_CASE("max_pool2d: NaN, infinities and equals in wide rows, read in pairs or by gathers") {
  const std::vector<float> kinds{NAN, -INFINITY, INFINITY, 1, 1, -0.0F, 0, 2};
  const Shape sizes{1, 1, 24, 30};
  Generator g(3);
  const std::vector<std::int64_t> draws = randint(0, 8, sizes, {.dtype = DType::i64}, g).to_vector<std::int64_t>();
  std::vector<float> x;
  x.reserve(draws.size());
  for (const std::int64_t draw : draws) x.push_back(kinds[static_cast<std::size_t>(draw)]);
  for (const Case& c : {Case{sizes, attrs(2, 2, 0)}, Case{sizes, tall()}, Case{sizes, attrs(3, 2, 0)},
                        Case{sizes, pairs(1, 1)}, Case{sizes, pairs(1, 2)}, Case{sizes, pairs(3, 4)}})
    for (const DType dtype : {DType::f32, DType::f64}) {
      const auto [y, index] = max_pool2d_with_indices(from_data(x, sizes).to(dtype), c.attrs);
      std::vector<std::int64_t> want(static_cast<std::size_t>(y.numel()), -1);
      windows(c, y.size(2), y.size(3), [&](std::int64_t o, std::int64_t i) {
        std::int64_t& best = want[static_cast<std::size_t>(o)];
        const float v = x[static_cast<std::size_t>(i)];
        const float most = best < 0 ? 0 : x[static_cast<std::size_t>(best)];
        if (best < 0 || v > most || (std::isnan(v) && !std::isnan(most))) best = i;
      });
      CHECK(index.to_vector<std::int64_t>() == want);
      CHECK(same_bits(y.reshape({-1}), index_select(from_data(x, {24 * 30}).to(dtype), 0, index.reshape({-1}))));
    }
}

TEST_CASE("max_pool2d of windows in pairs of columns: the same bits by every instruction set, counted or not") {
  const std::vector<float> kinds{NAN, -INFINITY, INFINITY, 1, 1, -0.0F, 0, 2, 3, -1};
  Generator g(4);
  for (const Shape& sizes : {Shape{3, 2, 28, 28}, Shape{2, 3, 15, 67}, Shape{2, 2, 7, 9}, Shape{1, 1, 2, 2}}) {
    CAPTURE(to_string(sizes));
    std::vector<float> numbers;
    for (const std::int64_t draw : randint(0, 10, sizes, {.dtype = DType::i64}, g).to_vector<std::int64_t>())
      numbers.push_back(kinds[static_cast<std::size_t>(draw)]);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      const Tensor x = from_data(numbers, sizes).to(dtype);
      if (dtype == DType::bf16) static_cast<std::uint16_t*>(x.raw())[1] = 0x7f81;  // a signalling NaN becomes quiet
      std::vector<Tensor> first;
      reference::for_each_isa([&](CpuIsa isa) {
        CAPTURE(to_string(isa));
        const auto [y, index] = max_pool2d_with_indices(x, attrs(2, 2, 0));
        const PoolAttrs a = sized(attrs(2, 2, 0), x);
        // Of a window's own pixel, and of another's, which no pooling gives: there the last gradient stays.
        const Tensor moved = clone(index);
        for (std::int64_t i = 0; i < moved.numel(); i += 5) moved.data<std::int64_t>()[i] = 0;
        const auto results = [&, y = y, index = index] {
          const auto [again, its_index] = max_pool2d_with_indices(x, attrs(2, 2, 0));
          return std::vector{again, its_index, max_pool2d_backward(y, index, a), max_pool2d_backward(y, moved, a)};
        };
        const std::vector<Tensor> now = results();
        if (first.empty()) first = now;
        for (std::size_t i = 0; i < now.size(); ++i) CHECK(same_bits(now[i], first[i]));
        CastCounts counts;
        {
          const CountScope scope(&counts);
          const std::vector<Tensor> counted = results();
          for (std::size_t i = 0; i < now.size(); ++i) CHECK(same_bits(counted[i], first[i]));
        }
        CHECK(counts.elements == (dtype == DType::bf16 ? y.numel() + 2 * x.numel() : 0));
        CHECK(same_bits(max_pool2d_backward(channels_last(y), channels_last(index), a), first[2]));
      });
    }
  }
}

TEST_CASE("max_pool2d_backward refuses indices that no pooling gave") {
  PoolAttrs wide = attrs(2, 2, 0);
  wide.size[0] = 4;
  wide.size[1] = 40;
  for (const std::int64_t wrong : {std::int64_t{160}, std::int64_t{-1}, std::int64_t{1} << 32}) {
    Tensor indices = max_pool2d_with_indices(ones({1, 2, 4, 40}), attrs(2, 2, 0)).second;
    indices.data<std::int64_t>()[20] = wrong;  // of the first plane's second row
    CHECK_THROWS_WITH_AS(max_pool2d_backward(ones({1, 2, 2, 20}), indices, wide),
                         doctest::Contains("lies outside a plane of 160"), Error);
  }
  const Tensor index = full({1, 1, 1, 1}, 4, {.dtype = DType::i64});
  PoolAttrs a = attrs(2, 2, 0);
  a.size[0] = 2;
  a.size[1] = 2;
  CHECK_THROWS_WITH_AS(max_pool2d_backward(ones({1, 1, 1, 1}), index, a),
                       doctest::Contains("index 4 lies outside a plane of 4"), Error);
}

TEST_CASE("avg_pool2d counts padding as zeros, its gradient is the transpose") {
  for (const Case& c : kCases) {
    CAPTURE(to_string(c.sizes));
    const Tensor x = numbers(c.sizes, DType::f64);
    const Tensor y = avg_pool2d(x, c.attrs);
    const Tensor dy = numbers(y.sizes(), DType::f64);
    const Tensor dx = avg_pool2d_backward(dy, sized(c.attrs, x));
    const std::int64_t in = c.sizes[2] * c.sizes[3];
    const std::int64_t out = y.size(2) * y.size(3);
    const auto divisor = static_cast<double>(c.attrs.kernel[0] * c.attrs.kernel[1]);
    const std::vector<double> xs = x.to_vector<double>();
    const std::vector<double> g = dy.to_vector<double>();
    std::vector<double> want(g.size());
    std::vector<double> want_dx(xs.size());
    for (std::int64_t p = 0; p < c.sizes[0] * c.sizes[1]; ++p)
      windows(c, y.size(2), y.size(3), [&](std::int64_t o, std::int64_t i) {
        want[static_cast<std::size_t>(p * out + o)] += xs[static_cast<std::size_t>(p * in + i)] / divisor;
        want_dx[static_cast<std::size_t>(p * in + i)] += g[static_cast<std::size_t>(p * out + o)] / divisor;
      });
    const std::vector<double> ys = y.to_vector<double>();
    const std::vector<double> dxs = dx.to_vector<double>();
    for (std::size_t i = 0; i < want.size(); ++i) REQUIRE(std::abs(ys[i] - want[i]) < 1e-12);
    for (std::size_t i = 0; i < want_dx.size(); ++i) REQUIRE(std::abs(dxs[i] - want_dx[i]) < 1e-12);
    CHECK(same_bits(avg_pool2d(channels_last(x), c.attrs), y));
    CHECK(same_bits(avg_pool2d_backward(channels_last(dy), sized(c.attrs, x)), dx));
    // Narrow inputs are summed in f32 and rounded once.
    const Tensor half = x.to(DType::f16);
    CHECK(same_bits(avg_pool2d(half, c.attrs), avg_pool2d(half.to(DType::f32), c.attrs).to(DType::f16)));
  }
}

TEST_CASE("adaptive_avg_pool2d covers floor to ceil, its gradient is the transpose") {
  // 5 inputs to 3 outputs: [0, 2), [1, 4), [3, 5).
  const Tensor row = from_data(std::vector<double>{1, 2, 4, 8, 16}, {1, 1, 1, 5}, {.dtype = DType::f64});
  const std::vector<double> y = adaptive_avg_pool2d(row, 1, 3).to_vector<double>();
  CHECK(y == std::vector<double>{1.5, 14.0 / 3, 12});
  CHECK(adaptive_avg_pool2d(row, 2, 5).to_vector<double>() == std::vector<double>{1, 2, 4, 8, 16, 1, 2, 4, 8, 16});
  PoolAttrs a;
  a.size[0] = 1;
  a.size[1] = 5;
  const Tensor dy = from_data(std::vector<double>{2, 3, 4}, {1, 1, 1, 3}, {.dtype = DType::f64});
  CHECK(adaptive_avg_pool2d_backward(dy, a).to_vector<double>() == std::vector<double>{1, 2, 1, 3, 2});
  CHECK(adaptive_avg_pool2d(zeros({0, 2, 3, 3}), 1, 1).sizes() == Shape{0, 2, 1, 1});
}

TEST_CASE(
    "pools of channels-last images give channels-last ones, forward and backward, and the bits of row-major ones") {
  using Pool = Tensor (*)(const Tensor&);
  const std::vector<Pool> pools = {
      [](const Tensor& x) { return adaptive_avg_pool2d(x, 1, 1); },
      [](const Tensor& x) { return adaptive_avg_pool2d(x, 3, 4); },
      [](const Tensor& x) { return adaptive_avg_pool2d(x, 11, 2); },
      [](const Tensor& x) { return avg_pool2d(x, attrs(3, 2, 1)); },
      [](const Tensor& x) { return avg_pool2d(x, attrs(2, 3, 0)); },  // some pixels are in no window
      [](const Tensor& x) { return avg_pool2d(x, attrs(7, 7, 0)); },  // one window
      [](const Tensor& x) { return max_pool2d(x, attrs(2, 2, 0)); },
      [](const Tensor& x) { return max_pool2d(x, attrs(7, 7, 0)); },
  };
  const auto laid_out_like = [](const Tensor& t, const Tensor& x) {
    return t.strides() == channels_last(x).strides() || (t.size(2) * t.size(3) == 1 && t.is_contiguous());
  };
  Generator g(7);
  for (const std::int64_t channels : {2, 5, 67})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (std::size_t i = 0; i < pools.size(); ++i) {
        CAPTURE(channels);
        CAPTURE(to_string(dtype));
        CAPTURE(i);
        const Tensor plain = randn({3, channels, 7, 9}, {}, g).to(dtype).set_requires_grad();
        const Tensor last = channels_last(plain.detach()).set_requires_grad();
        const Tensor want = pools[i](plain);
        const Tensor dy = randn(want.sizes(), {}, g).to(dtype);
        want.backward(dy);
        reference::for_each_isa([&](CpuIsa isa) {
          CAPTURE(to_string(isa));
          for (const bool placed : {false, true}) {
            CAPTURE(placed);
            const Tensor y = pools[i](last);
            CHECK(same_bits(y, want));
            CHECK(laid_out_like(y, want));
            const Tensor dx = autograd::grad({y}, {last}, {placed ? channels_last(dy) : dy})[0];
            CHECK(same_bits(dx, plain.grad()));
            CHECK(dx.strides() == last.strides());
          }
        });
      }
}

TEST_CASE("pooling gives the same bits on any number of threads") {
  Generator g(3);
  const Tensor x = randn({40, 20, 13, 13}, {}, g);
  const auto on = [&](int threads) {
    const ThreadsScope scope(threads);
    const auto [y, index] = max_pool2d_with_indices(x, attrs(3, 2, 1));
    return std::vector<Tensor>{y, index, avg_pool2d(x, attrs(3, 1, 1))};
  };
  const auto one = on(1);
  const auto five = on(5);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], five[i]));
}

TEST_CASE("pooling says what does not fit") {
  CHECK_THROWS_WITH_AS(max_pool2d(zeros({1, 1, 1, 1})), doctest::Contains("larger than the padded input"), Error);
  CHECK_THROWS_WITH_AS(avg_pool2d(zeros({1, 1, 4, 4}), {.kernel = 2, .padding = 2}), doctest::Contains("half"), Error);
  CHECK_THROWS_WITH_AS(adaptive_avg_pool2d(zeros({1, 1, 4, 4}), 0, 1), doctest::Contains("at least 1 x 1"), Error);
}
