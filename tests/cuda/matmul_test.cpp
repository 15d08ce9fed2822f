// What the op table does not ask of matmul and linear on a GPU: accumulators, TF32, counts, batches of odd strides.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gradual/core/formats/accumulator.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/cuda.h>
#include <gradual/gradual.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

// How far sums of k products may lie apart that are added up in different orders and stored in `dtype`.
void check_close(const Tensor& gpu, const Tensor& cpu, std::int64_t k, double eps = 0x1p-23) {
  REQUIRE(gpu.dtype() == cpu.dtype());
  REQUIRE(gpu.sizes() == cpu.sizes());
  const std::vector<double> x = numbers(gpu);
  const std::vector<double> y = numbers(cpu);
  const double store = float_info(cpu.dtype()).epsilon;
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    CHECK(std::fabs(x[i] - y[i]) <= (static_cast<double>(k) * eps * 4 + store) * (1 + std::fabs(y[i])));
  }
}

TEST_CASE("an accumulator gives the CPU's bits") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3fn}) {
    const Tensor a = drawn({9, 150}, 1, dtype);
    const Tensor w = drawn({7, 150}, 2, dtype);
    const Tensor bias = drawn({7}, 3, dtype);
    const Tensor there[] = {a.to(kGpu), w.to(kGpu), bias.to(kGpu)};
    for (const std::string name :
         {"f32", "f64", "fp16-acc", "bf16-acc", "hopper-fp8-14bit", "fp16-acc:up", "e5m7:down", "bf16-acc:to-odd",
          "e4m3:nearest-away", "e3m2fn", "fp16-acc/chunk=64", "bf16-acc/chunk=7", "hopper-fp8-14bit/promote=128",
          "e5m4/chunk=3/promote=10", "f32/promote=64"}) {
      const AccumulatorScope scope(accumulator(name));
      CAPTURE(name);
      CAPTURE(gradual::to_string(dtype));
      CHECK(numbers(linear(there[0], there[1], there[2])) == numbers(linear(a, w, bias)));
      CHECK(numbers(matmul(there[0], there[1].t())) == numbers(matmul(a, w.t())));
      CHECK(numbers(matmul(there[0].narrow(1, 0, 0), there[1].narrow(1, 0, 0).t())) == std::vector<double>(63));
    }
  }
}

TEST_CASE("batches wherever their matrices lie") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f8e5m2}) {
    const Tensor x = drawn({2, 3, 5, 8}, 1, dtype);
    const Tensor y = drawn({3, 8, 6}, 2, dtype);
    const Tensor w = drawn({8, 6}, 3, dtype);
    const Tensor gx = x.to(kGpu);
    const Tensor gy = y.to(kGpu);
    const Tensor gw = w.to(kGpu);
    check_close(matmul(gx, gy), matmul(x, y), 8);                                  // strides 0 and not
    check_close(matmul(gx, gw), matmul(x, w), 8);                                  // one tall matrix
    check_close(matmul(gx.transpose(1, 2), gw), matmul(x.transpose(1, 2), w), 8);  // no such
    check_close(matmul(gx.transpose(0, 1), gy.select(0, 1)), matmul(x.transpose(0, 1), y.select(0, 1)), 8);
    check_close(matmul(gy.transpose(1, 2), gx.transpose(2, 3)), matmul(y.transpose(1, 2), x.transpose(2, 3)), 8);
    check_close(matmul(gx.select(1, 0), gy.narrow(0, 0, 1)), matmul(x.select(1, 0), y.narrow(0, 0, 1)), 8);
    check_close(matmul(gw.t(), gx.transpose(2, 3)), matmul(w.t(), x.transpose(2, 3)), 8);
    check_close(matmul(gw.narrow(1, 1, 1).t(), gy), matmul(w.narrow(1, 1, 1).t(), y), 8);
    check_close(matmul(gw.select(1, 2), gy.select(2, 1).t()), matmul(w.select(1, 2), y.select(2, 1).t()), 8);
    check_close(matmul(gx.narrow(3, 0, 1).expand({2, 3, 5, 8}), gy), matmul(x.narrow(3, 0, 1).expand({2, 3, 5, 8}), y),
                8);
  }
}

