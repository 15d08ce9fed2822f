// Gradual's calls of cuBLASLt, tested on the emulated library: what is asked of it, how often, and what happens if it
// refuses or errs.
#include <doctest/doctest.h>

#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gradual/autograd/autograd.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/cuda/runtime/graph.h>
#include <gradual/gradual.h>
#include "../../cuda/kernels/gemm.h"
#include "../doubles/cublasLt.h"
#include "../doubles/cublaslt_switches.h"
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;
using cuda::Activation;
using cuda::Gemm;
using cuda::Matrix;
using cuda::emulator::cublaslt;

// On a thread of its own, which knows no algorithm yet and has no switch set.
template <class F> void afresh(const F& f) {
  std::exception_ptr error;
  std::thread thread([&] {
    try {
      device::select(kGpu);
      f();
    } catch (...) { error = std::current_exception(); }
  });
  thread.join();
  if (error) std::rethrow_exception(error);
}

// Row-major matrices of a product and where they lie: in rows of `pad` more elements, `shift` elements behind an
// aligned address, and stored transposed or not.
struct Where {
  bool a_transposed = false;
  bool b_transposed = false;
  std::int64_t pad = 0;
  std::int64_t shift = 0;
};
struct Product {
  std::int64_t m, n, k, batch;
  Tensor a, b, c, bias, before, row_sums;  // dense, on the GPU; a [batch, m, k]
  Tensor room_a, room_b;
  Gemm g;

  Product(std::int64_t rows, std::int64_t cols, std::int64_t inner, DType dtype, std::int64_t count = 1,
          const Where& at = {}, DType out = DType::bool_)
      : m(rows), n(cols), k(inner), batch(count) {
    const DType to = out != DType::bool_ ? out : is_f8(dtype) ? DType::f32 : dtype;
    a = (drawn({batch, m, k}, 1) * 0.5).to(dtype).to(kGpu);
    b = (drawn({batch, k, n}, 2) * 0.5).to(dtype).to(kGpu);
    c = full({batch, m, n}, std::numeric_limits<double>::quiet_NaN(), {.dtype = to}).to(kGpu);
    g.m = m;
    g.n = n;
    g.k = k;
    g.batch = batch;
    g.a = laid_out(a, at.a_transposed, at, room_a);
    g.b = laid_out(b, at.b_transposed, at, room_b);
    g.c = c.raw();
    g.c_dtype = to;
    g.ldc = n;
    g.c_batch_stride = m * n;
  }
  void add_bias() {
    bias = drawn({n}, 3, g.bias_dtype()).to(kGpu);
    g.bias = bias.raw();
  }
  void end_in_gelu() {
    before = zeros({batch, m, n}, {.dtype = g.c_dtype}).to(kGpu);
    g.activation = Activation::gelu;
    g.before = before.raw();
  }
  void sum_rows() {
    row_sums = zeros({m}, {.dtype = g.c_dtype}).to(kGpu);
    g.row_sums = row_sums.raw();
  }
  static Matrix laid_out(const Tensor& x, bool transposed, const Where& at, Tensor& room) {
    const Tensor t = transposed ? x.transpose(1, 2) : x;
    const std::int64_t ld = t.size(2) + at.pad;
    room = zeros({at.shift + t.size(0) * t.size(1) * ld}, {.dtype = x.dtype()}).to(kGpu);
    const Tensor view = as_strided(room, t.sizes(), {t.size(1) * ld, ld, 1}, at.shift);
    view.copy_(t);
    return {.data = view.raw(),
            .dtype = x.dtype(),
            .transposed = transposed,
            .ld = ld,
            .batch_stride = t.size(0) > 1 ? t.size(1) * ld : 0};
  }
  // a b + bias, in doubles, and the sums of the terms' magnitudes.
  std::pair<std::vector<double>, std::vector<double>> expected(double scale = 1) const {
    const std::vector<double> x = numbers(a);
    const std::vector<double> y = numbers(b);
    const std::vector<double> z = bias.defined() ? numbers(bias) : std::vector<double>();
    std::vector<double> sums, sizes;
    for (std::int64_t i = 0; i < batch * m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = bias.defined() ? z[static_cast<std::size_t>(j)] : 0;
        double size = std::fabs(sum);
        for (std::int64_t l = 0; l < k; ++l) {
          const double term =
              scale * x[static_cast<std::size_t>(i * k + l)] * y[static_cast<std::size_t>((i / m * k + l) * n + j)];
          sum += term;
          size += std::fabs(term);
        }
        sums.push_back(sum);
        sizes.push_back(size);
      }
    return {sums, sizes};
  }
  // Whether c holds f of the sums, of which each is f32 (f64 of f64) and rounded once to c's dtype.
  template <class F> bool holds(const Tensor& t, F f, double slope = 1, double scale = 1) const {
    const std::vector<double> got = numbers(t);
    const auto [sums, sizes] = expected(scale);
    const double half_ulp = float_info(t.dtype()).epsilon / 2;
    const double sum_eps = t.dtype() == DType::f64 ? 0x1p-52 : 0x1p-23;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double slack = static_cast<double>(k + 2) * sum_eps * sizes[i] * slope;
      if (!(std::fabs(got[i] - f(sums[i])) <= half_ulp * std::fabs(f(sums[i])) + 2 * slack + 0x1p-24)) return false;
    }
    return true;
  }
};

