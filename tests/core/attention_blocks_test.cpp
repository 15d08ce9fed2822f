// Attention by blocks of queries: when it is taken, and that it is its parts but for the order of sums.
#include <doctest/doctest.h>
#include <gradual/autograd/tape.h>
#include <gradual/core/compute_mode.h>
#include <gradual/core/counts.h>
#include <gradual/core/cpu_backend.h>
#include <gradual/core/ops.h>
#include <gradual/core/threads.h>

#include <cstring>
#include <vector>

#include "support/products.h"

using namespace gradual;

namespace {

struct Inputs {
  Tensor q, k, v, dy;
};
// Heads side by side, as a projection of all leaves them: [batch, heads, length, size] of [batch, length, heads, size].
Inputs draw(std::int64_t queries, std::int64_t keys, std::int64_t size, std::int64_t values, DType dtype) {
  Generator g(7);
  const auto heads = [&](std::int64_t length, std::int64_t each) {
    return randn({2, length, 3, each}, {}, g).to(dtype).transpose(1, 2);
  };
  return {heads(queries, size), heads(keys, size), heads(keys, values), heads(queries, values)};
}

struct Results {
  std::vector<Tensor> all;  // y, dq, dk, dv
  bool fused;
};
Results run(const Inputs& in, bool causal, double scale = 0) {
  const auto leaf = [](const Tensor& t) {
    Tensor own = t.detach();
    own.set_requires_grad(true);
    return own;
  };
  const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const Tensor y = scaled_dot_product_attention(q, k, v, {}, {.causal = causal, .scale = scale});
  const bool fused = Tape::of(y).to_string().find("flash_attention") != std::string::npos;
  y.backward(in.dy);
  return {{y.detach(), q.grad(), k.grad(), v.grad()}, fused};
}

// The largest difference as a share of the largest number.
double apart(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::f64), y = b.to(DType::f64);
  return (x - y).abs().max().item() / y.abs().max().item();
}

// Runs body with f32, and with bf16 by each of its kernels.
template <class F> void for_each_product(const F& body) {
  if (!has_onednn()) {
    MESSAGE("skipped: built without oneDNN");
    return;
  }
  body(DType::f32);
  testing::for_each_bf16_kernel([&] { body(DType::bf16); });
}

}  // namespace

TEST_CASE("attention by blocks has the results of its parts") {
  for_each_product([](DType dtype) {
    for (const double scale : {0.0, -0.5})
      for (const auto& lengths :
           {std::pair<std::int64_t, std::int64_t>{150, 170}, {170, 90}, {128, 128}, {130, 1100}}) {
        const std::int64_t queries = lengths.first, keys = lengths.second;  // clang captures no structured bindings
        CAPTURE(name(dtype));
        CAPTURE(scale);
        CAPTURE(queries);
        CAPTURE(keys);
        const Inputs in = draw(queries, keys, 16, 24, dtype);
        const Results ours = run(in, true, scale);
        CHECK(ours.fused);
        const CpuBackendScope eigen(CpuBackend::eigen);
        const Inputs exact{in.q.to(DType::f32), in.k.to(DType::f32), in.v.to(DType::f32), in.dy.to(DType::f32)};
        const Results parts = run(exact, true, scale);
        CHECK_FALSE(parts.fused);
        for (std::size_t i = 0; i < 4; ++i)
          CHECK(apart(ours.all[i], parts.all[i]) < (dtype == DType::f32 ? 2e-6 : 0.01));
      }
  });
}

TEST_CASE("attention is computed by its parts where they are faster, seen, counted, or special") {
  const auto causal = [](DType dtype) { return draw(128, 128, 8, 8, dtype); };
  const Inputs in = causal(DType::f32);
  if (has_onednn()) CHECK(run(in, true).fused);
  CHECK_FALSE(run(in, false).fused);
  CHECK_FALSE(run(draw(127, 127, 8, 8, DType::f32), true).fused);
  {
    CastCounts counts;
    const CountScope counting(&counts);
    CHECK_FALSE(run(in, true).fused);
  }
  {
    const MatmulPrecisionScope tf32(MatmulPrecision::tf32);
    CHECK_FALSE(run(in, true).fused);
  }
  CHECK_FALSE(run(causal(DType::f16), true).fused);
  CHECK_FALSE(run(causal(DType::f64), true).fused);
}

TEST_CASE("attention by blocks has the same bits on any number of threads") {
  for_each_product([](DType dtype) {
    const Inputs in = draw(200, 200, 32, 32, dtype);
    const auto on = [&](int threads) {
      const ThreadsScope scope(threads);
      return run(in, true);
    };
    const Results one = on(1);
    CHECK(one.fused);
    for (const int threads : {2, 5}) {
      const Results many = on(threads);
      for (std::size_t i = 0; i < 4; ++i) {
        const Tensor a = one.all[i].contiguous(), b = many.all[i].contiguous();
        CHECK(std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0);
      }
    }
  });
}