// A library that is allowed TF32 need not use it, and its tensor cores may cut the operands instead of rounding them:
// what holds is that each product is off by 2^-9 of itself at most, and none where TF32 is not allowed, or of f64.
TEST_CASE("TF32 costs the operands' last bits, and only those of f32") {
  if (!have_gpu()) return;
  const Tensor a = drawn({20, 64}, 1);
  const Tensor b = drawn({64, 24}, 2);
  const Tensor a64 = a.to(DType::f64);
  const Tensor b64 = b.to(DType::f64);
  const std::vector<double> exact = numbers(matmul(a64, b64));
  const std::vector<double> size = numbers(matmul(abs(a64), abs(b64)));
  const auto far = [&](const Tensor& y) {  // the largest error, of the size of the terms
    const std::vector<double> got = numbers(y);
    double most = 0;
    for (std::size_t i = 0; i < got.size(); ++i) most = std::max(most, std::fabs(got[i] - exact[i]) / size[i]);
    return most;
  };
  CHECK(far(matmul(a.to(kGpu), b.to(kGpu))) <= 64 * 0x1p-24);
  const MatmulPrecisionScope scope(MatmulPrecision::tf32);
  CHECK(far(matmul(a.to(kGpu), b.to(kGpu))) <= 0x1p-9 + 64 * 0x1p-23);
  CHECK(far(matmul(a64.to(kGpu), b64.to(kGpu))) <= 64 * 0x1p-53);
}

TEST_CASE("f8 products are exact, and may be those of f8 instructions") {
  if (!have_gpu()) return;
  for (const std::int64_t k : {64, 72}) {  // 72 is not a multiple of 16
    const Tensor x = drawn({16, k}, 1, DType::f8e4m3fn);
    const Tensor w = drawn({32, k}, 2, DType::f8e4m3fn);
    const Tensor bias = drawn({32}, 3, DType::f8e4m3fn);
    const Tensor gx = x.to(kGpu);
    const Tensor gw = w.to(kGpu);
    const Tensor gb = bias.to(kGpu);
    check_close(linear(gx, gw, gb), linear(x, w, bias), k);
    const FastF8Scope scope(true);
    check_close(linear(gx, gw, gb), linear(x, w, bias), k, 0x1p-13);
    check_close(matmul(gx, gw.t().contiguous()), matmul(x, w.t()), k, 0x1p-13);
    check_close(linear(gx.to(DType::f8e5m2), gw.to(DType::f8e5m2)), linear(x.to(DType::f8e5m2), w.to(DType::f8e5m2)),
                k);
  }
}

// A relu that makes 0 of NaN would hide what a loss scaler looks for; tests/emulator shows that such a library's is not
// used.
TEST_CASE("relu in the product keeps NaN") {
  if (!have_gpu()) return;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor x = from_data(std::vector<double>{1, -1, kNan, 2}, {4, 1}, {.dtype = dtype});
    const Tensor w = ones({16, 1}, {.dtype = dtype});
    const Tensor bias = full({16}, 0.5, {.dtype = dtype});
    for (const bool biased : {false, true}) {
      const Tensor b = biased ? bias : Tensor();
      const Tensor there = biased ? bias.to(kGpu) : Tensor();
      const std::vector<double> y = numbers(linear_relu(x.to(kGpu), w.to(kGpu), there));
      const std::vector<double> expected = linear_relu(x, w, b).to_vector<double>();
      for (std::size_t i = 0; i < y.size(); ++i)
        CHECK(((y[i] == expected[i]) || (y[i] != y[i] && expected[i] != expected[i])));
    }
  }
}

TEST_CASE("what rounding loses is counted") {
  if (!have_gpu()) return;
  const Tensor x = (drawn({16, 32}, 1) * 200).to(DType::f16);
  const Tensor w = (drawn({24, 32}, 2) * 200).to(DType::f16);
  CastCounts there, here;
  {
    const CountScope scope(&there);
    linear_relu(x.to(kGpu), w.to(kGpu));
  }
  {
    const CountScope scope(&here);
    linear_relu(x, w);
  }
  CHECK(there.overflow > 0);
  CHECK(there.elements == here.elements);
  CHECK(there.overflow == here.overflow);
  CHECK(there.zeros == here.zeros);
}

TEST_CASE("products give the same bits twice and keep no memory") {
  if (!have_gpu()) return;
  const Tensor a = drawn({130, 301}, 1, DType::bf16).to(kGpu);
  const Tensor b = drawn({301, 77}, 2, DType::bf16).to(kGpu);
  const std::vector<double> first = numbers(matmul(a, b));
  const std::int64_t before = memory_stats(kGpu).total.current;
  for (int i = 0; i < 3; ++i) CHECK(numbers(matmul(a, b)) == first);
  CHECK(memory_stats(kGpu).total.current == before);
}

}  // namespace
}  // namespace gradual
