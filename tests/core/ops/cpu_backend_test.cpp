// oneDNN against Eigen: that it is asked, how far the two may differ, and how repeatable its bits are.
#include <doctest/doctest.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/ops/dispatch.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/cpu_isa.h>
#include <gradual/core/support/threads.h>
#include <gradual/core/tensor/memory.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/cpu_backends.h"

using namespace gradual;

namespace {

bool skipped() {
  if (!has_onednn()) MESSAGE("skipped: " << onednn_description());
  return !has_onednn();
}

Tensor random(const Shape& sizes, DType dtype, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {.dtype = DType::f64}, g).to(dtype);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0;
}

template <class F> auto with(CpuBackend backend, const F& f) {
  const CpuBackendScope scope(backend);
  return f();
}

// With as many threads.
template <class F> auto threaded(int threads, const F& f) {
  const ThreadsScope scope(threads);
  return f();
}

// Whether oneDNN computes op(a, b) into y.
bool takes(OpId op, const Tensor& a, const Tensor& b, const ConvAttrs& attrs, const Tensor& y) {
  Outputs out;
  out[0] = y;
  const Attrs held(attrs);
  const Tensor* const inputs[] = {&a, &b};
  const OpCall call{op, TensorRefs(inputs, 2), &held, SourceLocation::current()};
  return columns().onednn[static_cast<int>(op)](call, out);
}

// Each backend is within (k + 1) 2^-24 of the sum of |a b|, whatever the order of its sums, so two are within twice
// that; both round once to the output's dtype.
void check_bound(const Tensor& a, const Tensor& b) {
  const auto product = [&] { return matmul(a, b); };
  const Tensor one = with(CpuBackend::eigen, product);
  const Tensor two = with(CpuBackend::onednn, product);
  const Tensor size = matmul(abs(a.to(DType::f64)), abs(b.to(DType::f64)));
  const std::int64_t k = a.size(-1);
  const auto y1 = one.to_vector<double>();
  const auto y2 = two.to_vector<double>();
  const auto s = size.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    const double rounding = one.dtype() == DType::f32 ? 0 : float_info(one.dtype()).epsilon * std::abs(y1[i]);
    const double bound = 2 * static_cast<double>(k + 1) * 0x1p-24 * s[i] + rounding + 0x1p-126;
    worst = std::max(worst, std::abs(y1[i] - y2[i]) / bound);
  }
  CAPTURE(to_string(a.sizes()));
  CAPTURE(to_string(a.dtype()));
  CHECK(worst <= 1);
}

}  // namespace

TEST_CASE("the backend is read, set and restored") {
  CHECK(to_string(CpuBackend::eigen) == "eigen");
  CHECK(to_string(CpuBackend::fast) == "fast");
  CHECK(cpu_backend() == testing::cpu_backends().back());
  const CpuBackend before = cpu_backend();
  {
    const CpuBackendScope scope(CpuBackend::eigen);
    CHECK(cpu_backend() == CpuBackend::eigen);
  }
  CHECK(cpu_backend() == before);
  if (has_onednn()) CHECK(onednn_description().starts_with("oneDNN "));
  else CHECK_THROWS_WITH_AS(set_cpu_backend(CpuBackend::onednn), doctest::Contains("not built with oneDNN"), Error);
  if (!has_fast()) CHECK_THROWS_WITH_AS(set_cpu_backend(CpuBackend::fast), doctest::Contains("GRADUAL_FAST=ON"), Error);
}

TEST_CASE("oneDNN is used: a long sum has another order, so other bits, than Eigen's") {
  if (skipped()) return;
  const Tensor a = random({64, 3000}, DType::f32, 1);
  const Tensor b = random({3000, 64}, DType::f32, 2);
  const auto product = [&] { return matmul(a, b); };
  CHECK_FALSE(same_bits(with(CpuBackend::eigen, product), with(CpuBackend::onednn, product)));
}

