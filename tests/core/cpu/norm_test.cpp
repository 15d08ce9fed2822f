// Norms against f64 loops: statistics, outputs and gradients, in every layout.
#include <doctest/doctest.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "../../support/gradients.h"

using namespace gradual;

namespace {

Tensor random(const Shape& sizes, DType dtype, std::uint64_t seed, double mean = 0, double scale = 1) {
  Generator g(seed);
  return (randn(sizes, {.dtype = DType::f64}, g) * scale + mean).to(dtype);
}
bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = contiguous(a);
  const Tensor y = contiguous(b);
  return x.dtype() == y.dtype() && x.sizes() == y.sizes() && std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}
Tensor wide(const Tensor& t) { return t.defined() ? t.to(DType::f64) : t; }

// The largest error, in units of the dtype's rounding and of the f32 (f64) arithmetic on `size`-sized numbers.
void check_near(const Tensor& got, const Tensor& want, double size, double steps = 32) {
  const double inner = got.dtype() == DType::f64 ? std::ldexp(1, -53) : std::ldexp(1, -24);
  const double last = got.dtype() == DType::f16    ? std::ldexp(1, -11)
                      : got.dtype() == DType::bf16 ? std::ldexp(1, -8)
                                                   : 0;
  const std::vector<double> a = got.to_vector<double>();
  const std::vector<double> b = want.to_vector<double>();
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    REQUIRE(std::abs(a[i] - b[i]) <= steps * inner * size + 1.01 * last * std::abs(b[i]) + (last > 0 ? 1e-7 : 0));
}

// In f64, from the definition, over dims with keepdim.
struct Reference {
  Tensor y, mean, invstd, dx, dw, db;
};
Reference reference(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& bias, const Shape& over,
                    const Shape& others, const Shape& parameter, double eps, bool centre) {
  Reference r;
  r.mean = centre ? mean(x, over, true) : zeros({}, {.dtype = DType::f64});
  r.invstd = rsqrt(mean(square(x - r.mean), over, true) + eps);
  const Tensor xhat = (x - r.mean) * r.invstd;
  const Tensor w = weight.defined() ? reshape(weight, parameter) : ones({}, {.dtype = DType::f64});
  r.y = xhat * w;
  if (bias.defined()) r.y = r.y + reshape(bias, parameter);
  const Tensor g = dy * w;
  r.dx = r.invstd * (g - xhat * mean(g * xhat, over, true));
  if (centre) r.dx = r.invstd * (g - mean(g, over, true) - xhat * mean(g * xhat, over, true));
  r.dw = sum(dy * xhat, others);
  r.db = sum(dy, others);
  return r;
}

}  // namespace

TEST_CASE("batch_norm in training: every dtype, layout and absence of parameters") {
  // the last two in several chunks, and one of them in several groups of channels
  const Shape shapes[] = {{6, 5, 4, 3},  {9, 4},          {3, 2, 7},     {2, 1, 5, 5},
                          {70, 3, 1, 1}, {300, 20, 2, 3}, {7, 24, 17, 9}};
  for (const Shape& s : shapes) {
    CAPTURE(to_string(s));
    const Shape channels{s[1]};
    Shape parameter = Shape::filled(s.size(), 1);
    parameter[1] = s[1];
    Shape over{0};
    for (int d = 2; d < s.size(); ++d) over.push_back(d);
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const DType p = dtype == DType::f64 ? DType::f64 : DType::f32;
      for (bool affine : {true, false}) {
        const Tensor x = random(s, dtype, 1, 3, 2);
        const Tensor dy = random(s, dtype, 2);
        const Tensor w = affine ? random(channels, p, 3) : Tensor();
        const Tensor b = affine ? random(channels, p, 4) : Tensor();
        const Reference want = reference(wide(x), wide(dy), wide(w), wide(b), over, over, parameter, 1e-5, true);
        const auto [y, mean, invstd] = batch_norm(x, w, b, {}, {}, true);
        CHECK(y.dtype() == dtype);
        CHECK(mean.dtype() == p);
        check_near(y, want.y, 16);
        check_near(mean, want.mean, 8);
        check_near(invstd, want.invstd, 4);
        const NormAttrs attrs;
        const Outputs r = batch_norm_backward(dy, x, w, mean, invstd, attrs);
        check_near(r[0], want.dx, 16);
        check_near(r[1], want.dw, 64);
        check_near(r[2], want.db, 64);
        // Layouts: the same numbers, up to the order of the sums.
        if (s.size() == 4) {
          const auto [yl, ml, il] = batch_norm(channels_last(x), w, b, {}, {}, true);
          check_near(yl, want.y, 16);
          const Outputs rl = batch_norm_backward(dy, channels_last(x), w, mean, invstd, attrs);
          check_near(rl[0], want.dx, 16);
          check_near(rl[1], want.dw, 64);
          check_near(batch_norm_backward(channels_last(dy), x, w, mean, invstd, attrs)[0], want.dx, 16);
          if (s[1] > 1 && s[2] > 1) CHECK(yl.strides() == channels_last(x).strides());
        }
        const Tensor swapped = clone(x.transpose(0, 1)).transpose(0, 1);  // dense, in neither layout
        CHECK(same_bits(batch_norm(swapped, w, b, {}, {}, true).y, y));
        CHECK(same_bits(batch_norm_backward(dy, swapped, w, mean, invstd, attrs)[0], r[0]));
        const Tensor gaps = stack({x, x}, s.size()).select(s.size(), 0);
        CHECK(same_bits(batch_norm(gaps, w, b, {}, {}, true).y, y));
      }
    }
  }
}

