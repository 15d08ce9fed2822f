// Convolutions against loops over every tap in f64: all attributes, layouts and dtypes.
#include <doctest/doctest.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>
#include <gradual/core/tensor/memory.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/cpu_backends.h"

using namespace gradual;

namespace {

struct Case {
  std::int64_t n, channels, height, width, outputs, kernel[2];
  ConvAttrs attrs;
};

ConvAttrs attrs(std::int64_t stride, std::int64_t pad, std::int64_t dilation = 1, std::int64_t groups = 1) {
  ConvAttrs a;
  a.stride[0] = stride;
  a.stride[1] = stride;
  a.padding[0] = pad;
  a.padding[1] = pad;
  a.dilation[0] = dilation;
  a.dilation[1] = dilation;
  a.groups = groups;
  return a;
}
ConvAttrs uneven() {
  ConvAttrs a = attrs(1, 0);
  a.stride[0] = 3;
  a.stride[1] = 2;
  a.padding[0] = 1;
  a.padding[1] = 4;
  a.dilation[0] = 2;
  return a;
}
ConvAttrs sideways() {
  ConvAttrs a = attrs(1, 1);
  a.stride[1] = 2;
  return a;
}

// Among them: tiles that cross images (5 x 3 x 3), more than one block of depth (40 * 9), bands (70 x 40), kernels
// smaller than the stride, padding beyond the kernel's reach, depthwise, rows that follow each other with a stride.
const std::vector<Case> kCases = {
    {2, 3, 6, 7, 4, {3, 3}, attrs(1, 1)},        {1, 1, 5, 5, 1, {5, 5}, attrs(1, 0)},
    {3, 40, 8, 8, 10, {3, 3}, attrs(1, 1)},      {5, 2, 5, 3, 33, {3, 1}, attrs(1, 0)},
    {2, 4, 9, 8, 6, {3, 3}, attrs(2, 1)},        {2, 4, 9, 8, 6, {2, 2}, attrs(3, 0)},
    {2, 4, 9, 8, 6, {3, 3}, attrs(1, 4)},        {2, 4, 11, 12, 6, {3, 3}, attrs(1, 2, 2)},
    {2, 4, 11, 12, 6, {3, 2}, uneven()},         {2, 6, 7, 7, 9, {3, 3}, attrs(1, 1, 1, 3)},
    {2, 5, 7, 7, 10, {3, 3}, attrs(2, 1, 1, 5)}, {3, 7, 6, 5, 8, {1, 1}, attrs(1, 0)},
    {2, 3, 6, 6, 4, {1, 1}, attrs(2, 0)},        {1, 3, 70, 40, 5, {3, 3}, attrs(1, 1)},
    {40, 2, 4, 4, 3, {3, 3}, attrs(1, 1)},       {2, 2, 9, 9, 8, {1, 1}, attrs(3, 0)},
    {2, 3, 6, 8, 4, {3, 3}, sideways()},
};

Tensor random(const Shape& sizes, DType dtype, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {.dtype = DType::f64}, g).to(dtype);
}

struct ConvOperands {
  Tensor x, w, bias, dy;
  ConvAttrs attrs;
};
ConvOperands make(const Case& c, DType dtype) {
  ConvOperands p;
  p.attrs = c.attrs;
  p.x = random({c.n, c.channels, c.height, c.width}, dtype, 1);
  p.w = random({c.outputs, c.channels / c.attrs.groups, c.kernel[0], c.kernel[1]}, dtype, 2);
  p.bias = random({c.outputs}, dtype, 3);
  p.dy = random(conv2d(p.x, p.w, p.bias, c.attrs).sizes(), dtype, 4);
  return p;
}
ConvAttrs sized(ConvAttrs a, const Tensor& t) {
  a.size[0] = t.size(2);
  a.size[1] = t.size(3);
  return a;
}

