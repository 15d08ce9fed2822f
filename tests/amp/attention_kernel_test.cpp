// The kernel of attention in blocks has the bits of the reference, whoever looks.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../../amp/attention_kernel.h"
#include "../../amp/autocast.h"
#include "../../amp/cast_stats.h"
#include "../../amp/recipe.h"
#include "../../autograd/autograd.h"
#include "../../core/ops/cpu_backend.h"
#include "../../core/ops/derived_ops.h"
#include "../../core/support/threads.h"
#include "../../inspect/intervention.h"
#include "../../inspect/ledger.h"
#include "../../inspect/shadow.h"
#include "../../nn/attention.h"
#include "../../optim/adam.h"
#include "attention_case.h"
#include "support.h"

using namespace gradual;
using amp::AttentionPrecision;
using attention_test::all_same;
using attention_test::Case;
using attention_test::hides_all_of_row;
using attention_test::trained;
using attention_test::visible;

namespace {

// An added mask that has its heads last in memory.
Tensor channels_last(const Shape& sizes) {
  return random({sizes[0], sizes[2], sizes[3], sizes[1]}, 79).permute({0, 3, 1, 2});
}

std::vector<Case> cases() {
  return {{"plain", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 6}},
          {"causal", {2, 9, 4}, {2, 9, 4}, {2, 9, 4}, {}, {.causal = true}},
          {"causal, fewer keys", {2, 9, 4}, {2, 6, 4}, {2, 6, 4}, {}, {.causal = true}},
          {"no batch, a scale", {5, 4}, {9, 4}, {9, 4}, {}, {.scale = 2}},
          {"bool mask", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, visible({2, 1, 5, 9})},
          {"bool mask of keys, causal", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, visible({9}), {.causal = true}},
          {"added mask", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, random({3, 5, 9}, 79)},
          {"an added mask of queries", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, random({5, 1}, 79)},
          {"a transposed mask", {2, 16, 4}, {2, 16, 4}, {2, 16, 4}, transpose(random({16, 16}, 79), 0, 1)},
          {"a mask, channels last", {2, 3, 16, 4}, {2, 3, 16, 4}, {2, 3, 16, 4}, channels_last({2, 3, 16, 16})},
          {"a query that sees nothing", {2, 5, 4}, {2, 9, 4}, {2, 9, 4}, hides_all_of_row(2)},
          {"grouped heads", {2, 4, 5, 4}, {2, 1, 9, 4}, {2, 1, 9, 4}},
          {"one query for many keys", {1, 1, 4}, {3, 9, 4}, {3, 9, 4}},
          {"dropout", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, {}, {.dropout = 0.4}},
          {"odd and long", {2, 70, 33}, {2, 131, 33}, {2, 131, 17}},
          {"one key", {2, 5, 4}, {2, 1, 4}, {2, 1, 4}}};
}

// A query of a case is the same number many times, so that maxima repeat.
Tensor with_repeats(const Tensor& t) {
  if (t.size(-2) > 3) t.narrow(-2, 1, 2).copy_(t.narrow(-2, 0, 1).expand(t.narrow(-2, 1, 2).sizes()));
  return t;
}