double same(double x) { return x; }
double gelu_of(double x) { return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))); }

TEST_CASE("products read operands in place: one library call each, its algorithm chosen once") {
  afresh([] {
    const Where wheres[] = {{},           {.a_transposed = true}, {.b_transposed = true},
                            {true, true}, {true, false, 5, 3},    {false, true, 3, 1}};
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const Where& at : wheres)
        for (const std::int64_t batch : {1, 3})
          for (const bool bias : {false, true}) {
            Product p(7, 13, 5, dtype, batch, at);
            if (bias) p.add_bias();
            cublaslt().heuristics = 0;
            cublaslt().products = 0;
            cuda::gemm(p.g);
            CHECK(p.holds(p.c, same));
            cuda::gemm(p.g);
            CHECK(cublaslt().products == 2);
            CHECK(cublaslt().heuristics == 1);
          }
    Product wide(6, 10, 20, DType::bf16, 1, {}, DType::f32);  // f32 of bf16
    cublaslt().products = 0;
    cuda::gemm(wide.g);
    CHECK(wide.holds(wide.c, same));
    CHECK(cublaslt().products == 1);
  });
}

TEST_CASE("a batch of more products than a grid has blocks goes in parts") {
  afresh([] {
    Product p(2, 3, 2, DType::f32, 70001);
    cuda::gemm(p.g);
    CHECK(cublaslt().products == 3);
    CHECK(p.holds(p.c, same));
  });
}

TEST_CASE("f8 operands with scales, and a bias in bf16") {
  afresh([] {
    const Tensor two = full({1}, 2.0).to(kGpu);
    const Tensor half = full({1}, 0.25).to(kGpu);
    for (const auto& [a, b] : {std::pair{DType::f8e4m3fn, DType::f8e4m3fn}, std::pair{DType::f8e5m2, DType::f8e4m3fn},
                               std::pair{DType::f8e4m3fn, DType::f8e5m2}}) {
      Product p(5, 32, 48, DType::f8e4m3fn, 1, {.b_transposed = true});
      if (a != p.a.dtype()) {
        p.a = p.a.to(DType::f32).to(a);
        p.g.a = Product::laid_out(p.a, false, {}, p.room_a);
      }
      if (b != p.b.dtype()) {
        p.b = p.b.to(DType::f32).to(b);
        p.g.b = Product::laid_out(p.b, true, {}, p.room_b);
      }
      p.add_bias();
      CHECK(p.bias.dtype() == DType::bf16);
      p.g.a.scale = static_cast<const float*>(two.raw());
      p.g.b.scale = static_cast<const float*>(half.raw());
      REQUIRE(cuda::multiplies_f8(p.g));
      cublaslt().products = 0;
      cuda::gemm(p.g);
      CHECK(cublaslt().products == 1);
      CHECK(p.holds(p.c, same, 1, 0.5));
    }
    Product wide(16, 16, 16, DType::f8e5m2, 1, {.b_transposed = true});
    Product plain(16, 16, 16, DType::f8e4m3fn);
    Product odd(16, 16, 24, DType::f8e4m3fn, 1, {.b_transposed = true});
    Product shifted(16, 16, 16, DType::f8e4m3fn, 1, {.b_transposed = true, .pad = 16, .shift = 8});
    for (const Product* p : {&wide, &plain, &odd, &shifted}) CHECK_FALSE(cuda::multiplies_f8(p->g));
  });
}