// Values and the sums of their terms' magnitudes.
struct Sums {
  std::vector<double> value, size;
  explicit Sums(std::int64_t n) : value(static_cast<std::size_t>(n)), size(static_cast<std::size_t>(n)) {}
  void add(std::int64_t at, double term) {
    value[static_cast<std::size_t>(at)] += term;
    size[static_cast<std::size_t>(at)] += std::abs(term);
  }
};
struct Reference {
  Sums y, dx, dw;
};
Reference reference(const ConvOperands& p) {
  const auto x = p.x.to_vector<double>();
  const auto w = p.w.to_vector<double>();
  const auto b = p.bias.to_vector<double>();
  const auto g = p.dy.to_vector<double>();
  Reference r{Sums(p.dy.numel()), Sums(p.x.numel()), Sums(p.w.numel())};
  const std::int64_t per = p.w.size(0) / p.attrs.groups;
  std::int64_t yi = 0;
  for (std::int64_t n = 0; n < p.x.size(0); ++n)
    for (std::int64_t o = 0; o < p.w.size(0); ++o)
      for (std::int64_t i = 0; i < p.dy.size(2); ++i)
        for (std::int64_t j = 0; j < p.dy.size(3); ++j, ++yi) {
          r.y.add(yi, b[static_cast<std::size_t>(o)]);
          for (std::int64_t c = 0; c < p.w.size(1); ++c)
            for (std::int64_t u = 0; u < p.w.size(2); ++u)
              for (std::int64_t v = 0; v < p.w.size(3); ++v) {
                const std::int64_t h = i * p.attrs.stride[0] + u * p.attrs.dilation[0] - p.attrs.padding[0];
                const std::int64_t l = j * p.attrs.stride[1] + v * p.attrs.dilation[1] - p.attrs.padding[1];
                if (h < 0 || h >= p.x.size(2) || l < 0 || l >= p.x.size(3)) continue;
                const std::int64_t channel = o / per * p.w.size(1) + c;
                const std::int64_t xi = ((n * p.x.size(1) + channel) * p.x.size(2) + h) * p.x.size(3) + l;
                const std::int64_t wi = ((o * p.w.size(1) + c) * p.w.size(2) + u) * p.w.size(3) + v;
                r.y.add(yi, x[static_cast<std::size_t>(xi)] * w[static_cast<std::size_t>(wi)]);
                r.dx.add(xi, g[static_cast<std::size_t>(yi)] * w[static_cast<std::size_t>(wi)]);
                r.dw.add(wi, g[static_cast<std::size_t>(yi)] * x[static_cast<std::size_t>(xi)]);
              }
        }
  return r;
}

// A chain of n additions, then one rounding to the dtype.
void check_near(const Tensor& got, const Sums& want, std::int64_t n) {
  const double step = got.dtype() == DType::f64 ? std::ldexp(1, -53) : std::ldexp(1, -24);
  const double last = got.dtype() == DType::f16    ? std::ldexp(1, -11)
                      : got.dtype() == DType::bf16 ? std::ldexp(1, -8)
                                                   : 0;
  const std::vector<double> values = got.to_vector<double>();
  REQUIRE(values.size() == want.value.size());
  std::size_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = values.size(); i-- > 0;) {
    const double bound =
        static_cast<double>(n + 1) * step * want.size[i] + last * 1.01 * std::abs(want.value[i]) + 1e-300;
    if (!(std::abs(values[i] - want.value[i]) <= bound)) {
      ++wrong;
      first = i;
    }
  }
  CAPTURE(first);
  REQUIRE(wrong == 0);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = contiguous(a);
  const Tensor y = contiguous(b);
  return x.dtype() == y.dtype() && x.sizes() == y.sizes() && std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

struct Results {
  Tensor y, dx, dw;
};
Results run(const ConvOperands& p) {
  return {conv2d(p.x, p.w, p.bias, p.attrs), conv2d_backward_input(p.dy, p.w, sized(p.attrs, p.x)),
          conv2d_backward_weight(p.dy, p.x, sized(p.attrs, p.w))};
}

}  // namespace

TEST_CASE("conv2d and its two gradients") {
  for (std::size_t i = 0; i < kCases.size(); ++i) {
    CAPTURE(i);
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const ConvOperands p = make(kCases[i], dtype);
      const Results got = run(p);
      const Reference want = reference(p);
      CHECK(got.y.dtype() == dtype);
      REQUIRE(got.dx.sizes() == p.x.sizes());
      REQUIRE(got.dw.sizes() == p.w.sizes());
      const std::int64_t taps = p.w.size(2) * p.w.size(3);
      check_near(got.y, want.y, p.w.size(1) * taps + 1);
      check_near(got.dx, want.dx, p.w.size(0) / p.attrs.groups * taps);
      check_near(got.dw, want.dw, p.dy.size(0) * p.dy.size(2) * p.dy.size(3));
    }
  }
}

