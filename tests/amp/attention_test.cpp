// Attention in blocks: without rounding it is attention; with rounding, what an independent loop over numbers gives.
#include "../../amp/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../../amp/autocast.h"
#include "../../amp/recipe.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/autograd.h"
#include "../../inspect/block_xray.h"
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
using attention_test::Net;
using attention_test::trained;
using attention_test::visible;

namespace {

std::vector<Case> cases() {
  return {{"plain", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 6}},
          {"causal", {2, 9, 4}, {2, 9, 4}, {2, 9, 4}, {}, {.causal = true}},
          {"causal, fewer keys", {2, 9, 4}, {2, 6, 4}, {2, 6, 4}, {}, {.causal = true}},
          {"a scale", {5, 4}, {9, 4}, {9, 4}, {}, {.scale = 2}},
          {"bool mask", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, visible({2, 1, 5, 9})},
          {"bool mask of keys, causal", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, visible({1, 9}), {.causal = true}},
          {"added mask", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, random({3, 5, 9}, 79)},
          {"an added mask of queries", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, random({5, 1}, 79)},
          {"a query that sees nothing", {2, 5, 4}, {2, 9, 4}, {2, 9, 4}, hides_all_of_row(2)},
          {"grouped heads", {2, 4, 5, 4}, {2, 1, 9, 4}, {2, 1, 9, 4}},
          {"one query, a mask of many", {2, 1, 4}, {2, 9, 4}, {2, 9, 4}, random({5, 9}, 79)},
          {"one query, a mask of many, causal", {1, 4}, {9, 4}, {9, 4}, random({2, 5, 9}, 79), {.causal = true}},
          {"dropout", {2, 3, 5, 4}, {2, 3, 9, 4}, {2, 3, 9, 4}, {}, {.dropout = 0.4}}};
}

// [y, dq, dk, dv, ..], with the gradient of an added mask.
template <class F> std::vector<Tensor> step(const Case& c, DType dtype, const F& attend) {
  const auto leaf = [&](const Shape& sizes, std::uint64_t seed) {
    return random(sizes, seed).to(dtype).set_requires_grad();
  };
  const Tensor q = leaf(c.q, 1);
  const Tensor k = leaf(c.k, 2);
  const Tensor v = leaf(c.v, 3);
  Tensor mask = c.mask;
  if (mask.defined() && mask.is_floating()) mask = mask.detach().to(dtype).clone().set_requires_grad();
  const Tensor y = attend(q, k, v, mask);
  autograd::backward({y}, {random(y.sizes(), 4).to(dtype)});
  std::vector<Tensor> all{y.detach(), q.grad(), k.grad(), v.grad()};
  if (mask.defined() && mask.is_floating()) all.push_back(mask.grad());
  return all;
}

AttentionAttrs attrs_of(const Case& c) { return {c.options, {7, 8}}; }

std::vector<Tensor> in_blocks(const Case& c, DType dtype, const AttentionPrecision& how) {
  return step(c, dtype, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
    return amp::attention_in_blocks(q, k, v, mask, attrs_of(c), how);
  });
}
std::vector<Tensor> as_one(const Case& c, DType dtype) {
  return step(c, dtype, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
    const AttentionAttrs attrs = attrs_of(c);
    return dispatch1(OpId::scaled_dot_product_attention, {&q, &k, &v, &mask}, attrs, Loc::current());
  });
}

const Quantizer kBf16{.format = format("bf16")};

}  // namespace

TEST_CASE("attention in blocks: without rounding it is attention, whatever the block") {
  for (const Case& c : cases()) {
    CAPTURE(c.what);
    const std::vector<Tensor> exact = as_one(c, DType::f64);
    for (const int block : {1, 4, 64})
      for (const double beta : {0.0, 2.0}) {
        CAPTURE(block);
        CAPTURE(beta);
        const std::vector<Tensor> f64 = in_blocks(c, DType::f64, {.block = block, .beta = beta});
        const std::vector<Tensor> f32 = in_blocks(c, DType::f32, {.block = block, .beta = beta});
        REQUIRE(f64.size() == exact.size());
        for (std::size_t i = 0; i < exact.size(); ++i) {
          CAPTURE(i);
          CHECK(f64[i].sizes() == exact[i].sizes());
          CHECK(absmax(f64[i] - exact[i]) <= 1e-12);
          // Sums of 9 products and three exponentials of numbers below 16.
          CHECK(absmax(f32[i].to(DType::f64) - exact[i]) <= 64 * 0x1p-24 * (1 + absmax(exact[i])));
        }
      }
  }
}

