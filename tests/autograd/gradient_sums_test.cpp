// In which dtype the gradients of half tensors add up (autograd::GradientSums).
#include <gradual/core/tensor/memory.h>

#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;
using autograd::GradientSums;

namespace {

constexpr GradientSums kBoth[] = {GradientSums::storage, GradientSums::f32};

Tensor half_leaf(DType dtype, GradientSums sums, const Shape& sizes = {1}) {
  const Tensor p = ones(sizes, {.dtype = dtype}).set_requires_grad();
  autograd::set_gradient_sums(p, sums);
  return p;
}

}  // namespace

TEST_CASE("gradient sums: gradients of several backwards add in f32 where the leaf says so") {
  for (const GradientSums sums : kBoth) {
    CAPTURE(to_string(sums));
    const bool f32 = sums == GradientSums::f32;
    const Tensor p = half_leaf(DType::bf16, sums);
    for (int i = 0; i < 512; ++i) p.sum().backward();
    CHECK(p.grad().item() == (f32 ? 512 : 256));  // 256 + 1 rounds to 256
    CHECK(p.grad().dtype() == (f32 ? DType::f32 : DType::bf16));

    const Tensor q = half_leaf(DType::bf16, sums);
    q.sum().backward();
    for (int i = 0; i < 400; ++i) (q * 0.00125).sum().backward();
    const double term = full({1}, 0.00125, DType::bf16).item();
    CHECK(q.grad().item() == (f32 ? doctest::Approx(1 + 400 * term) : doctest::Approx(1)));

    const Tensor h = half_leaf(DType::f16, sums);
    for (int i = 0; i < 3; ++i) (h * 40000).sum().backward();
    CHECK(h.grad().item() == (f32 ? 120000 : HUGE_VAL));
  }
}

TEST_CASE("gradient sums: rounded at random, the sum is right on average, in the storage dtype, the same again") {
  const auto sum_of = [](int backwards, int uses, bool create_graph) {
    default_generator().manual_seed(3);
    const Tensor p = half_leaf(DType::bf16, GradientSums::stochastic, {4096});
    for (int i = 0; i < backwards; ++i) {
      Tensor y = zeros({1});
      for (int k = 0; k < uses; ++k) y = y + cast(p, DType::f32).sum();
      autograd::backward({y}, {}, {.create_graph = create_graph});
    }
    const Tensor sum = p.grad().detach().clone();
    p.zero_grad();
    return sum;
  };
  for (const auto& [backwards, uses] : {std::pair(512, 1), std::pair(1, 512)}) {
    CAPTURE(uses);
    const Tensor sum = sum_of(backwards, uses, false);
    CHECK(sum.dtype() == DType::bf16);
    // 1 is added to a number whose gap is 2 in 256 steps: each adds 0 or 2, with a variance of 1.
    CHECK(std::abs(sum.to(DType::f32).mean().item() - 512) < 5 * 16 / 64.0);
    CHECK(max(sum).item() > min(sum).item());
    CHECK(sum.to_vector<float>() == sum_of(backwards, uses, false).to_vector<float>());
  }
  CHECK(sum_of(1, 300, false).to_vector<float>() == sum_of(1, 300, true).to_vector<float>());

  // Slices that overlap add in one buffer.
  default_generator().manual_seed(3);
  const Tensor p = half_leaf(DType::bf16, GradientSums::stochastic, {4096, 2});
  Tensor y = zeros({1});
  for (int k = 0; k < 512; ++k) y = y + cast(slice(p, 1, {0, 1}), DType::f32).sum();
  y.sum().backward();
  CHECK(std::abs(p.grad().narrow(1, 0, 1).to(DType::f32).mean().item() - 512) < 5 * 16 / 64.0);
  CHECK(max(abs(p.grad().narrow(1, 1, 1))).item() == 0);

  const Tensor f = ones({2}).set_requires_grad();
  autograd::set_gradient_sums(f, GradientSums::stochastic);  // f32 adds as ever
  for (int i = 0; i < 3; ++i) f.sum().backward();
  CHECK(f.grad()[0].item() == 3);
}