TEST_CASE("convolutions round narrow inputs once, after f32 sums") {
  for (std::size_t i : {std::size_t{0}, std::size_t{2}, std::size_t{8}}) {
    const ConvOperands half = make(kCases[i], DType::f16);
    const ConvOperands wide{half.x.to(DType::f32), half.w.to(DType::f32), half.bias.to(DType::f32),
                            half.dy.to(DType::f32), half.attrs};
    const Results got = run(half);
    const Results want = run(wide);
    CHECK(same_bits(got.y, want.y.to(DType::f16)));
    CHECK(same_bits(got.dx, want.dx.to(DType::f16)));
    CHECK(same_bits(got.dw, want.dw.to(DType::f16)));
  }
}

namespace {

// Channels-last, and with gaps everywhere.
std::vector<ConvOperands> other_layouts(const ConvOperands& p) {
  const auto twice = [](const Tensor& t) { return stack({t, t}, 4).select(4, 1); };
  return {{channels_last(p.x), channels_last(p.w), p.bias, channels_last(p.dy), p.attrs},
          {twice(p.x), twice(p.w), stack({p.bias, p.bias}, 1).select(1, 0), twice(p.dy), p.attrs}};
}
bool same_bits(const Results& a, const Results& b) {
  return same_bits(a.y, b.y) && same_bits(a.dx, b.dx) && same_bits(a.dw, b.dw);
}
Results run_on(int threads, const ConvOperands& p) {
  const ThreadsScope scope(threads);
  return run(p);
}

// Operands rounded to TF32 through f64: the nearest multiple of 2^(e-10).
ConvOperands with_tf32(const ConvOperands& p) {
  const auto rounded = [](const Tensor& t) {
    std::vector<double> v = t.to_vector<double>();
    for (double& value : v) {
      int e;
      std::frexp(value, &e);
      value = std::ldexp(std::nearbyint(std::ldexp(value, 11 - e)), e - 11);
    }
    return from_data(v, t.sizes());
  };
  return {rounded(p.x), rounded(p.w), p.bias, rounded(p.dy), p.attrs};
}

// Several parts of the batch and groups of channels, also where parts are unequal.
const std::vector<Case> kThreaded = {{19, 8, 12, 11, 24, {3, 3}, attrs(1, 1)},
                                     {64, 32, 14, 14, 64, {3, 3}, attrs(1, 1)},
                                     {33, 16, 16, 16, 32, {1, 1}, attrs(2, 0)}};

}  // namespace

TEST_CASE("convolutions keep channels-last, and give the same bits in any layout with Eigen") {
  for (std::size_t i = 0; i < kCases.size(); ++i) {
    CAPTURE(i);
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const ConvOperands p = make(kCases[i], dtype);
      const Reference want = reference(p);
      const std::int64_t taps = p.w.size(2) * p.w.size(3);
      for (const ConvOperands& other : other_layouts(p)) {
        const Results got = run(other);
        if (p.x.size(1) > 1 && p.dy.size(1) > 1) CHECK((got.y.strides()[1] == 1) == (other.x.strides()[1] == 1));
        check_near(got.y, want.y, p.w.size(1) * taps + 1);
        check_near(got.dx, want.dx, p.w.size(0) / p.attrs.groups * taps);
        check_near(got.dw, want.dw, p.dy.size(0) * p.dy.size(2) * p.dy.size(3));
        const CpuBackendScope eigen(CpuBackend::eigen);
        CHECK(same_bits(run(other), run(p)));
      }
    }
  }
}

TEST_CASE("convolutions give the same bits on any number of threads, with oneDNN in deterministic mode" *
          doctest::test_suite("slow")) {
  for (const Case& c : kThreaded) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const ConvOperands p = make(c, dtype);
      CHECK(same_bits(run_on(5, p), run_on(5, p)));
      {
        const CpuBackendScope eigen(CpuBackend::eigen);
        CHECK(same_bits(run_on(1, p), run_on(5, p)));
      }
      if (!has_onednn()) continue;
      set_deterministic(true);
      const Results one = run_on(1, p);
      const Results many = run_on(5, p);
      set_deterministic(false);
      CHECK(same_bits(one, many));
      const std::int64_t taps = p.w.size(2) * p.w.size(3);
      const Reference want = reference(p);
      check_near(one.y, want.y, p.w.size(1) * taps + 1);
      check_near(one.dx, want.dx, p.w.size(0) * taps);
      check_near(one.dw, want.dw, p.dy.size(0) * p.dy.size(2) * p.dy.size(3));
    }
  }
}