TEST_CASE("batch_norm of channels-last images in half formats has the bits of f32's, rounded") {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::int64_t channels : {3, 4, 15, 16, 17, 40}) {
      CAPTURE(dtype);
      CAPTURE(channels);
      const Shape sizes{9, channels, 14, 15};
      const Tensor x = channels_last(random(sizes, dtype, 1, 3, 2));
      const Tensor dy = channels_last(random(sizes, dtype, 2));
      const Tensor w = random({channels}, DType::f32, 3);
      const Tensor b = random({channels}, DType::f32, 4);
      const auto [y, mean, invstd] = batch_norm(x, w, b, {}, {}, true);
      const auto [wide_y, wide_mean, wide_invstd] = batch_norm(x.to(DType::f32), w, b, {}, {}, true);
      CHECK(same_bits(y, wide_y.to(dtype)));
      CHECK(same_bits(mean, wide_mean));
      CHECK(same_bits(invstd, wide_invstd));
      const Outputs r = batch_norm_backward(dy, x, w, mean, invstd, {});
      const Outputs s = batch_norm_backward(dy.to(DType::f32), x.to(DType::f32), w, mean, invstd, {});
      CHECK(same_bits(r[0], s[0].to(dtype)));
      CHECK(same_bits(r[1], s[1]));
      CHECK(same_bits(r[2], s[2]));
    }
}

TEST_CASE("batch_norm: the same bits where rounding is counted") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const Shape& sizes : {Shape{16, 64, 7, 7}, Shape{9, 5, 33, 31}, Shape{70, 6, 2, 1}, Shape{33, 40}}) {
      CAPTURE(to_string(sizes));
      CAPTURE(dtype);
      const Tensor x = random(sizes, dtype, 1, 0.5);
      const Tensor dy = random(sizes, dtype, 2);
      const Tensor w = random({sizes[1]}, DType::f32, 3);
      const Tensor b = random({sizes[1]}, DType::f32, 4);
      const auto all = [&] {
        const NormAttrs attrs{.training = true, .relu = true};
        const auto [y, mean, invstd] = batch_norm(x, w, b, {}, {}, true);
        const Outputs r = batch_norm_backward(dy, x, w, mean, invstd, attrs, b);
        return std::vector<Tensor>{y, mean, invstd, r[0], r[1], r[2]};
      };
      const std::vector<Tensor> plain = all();
      CastCounts counts;
      const CountScope scope(&counts);
      const std::vector<Tensor> counted = all();
      for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], counted[i]));
      CHECK(counts.elements == static_cast<std::uint64_t>(dtype == DType::f32 ? 0 : 2 * x.numel()));
    }
}

TEST_CASE("batch_norm of no channels and of no images") {
  for (const Shape& sizes : {Shape{4, 0}, Shape{4, 0, 3, 3}, Shape{0, 4, 3, 3}}) {
    const Tensor x = zeros(sizes);
    const Tensor w = ones({sizes[1]});
    const auto [y, mean, invstd] = batch_norm(x, w, w, zeros({sizes[1]}), ones({sizes[1]}), false);
    CHECK(y.sizes() == sizes);
    CHECK(batch_norm_backward(x, x, w, mean, invstd, {.training = false})[0].sizes() == sizes);
  }
}