namespace {

// To nearest even, of finite numbers.
double bf16(double x) {
  auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  bits += 0x7fff + (bits >> 16 & 1);
  return static_cast<double>(std::bit_cast<float>(bits & 0xffff0000));
}

// O of one query by the definition, number by number.
std::vector<double> by_hand(const Tensor& q, const Tensor& k, const Tensor& v, int block) {
  const auto at = [](const Tensor& t, std::int64_t i, std::int64_t j) {
    return bf16(t.select(0, i).select(0, j).item());
  };
  const std::int64_t size = q.size(1);
  std::vector<double> o(static_cast<std::size_t>(v.size(1)));
  double m = -HUGE_VAL;
  double l = 0;
  for (std::int64_t first = 0; first < k.size(0); first += block) {
    const std::int64_t end = std::min(first + block, k.size(0));
    std::vector<double> s;
    for (std::int64_t j = first; j < end; ++j) {
      double sum = 0;
      for (std::int64_t e = 0; e < size; ++e) sum += at(q, 0, e) * at(k, j, e);
      s.push_back(sum / std::sqrt(static_cast<double>(size)));
    }
    const double higher = bf16(std::max(m, *std::ranges::max_element(s)));
    double in_block = 0;
    for (double& p : s) {
      p = std::exp(p - higher);
      in_block += p;
    }
    const double shrink = std::exp(m - higher);
    l = bf16(shrink * l + in_block);
    for (std::int64_t d = 0; d < v.size(1); ++d) {
      double sum = 0;
      for (std::int64_t j = first; j < end; ++j) sum += bf16(s[static_cast<std::size_t>(j - first)]) * at(v, j, d);
      double& out = o[static_cast<std::size_t>(d)];
      out = first == 0 ? bf16(sum) : bf16(shrink * out + bf16(sum));
    }
    m = higher;
  }
  for (double& out : o) out = bf16(out / l);
  return o;
}

}  // namespace

TEST_CASE("attention in blocks: every format is where the definition has it") {
  AttentionPrecision how{.block = 4};
  for (const amp::AttentionField& f : amp::kAttentionFields) how.*f.quantizer = kBf16;
  int same = 0;
  int all = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Tensor q = random({1, 8}, seed) * 2.0;
    const Tensor k = random({10, 8}, seed + 100);
    const Tensor v = random({10, 5}, seed + 200);
    const std::vector<double> want = by_hand(q, k, v, 4);
    const std::vector<double> got = amp::attention_in_blocks(q, k, v, {}, {}, how).to_vector<double>();
    for (std::size_t i = 0; i < want.size(); ++i) {
      ++all;
      same += got[i] == want[i] ? 1 : 0;
      // A sum in f32 may fall on the other side of a tie.
      CHECK(std::abs(got[i] - want[i]) <= 0x1p-7 * std::abs(want[i]));
    }
  }
  CHECK(same >= all - 2);
}

TEST_CASE("attention in blocks: each quantizer has an effect of its own, forward or backward") {
  const Case c{"", {2, 6, 16}, {2, 40, 16}, {2, 40, 16}};
  const std::vector<Tensor> exact = in_blocks(c, DType::f32, {.block = 16});
  const auto changed = [&](const AttentionPrecision& how) {
    const std::vector<Tensor> got = in_blocks(c, DType::f32, how);
    std::string which;
    for (std::size_t i = 0; i < 4; ++i) which += same_bits(got[i], exact[i]) ? '.' : "yqkv"[i];
    return which;
  };
  const auto with = [&](std::optional<Quantizer> AttentionPrecision::*field) {
    AttentionPrecision how{.block = 16};
    how.*field = kBf16;
    return changed(how);
  };
  CHECK(changed({.block = 16}) == "....");
  CHECK(with(&AttentionPrecision::q) == "yqkv");
  CHECK(with(&AttentionPrecision::k) == "yqkv");
  CHECK(with(&AttentionPrecision::v) == "yqk.");  // dv does not read v
  CHECK(with(&AttentionPrecision::p) == "yqkv");
  CHECK(with(&AttentionPrecision::d_o) == ".qkv");
  CHECK(with(&AttentionPrecision::d_p) == ".qk.");
  CHECK(with(&AttentionPrecision::d_s) == ".qk.");
  CHECK(with(&AttentionPrecision::softmax) == "yqkv");
  CHECK(with(&AttentionPrecision::running) == "yqk.");
  CHECK(with(&AttentionPrecision::o) == "yqk.");
  CHECK(changed({.qk_accumulator = accumulator("bf16-acc"), .block = 16}) == "yqkv");
  CHECK(changed({.pv_accumulator = accumulator("bf16-acc"), .block = 16}) == "yqkv");
}