TEST_CASE("the backends differ by no more than the order of sums allows") {
  if (skipped()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3fn, DType::f8e5m2}) {
    for (const Shape& s : {Shape{1, 1, 1}, Shape{3, 5, 700}, Shape{130, 70, 257}, Shape{16, 1, 33}, Shape{1, 16, 33}}) {
      const Tensor a = random({s[0], s[2]}, dtype, 3);
      const Tensor b = random({s[2], s[1]}, dtype, 4);
      check_bound(a, b);
      check_bound(clone(a.t()).t(), clone(b.t()).t());
    }
    const Tensor w = random({40, 11}, dtype, 15);
    check_bound(random({1, 1, 40}, dtype, 16).expand({6, 1, 40}), w);  // one row, repeated
    check_bound(random({40}, dtype, 17), random({90}, dtype, 18).index({Slice{0, 80, 2}}).unsqueeze(1));
    check_bound(random({5}, dtype, 19).index({Slice{0, 1, 5}}).unsqueeze(0), random({1, 4}, dtype, 20));
    check_bound(random({3, 1, 9, 40}, dtype, 5), random({2, 40, 11}, dtype, 6));
    check_bound(random({4, 9, 40}, dtype, 7), random({4, 11, 40}, dtype, 8).transpose(1, 2));
  }
}

TEST_CASE("the backends differ by no more than that in large products, with and without a bias") {
  if (skipped()) return;
  const Tensor x = random({520, 512}, DType::f32, 21);
  const Tensor w = random({530, 512}, DType::f32, 22);
  check_bound(x, w.t());
  check_bound(clone(x.t()).t(), clone(w.t()));
  const Tensor bias = random({530}, DType::f32, 23);
  const auto with_bias = [&] { return linear(x, w, bias); };
  const Tensor difference = with(CpuBackend::eigen, with_bias) - with(CpuBackend::onednn, with_bias);
  const Tensor size = matmul(abs(x.to(DType::f64)), abs(w.to(DType::f64)).t()) + abs(bias.to(DType::f64));
  CHECK((abs(difference.to(DType::f64)) / (size * (2 * 514 * 0x1p-24))).max().item() <= 1);
}

TEST_CASE("large products of f16 go in blocks of rows or columns") {
  if (skipped()) return;
  for (const Shape& s : {Shape{1200, 300, 900}, Shape{300, 1200, 900}, Shape{1100, 1090, 40}}) {
    const std::int64_t m = s[0];
    const std::int64_t n = s[1];
    const std::int64_t k = s[2];
    const Tensor a = random({m, k}, DType::f16, 24);
    const Tensor b = random({k, n}, DType::f16, 25);
    const Tensor bias = random({n}, DType::f16, 26);
    const Tensor at = clone(a.t()).t();
    const Tensor bt = clone(b.t());
    for (const Tensor& left : {a, at})
      for (const Tensor& right : {b, bt.t()}) check_bound(left, right);
    const std::vector<std::function<Tensor()>> products{
        [&] { return matmul(a, b); }, [&] { return matmul(at, bt.t()); }, [&] { return linear(a, bt, bias); },
        [&] {
          return linear(a.reshape({2, m / 2, k}), bt, bias).reshape({m, n});
        }};
    for (const auto& product : products) {
      const bool before = deterministic();
      set_deterministic(true);
      const Tensor one = threaded(1, product);
      for (const int threads : {2, 3}) CHECK(same_bits(one, threaded(threads, product)));
      set_deterministic(before);
      CastCounts counts;
      {
        const CountScope counting(&counts);
        threaded(2, product);
      }
      CHECK(counts.elements == static_cast<std::uint64_t>(m * n));
      const std::int64_t used = memory_stats().total.current;
      reset_peak_memory();
      threaded(1, product);
      // the result, and in f32 the operand of the shorter side and half of what lies along the longer one
      const std::int64_t both = std::max(m, n) * k + m * n;
      CHECK(memory_stats().total.peak - used <= 2 * m * n + 4 * (std::min(m, n) * k + both / 2));
    }
    const Tensor y = linear(a, bt, bias);
    CHECK(same_bits(linear_relu(a, bt, bias), relu(y)));
    const Tensor exact = matmul(a.to(DType::f64), b.to(DType::f64)) + bias.to(DType::f64);
    const Tensor size = matmul(abs(a.to(DType::f64)), abs(b.to(DType::f64))) + abs(bias.to(DType::f64));
    const Tensor bound = size * (static_cast<double>(k + 2) * 0x1p-24) + abs(exact) * 0x1.01p-11 + 0x1p-25;
    CHECK((abs(y.to(DType::f64) - exact) / bound).max().item() <= 1);
  }
}