// [y, dq, dk, dv].
std::vector<Tensor> step(const Case& c, DType dtype, const AttentionPrecision& how) {
  const auto leaf = [&](const Shape& sizes, std::uint64_t seed) {
    return with_repeats(random(sizes, seed)).to(dtype).set_requires_grad();
  };
  const Tensor q = leaf(c.q, 1);
  const Tensor k = leaf(c.k, 2);
  const Tensor v = leaf(c.v, 3);
  default_generator() = Generator(11);
  const Tensor y = amp::attention_in_blocks(q, k, v, c.mask, {c.options, {7, 8}}, how);
  autograd::backward({y}, {random(y.sizes(), 4).to(dtype)});
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

// Under it the numbers are those of the reference's ops.
struct Writer : Observer {
  bool writes_numbers() const override { return true; }
};
std::vector<Tensor> by_reference(const Case& c, DType dtype, const AttentionPrecision& how) {
  Writer writer;
  const ObserverScope scope(writer);
  return step(c, dtype, how);
}

Quantizer to(const char* name, const Scaling& scaling = NoScale()) {
  return {.format = format(name), .scaling = scaling};
}
AttentionPrecision everywhere(const Quantizer& q) {
  AttentionPrecision how;
  for (const amp::AttentionField& f : amp::kAttentionFields) how.*f.quantizer = q;
  return how;
}
Quantizer stochastic(Quantizer q) {
  q.rounding.mode = RoundingMode::stochastic;
  return q;
}

struct Way {
  const char* what;
  AttentionPrecision how;
};
std::vector<Way> ways() {
  const AttentionPrecision bf16 = *amp::recipe("bf16-flash").quantization->attention;
  AttentionPrecision shifted = bf16;
  shifted.beta = 2;
  AttentionPrecision operands = everywhere(to("e4m3fn", TensorScale{}));
  AttentionPrecision p;
  p.p = to("e4m3fn", FixedScale{.value = 300});
  for (const auto field : {&AttentionPrecision::p, &AttentionPrecision::d_p, &AttentionPrecision::d_s,
                           &AttentionPrecision::softmax, &AttentionPrecision::running})
    operands.*field = to("e5m2", RowScale{});
  AttentionPrecision sums = bf16;
  sums.qk_accumulator = accumulator("fp16-acc");
  sums.pv_accumulator = accumulator("bf16-acc:stochastic");
  AttentionPrecision groups;
  groups.qk_accumulator = accumulator("e8m13/group=4/fraction=13");
  groups.pv_accumulator = accumulator("f32/chunk=4");
  return {{"nothing", {}},
          {"bf16", bf16},
          {"shifted", shifted},
          {"bf16 everywhere", everywhere(to("bf16"))},
          {"one scale per operand, rows within", operands},
          {"a fixed scale of P", p},
          {"powers of two of blocks", everywhere(to("e2m1fn", PowerBlocks{.block = 4}))},
          {"coded scales of blocks", everywhere(to("e2m1fn", CodedBlocks{.block = 4}))},
          {"zero points of rows", everywhere(to("int8", RowRange{}))},
          {"stochastic bf16", everywhere(stochastic(to("bf16")))},
          {"stochastic rows", everywhere(stochastic(to("e4m3fn", RowScale{})))},
          {"accumulators", sums},
          {"sums of groups and of chunks", groups}};
}

}  // namespace

TEST_CASE("attention's kernel: the bits of the reference, forward and backward") {
  for (const Case& c : cases())
    for (Way way : ways())
      for (const int block : {4, 64}) {
        CAPTURE(c.what);
        CAPTURE(way.what);
        CAPTURE(block);
        way.how.block = block;
        const Tensor q = random(c.q, 1);
        const Tensor k = random(c.k, 2);
        REQUIRE(amp::kernel_suits(way.how, {q, k, random(c.v, 3), c.mask}, {}, false));
        CHECK(all_same(step(c, DType::f32, way.how), by_reference(c, DType::f32, way.how)));
      }
}

TEST_CASE("attention's kernel: the bits of the reference for half inputs, blocks of any size, and any backend") {
  const Case c{"", {2, 2, 11, 5}, {2, 2, 23, 5}, {2, 2, 23, 7}};
  AttentionPrecision how = *amp::recipe("bf16-flash-shifted").quantization->attention;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(to_string(dtype));
    CHECK(all_same(step(c, dtype, how), by_reference(c, dtype, how)));
  }
  for (const int block : {1, 2, 7, 16, 22, 23, 1000}) {
    CAPTURE(block);
    how.block = block;
    CHECK(all_same(step(c, DType::f32, how), by_reference(c, DType::f32, how)));
  }
  const std::vector<Tensor> wanted = step(c, DType::f32, how);
  const CpuBackendScope reference(CpuBackend::eigen);
  CHECK(all_same(step(c, DType::f32, how), wanted));
  CHECK(all_same(by_reference(c, DType::f32, how), wanted));
}