TEST_CASE("batch_norm: the same bits for any number of threads") {
  for (const Shape& s : {Shape{7, 24, 17, 9}, Shape{64, 5, 33, 32}, Shape{4000, 30}}) {
    CAPTURE(to_string(s));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = random(s, dtype, 1, 3, 2);
      const Tensor dy = random(s, dtype, 2);
      const Tensor w = random({s[1]}, DType::f32, 3);
      const Tensor b = random({s[1]}, DType::f32, 4);
      const auto run = [&](int threads) {
        const ThreadsScope scope(threads);
        const auto [y, mean, invstd] = batch_norm(x, w, b, {}, {}, true);
        const Outputs r = batch_norm_backward(dy, x, w, mean, invstd, NormAttrs());
        return std::vector<Tensor>{y, mean, invstd, r[0], r[1], r[2]};
      };
      const std::vector<Tensor> one = run(1);
      for (const int threads : {2, 3, 7}) {
        const std::vector<Tensor> more = run(threads);
        for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], more[i]));
      }
    }
  }
}

TEST_CASE("batch_norm in eval uses the statistics it is given, and its gradient takes them as constants") {
  const Tensor x = random({4, 3, 5, 5}, DType::f32, 1);
  const Tensor mean = from_data(std::vector<double>{0.5, -1, 2}, {3});
  const Tensor var = from_data(std::vector<double>{1, 4, 0.25}, {3});
  const Tensor w = from_data(std::vector<double>{2, 3, 4}, {3});
  const auto [y, m, invstd] = batch_norm(x, w, {}, mean, var, false, 0);
  CHECK(same_bits(m, mean));
  CHECK(invstd.to_vector<double>() == std::vector<double>{1, 0.5, 2});
  const Tensor dy = random({4, 3, 5, 5}, DType::f32, 2);
  NormAttrs attrs;
  attrs.training = false;
  const Outputs r = batch_norm_backward(dy, x, w, m, invstd, attrs);
  const Tensor scale = from_data(std::vector<double>{2, 1.5, 8}, {1, 3, 1, 1});
  CHECK(same_bits(r[0], dy * scale));
  CHECK(same_bits(y, (x - reshape(mean, {1, 3, 1, 1})) * scale));
  const Tensor xhat = (wide(x) - reshape(wide(mean), {1, 3, 1, 1})) * reshape(wide(invstd), {1, 3, 1, 1});
  check_near(r[1], sum(wide(dy) * xhat, {0, 2, 3}), 200);
}

TEST_CASE("batch_norm: a large mean does not drown the variance") {
  // In f32 a sum of squares would lose all of it: (1e4)^2 has a spacing of 8.
  const Tensor x = random({64, 2, 8, 8}, DType::f64, 5, 1e4, 1);
  const Tensor narrow = x.to(DType::f32);
  const Tensor exact = wide(narrow);
  const Tensor var = mean(square(exact - mean(exact, {0, 2, 3}, true)), {0, 2, 3});
  const std::vector<double> want = rsqrt(var + 1e-5).to_vector<double>();
  const std::vector<double> got = batch_norm(narrow, {}, {}, {}, {}, true).invstd.to_vector<double>();
  for (std::size_t i = 0; i < 2; ++i) CHECK(std::abs(got[i] - want[i]) < 1e-5);
}

