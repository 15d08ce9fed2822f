// What the op table does not ask of reductions on a GPU: long ranges that are cut, odd addresses, ties, accumulators.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <gradual/core/formats/accumulator.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/cuda/cuda.h>
#include <gradual/gradual.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

// Within `roundings` of f32 of the sum of magnitudes, and the rounding on store. A chain of additions over these ranges
// would be far outside.
void check_sum(const Tensor& gpu, const Tensor& x, const Shape& dims, double roundings) {
  const Tensor exact = sum(x.to(DType::f64), dims);
  const Tensor size = sum(abs(x.to(DType::f64)), dims);
  const std::vector<double> y = numbers(gpu);
  const std::vector<double> want = numbers(exact);
  const std::vector<double> terms = numbers(size);
  REQUIRE(y.size() == want.size());
  const double store = x.dtype() == DType::f32 ? 0 : float_info(x.dtype()).epsilon / 2;
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i)
    worst = std::max(worst, (std::fabs(y[i] - want[i]) - store * std::fabs(want[i])) / terms[i]);
  CHECK(worst <= roundings * 0x1p-24);
}

TEST_CASE("long ranges are summed in a tree") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& sizes : {Shape{3, 100000}, Shape{3, 100003}, Shape{3, 100004}, Shape{2, 16384}, Shape{1, 8192},
                               Shape{70, 1024}, Shape{5, 1032}, Shape{3, 1025}}) {
      CAPTURE(to_string(sizes));
      const Tensor x = abs(drawn(sizes, 1, dtype));
      check_sum(sum(x.to(kGpu), {1}), x, {1}, 40);
      const Tensor odd = x.narrow(1, 1, sizes[1] - 1);
      check_sum(sum(x.to(kGpu).narrow(1, 1, sizes[1] - 1), {1}), odd, {1}, 40);
    }
    for (const Shape& sizes :
         {Shape{5000, 40}, Shape{5000, 41}, Shape{3000, 8}, Shape{2000, 520}, Shape{300, 17}, Shape{9, 1000}}) {
      CAPTURE(to_string(sizes));
      const Tensor x = abs(drawn(sizes, 2, dtype));
      check_sum(sum(x.to(kGpu), {0}), x, {0}, 60);
      check_sum(sum(x.to(kGpu).narrow(1, 1, sizes[1] - 1), {0}), x.narrow(1, 1, sizes[1] - 1), {0}, 60);
    }
  }
}

TEST_CASE("rows of whole fours are read in fours: the bits are those of rows with zeros up to whole eights") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const std::int64_t length : {12, 196, 300, 9004}) {
      CAPTURE(to_string(dtype));
      CAPTURE(length);
      const Tensor x = drawn({64, length}, 1, dtype).to(kGpu);
      const Tensor wide = x.to(DType::f32);
      const Tensor none = zeros({64, 4}, {.dtype = dtype, .device = kGpu});
      CHECK(same_numbers(sum(x, {1}), sum(cat({x, none}, 1), {1})));
      CHECK(same_numbers(sum(square(wide), {1}), sum(square(cat({wide, none.to(DType::f32)}, 1)), {1})));
    }
}

TEST_CASE("norms whose powers leave the range of double are the CPU's") {
  if (!have_gpu()) return;
  const Tensor x = drawn({5, 3000}, 1, DType::f64);
  for (const double factor : {1.0, 0x1p900, 0x1p-900, 0.0})
    for (const double order : {2.0, 3.0, 20.0}) {
      CAPTURE(factor);
      CAPTURE(order);
      const Tensor far = x * factor;
      for (const Tensor& t : {far, far.t().contiguous().t()}) {
        const std::vector<double> got = numbers(norm(t.to(kGpu), order, {1}));
        const std::vector<double> want = numbers(norm(far, order, {1}));
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::fabs(got[i] - want[i]) <= 1e-12 * want[i]);
      }
    }
  const Tensor narrow = full({2, 5}, 1e30, {.device = kGpu});
  CHECK(numbers(norm(narrow, 20, {1}))[0] == doctest::Approx(1e30 * std::pow(5, 0.05)));
  const Tensor special =
      from_data(std::vector<double>{INFINITY, 1e300, NAN, 1e300}, {2, 2}, {.dtype = DType::f64, .device = kGpu});
  const std::vector<double> of_special = numbers(norm(special, 2, {1}));
  CHECK(of_special[0] == INFINITY);
  CHECK(std::isnan(of_special[1]));
}