TEST_CASE("attention's kernel: threads change no bit, with few heads and many") {
  AttentionPrecision how = everywhere(stochastic(to("bf16")));
  how.block = 16;
  for (const Case& c : {Case{"one head", {70, 8}, {70, 8}, {70, 8}, {}, {.causal = true}},
                        Case{"many heads", {9, 70, 8}, {9, 70, 8}, {9, 70, 8}, {}, {.causal = true}}}) {
    CAPTURE(c.what);
    std::vector<std::vector<Tensor>> all;
    for (const int threads : {1, 2, 5}) {
      const ThreadsScope scope(threads);
      all.push_back(step(c, DType::f32, how));
    }
    CHECK(all_same(all[0], all[1]));
    CHECK(all_same(all[0], all[2]));
  }
}

TEST_CASE("attention's kernel: NaN and Inf go where the reference has them") {
  const Case c{"", {2, 6, 4}, {2, 9, 4}, {2, 9, 4}};
  AttentionPrecision how = *amp::recipe("bf16-flash").quantization->attention;
  how.block = 4;
  for (const double bad : {static_cast<double>(HUGE_VALF), static_cast<double>(NAN), 1e38}) {
    CAPTURE(bad);
    const auto run = [&] {
      const Tensor q = random(c.q, 1);
      const Tensor k = random(c.k, 2);
      const Tensor v = random(c.v, 3);
      k.narrow(-2, 7, 1).fill_(bad);
      v.narrow(-2, 2, 1).fill_(bad);
      return amp::attention_in_blocks(q, k, v, {}, {}, how);
    };
    const Tensor fast = run();
    Writer writer;
    const ObserverScope scope(writer);
    const Tensor slow = run();
    const Tensor both_nan = logical_and(ne(fast, fast), ne(slow, slow));
    CHECK(all(logical_or(eq(fast, slow), both_nan)).item<bool>());
    CHECK_FALSE(all(eq(fast, fast)).item<bool>());
  }
}

TEST_CASE("attention's kernel: what it leaves to the reference") {
  const auto tensors = [](DType dtype) {
    const Tensor x = random({2, 5, 4}, 1).to(dtype);
    return std::vector<Tensor>{x, x, x, Tensor()};
  };
  const std::vector<Tensor> f32 = tensors(DType::f32);
  CHECK(amp::kernel_suits({}, f32, {}, false));
  CHECK(amp::kernel_suits({}, tensors(DType::bf16), {}, false));
  CHECK_FALSE(amp::kernel_suits({}, tensors(DType::f64), {}, false));
  CHECK_FALSE(amp::kernel_suits({}, f32, {}, true));
  CHECK_FALSE(amp::kernel_suits({.p = to("e4m3fn", TensorScale{})}, f32, {}, false));
  CHECK_FALSE(amp::kernel_suits({.d_s = to("e2m1fn", Nvfp4Blocks{})}, f32, {}, false));
  CHECK_FALSE(amp::kernel_suits({.p = to("e4m3fn", PowerBlocks{.square = true})}, f32, {}, false));
  CHECK(amp::kernel_suits({.q = to("e4m3fn", TensorScale{})}, f32, {}, false));
  amp::AttentionHistories histories;
  CHECK(amp::kernel_suits({.p = to("e4m3fn", DelayedScale{})}, f32, {.histories = &histories}, false));
  histories.of(&AttentionPrecision::p).scale = 0x1p127F;  // no FixedScale
  CHECK_FALSE(amp::kernel_suits({.p = to("e4m3fn", DelayedScale{})}, f32, {.histories = &histories}, false));
  Quantizer transformed = to("bf16");
  transformed.hadamard = 16;
  CHECK_FALSE(amp::kernel_suits({.d_s = transformed}, f32, {}, false));
  CHECK(amp::kernel_suits({.q = transformed, .k = transformed}, f32, {}, false));
  std::vector<Tensor> more_rows = f32;
  more_rows[3] = random({3, 5}, 1);
  CHECK_FALSE(amp::kernel_suits({}, more_rows, {}, false));
  more_rows[3] = random({1, 5}, 1);
  CHECK(amp::kernel_suits({}, more_rows, {}, false));
  std::vector<Tensor> more_values = f32;
  more_values[2] = random({3, 2, 5, 4}, 1);
  CHECK_FALSE(amp::kernel_suits({}, more_values, {}, false));
  {
    const AccumulatorScope around(accumulator("fp16-acc"));
    CHECK_FALSE(amp::kernel_suits({}, f32, {}, false));
  }
  const MatmulPrecisionScope tf32(MatmulPrecision::tf32);
  CHECK_FALSE(amp::kernel_suits({}, f32, {}, false));
}