TEST_CASE("small and large numbers of every dtype are multiplied, subnormal ones may be flushed") {
  if (skipped()) return;
  for (const DType dtype : {DType::f16, DType::f8e4m3fn, DType::f8e5m2}) {
    // their subnormals are normal in bf16 and f32: nothing is lost
    const Tensor smallest = full({1, 1}, float_info(dtype).min_subnormal, {.dtype = dtype});
    CHECK(matmul(smallest, ones({1, 1}, {.dtype = dtype})).item() == smallest.item());
  }
  const Tensor huge = full({1, 2}, 3e38, {.dtype = DType::bf16});
  CHECK(std::isinf(matmul(huge, ones({2, 1}, {.dtype = DType::bf16})).item()));
}

TEST_CASE("the same bits from run to run, and in deterministic mode for any number of threads") {
  if (skipped()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor a = random({700, 900}, dtype, 9);
    const Tensor b = random({900, 600}, dtype, 10);
    const Tensor at = clone(a.t()).t();
    const Tensor bias = random({600}, dtype, 11);
    const Tensor w = clone(b.t());
    const std::vector<std::function<Tensor()>> products{[&] { return matmul(a, b); }, [&] { return matmul(at, b); },
                                                        [&] { return linear(a, w, bias); }};
    for (const auto& product : products) {
      CHECK(same_bits(product(), product()));
      CHECK(same_bits(threaded(2, product), threaded(2, product)));
      set_deterministic(true);
      const Tensor one = threaded(1, product);
      for (const int threads : {2, 3}) CHECK(same_bits(one, threaded(threads, product)));
      set_deterministic(false);
      CHECK_FALSE(deterministic());
    }
  }
}

TEST_CASE("a product's rounding is counted on each backend") {
  const Tensor a = random({20, 30}, DType::bf16, 12);
  const Tensor b = random({30, 20}, DType::bf16, 13);
  for (const CpuBackend backend : testing::cpu_backends()) {
    const CpuBackendScope scope(backend);
    CastCounts counts;
    {
      const CountScope counting(&counts);
      matmul(a, b);
    }
    CHECK(counts.elements == 400);
  }
}

TEST_CASE("oneDNN takes gradients of convolutions in every dtype, written as f32 too") {
  if (skipped()) return;
  const ConvAttrs attrs{{.padding = 1}, {14, 14}};
  const ConvAttrs kernel{{.padding = 1}, {3, 3}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3fn}) {
    CAPTURE(to_string(dtype));
    const Tensor dy = random({8, 32, 14, 14}, dtype, 21);
    const Tensor w = random({32, 16, 3, 3}, dtype, 22);
    const Tensor x = random({8, 16, 14, 14}, dtype, 23);
    CastCounts counts;
    const CountScope counting(&counts);  // so that sums come as f32
    CHECK(takes(OpId::conv2d_backward_input, dy, w, attrs, conv2d_backward_input(dy, w, attrs)));
    CHECK(takes(OpId::conv2d_backward_weight, dy, x, kernel, conv2d_backward_weight(dy, x, kernel)));
  }
}

// Each sum of k exact products is within k 2^-23 of the sum of their magnitudes, and rounded once.
void check_convolution(const Tensor& got, const Tensor& want, const Tensor& magnitudes, std::int64_t k) {
  const double last = got.dtype() == DType::bf16 ? std::ldexp(1, -8) : 0;
  const auto a = got.to_vector<double>();
  const auto b = want.to_vector<double>();
  const auto m = magnitudes.to_vector<double>();
  REQUIRE(a.size() == b.size());
  const auto is_near = [&](std::size_t i) {
    const double bound = std::ldexp(static_cast<double>(k), -23) * m[i] + last * std::abs(b[i]) + 1e-30;
    return std::abs(a[i] - b[i]) <= bound;
  };
  std::size_t far = 0;
  for (std::size_t i = 0; i < a.size(); ++i) far += is_near(i) ? 0 : 1;
  CHECK(far == 0);
}