namespace {

// The largest number that exp gives.
struct Largest : Observer {
  double p = 0;
  void after(const OpCall& call, const Outputs& out, const CallRecord&) override {
    if (call.op == OpId::exp) p = std::max(p, absmax(out[0]));
  }
};

}  // namespace

TEST_CASE("attention in blocks: scales fit each operand to its format") {
  const Case c{"", {2, 6, 32}, {2, 40, 32}, {2, 40, 32}};
  const std::vector<Tensor> exact = in_blocks(c, DType::f32, {});
  for (const Scaling& scaling : {Scaling(TensorScale{}), Scaling(RowScale{}), Scaling(PowerBlocks{.block = 8})}) {
    AttentionPrecision how{.qk_accumulator = accumulator("fp16-acc"), .block = 16};
    for (const amp::AttentionField& f : amp::kAttentionFields)
      if (f.quantizer != &AttentionPrecision::softmax)
        how.*f.quantizer = Quantizer{.format = format("e4m3fn"), .scaling = scaling};
    const std::vector<Tensor> got = in_blocks(c, DType::f32, how);
    for (std::size_t i = 0; i < 4; ++i) {
      const double error = norm(got[i] - exact[i]).item() / norm(exact[i]).item();
      CAPTURE(i);
      CHECK(error > 0x1p-8);
      // dq reads eight rounded numbers (q, k twice, v, do, dp, ds, o), each wrong by at most 2^-4, in any direction.
      CHECK(error < std::sqrt(8.0) * 0x1p-4);
    }
  }
}

namespace {

// [y, dq, dk, dv] of a query 1 with three keys `score`, values 1, 2 and 6, and an added mask of `hidden`.
template <class F> std::vector<Tensor> row_of(double score, double hidden, DType dtype, const F& attend) {
  const Tensor q = ones({1, 1}, {.dtype = dtype}).set_requires_grad();
  const Tensor k = full({3, 1}, score, {.dtype = dtype}).set_requires_grad();
  const Tensor v = from_data(std::vector<float>{1, 2, 6}, {3, 1}).to(dtype).set_requires_grad();
  const Tensor y = attend(q, k, v, full({1, 3}, hidden, {.dtype = dtype}));
  autograd::backward({y}, {ones({1, 1}, {.dtype = dtype})});
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}
std::vector<Tensor> row_in_blocks(double score, double hidden, DType dtype, double beta) {
  return row_of(score, hidden, dtype, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
    return amp::attention_in_blocks(q, k, v, mask, {}, {.beta = beta});
  });
}
std::vector<Tensor> row_as_one(double score, double hidden) {
  const auto one = [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
    return scaled_dot_product_attention(q, k, v, mask);
  };
  return row_of(score, hidden, DType::f64, one);
}

}  // namespace

TEST_CASE("attention in blocks: the shifted maximum leaves no P of 1 where it repeats") {
  const Tensor q = ones({1, 1});
  for (const auto& [score, shift] : std::vector<std::pair<double, double>>{
           {1.5, 1.5}, {-1.5, 1.5}, {0, 0.5}, {1e-9, 0.5}, {-1e-9, 0.5}, {110, 16}, {-110, 16}, {3e7, 16}}) {
    CAPTURE(score);
    const Tensor k = full({3, 1}, score);
    const Tensor v = ones({3, 1});
    for (const double beta : {0.0, 2.0}) {
      Largest largest;
      const ObserverScope scope(largest);
      const Tensor y = amp::attention_in_blocks(q, k, v, {}, {}, {.beta = beta});
      CHECK(y.item() == doctest::Approx(1).epsilon(1e-6));
      CHECK(largest.p == doctest::Approx(beta == 0 ? 1 : std::exp(-shift)).epsilon(1e-6));
    }
  }
}