TEST_CASE("TF32 is requested if allowed, and rounds the operands") {
  afresh([] {
    Product p(4, 8, 16, DType::f32);
    const Tensor fine = full({1, 4, 16}, 1 + 0x1p-12).to(kGpu);
    p.g.a.data = fine.raw();
    p.b.fill_(1);
    p.g.b.data = p.b.raw();
    cuda::gemm(p.g);
    CHECK(numbers(p.c)[0] == 16 * (1 + 0x1p-12));
    p.g.tf32 = true;
    cuda::gemm(p.g);
    CHECK(numbers(p.c)[0] == 16);
  });
}

TEST_CASE("a product that the library refuses runs in our kernel, and is not requested again") {
  for (const bool at_run : {false, true})
    afresh([&] {
      Product p(9, 8, 7, DType::f16);
      p.add_bias();
      (at_run ? cublaslt().refuses_to_run : cublaslt().knows_no_algorithm) = true;
      cuda::gemm(p.g);
      CHECK(p.holds(p.c, same));
      CHECK(cublaslt().products == 0);
      cublaslt() = {};
      cuda::gemm(p.g);
      CHECK(cublaslt().heuristics == 0);
      CHECK(cublaslt().products == 0);
    });
}

TEST_CASE("where the library does not run what it chose, its next choice is taken") {
  afresh([] {
    Product p(9, 8, 7, DType::f16);
    cublaslt().refuses_best = true;
    for (int i = 1; i < 3; ++i) {
      cuda::gemm(p.g);
      CHECK(cublaslt().products == i);
      CHECK(cublaslt().heuristics == 2);
    }
    CHECK(p.holds(p.c, same));
  });
}

TEST_CASE("a relu that drops NaN is detected, and ours runs after the product") {
  for (const bool drops : {false, true})
    afresh([&] {
      cublaslt().relu_drops_nan = drops;
      for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
        for (const bool biased : {false, true}) {
          Tensor x = drawn({6, 4}, 1, dtype);
          Tensor w = drawn({24, 4}, 2, dtype);
          Tensor bias;
          x.select(0, 2).fill_(std::numeric_limits<double>::quiet_NaN());
          if (biased) bias = drawn({24}, 3, dtype);
          const Tensor gx = x.to(kGpu);
          const Tensor gw = w.to(kGpu);
          const Tensor gb = biased ? bias.to(kGpu) : bias;
          const std::vector<double> cpu = numbers(linear_relu(x, w, bias));
          cublaslt().products = 0;
          for (int i = 0; i < 2; ++i) {
            const std::vector<double> gpu = numbers(linear_relu(gx, gw, gb));
            for (std::size_t j = 0; j < cpu.size(); ++j) {
              CHECK(std::isnan(gpu[j]) == std::isnan(cpu[j]));
              CHECK_FALSE(gpu[j] < 0);
            }
          }
          CHECK(cublaslt().products == 3);  // to look, then two results, by relu or without
          cublaslt().products = 0;
          Product p(6, 24, 4, dtype, 1, {.b_transposed = true});
          if (biased) p.add_bias();
          p.g.activation = Activation::relu;
          CHECK(cuda::fused_gemm(p.g) == !drops);
        }
    });
}

TEST_CASE("while a stream is captured no library's relu is looked at") {
  afresh([] {
    const Tensor x = drawn({8, 16}, 1).to(kGpu);
    const Tensor w = drawn({24, 16}, 2).to(kGpu);
    const auto capture = [&] {
      Tensor y;
      cuda::Graph graph;
      cublaslt().products = 0;
      graph.capture([&] { y = linear_relu(x, w); });
      graph.replay();
      CHECK(same_numbers(y, relu(linear(x, w))));
    };
    capture();
    CHECK(cublaslt().products == 2);  // the captured one, and linear
    linear_relu(x, w);                // looks
    Product p(8, 24, 16, DType::f32, 1, {.b_transposed = true});
    p.g.activation = Activation::relu;
    cublaslt().products = 0;
    CHECK(cuda::fused_gemm(p.g));
    CHECK(cublaslt().products == 1);
    capture();
  });
}