TEST_CASE("the same bits every time") {
  if (!have_gpu()) return;
  const Tensor x = drawn({600, 1000}, 3).to(kGpu);
  for (const Shape& dims : {Shape{0}, Shape{1}, Shape{0, 1}}) {
    CHECK(numbers(var(x, dims)) == numbers(var(x, dims)));
    CHECK(numbers(logsumexp(x, dims)) == numbers(logsumexp(x, dims)));
  }
}

TEST_CASE("the first of equals over long ranges") {
  if (!have_gpu()) return;
  for (const Shape& sizes : {Shape{2, 40000}, Shape{7, 300}, Shape{3000, 20}}) {
    const Tensor x = mul(drawn(sizes, 4), 2).to(DType::i32).to(DType::f32);  // few values
    for (int dim = 0; dim < 2; ++dim) {
      CAPTURE(dim);
      CAPTURE(to_string(sizes));
      CHECK(numbers(argmax(x.to(kGpu), dim)) == numbers(argmax(x, dim)));
      CHECK(numbers(argmin(x.to(kGpu), dim)) == numbers(argmin(x, dim)));
    }
    Tensor with_nan = x.clone();
    with_nan.select(0, 1).select(0, 15).fill_(NAN);
    with_nan.select(0, 0).select(0, 3).fill_(NAN);
    for (int dim = 0; dim < 2; ++dim) CHECK(numbers(argmax(with_nan.to(kGpu), dim)) == numbers(argmax(with_nan, dim)));
  }
}

TEST_CASE("sums under an accumulator have the CPU's bits") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor x = drawn({4, 37, 6}, 5, dtype);
    for (const std::string name :
         {"f64", "fp16-acc", "bf16-acc:toward-zero", "hopper-fp8-14bit", "e5m4/chunk=3/promote=10", "fp16-unfused"}) {
      const AccumulatorScope scope(accumulator(name));
      CAPTURE(name);
      CAPTURE(gradual::to_string(dtype));
      for (const Shape& dims : {Shape{}, Shape{1}, Shape{0, 2}, Shape{2}}) {
        CHECK(numbers(sum(x.to(kGpu), dims)) == numbers(sum(x, dims)));
        CHECK(numbers(mean(x.to(kGpu), dims)) == numbers(mean(x, dims)));
      }
      CHECK(numbers(sum(x.narrow(1, 0, 0).to(kGpu), {1})) == std::vector<double>(24));
    }
  }
}

TEST_CASE("what stores of results lose is counted") {
  if (!have_gpu()) return;
  const Tensor x = from_data(std::vector<double>{60000, 60000, 1e-7, -1e-7, 0, 0, 3, 4}, {4, 2}).to(DType::f16);
  CastCounts cpu, gpu;
  {
    const CountScope scope(&cpu);
    sum(x, {1});
  }
  const Tensor there = x.to(kGpu);
  {
    const CountScope scope(&gpu);
    sum(there, {1});
  }
  CHECK(cpu.elements == 4);
  CHECK(cpu.overflow == 1);
  CHECK(gpu.elements == cpu.elements);
  CHECK(gpu.overflow == cpu.overflow);
  CHECK(gpu.subnormal == cpu.subnormal);
  CHECK(gpu.zeros == cpu.zeros);
}

}  // namespace
}  // namespace gradual
