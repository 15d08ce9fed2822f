// Which contractions tensor cores take, and what stands against it.
#include <doctest/doctest.h>

#include <gradual/core/observe/observer.h>
#include <gradual/core/observe/profile.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/ops/tensor_cores.h>

namespace gradual {
namespace {

using Use = TensorCores::Use;

// What is said of the last contraction that f runs.
template <class F> TensorCores said(const F& f) {
  struct Ask : Observer {
    TensorCores last{Use::full, "never called"};
    void before(const OpCall& call, const CallRecord&) override {
      if (op_info(call.op).kind == OpKind::Contraction) last = tensor_cores(call);
    }
  } ask;
  const ObserverScope scope(ask);
  f();
  return ask.last;
}

Tensor zeros_of(DType dtype, const Shape& sizes) { return zeros(sizes, {.dtype = dtype}); }

TEST_CASE("tensor cores take narrow floats whose dims are multiples of 16 bytes") {
  const auto product = [](DType dtype, std::int64_t m, std::int64_t k, std::int64_t n) {
    return said([&] { matmul(zeros_of(dtype, {m, k}), zeros_of(dtype, {k, n})); });
  };
  CHECK(product(DType::f16, 32, 64, 8).use == Use::full);
  CHECK(product(DType::bf16, 32, 64, 10).use == Use::partly);
  CHECK(product(DType::bf16, 32, 64, 10).why == "n 10 is not a multiple of 8");
  CHECK(product(DType::bf16, 7, 12, 8).why == "m 7 is not a multiple of 8, k 12 is not a multiple of 8");
  CHECK(product(DType::f64, 2, 4, 6).use == Use::full);
  CHECK(product(DType::f8e4m3fn, 16, 32, 48).use == Use::full);
  CHECK(product(DType::f8e4m3fn, 16, 24, 48).use == Use::none);
}

TEST_CASE("tensor cores take f32 where TF32 is allowed") {
  const auto product = [] { return said([] { matmul(zeros_of(DType::f32, {4, 8}), zeros_of(DType::f32, {8, 12})); }); };
  CHECK(product().use == Use::none);
  CHECK(product().why == "f32 operands, and TF32 is not allowed");
  const MatmulPrecisionScope scope(MatmulPrecision::tf32);
  CHECK(product().use == Use::full);
}

TEST_CASE("of a linear layer all rows are one matrix; of a convolution the channels count") {
  const DType h = DType::f16;
  CHECK(said([&] { linear(zeros_of(h, {2, 4, 16}), zeros_of(h, {24, 16})); }).use == Use::full);
  CHECK(said([&] { linear(zeros_of(h, {3, 16}), zeros_of(h, {24, 16})); }).why == "m 3 is not a multiple of 8");
  CHECK(said([&] { conv2d(zeros_of(h, {1, 8, 5, 5}), zeros_of(h, {16, 8, 3, 3})); }).use == Use::full);
  const TensorCores first = said([&] { conv2d(zeros_of(h, {1, 3, 5, 5}), zeros_of(h, {16, 3, 3, 3})); });
  CHECK(first.use == Use::partly);
  CHECK(first.why == "input channels of a group 3 is not a multiple of 8");
}

TEST_CASE("an operand that begins between 16 bytes is named") {
  const Tensor x = zeros_of(DType::f16, {8 * 8 + 1});
  const Tensor shifted = as_strided(x, {8, 8}, {8, 1}, 1);
  CHECK(said([&] { matmul(shifted, zeros_of(DType::f16, {8, 8})); }).why == "input 0 is not at 16 bytes");
}

TEST_CASE("the profile reports tensor cores once per contraction") {
  Profile profile;
  {
    const ObserverScope scope(profile);
    for (int i = 0; i < 2; ++i) matmul(zeros_of(DType::f16, {8, 8}), zeros_of(DType::f16, {8, 9})).sum();
  }
  const std::string table = profile.table();
  CHECK(table.find("matmul (forward)                       slower: n 9 is not a multiple of 8\n") != std::string::npos);
  CHECK(table.find("sum (forward)") == std::string::npos);
}

}  // namespace
}  // namespace gradual
