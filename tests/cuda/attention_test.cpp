// scaled_dot_product_attention on a GPU: when the library's fused kernels take it, and that they compute the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gradual/amp/autocast.h>
#include <gradual/autograd/autograd.h>
#include <gradual/core/formats/accumulator.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/observe/profile.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/runtime/graph.h>
#include <gradual/gradual.h>
#include "support/attention_error.h"
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

constexpr const char* kForward = "cuDNN attention";
constexpr const char* kBackward = "cuDNN attention, backward";

struct Case {
  std::int64_t batch, heads, queries, keys, size;
  bool causal;
};
const Case kCases[] = {{2, 3, 5, 5, 8, true},
                       {1, 2, 70, 70, 16, true},
                       {2, 2, 4, 9, 32, false},
                       {1, 1, 9, 4, 128, true},
                       {3, 1, 1, 7, 24, false}};

// Heads as a projection gives them: [batch, length, heads, size] in memory.
Tensor heads(const Case& c, std::int64_t length, std::uint64_t seed, DType dtype) {
  return drawn({c.batch, length, c.heads, c.size}, seed, dtype);
}

// y and the gradients of q, k and v.
std::vector<Tensor> run(const Case& c, DType dtype, Device device, DType computed) {
  std::vector<Tensor> t{heads(c, c.queries, 1, dtype), heads(c, c.keys, 2, dtype), heads(c, c.keys, 3, dtype)};
  for (Tensor& each : t) {
    each = each.to(computed).to(device).detach();
    each.set_requires_grad(true);
  }
  const auto split = [](const Tensor& x) { return transpose(x, 1, 2); };
  const Tensor y = scaled_dot_product_attention(split(t[0]), split(t[1]), split(t[2]), {}, {.causal = c.causal});
  const Tensor joined = transpose(y, 1, 2);
  joined.backward(heads(c, c.queries, 4, dtype).to(computed).to(device));
  return {joined.detach(), t[0].grad(), t[1].grad(), t[2].grad()};
}

void check_same(const std::vector<Tensor>& a, const std::vector<Tensor>& want, DType dtype) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    const std::vector<double> x = numbers(a[i]);
    const std::vector<double> y = numbers(want[i]);
    REQUIRE(x.size() == y.size());
    double worst = 0;
    double size = 1;
    for (const double v : y) size = std::max(size, std::fabs(v));
    for (std::size_t k = 0; k < x.size(); ++k) worst = std::max(worst, std::fabs(x[k] - y[k]));
    CHECK(worst <= 8 * float_info(dtype).epsilon * size);  // scores, probabilities and results are rounded
  }
}

TEST_CASE("attention in half formats is one fused kernel, its backward another") {
  if (!have_gpu()) return;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f16, DType::bf16}) {
      CAPTURE(c.size);
      CAPTURE(to_string(dtype));
      std::vector<Tensor> fused, parts, composed;
      const auto names = kernels_of([&] { fused = run(c, dtype, kGpu, dtype); });
      CHECK(any_has(names, kForward));
      CHECK(any_has(names, kBackward));
      check_same(fused, run(c, dtype, Device::cpu(), DType::f64), dtype);
      {
        const cuda::LibraryKernelsScope off(false);
        CHECK_FALSE(any_has(kernels_of([&] { parts = run(c, dtype, kGpu, dtype); }), kForward));
      }
      check_same(parts, run(c, dtype, Device::cpu(), DType::f64), dtype);
      check_same(fused, run(c, dtype, Device::cpu(), dtype), dtype);  // the composed form
      for (int n = 0; n < 2; ++n) {
        const std::vector<Tensor> again = run(c, dtype, kGpu, dtype);
        for (std::size_t i = 0; i < 4; ++i) CHECK(numbers(again[i]) == numbers(fused[i]));
      }
    }
}

TEST_CASE("attention reads a packed projection in place, and joining the heads needs no copy") {
  if (!have_gpu()) return;
  const Tensor packed = drawn({2, 6, 3 * 16}, 1, DType::bf16).to(kGpu);
  const auto part = [&](int i) { return transpose(narrow(packed, -1, 16 * i, 16).reshape({2, 6, 2, 8}), 1, 2); };
  Tensor joined;
  const auto names = kernels_of([&] {
    const Tensor y = scaled_dot_product_attention(part(0), part(1), part(2), {}, {.causal = true});
    joined = flatten(transpose(y, 1, 2), -2, -1);
  });
  CHECK(names == std::vector<std::string>{kForward});
  CHECK(joined.is_contiguous());
}

TEST_CASE("what the fused kernel does not compute is composed") {
  if (!have_gpu()) return;
  const auto composed = [](const Tensor& q, const Tensor& mask = {}, const AttentionOptions& attrs = {}) {
    return !any_has(kernels_of([&] { scaled_dot_product_attention(q, q, q, mask, attrs); }), kForward);
  };
  const Tensor x = drawn({2, 4, 8}, 1, DType::bf16).to(kGpu);
  CHECK_FALSE(composed(x));
  CHECK_FALSE(composed(x.select(0, 0)));
  CHECK(composed(x, ones({4, 4}, {.dtype = DType::bool_, .device = kGpu})));
  CHECK(composed(x, {}, {.dropout = 0.5}));
  CHECK(composed(x.to(DType::f32)));
  CHECK(composed(drawn({2, 4, 12}, 1, DType::bf16).to(kGpu)));
  CHECK(composed(drawn({2, 4, 136}, 1, DType::bf16).to(kGpu)));
  CHECK(composed(drawn({1, 1, 2, 4, 8}, 1, DType::bf16).to(kGpu)));
  CHECK(composed(drawn({2, 8, 8}, 1, DType::bf16).to(kGpu).transpose(1, 2)));
  {
    const AccumulatorScope scope(accumulator("fp16-acc"));
    CHECK(composed(x));
  }
}

