// Attention by blocks of queries: when it is used, that it equals its parts except for the order of sums, and that
// observers change nothing.
#include <doctest/doctest.h>
#include <gradual/autograd/tape.h>
#include <gradual/core/observe/observer.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <cstring>
#include <vector>

#include "support/attention_error.h"
#include "support/cpu_isas.h"

using namespace gradual;
using namespace gradual::test;

namespace {

struct Inputs {
  Tensor q, k, v, dy;
};
// Adjacent heads, as one projection of all heads gives them: [batch, heads, length, size] of [batch, length, heads,
// size].
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
  const Tensor q = leaf(in.q);
  const Tensor k = leaf(in.k);
  const Tensor v = leaf(in.v);
  const Tensor y = scaled_dot_product_attention(q, k, v, {}, {.causal = causal, .scale = scale});
  const bool fused = Tape::of(y).to_string().find("flash_attention") != std::string::npos;
  y.backward(in.dy);
  return {{y.detach(), q.grad(), k.grad(), v.grad()}, fused};
}

// The largest difference as a share of the largest number.
double apart(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::f64);
  const Tensor y = b.to(DType::f64);
  return (x - y).abs().max().item() / y.abs().max().item();
}

bool same_bits(const Results& a, const Results& b) {
  for (std::size_t i = 0; i < a.all.size(); ++i) {
    const Tensor x = a.all[i].contiguous();
    const Tensor y = b.all[i].contiguous();
    if (std::memcmp(x.raw(), y.raw(), x.nbytes()) != 0) return false;
  }
  return true;
}

// The counts of the attention ops of a run.
class Watch final : public Observer {
 public:
  explicit Watch(bool counts) : counts_(counts) {}
  bool wants_counts() const override { return counts_; }
  void after(const OpCall& call, const Outputs&, const CallRecord& record) override {
    if (call.op == OpId::flash_attention) {
      forward = record.counts;
      ++seen;
    }
    if (call.op == OpId::flash_attention_backward) {
      backward = record.counts;
      ++seen;
    }
  }
  CastCounts forward, backward;
  int seen = 0;

 private:
  bool counts_;
};

// Runs body with each dtype and instruction set. Skipped if the build has only the reference's products: these compute
// attention by its parts.
template <class F> void for_each_product(const F& body) {
  if (!has_fast() && !has_onednn()) return;
  reference::for_each_isa([&](CpuIsa isa) {
    CAPTURE(to_string(isa));
    for (const DType dtype : {DType::f32, DType::bf16}) body(dtype);
  });
}

}  // namespace

TEST_CASE("attention by blocks has the results of its parts") {
  for_each_product([](DType dtype) {
    for (const double scale : {0.0, -0.5})
      for (const auto& lengths :
           {std::pair<std::int64_t, std::int64_t>{150, 170}, {170, 90}, {128, 128}, {130, 1100}}) {
        // clang captures no structured bindings
        const std::int64_t queries = lengths.first;
        const std::int64_t keys = lengths.second;
        CAPTURE(to_string(dtype));
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
          CHECK(apart(ours.all[i], parts.all[i]) < (dtype == DType::f32 ? 2e-6 : 0.004));
      }
  });
}

TEST_CASE("attention is computed by its parts where they are faster, or special") {
  const auto causal = [](DType dtype) { return draw(128, 128, 8, 8, dtype); };
  const Inputs in = causal(DType::f32);
  CHECK(run(in, true).fused == (has_fast() || has_onednn()));
  CHECK_FALSE(run(in, false).fused);
  CHECK_FALSE(run(draw(127, 127, 8, 8, DType::f32), true).fused);
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
    for (const int threads : {2, 5}) CHECK(same_bits(one, on(threads)));
  });
}

TEST_CASE("attention by blocks has the same bits with and without observers") {
  for_each_product([](DType dtype) {
    const Inputs in = draw(150, 170, 16, 24, dtype);
    const Results alone = run(in, true);
    for (const bool counts : {false, true}) {
      Watch watch(counts);
      const ObserverScope scope(watch);
      const Results watched = run(in, true);
      CHECK(watched.fused);
      CHECK(watch.seen == 2);
      CHECK(same_bits(alone, watched));
    }
  });
}

// The results alone: probabilities and the gradients of scores stay f32.
TEST_CASE("attention by blocks counts what it rounds to bf16") {
  constexpr std::int64_t kLength = 150;
  constexpr std::int64_t kSize = 8;
  constexpr std::uint64_t kNumbers = 2 * 3 * kLength * kSize;
  const Inputs in = draw(kLength, kLength, kSize, kSize, DType::bf16);
  for_each_product([&](DType dtype) {
    if (dtype == DType::f32) return;  // which rounds nothing
    for (const int threads : {1, 3}) {
      const ThreadsScope scope(threads);
      Watch watch(true);
      const ObserverScope watching(watch);
      CHECK(run(in, true, 1.0).fused);
      CHECK(watch.forward.elements == kNumbers);
      CHECK(watch.backward.elements == 3 * kNumbers);
      CHECK(watch.forward.underflow + watch.backward.underflow == 0);
      CHECK(watch.forward.nan + watch.forward.inf + watch.forward.overflow == 0);
    }
  });
}

TEST_CASE("attention by blocks in half rounds its results alone") {
  if (!has_fast() && !has_onednn()) return;
  const AttentionCase causal{"several blocks", {2, 3, 150, 16}, {2, 3, 170, 16}, "", true};
  CHECK(run({draw(150, 170, 16, 16, DType::bf16)}, true).fused);
  check_attention_in_half(causal, DType::bf16, Device::cpu());
}