TEST_CASE("layer_norm and rms_norm over one and two dims") {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const DType p = dtype == DType::f64 ? DType::f64 : DType::f32;
    for (int dims : {1, 2}) {
      for (DType parameters : {p, dtype}) {
        const Shape s{70, 6, 9};
        Shape normalized{9};
        Shape over{2};
        Shape others{0, 1};
        Shape lead{70, 6};
        if (dims == 2) {
          normalized = {6, 9};
          over = {1, 2};
          others = {0};
          lead = {70};
        }
        const Tensor x = random(s, dtype, 1, 1, 2);
        const Tensor dy = random(s, dtype, 2);
        const Tensor w = random(normalized, parameters, 3);
        const Tensor b = random(normalized, parameters, 4);
        NormAttrs attrs;
        attrs.dims = dims;
        const Reference ln = reference(wide(x), wide(dy), wide(w), wide(b), over, others, normalized, 1e-5, true);
        check_near(layer_norm(x, dims, w, b), ln.y, 16);
        const Tensor mean = reshape(ln.mean, lead).to(p);
        const Tensor invstd = reshape(ln.invstd, lead).to(p);
        const Outputs r = layer_norm_backward(dy, x, w, mean, invstd, attrs);
        CHECK(r[1].dtype() == parameters);
        check_near(r[0], ln.dx, 16);
        check_near(r[1], ln.dw, 256);
        check_near(r[2], ln.db, 256);
        check_near(layer_norm(x, dims), reference(wide(x), wide(dy), {}, {}, over, others, normalized, 1e-5, true).y,
                   16);

        check_near(layer_norm(x, dims, {}, b),
                   reference(wide(x), wide(dy), {}, wide(b), over, others, normalized, 1e-5, true).y, 16);

        const Reference rms = reference(wide(x), wide(dy), wide(w), {}, over, others, normalized, 1e-6, false);
        check_near(rms_norm(x, dims, w), rms.y, 16);
        const Outputs q = rms_norm_backward(dy, x, w, reshape(rms.invstd, lead).to(p), attrs);
        check_near(q[0], rms.dx, 16);
        check_near(q[1], rms.dw, 256);

        const Tensor strided = clone(x.transpose(0, 2)).transpose(0, 2);
        CHECK(same_bits(layer_norm(strided, dims, w, b), layer_norm(x, dims, w, b)));
        CHECK(same_bits(layer_norm_backward(dy, strided, w, mean, invstd, attrs)[0], r[0]));
      }
    }
  }
}

// x 2^exponent, exact.
Tensor moved(const Tensor& x, int exponent) { return (wide(x) * std::ldexp(1.0, exponent)).to(x.dtype()); }

// Scaling by a power of two changes no bit of a norm without eps but the scales, also where squares leave the range.
TEST_CASE("layer_norm and rms_norm of huge and tiny numbers are those of ordinary ones") {
  struct Far {
    DType dtype;
    int exponent;
  };
  for (const Far& far_case : {Far{DType::f32, 100}, Far{DType::f32, -100}, Far{DType::bf16, 100}, Far{DType::f64, 900},
                              Far{DType::f64, -900}}) {
    const DType dtype = far_case.dtype;
    const int exponent = far_case.exponent;
    CAPTURE(to_string(dtype));
    CAPTURE(exponent);
    const DType p = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Tensor x = random({5, 100}, dtype, 1, 1, 2);
    const Tensor far = moved(x, exponent);
    const Tensor dy = random({5, 100}, dtype, 2);
    const Tensor w = random({100}, p, 3);
    for (const bool centre : {true, false}) {
      CAPTURE(centre);
      const NormAttrs attrs{.eps = 0, .dims = 1};
      const auto normed = [&](const Tensor& of) {
        return centre ? call_row(OpId::layer_norm, attrs, of, w, Tensor()) : call_row(OpId::rms_norm, attrs, of, w);
      };
      const auto gradients = [&](const Tensor& of, const Outputs& n) {
        return centre ? layer_norm_backward(dy, of, w, n[1], n[2], attrs) : rms_norm_backward(dy, of, w, n[1], attrs);
      };
      const Outputs near_norm = normed(x);
      const Outputs far_norm = normed(far);
      CHECK(same_bits(far_norm[0], near_norm[0]));
      CHECK(same_bits(moved(far_norm[centre ? 2 : 1], exponent), near_norm[centre ? 2 : 1]));
      if (centre) CHECK(same_bits(moved(far_norm[1], -exponent), near_norm[1]));
      const Outputs near_gradient = gradients(x, near_norm);
      const Outputs far_gradient = gradients(far, far_norm);
      CHECK(same_bits(moved(far_gradient[0], exponent), near_gradient[0]));
      CHECK(same_bits(far_gradient[1], near_gradient[1]));
      if (centre) CHECK(same_bits(far_gradient[2], near_gradient[2]));
    }
  }
}