TEST_CASE("convolutions without bias, without images, in f8 and in TF32") {
  const ConvOperands p = make(kCases[0], DType::f32);
  CHECK(same_bits(conv2d(p.x, p.w, {}, p.attrs), conv2d(p.x, p.w, zeros({4}), p.attrs)));
  const Tensor none = zeros({0, 3, 6, 7});
  CHECK(conv2d(none, p.w, p.bias, p.attrs).sizes() == Shape{0, 4, 6, 7});
  const Tensor dw = conv2d_backward_weight(zeros({0, 4, 6, 7}), none, sized(p.attrs, p.w));
  CHECK(dw.to_vector<double>() == std::vector<double>(static_cast<std::size_t>(p.w.numel()), 0));

  const Tensor x8 = p.x.to(DType::f8e5m2);
  const Tensor w8 = p.w.to(DType::f8e5m2);
  const Tensor y8 = conv2d(x8, w8, {}, p.attrs);
  CHECK(y8.dtype() == DType::f32);
  CHECK(same_bits(y8, conv2d(x8.to(DType::f32), w8.to(DType::f32), {}, p.attrs)));

  const Results plain = run(p);
  const Results want = run(with_tf32(p));
  const MatmulPrecisionScope scope(MatmulPrecision::tf32);
  const Results got = run(p);
  CHECK(same_bits(got, want));
  CHECK_FALSE(same_bits(got.y, plain.y));
}

TEST_CASE("convolutions of a batch in parts: f16, f8 and TF32 give the bits of f32 operands, and are counted") {
  for (std::size_t i = 0; i < kThreaded.size(); ++i) {
    for (const int threads : {1, 3}) {
      for (const bool fixed : {false, true}) {
        CAPTURE(i);
        CAPTURE(threads);
        CAPTURE(fixed);
        const ThreadsScope on(threads);
        set_deterministic(fixed);
        const ConvOperands half = make(kThreaded[i], DType::f16);
        const ConvOperands wide{half.x.to(DType::f32), half.w.to(DType::f32), half.bias.to(DType::f32),
                                half.dy.to(DType::f32), half.attrs};
        CastCounts counted, expected;
        const Results want = run(wide);
        const Results rounded = [&] {
          const CountScope scope(&expected);
          return Results{want.y.to(DType::f16), want.dx.to(DType::f16), want.dw.to(DType::f16)};
        }();
        CHECK(same_bits(run(half), rounded));
        {
          const CountScope scope(&counted);
          CHECK(same_bits(run(half), rounded));
        }
        CHECK(counted == expected);

        const Tensor x8 = half.x.to(DType::f8e5m2);
        const Tensor w8 = half.w.to(DType::f8e5m2);
        const Tensor y8 = conv2d(x8.to(DType::bf16), w8.to(DType::bf16), {}, half.attrs);
        CHECK(same_bits(conv2d(x8, w8, {}, half.attrs).to(DType::bf16), y8));

        const Results of_tf32 = run(with_tf32(wide));
        {
          const MatmulPrecisionScope scope(MatmulPrecision::tf32);
          CHECK(same_bits(run(wide), of_tf32));
        }
        set_deterministic(false);
      }
    }
  }
}

TEST_CASE("convolutions in f16 make no f32 copy of all images") {
  const ConvOperands p = make(kThreaded[1], DType::f16);
  for (const CpuBackend backend : testing::cpu_backends()) {
    const CpuBackendScope scope(backend);
    const ThreadsScope one(1);
    const auto most = [&](const auto& f) {
      reset_peak_memory();
      const std::int64_t before = memory_stats().total.current;
      const Tensor kept = f();
      return memory_stats().total.peak - before - kept.nbytes();
    };
    const std::int64_t images = 4 * (p.x.numel() + p.dy.numel());
    CHECK(most([&] { return conv2d(p.x, p.w, p.bias, p.attrs); }) < images / 2);
    CHECK(most([&] { return conv2d_backward_weight(p.dy, p.x, sized(p.attrs, p.w)); }) < images / 2);
    CHECK(most([&] { return conv2d_backward_input(p.dy, p.w, sized(p.attrs, p.x)); }) < images / 2);
  }
}

TEST_CASE("conv2d says what does not fit") {
  CHECK_THROWS_WITH_AS(conv2d(zeros({1, 3, 8, 8}), zeros({4, 2, 3, 3})), doctest::Contains("3 input channels"), Error);
  CHECK_THROWS_WITH_AS(conv2d(zeros({1, 3, 2, 2}), zeros({4, 3, 3, 3})), doctest::Contains("larger than the padded"),
                       Error);
  CHECK_THROWS_WITH_AS(conv2d(zeros({3, 8, 8}), zeros({4, 3, 3, 3})), doctest::Contains("must be 4-d"), Error);
}