TEST_CASE("gelu in the product, and its argument") {
  afresh([] {
    for (const DType dtype : {DType::f16, DType::bf16})
      for (const bool biased : {false, true})
        for (const std::int64_t batch : {1, 2}) {
          Product p(5, 16, 9, dtype, batch);
          if (biased) p.add_bias();
          p.end_in_gelu();
          REQUIRE(cuda::fused_gemm(p.g));
          CHECK(p.holds(p.before, same));
          CHECK(p.holds(p.c, gelu_of, 1.2));
          p.a.fill_(std::numeric_limits<double>::quiet_NaN());
          p.g.a.data = p.a.raw();
          REQUIRE(cuda::fused_gemm(p.g));
          for (const double y : numbers(p.c)) CHECK(std::isnan(y));
        }
    Product odd(5, 12, 9, DType::f16);  // rows that are no multiple of 8 elements
    odd.end_in_gelu();
    cublaslt().heuristics = 0;
    CHECK_FALSE(cuda::fused_gemm(odd.g));
    CHECK(cublaslt().heuristics == 0);
  });
}

TEST_CASE("row sums with the product, where they are f32") {
  for (const bool narrow : {false, true})
    afresh([&] {
      cublaslt().narrow_row_sums = narrow;
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const bool transposed : {false, true}) {
          CAPTURE(to_string(dtype));
          Product p(11, 16, 300, dtype, 1, {.a_transposed = transposed});
          p.sum_rows();
          Product none = p;  // the same memory
          const Tensor nothing = zeros({1, 11, 300}, {.dtype = dtype}).to(kGpu);
          none.g.a = Product::laid_out(nothing, transposed, {}, none.room_a);
          CHECK_FALSE(cuda::fused_gemm(none.g));  // zeros say nothing
          const bool trusted = cuda::fused_gemm(p.g);
          CHECK(trusted == (!narrow || dtype == DType::f32));
          if (!trusted) continue;
          CHECK(p.holds(p.c, same));
          CHECK(numbers(p.row_sums).size() == 11);
          const std::vector<double> sums = numbers(sum(p.a.to(DType::f64), {0, 2}));
          const std::vector<double> got = numbers(p.row_sums);
          for (std::size_t i = 0; i < 11; ++i)
            CHECK(std::fabs(got[i] - sums[i]) <= float_info(dtype).epsilon * std::fabs(sums[i]) + 300 * 0x1p-23 * 150);
          CHECK(cuda::fused_gemm(none.g));  // known by now
        }
    });
}

TEST_CASE("a linear layer with gelu and its gradients are three products") {
  afresh([] {
    const auto products = [](DType dtype, Gelu form) {
      Tensor x = drawn({8, 16}, 1, dtype).to(kGpu).detach();
      Tensor w = drawn({24, 16}, 2, dtype).to(kGpu).detach();
      Tensor b = drawn({24}, 3, dtype).to(kGpu).detach();
      for (Tensor* t : {&x, &w, &b}) t->set_requires_grad();
      std::vector<std::string> kernels;
      for (int i = 0; i < 2; ++i) {  // the first time looks at what the library does
        cublaslt().products = 0;
        const Tensor y = linear_gelu(x, w, b, form);
        const Tensor dy = ones_like(y);
        device::Watch watch(kGpu);
        autograd::grad({y}, {x, w, b}, {dy});
        kernels = watch.stop().kernels;
      }
      CHECK(cublaslt().products == 3);
      return kernels.size();
    };
    for (const Gelu form : {Gelu::exact, Gelu::tanh})
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        CHECK(products(dtype, form) == 3);  // gelu's slope, and two products: db comes with dw
  });
}