TEST_CASE("attention in blocks: a shifted maximum changes no result, however large the scores are") {
  for (const double score : {0.0, 110.0, -110.0, 1e4, -1e4})
    for (const double beta : {2.0, 1e6}) {
      CAPTURE(score);
      CAPTURE(beta);
      const std::vector<Tensor> exact = row_as_one(score, 0);
      const std::vector<Tensor> f64 = row_in_blocks(score, 0, DType::f64, beta);
      const std::vector<Tensor> f32 = row_in_blocks(score, 0, DType::f32, beta);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(i);
        // The logsumexp, near the score, has an error of half its last place, which the largest value multiplies.
        const double size = 64 * (1 + std::abs(score)) * (1 + std::abs(score));
        CHECK(absmax(f64[i] - exact[i]) <= 0x1p-53 * size);
        if (std::abs(score) <= 110) CHECK(absmax(f32[i].to(DType::f64) - exact[i]) <= 0x1p-24 * size);
      }
      CHECK(f32[0].item() == doctest::Approx(3).epsilon(1e-6));
    }
}

TEST_CASE("attention in blocks: a finite mask of a whole row leaves the mean of the values") {
  const std::vector<Tensor> exact = row_as_one(1, -1e9);
  for (const double beta : {0.0, 2.0}) {
    CAPTURE(beta);
    const std::vector<Tensor> f64 = row_in_blocks(1, -1e9, DType::f64, beta);
    const std::vector<Tensor> f32 = row_in_blocks(1, -1e9, DType::f32, beta);
    CHECK(f32[0].item() == doctest::Approx(3).epsilon(1e-6));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      CHECK(absmax(f64[i] - exact[i]) <= 64 * 0x1p-24);  // 1e9 in f64 has a last place of 2^-23
      CHECK(std::isfinite(absmax(f32[i])));
    }
  }
}

TEST_CASE("attention in blocks: a row that no key of a block may see keeps -Inf, whatever `softmax` makes of it") {
  const Tensor mask = ones({5, 9}, {.dtype = DType::bool_});
  mask.narrow(0, 1, 1).narrow(1, 0, 6).fill_(0);  // left padding over a block and a half
  mask.narrow(0, 3, 1).fill_(0);
  const Case c{"", {2, 5, 4}, {2, 9, 4}, {2, 9, 4}, mask};
  const auto with = [&](const char* name, Overflow overflow) {
    return in_blocks(c, DType::f32, {.softmax = Quantizer{.format = format(name), .overflow = overflow}, .block = 4});
  };
  const std::vector<Tensor> exact = in_blocks(c, DType::f32, {.block = 4});
  const std::vector<Tensor> without_inf = with("e4m3fn", Overflow::ieee);
  const std::vector<Tensor> saturated = with("e4m3fn", Overflow::saturate);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(without_inf[i], saturated[i]));
    CHECK(norm(without_inf[i] - exact[i]).item() < 0.25 * norm(exact[i]).item());  // l and m + log l to 4 bits
  }
  CHECK(absmax(without_inf[0].narrow(1, 3, 1)) == 0);
}

TEST_CASE("attention in blocks: autocast lowers none of its products") {
  const Case c{"", {2, 6, 16}, {2, 40, 16}, {2, 40, 16}};
  const AttentionPrecision how{.block = 16};
  const std::vector<Tensor> plain = in_blocks(c, DType::f32, how);
  std::vector<Tensor> lowered;
  {
    const amp::Autocast scope({.dtype = DType::bf16});
    lowered = in_blocks(c, DType::f32, how);
  }
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], lowered[i]));
}

TEST_CASE("attention in blocks: nothing is drawn for a backward that does not come") {
  Quantizer random_bf16 = kBf16;
  random_bf16.rounding.mode = RoundingMode::stochastic;
  const auto draws = [](const AttentionPrecision& how, bool needs_grad, bool recording) {
    default_generator() = Generator(5);
    const RandomKey before = default_generator().state();
    const StageScope grad(chain().autograd, recording ? chain().autograd : nullptr);
    const Tensor x = random({3, 4}, 1).set_requires_grad(needs_grad);
    amp::attention_in_blocks(x, x, x, {}, {}, how);
    return default_generator().state() != before;
  };
  const AttentionPrecision backward{.d_o = random_bf16, .d_p = random_bf16, .d_s = random_bf16};
  CHECK(draws(backward, true, true));
  CHECK_FALSE(draws(backward, false, true));
  CHECK_FALSE(draws(backward, true, false));
  for (const bool recording : {false, true}) {
    CHECK(draws({.p = random_bf16}, true, recording));
    CHECK_FALSE(draws({.p = kBf16}, true, recording));
  }
}