TEST_CASE("norms of numbers whose differences exceed the format are finite") {
  const Tensor x = from_data(std::vector<double>{3e38, -3e38, 3e38, -3e38}, {1, 4});
  CHECK(layer_norm(x, 1).to_vector<double>() == std::vector<double>{1, -1, 1, -1});
  CHECK(rms_norm(x, 1).to_vector<double>() == std::vector<double>{1, -1, 1, -1});
  // The inverse deviation of a channel is subnormal here, and holds 21 bits.
  const double few = 0x1p-20;
  const auto [y, mean, invstd] = batch_norm(x.reshape({4, 1}), {}, {}, {}, {}, true);
  const std::vector<double> normal = y.to_vector<double>();
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::abs(normal[i] - (i % 2 == 0 ? 1 : -1)) < few);
  const Tensor dy = from_data(std::vector<double>{1, 2, 3, 5}, {4, 1});
  const Outputs r = batch_norm_backward(dy, x.reshape({4, 1}), {}, mean, invstd, NormAttrs{});
  CHECK(std::abs(r[1].item() + 3) < 4 * few);
  CHECK(std::abs(r[0].to_vector<double>()[0] * 3e38 - (1 - 2.75 + 0.75)) < 4 * few);
}

TEST_CASE("batch_norm of huge numbers is that of ordinary ones, channel by channel") {
  for (const Shape& s : {Shape{9, 4}, Shape{6, 5, 4, 3}, Shape{300, 20, 2, 3}}) {
    Shape parameter = Shape::filled(s.size(), 1);
    parameter[1] = s[1];
    Shape over{0};
    for (int d = 2; d < s.size(); ++d) over.push_back(d);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const DType p = dtype == DType::f64 ? DType::f64 : DType::f32;
      const Tensor x = random(s, dtype, 1, 3, 2);
      const Tensor dy = random(s, dtype, 2);
      const Tensor w = random({s[1]}, p, 3);
      const Tensor b = random({s[1]}, p, 4);
      std::vector<double> factors(static_cast<std::size_t>(s[1]), 1.0);  // the first two channels are huge
      for (std::size_t c : {0, 1}) factors[c] = dtype == DType::f64 ? 0x1p900 : 0x1p100;
      const Tensor factor = from_data(factors, {s[1]}, {.dtype = DType::f64});
      const Tensor far = (wide(x) * factor.reshape(parameter)).to(dtype);
      for (const bool last : {false, true}) {
        if (last && s.size() != 4) continue;
        const Tensor input = last ? channels_last(x) : x;
        const Tensor far_input = last ? channels_last(far) : far;
        for (const bool relu : {false, true}) {
          CAPTURE(to_string(s));
          CAPTURE(to_string(dtype));
          CAPTURE(last);
          CAPTURE(relu);
          const auto [y, mean, invstd] = batch_norm(input, w, b, {}, {}, true, 0, relu);
          const auto [far_y, far_mean, far_invstd] = batch_norm(far_input, w, b, {}, {}, true, 0, relu);
          check_near(far_y, wide(y), 16);
          check_near((wide(far_mean) / factor).to(p), wide(mean), 8);
          check_near((wide(far_invstd) * factor).to(p), wide(invstd), 4);
          const auto ordinary = [](const Tensor& t, int dim) { return t.narrow(dim, 2, t.size(dim) - 2); };
          CHECK(same_bits(ordinary(far_y, 1), ordinary(y, 1)));
          NormAttrs attrs{.eps = 0, .relu = relu};
          const Outputs r = batch_norm_backward(dy, input, w, mean, invstd, attrs, relu ? b : Tensor());
          const Outputs far_r = batch_norm_backward(dy, far_input, w, far_mean, far_invstd, attrs, relu ? b : Tensor());
          check_near((wide(far_r[0]) * factor.reshape(parameter)).to(dtype), wide(r[0]), 16);
          check_near(far_r[1], wide(r[1]), 64);
          check_near(far_r[2], wide(r[2]), 64);
          CHECK(same_bits(ordinary(far_r[0], 1), ordinary(r[0], 1)));
          CHECK(same_bits(ordinary(far_r[1], 0), ordinary(r[1], 0)));
        }
      }
    }
  }
}

TEST_CASE("batch_norm of tiny numbers is that of ordinary ones") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const int exponent = dtype == DType::f64 ? -600 : -90;
    CAPTURE(to_string(dtype));
    const Tensor x = random({300, 5, 2, 3}, dtype, 1, 3, 2);
    const Tensor dy = random({300, 5, 2, 3}, dtype, 2);
    const Tensor far = moved(x, exponent);
    const auto [y, mean, invstd] = batch_norm(x, {}, {}, {}, {}, true, 0);
    const auto [far_y, far_mean, far_invstd] = batch_norm(far, {}, {}, {}, {}, true, 0);
    check_near(far_y, wide(y), 16);
    check_near(moved(far_mean, -exponent), wide(mean), 8);
    check_near(moved(far_invstd, exponent), wide(invstd), 4);
    const Outputs r = batch_norm_backward(dy, x, {}, mean, invstd, {.eps = 0});
    const Outputs far_r = batch_norm_backward(dy, far, {}, far_mean, far_invstd, {.eps = 0});
    check_near(moved(far_r[0], exponent), wide(r[0]), 16);
    check_near(far_r[1], wide(r[1]), 64);
    check_near(far_r[2], wide(r[2]), 64);
  }
}