TEST_CASE("gradient sums: uses of a leaf within one backward") {
  for (const GradientSums sums : kBoth)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CAPTURE(to_string(sums));
      CAPTURE(to_string(dtype));
      const Tensor p = half_leaf(dtype, sums);
      const int uses = dtype == DType::bf16 ? 300 : 3000;
      Tensor y = zeros({1});
      for (int i = 0; i < uses; ++i) y = y + cast(p, DType::f32);
      y.sum().backward();
      const double lost = dtype == DType::bf16 ? 256 : 2048;
      CHECK(p.grad().item() == (sums == GradientSums::f32 ? uses : lost));
    }
}

TEST_CASE("gradient sums: a tensor that is no leaf, used often, rounds its sum once") {
  for (const GradientSums sums : kBoth)
    for (const bool slices : {false, true})
      for (const bool in_segment : {false, true}) {
        CAPTURE(to_string(sums));
        CAPTURE(slices);
        CAPTURE(in_segment);
        const Tensor x = ones({2}).set_requires_grad();
        const Tensor h = cast(x, DType::bf16);
        const auto uses = [&](const Tensor& t) {
          Tensor y = zeros({slices ? 1 : 2});
          for (int i = 0; i < 300; ++i) y = y + cast(slices ? t.narrow(0, 0, 1) : t, DType::f32);
          return y;
        };
        const Tensor y = in_segment ? checkpoint(uses, h) : uses(h);
        autograd::backward({y.sum()}, {}, {.sums = sums});
        CHECK(x.grad().dtype() == DType::f32);
        CHECK(x.grad()[0].item() == (sums == GradientSums::f32 ? 300 : 256));
        CHECK(x.grad()[1].item() == (slices ? 0 : x.grad()[0].item()));
      }
}

TEST_CASE("gradient sums: two terms have the same bits either way, and one gradient keeps its dtype and memory") {
  for (const GradientSums sums : kBoth) {
    const Shape sizes{1 << 16};
    const std::int64_t n = sizes[0];
    const Tensor p = half_leaf(DType::bf16, sums, sizes);
    const auto bytes = [] { return memory_stats()[Category::gradients].current; };
    const std::int64_t before = bytes();
    p.sum().backward();
    CHECK(p.grad().dtype() == DType::bf16);
    CHECK(bytes() - before == 2 * n);
    p.sum().backward();
    CHECK(bytes() - before == (sums == GradientSums::f32 ? 4 : 2) * n);
    CHECK(p.grad()[0].item() == 2);
  }
}

TEST_CASE("gradient sums: grad() returns the input's dtype, and create_graph sums in f32 too") {
  const Tensor p = half_leaf(DType::bf16, GradientSums::f32);
  const auto often = [&] {
    Tensor y = zeros({1});
    for (int i = 0; i < 300; ++i) y = y + cast(p, DType::f32);
    return y.sum();
  };
  const Tensor g = autograd::grad({often()}, {p})[0];
  CHECK(g.dtype() == DType::bf16);
  CHECK(g.item() == 300);
  autograd::backward({often()}, {}, {.create_graph = true});
  autograd::backward({often()}, {}, {.create_graph = true});
  CHECK(p.grad().item() == 600);
  p.zero_grad();
}

TEST_CASE("gradient sums: errors, and how often a leaf has received a gradient") {
  const Tensor p = ones({1}).set_requires_grad();
  check_message(message_of([&] { autograd::set_gradient_sums(p * 2, GradientSums::f32); }), {"floating leaf"});
  check_message(message_of([&] { autograd::set_gradient_sums(zeros({1}, DType::i64), GradientSums::f32); }), {"i64"});
  CHECK(autograd::gradients_received(p) == 0);
  p.sum().backward();
  p.sum().backward();
  p.zero_grad();
  CHECK(autograd::gradients_received(p) == 2);
  CHECK(autograd::gradient_sums(p) == GradientSums::storage);
}