namespace {

// The gradients of one step.
std::vector<Tensor> gradients(const amp::Recipe& recipe) {
  default_generator() = Generator(5);
  Net net;
  amp::RecipeRun run(recipe, net, optim::AdamOptions{.lr = 1e-2});
  const Tensor x = random({2, 20, 16}, 0);
  run.backward(run.forward([&] { return square(net(x)).mean(); }));
  std::vector<Tensor> all;
  for (const auto& [name, p] : net.named_parameters()) all.push_back(p.grad().detach().clone());
  return all;
}

amp::Recipe stochastic_flash() {
  amp::Recipe r = amp::recipe("bf16-flash");
  r.name = "stochastic";
  for (const amp::AttentionField& f : amp::kAttentionFields)
    if (auto& q = (*r.quantization->attention).*f.quantizer) q->rounding.mode = RoundingMode::stochastic;
  r.quantization->attention->block = 8;
  return r;
}

// The modules in which something is rounded.
struct Sites : Observer {
  std::set<std::string> seen;
  void quantized(const QuantizerCall&) override { seen.insert(context().module); }
};

}  // namespace

TEST_CASE("attention in blocks: a recipe rounds the inside of a model's attention, whose operands are sites") {
  const std::vector<Tensor> plain = trained(amp::recipe("fp32"));
  const std::vector<Tensor> rounded = trained(amp::recipe("bf16-flash"));
  CHECK_FALSE(all_same(plain, rounded));
  const std::vector<Tensor> exact = gradients(amp::recipe("fp32"));
  const std::vector<Tensor> got = gradients(amp::recipe("bf16-flash"));
  // Ten roundings to bf16, each wrong by at most 2^-9, in any direction; a gradient of 0 has no size of its own.
  double size = 0;
  for (const Tensor& g : exact) size = std::max(size, norm(g).item());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    CHECK(norm(got[i] - exact[i]).item() <= std::sqrt(10.0) * 0x1p-9 * (norm(exact[i]).item() + 0x1p-10 * size));
  }
  Sites sites;
  CHECK(all_same(rounded, trained(amp::recipe("bf16-flash"), {.observer = &sites})));
  std::set<std::string> want;
  for (const char* name : {"q", "k", "v", "p", "do", "dp", "ds", "running", "o"})
    want.insert(std::string("block.self_attn.") + name);
  CHECK(sites.seen == want);
  amp::Recipe other = amp::recipe("bf16-flash");
  other.quantization->modules = {{"block", "fp32"}};
  CHECK(all_same(plain, trained(other)));
}

TEST_CASE("attention in blocks: a checkpointed segment has the same bits, with random rounding too") {
  amp::Recipe backward = amp::recipe("bf16-flash");
  backward.name = "stochastic backward";
  backward.quantization->attention->d_p->rounding.mode = RoundingMode::stochastic;
  CHECK_FALSE(all_same(trained(backward), trained(amp::recipe("bf16-flash"))));
  for (const amp::Recipe& r : {amp::recipe("bf16-flash"), stochastic_flash(), backward}) {
    CAPTURE(r.name);
    CHECK(all_same(trained(r), trained(r, {.checkpointed = true})));
  }
  CHECK_FALSE(all_same(trained(stochastic_flash()), trained(amp::recipe("bf16-flash"))));
}

TEST_CASE("attention in blocks: the shadow follows it exactly and changes no bit") {
  for (const char* name : {"bf16-flash", "bf16-flash-shifted"}) {
    inspect::Shadow shadow;
    CHECK(all_same(trained(amp::recipe(name)), trained(amp::recipe(name), {.observer = &shadow})));
    int seen = 0;
    for (const inspect::ShadowRow& row : shadow.rows()) {
      CHECK_MESSAGE(row.not_exact.empty(), row.op, row.not_exact);
      if (row.quantised && row.op.find("attention") != std::string::npos) {
        ++seen;
        CHECK(row.local.sqnr_db() > 30);
        CHECK(row.local.sqnr_db() < 70);
      }
    }
    CHECK(seen == 2);
  }
}

TEST_CASE("attention in blocks: the X-ray says on which side of its product each operand is") {
  const Quantizer blocks{.format = format("e4m3fn"), .scaling = PowerBlocks{.block = 8}};
  amp::Recipe r = amp::recipe("bf16-flash");
  r.name = "blocks";
  for (const auto field :
       {&AttentionPrecision::q, &AttentionPrecision::k, &AttentionPrecision::v, &AttentionPrecision::p})
    (*r.quantization->attention).*field = blocks;
  inspect::XrayObserver xrays;
  trained(r, {.observer = &xrays});
  std::map<std::string, std::set<std::string>> operands;
  for (const auto& site : xrays.sites()) operands[site.layer].insert(site.operand);
  using Both = std::set<std::string>;
  CHECK(operands["block.self_attn.q"] == Both{"forward_x", "backward"});
  CHECK(operands["block.self_attn.p"] == Both{"forward_x", "backward"});
  CHECK(operands["block.self_attn.k"] == Both{"forward_w", "backward"});
  CHECK(operands["block.self_attn.v"] == Both{"forward_w", "backward"});
}