TEST_CASE("no fusion under an accumulator, with counts, or for wide dtypes") {
  afresh([] {
    Product p(8, 24, 16, DType::f16, 1, {.b_transposed = true});
    const Tensor x = p.a.reshape({8, 16});
    const Tensor w = p.b.reshape({16, 24}).t().contiguous();
    const auto kernels = [&](DType dtype, Gelu form) {
      device::Watch watch(kGpu);
      linear_gelu(x.to(dtype), w.to(dtype), {}, form);
      return watch.stop().kernels.size() - (dtype == DType::f16 ? 0 : 2);  // without the casts
    };
    CHECK(kernels(DType::f16, Gelu::tanh) == 1);
    CHECK(kernels(DType::f16, Gelu::exact) == 2);
    CHECK(kernels(DType::f32, Gelu::tanh) == 2);
    CHECK(kernels(DType::f64, Gelu::tanh) == 2);
    CastCounts counts;
    const CountScope counted(&counts);
    CHECK(kernels(DType::f16, Gelu::tanh) > 2);
    CHECK(counts.elements == 2 * 8 * 24);
  });
}

TEST_CASE("row sums that never say anything are given up") {
  afresh([] {
    Product p(8, 16, 20, DType::bf16);
    p.sum_rows();
    p.a.fill_(0);
    p.g.a = Product::laid_out(p.a, false, {}, p.room_a);
    for (int i = 0; i < 30; ++i) CHECK_FALSE(cuda::fused_gemm(p.g));
    CHECK(cublaslt().products == 16);
  });
}

TEST_CASE("a bias between multiples of 16 bytes is copied to one") {
  afresh([] {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const Tensor x = drawn({6, 16}, 1, dtype).to(kGpu);
      const Tensor w = drawn({24, 16}, 2, dtype).to(kGpu);
      const Tensor room = drawn({25}, 3, dtype).to(kGpu);
      const Tensor bias = room.narrow(0, 1, 24);
      REQUIRE(reinterpret_cast<std::uintptr_t>(bias.raw()) % 16 != 0);
      cublaslt().products = 0;
      const Tensor y = linear(x, w, bias);
      CHECK(cublaslt().products == 1);
      CHECK(same_numbers(y, linear(x, w, bias.clone())));
    }
  });
}

TEST_CASE("a bias that the library calls invalid is added by our kernel") {
  afresh([] {
    cublaslt().calls_bias_invalid = true;
    Product p(9, 1, 7, DType::f16);
    p.add_bias();
    cuda::gemm(p.g);
    CHECK(cublaslt().products == 0);
    CHECK(p.holds(p.c, same));
  });
}

TEST_CASE("f8 operands whose scales the library calls invalid are multiplied by our kernel") {
  afresh([] {
    cublaslt().calls_scales_invalid = true;
    const Tensor two = full({1}, 2.0).to(kGpu);
    Product p(5, 32, 48, DType::f8e4m3fn, 1, {.b_transposed = true});
    p.g.b.scale = static_cast<const float*>(two.raw());
    cuda::gemm(p.g);
    CHECK(cublaslt().products == 0);
    CHECK(p.holds(p.c, same, 1, 2));
  });
}

TEST_CASE("sizes beyond 32 bits are no question for the library") {
  afresh([] {
    Product p(2, 8, 4, DType::f16);
    p.g.activation = Activation::relu;
    p.g.m = std::int64_t{1} << 31;
    CHECK_FALSE(cuda::fused_gemm(p.g));
    CHECK(cublaslt().heuristics == 0);
  });
}

TEST_CASE("a library that chooses nothing in a capture needs a step before it") {
  afresh([] {
    cublaslt().fails_in_capture = true;
    const Tensor x = drawn({8, 16}, 1).to(kGpu);
    const Tensor w = drawn({24, 16}, 2).to(kGpu);
    Tensor y;
    const auto step = [&] { y = linear(x, w); };
    CHECK_THROWS_WITH(cuda::Graph().capture(step), doctest::Contains("run the step once before capture()"));
    step();
    const Tensor before = y;
    cuda::Graph graph;
    graph.capture(step);
    graph.replay();
    CHECK(same_numbers(y, before));
  });
}

}  // namespace
}  // namespace gradual