TEST_CASE("norms of equal numbers are 0 with a tiny eps too, however large the numbers are") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double eps = dtype == DType::f64 ? 1e-310 : 1e-40;
    for (const double value : {0.0, 1.0, 1e7, 0x1p30, 0x1p33, -0x1p40, 0x1p100}) {
      CAPTURE(to_string(dtype));
      CAPTURE(value);
      const Tensor x = full({4, 2}, value, {.dtype = dtype}).set_requires_grad();
      const Tensor by_row = layer_norm(x, 1, {}, {}, eps);
      const Tensor by_channel = batch_norm(x, {}, {}, {}, {}, true, eps).y;
      for (const Tensor& y : {by_row, by_channel}) {
        CHECK(y.to_vector<double>() == std::vector<double>(8, 0));
        x.set_grad({});
        y.sum().backward();
        CHECK(x.grad().to_vector<double>() == std::vector<double>(8, 0));
      }
    }
  }
}

TEST_CASE("norms of nothing") {
  CHECK(layer_norm(zeros({0, 4}), 1, ones({4})).sizes() == Shape{0, 4});
  NormAttrs attrs;
  const Outputs r = layer_norm_backward(zeros({0, 4}), zeros({0, 4}), ones({4}), zeros({0}), zeros({0}), attrs);
  CHECK(r[1].to_vector<double>() == std::vector<double>(4, 0));
  const Outputs b =
      batch_norm_backward(zeros({0, 2, 3, 3}), zeros({0, 2, 3, 3}), ones({2}), zeros({2}), ones({2}), attrs);
  CHECK(b[2].to_vector<double>() == std::vector<double>(2, 0));
}

TEST_CASE("norms give the same bits on any number of threads") {
  const Tensor x = random({50, 12, 20, 20}, DType::f32, 6);
  const Tensor dy = random({50, 12, 20, 20}, DType::f32, 7);
  const Tensor rows = random({3000, 60}, DType::f32, 8);
  const Tensor drows = random({3000, 60}, DType::f32, 9);
  const auto run = [&](int threads) {
    const ThreadsScope scope(threads);
    std::vector<Tensor> all;
    for (bool last : {false, true}) {
      const Tensor in = last ? channels_last(x) : x;
      const auto [y, mean, invstd] = batch_norm(in, {}, {}, {}, {}, true);
      const Outputs r = batch_norm_backward(dy, in, {}, mean, invstd, {});
      all.insert(all.end(), {y, mean, invstd, r[0], r[1], r[2]});
    }
    const Tensor flat = zeros({3000});
    const Outputs r = layer_norm_backward(drows, rows, {}, flat, flat + 1.0, {});
    all.insert(all.end(), {layer_norm(rows, 1), r[0], r[1], r[2]});
    return all;
  };
  const std::vector<Tensor> one = run(1);
  const std::vector<Tensor> many = run(5);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], many[i]));
}

TEST_CASE("norms say what does not fit") {
  CHECK_THROWS_WITH_AS(batch_norm(zeros({2, 3}), ones({4}), {}, {}, {}, true), doctest::Contains("must be [3]"), Error);
  CHECK_THROWS_WITH_AS(batch_norm(zeros({2, 3}), {}, {}, {}, {}, false), doctest::Contains("running mean"), Error);
  CHECK_THROWS_WITH_AS(batch_norm(zeros({1, 3}), {}, {}, {}, {}, true), doctest::Contains("more than one value"),
                       Error);
  CHECK_THROWS_WITH_AS(layer_norm(zeros({2, 3}), 3), doctest::Contains("3 trailing dims"), Error);
  CHECK_THROWS_WITH_AS(layer_norm(zeros({2, 3}), 1, ones({3}, {.dtype = DType::f16})),
                       doctest::Contains("parameters must be f32"), Error);
}