TEST_CASE("a query that a mask keeps from every key gets zeros on a GPU too, and no gradient is NaN") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool added : {false, true}) {
      const auto leaf = [&](std::uint64_t seed) { return drawn({2, 3, 8}, seed, dtype).to(kGpu).set_requires_grad(); };
      const Tensor q = leaf(1);
      const Tensor k = leaf(2);
      const Tensor v = leaf(3);
      const Tensor chosen = from_data(std::vector<std::int64_t>{0, 1, 1}, {3, 1}).to(DType::bool_).to(kGpu);
      const Tensor mask = added ? where(chosen, 0, full({3, 3}, -INFINITY, {.device = kGpu})) : chosen;
      const Tensor y = scaled_dot_product_attention(q, k, v, mask, {.causal = true});
      y.backward(ones(y.sizes(), {.dtype = dtype, .device = kGpu}));
      CHECK(numbers(y.select(1, 0)) == std::vector<double>(16, 0));
      CHECK(numbers(y.select(1, 1)) != std::vector<double>(16, 0));
      CHECK(numbers(q.grad().select(1, 0)) == std::vector<double>(16, 0));
      for (const Tensor& t : {q, k, v})
        for (const double g : numbers(t.grad())) CHECK(std::isfinite(g));
    }
}

TEST_CASE("attention in half that no fused kernel takes rounds its results alone on a GPU too") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const AttentionCase& c : kHalfAttention)
      if (*c.mask || c.q[3] % 8 != 0) check_attention_in_half(c, dtype, kGpu);
}

TEST_CASE("a profile shows the fused kernel, and counting keeps it") {
  if (!have_gpu()) return;
  const Tensor x = drawn({2, 4, 8}, 1, DType::bf16).to(kGpu);
  const auto attend = [&] { return scaled_dot_product_attention(x, x, x); };
  const Tensor alone = attend();
  Profile profile;
  {
    const ObserverScope scope(profile);
    CHECK(numbers(attend()) == numbers(alone));
  }
  CHECK(profile.table().find("flash_attention") != std::string::npos);
  CHECK(profile.table().find("softmax") == std::string::npos);
  CastCounts counts;
  const CountScope scope(&counts);
  CHECK(any_has(kernels_of(attend), kForward));
  CHECK(counts.elements == 2 * 4 * 8);  // the results
  CHECK(numbers(attend()) == numbers(alone));
}

TEST_CASE("attention that the library refuses is computed of products") {
  if (!have_gpu()) return;
  const CudnnRefuses refusal("graph");
  const Case c{2, 1, 11, 13, 40, true};  // of its own: how a size is done is remembered
  for (const DType dtype : {DType::f16, DType::bf16})
    check_same(run(c, dtype, kGpu, dtype), run(c, dtype, Device::cpu(), DType::f64), dtype);
}

TEST_CASE("a gradient of fused attention's gradient") {
  if (!have_gpu()) return;
  const auto second = [](Device device, DType dtype) {
    Tensor x = drawn({2, 5, 8}, 1, DType::bf16).to(dtype).to(device).detach();
    x.set_requires_grad(true);
    const Tensor y = scaled_dot_product_attention(x, x, x, {}, {.causal = true});
    const Tensor dx = autograd::grad({sum(y * y)}, {x}, {}, {.create_graph = true})[0];
    return autograd::grad({sum(dx * dx)}, {x})[0];
  };
  const std::vector<double> a = numbers(second(kGpu, DType::bf16));
  const std::vector<double> b = numbers(second(Device::cpu(), DType::f64));
  double worst = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(a[i] - b[i]));
    size = std::max(size, std::fabs(b[i]));
  }
  CHECK(size > 1);
  CHECK(worst <= 32 * float_info(DType::bf16).epsilon * size);  // every intermediate is rounded
}

TEST_CASE("autocast hands attention half operands, and the fused kernel takes them") {
  if (!have_gpu()) return;
  const Tensor x = drawn({2, 4, 8}, 1).to(kGpu);
  const amp::Autocast autocast({.dtype = DType::bf16, .device = kGpu});
  Tensor y;
  CHECK(any_has(kernels_of([&] { y = scaled_dot_product_attention(x, x, x); }), kForward));
  CHECK(y.dtype() == DType::bf16);
}

TEST_CASE("a recorded step of a transformer has the bits of the step itself") {
  if (!have_gpu()) return;
  manual_seed(3);
  nn::TransformerBlock block(16, 2, {.causal = true});
  block.to(kGpu);
  const Tensor first = drawn({3, 6, 16}, 1).to(kGpu);
  const Tensor other = drawn({3, 6, 16}, 2).to(kGpu);
  const Tensor x = first.clone();
  const auto step = [&] {
    block.zero_grad();
    const amp::Autocast autocast({.dtype = DType::bf16, .device = kGpu});
    mean(square(block(x).to(DType::f32))).backward();
  };
  const auto gradients = [&] {
    std::vector<std::vector<double>> all;
    for (const Tensor& p : block.parameters()) all.push_back(numbers(p.grad()));
    return all;
  };
  CHECK(any_has(kernels_of(step), kBackward));
  const auto want = gradients();
  cuda::Graph graph;
  graph.capture(step);
  x.copy_(other);
  graph.replay();
  CHECK(gradients() != want);
  x.copy_(first);
  graph.replay();
  CHECK(gradients() == want);
}

}  // namespace
}  // namespace gradual