TEST_CASE("attention's kernel: ledger, shadow, counts and an empty intervention change no bit") {
  for (const char* name : {"bf16-flash", "bf16-flash-shifted"}) {
    const amp::Recipe recipe = amp::recipe(name);
    const std::vector<Tensor> alone = trained(recipe);
    inspect::Ledger ledger;
    inspect::Shadow shadow;
    inspect::Intervention nothing({});
    Writer writer;
    for (Observer* const observer : {static_cast<Observer*>(&ledger), static_cast<Observer*>(&shadow),
                                     static_cast<Observer*>(&nothing), static_cast<Observer*>(&writer)})
      CHECK(all_same(trained(recipe, {.observer = observer}), alone));
    amp::CastStatsTable counts;
    CHECK(all_same(trained(recipe, {.counts = &counts}), alone));
    // 2 steps of 2 sequences, 2 heads and 20 x 20 scores, rounded in forward and once more in backward
    const auto found = counts.find({amp::Role::activation, "block.self_attn.p"});
    REQUIRE(found != counts.end());
    CHECK(found->second.counts.elements == 2 * 2 * 2 * 2 * 400);
  }
}

TEST_CASE("attention's kernel: its order of f32 sums is no accumulator that a ledger or an intervention knows") {
  const amp::Recipe recipe = amp::recipe("bf16-flash");
  inspect::Ledger ledger;
  const std::vector<Tensor> alone = trained(recipe, {.observer = &ledger});
  for (const auto& row : ledger.rows()) CHECK_MESSAGE(row.accumulator.empty(), row.op, " ", row.accumulator);
  inspect::Intervention exact_sums({{.part = inspect::ExactPart::sum}});
  CHECK(all_same(trained(recipe, {.observer = &exact_sums}), alone));
  CHECK(exact_sums.touched() == 0);
  amp::Recipe narrow = recipe;
  narrow.name = "narrow";
  narrow.quantization->attention->pv_accumulator = accumulator("fp16-acc");
  inspect::Intervention exact_pv({{.part = inspect::ExactPart::sum}});
  trained(narrow, {.observer = &exact_pv});
  CHECK(exact_pv.touched() > 0);
}

TEST_CASE("attention's kernel: an intervention makes one operand exact") {
  amp::Recipe coarse = amp::recipe("bf16-flash");
  coarse.name = "coarse";
  coarse.quantization->attention->p = to("e2m1fn");
  amp::Recipe exact = coarse;
  exact.quantization->attention->p.reset();
  const std::vector<Tensor> wanted = trained(exact);
  inspect::Intervention of_p({{.site = "block.self_attn.p"}});
  inspect::Intervention of_v({{.site = "block.self_attn.v"}});
  CHECK(all_same(trained(coarse, {.observer = &of_p}), wanted));
  CHECK_FALSE(all_same(trained(coarse, {.observer = &of_v}), wanted));
  CHECK_FALSE(all_same(trained(coarse), wanted));
  CHECK(of_p.touched() > 0);
}