TEST_CASE("attention in blocks: recipes go to JSON and back, and say what is wrong") {
  const amp::Recipe r = amp::recipe("bf16-flash-shifted");
  CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == r.quantization);
  const amp::Recipe mine = amp::recipe_from_json(R"({"name": "mine", "base": "mxfp8", "quantization": {"attention":
      {"p": {"format": "e4m3fn", "scaling": {"kind": "block", "block": 32}}, "pv_accumulator": "fp16-acc",
       "block": 32}}})");
  CHECK(mine.quantization->attention->p->format == format("e4m3fn"));
  CHECK(mine.quantization->attention->pv_accumulator == accumulator("fp16-acc"));
  CHECK(mine.quantization->attention->block == 32);
  const auto refused = [](const std::string& attention, const std::string& why) {
    const std::string message = message_of([&] {
      amp::recipe_from_json(R"({"name": "mine", "base": "mxfp8", "quantization": {"attention": )" + attention + "}}");
    });
    CHECK_MESSAGE(message.find(why) != std::string::npos, message);
  };
  refused(R"({"block": 0})", "block is 0; a block has at least 1 key");
  refused(R"({"beta": 0.5})", "beta is 0.5; allowed are 0 and finite numbers above 1");
  refused(R"({"p": {"format": "e4m3fn", "hadamard": true}})",
          "p, v: the Hadamard transform of P V is of both operands");
  refused(R"({"q": {"format": "e4m3fn", "center": true}})", "q: center; ");
  refused(R"({"ds": {"format": "e4m3fn", "scaling": {"kind": "learned"}}})", "every scaling but learned is allowed");
  refused(R"({"s": {"format": "e4m3fn"}})", "unknown key \"s\"");
  amp::Recipe edited = r;
  edited.name = "edited";
  edited.policy = {{OpId::scaled_dot_product_attention, amp::CastPolicy::fp32()}};
  CHECK(message_of([&] { amp::check_valid(edited); }).find("is the quantisation's") != std::string::npos);
  edited.quantization = amp::recipe("mxfp8").quantization;
  amp::check_valid(edited);
  edited.quantization->modules = {{"block", "bf16-flash"}};
  CHECK(message_of([&] { amp::check_valid(edited); }).find("is the quantisation's") != std::string::npos);
  const Tensor x = random({3, 4}, 1).set_requires_grad();
  const Tensor y = amp::attention_in_blocks(x, x, x, {}, {}, {});
  CHECK(message_of([&] {
          autograd::backward({y}, {ones({3, 4})}, {.create_graph = true});
        }).find("call backward without create_graph") != std::string::npos);
  CHECK(message_of([&] {
          amp::attention_in_blocks(x, random({3, 5}, 1), x, {}, {}, {});
        }).find("allowed are q") != std::string::npos);
}

TEST_CASE("attention in blocks: a mask that does not fit is refused, under every recipe with attention in blocks") {
  const auto refused = [](const Shape& queries, const Shape& mask) {
    const Tensor q = random(queries, 1);
    const Tensor keys = random({2, 9, 4}, 2);
    const amp::RecipeScope scope(amp::recipe("bf16-flash"));
    for (const Tensor& m : {random(mask, 3), visible(mask)}) {
      const std::string message = message_of([&] { scaled_dot_product_attention(q, keys, keys, m); });
      CHECK_MESSAGE(message.find("mask " + to_string(mask) + "; allowed is [.., L, S]") != std::string::npos, message);
    }
  };
  refused({2, 5, 4}, {3, 9});
  refused({2, 5, 4}, {5, 7});
  refused({2, 5, 4}, {5, 12});
  refused({2, 5, 4}, {8});
  refused({2, 5, 4}, {2, 9, 5});
  refused({2, 1, 4}, {5, 7});
  CHECK(amp::attention_in_blocks(random({2, 1, 4}, 1), random({2, 9, 4}, 2), random({2, 9, 4}, 3), visible({5, 9}), {},
                                 *amp::recipe("bf16-flash").quantization->attention)
            .sizes() == Shape{2, 5, 4});
}