TEST_CASE("convolutions of batches in parts, the last of them smaller, and of images below 16 pixels") {
  if (skipped()) return;
  struct Case {
    std::int64_t images, in, out, size;
  };
  for (const Case& c : {Case{19, 16, 32, 33}, Case{23, 32, 16, 20}, Case{5, 48, 32, 3}}) {
    CAPTURE(c.size);
    const ConvAttrs attrs{{.padding = 1}};
    const ConvAttrs input{{.padding = 1}, {c.size, c.size}};
    const ConvAttrs kernel{{.padding = 1}, {3, 3}};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(to_string(dtype));
      const Tensor x = random({c.images, c.in, c.size, c.size}, dtype, 31);
      const Tensor w = random({c.out, c.in, 3, 3}, dtype, 32);
      const Tensor dy = random({c.images, c.out, c.size, c.size}, dtype, 33);
      const auto wide = [](const Tensor& t) { return t.to(DType::f64); };
      const auto size = [](const Tensor& t) { return abs(t.to(DType::f64)); };
      const Tensor y = conv2d(wide(x), wide(w), {}, attrs);
      const Tensor ys = conv2d(size(x), size(w), {}, attrs);
      const Tensor dx = conv2d_backward_input(wide(dy), wide(w), input);
      const Tensor dxs = conv2d_backward_input(size(dy), size(w), input);
      const Tensor dw = conv2d_backward_weight(wide(dy), wide(x), kernel);
      const Tensor dws = conv2d_backward_weight(size(dy), size(x), kernel);
      for (const bool on : {false, true}) {
        set_deterministic(on);
        for (const int threads : {1, 2, 3}) {
          const ThreadsScope scope(threads);
          check_convolution(conv2d(x, w, {}, attrs), y, ys, 9 * c.in);
          check_convolution(conv2d_backward_input(dy, w, input), dx, dxs, 9 * c.out);
          check_convolution(conv2d_backward_weight(dy, x, kernel), dw, dws, c.images * c.size * c.size);
        }
      }
      set_deterministic(false);
    }
  }
}

// Sums in the order of k by fused multiply-adds, starting from the bias: the bits of the fast small products.
Tensor fused(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const std::int64_t m = x.size(0);
  const std::int64_t n = w.size(0);
  const std::int64_t k = x.size(1);
  const auto xs = x.to_vector<float>();
  const auto ws = w.to_vector<float>();
  const auto start = bias.to_vector<float>();
  std::vector<float> y;
  for (std::int64_t i = 0; i < m * n; ++i) {
    float sum = start[static_cast<std::size_t>(i % n)];
    for (std::int64_t p = 0; p < k; ++p)
      sum = std::fma(xs[static_cast<std::size_t>(i / n * k + p)], ws[static_cast<std::size_t>(i % n * k + p)], sum);
    y.push_back(sum);
  }
  return from_data(y, {m, n});
}

TEST_CASE("with AVX-512 our kernel computes small products of any shape and strides") {
  if (skipped() || cpu_isa() < CpuIsa::avx512) return;
  for (const Shape& s : {Shape{8, 8, 1}, Shape{9, 10, 33}, Shape{15, 16, 4}, Shape{32, 48, 64}, Shape{11, 61, 700}}) {
    CAPTURE(to_string(s));
    const Tensor x = random({s[0], s[2]}, DType::f32, 31);
    const Tensor w = random({s[1], s[2]}, DType::f32, 32);
    const Tensor bias = random({s[1]}, DType::f32, 33);
    const Tensor none = zeros({s[1]});
    CHECK(same_bits(linear(x, w, bias), fused(x, w, bias)));
    CHECK(same_bits(linear(clone(x.t()).t(), clone(w.t()).t(), bias), fused(x, w, bias)));
    CHECK(same_bits(matmul(x, w.t()), fused(x, w, none)));
    CHECK(same_bits(matmul(x, clone(w.t())), fused(x, w, none)));
    const Tensor wide = zeros({s[0], 2 * s[2]});
    const Tensor gapped = slice(wide, 1, {.start = {}, .stop = {}, .step = 2});
    gapped.copy_(x);
    CHECK(same_bits(matmul(gapped, w.t()), fused(x, w, none)));
  }
}

TEST_CASE("scratch memory of primitives is given back") {
  if (skipped()) return;
  const Tensor a = random({300, 300}, DType::f32, 14);
  const std::int64_t before = memory_stats()[Category::workspace].current;
  matmul(a.t(), a);
  CHECK(memory_stats()[Category::workspace].current == before);
}
