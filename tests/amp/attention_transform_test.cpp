// Hadamard transforms inside attention: without rounding they change nothing; with it, what loops over numbers give.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../../amp/attention.h"
#include "../../amp/recipe.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/autograd.h"
#include "../../core/quantize/quantizer_call.h"
#include "../../inspect/ledger.h"
#include "../../inspect/shadow.h"
#include "../../nn/attention.h"
#include "../../optim/adam.h"
#include "attention_case.h"
#include "attention_loops.h"
#include "support.h"

using namespace gradual;
using amp::AttentionPrecision;
using attention_test::all_same;
using attention_test::Matrix;
using attention_test::matrix_of;
using attention_test::Row;

namespace {

// [y, dq, dk, dv].
template <class F> std::vector<Tensor> step(const Tensor& q, const Tensor& k, const Tensor& v, const F& attend) {
  const auto leaf = [](const Tensor& t) { return t.detach().clone().set_requires_grad(); };
  const Tensor a = leaf(q);
  const Tensor b = leaf(k);
  const Tensor c = leaf(v);
  const Tensor y = attend(a, b, c);
  autograd::backward({y}, {random(y.sizes(), 4).to(y.dtype())});
  return {y.detach(), a.grad(), b.grad(), c.grad()};
}

// f32 unchanged, after a transform.
Quantizer turns(HadamardSize size, HadamardSigns signs = HadamardSigns::fixed) {
  return {.format = Format::ieee(8, 23), .overflow = Overflow::ieee, .hadamard = size, .signs = signs};
}
AttentionPrecision everywhere(const Quantizer& q) {
  return {.q = q, .k = q, .v = q, .p = q, .d_o = q, .d_s = q, .block = 32};
}

}  // namespace

TEST_CASE("attention's transforms: without rounding the product of turned operands is the product") {
  for (const HadamardSize size : {16, 32})
    for (const HadamardSigns signs : {HadamardSigns::fixed, HadamardSigns::drawn})
      for (const bool all : {false, true}) {
        CAPTURE(size.size);
        CAPTURE(to_string(signs));
        CAPTURE(all);
        AttentionPrecision how = everywhere(turns(size, signs));
        if (!all) {
          how.p.reset();
          how.d_s.reset();
        }
        const AttentionOptions options{.causal = !all};
        const Tensor q = random({2, 7, 32}, 1);
        const Tensor k = random({2, 45, 32}, 2);
        const Tensor v = random({2, 45, 64}, 3);
        const auto got = step(q, k, v, [&](const Tensor& a, const Tensor& b, const Tensor& c) {
          return amp::attention_in_blocks(a, b, c, {}, {options, {7, 8}}, how);
        });
        const auto f64 = [](const Tensor& t) { return t.to(DType::f64); };
        const auto exact = step(f64(q), f64(k), f64(v), [&](const Tensor& a, const Tensor& b, const Tensor& c) {
          return scaled_dot_product_attention(a, b, c, {}, options);
        });
        for (std::size_t i = 0; i < exact.size(); ++i) {
          CAPTURE(i);
          CHECK(absmax(f64(got[i]) - exact[i]) <= 256 * 0x1p-24 * (1 + absmax(exact[i])));
        }
      }
}

namespace {

// Small integers: a transform of 16 has 2 more bits, so that its sums are exact in any order.
Tensor integers(const Shape& sizes, std::uint64_t seed) { return round(random(sizes, seed) * 3); }

// In groups of 16, whose signs are the bits of a constant.
Row turned_row(const Row& row) {
  constexpr unsigned kSigns = 0x9d2b;
  Row all;
  for (std::size_t first = 0; first < row.size(); first += 16)
    for (std::size_t j = 0; j < 16; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < 16; ++i) {
        const bool negative = (std::popcount(i & j) + (kSigns >> i & 1)) % 2 != 0;
        sum += (negative ? -row[first + i] : row[first + i]) / 4.0;
      }
      all.push_back(static_cast<float>(sum));
    }
  return all;
}

// To the nearest value of e2m1, of two the one whose code is even, and at most 6.
double e2m1(double x) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double nearer = std::abs(kValues[best] - std::abs(x)) - std::abs(kValues[code] - std::abs(x));
    if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return std::copysign(kValues[best], x);
}

// Blocks of 32 with a power of two that takes the amax to [4, 8).
Row mxfp4(const Row& row) {
  Row all;
  for (std::size_t first = 0; first < row.size(); first += 32) {
    const std::size_t end = std::min(first + 32, row.size());
    float amax = 0;
    for (std::size_t i = first; i < end; ++i) amax = std::max(amax, std::abs(row[i]));
    const double scale = amax == 0 ? 1 : std::exp2(std::floor(std::log2(amax)) - 2);
    for (std::size_t i = first; i < end; ++i) all.push_back(static_cast<float>(e2m1(row[i] / scale) * scale));
  }
  return all;
}

}  // namespace

TEST_CASE("attention's transforms: the bits of loops over numbers") {
  Quantizer q = *amp::recipe("mxfp4").quantization->forward_x;
  q.hadamard = true;
  // O is rounded, so that the sums of its transform are exact too.
  const AttentionPrecision how{
      .q = q, .k = q, .v = q, .d_o = q, .o = *amp::recipe("mxfp4").quantization->forward_x, .block = 64};
  const attention_test::LoopRounding by{.q = mxfp4,
                                        .k = mxfp4,
                                        .v = mxfp4,
                                        .d_o = mxfp4,
                                        .o = mxfp4,
                                        .turn_scores = turned_row,
                                        .turn_gradients = [](const Row& row) {
                                          return hadamard16(attention_test::tensor_of(row), 0x9d2b).to_vector<float>();
                                        }};
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const auto leaf = [&](const Shape& sizes, std::uint64_t number) {
      return integers(sizes, 10 * seed + number).set_requires_grad();
    };
    const Tensor a = leaf({6, 64}, 1);
    const Tensor b = leaf({37, 64}, 2);
    const Tensor c = leaf({37, 32}, 3);
    const Tensor dy = integers({6, 32}, 10 * seed + 4);
    const Tensor y = amp::attention_in_blocks(a, b, c, {}, {}, how);
    autograd::backward({y}, {dy});
    const attention_test::LoopResult want = attention_test::attention_by_loops(
        matrix_of(a.detach()), matrix_of(b.detach()), matrix_of(c.detach()), matrix_of(dy), by);
    CHECK(matrix_of(y.detach()) == want.y);
    CHECK(matrix_of(a.grad()) == want.dq);
    CHECK(matrix_of(b.grad()) == want.dk);
    CHECK(matrix_of(c.grad()) == want.dv);
  }
}

namespace {

// What is rounded at each site.
struct Sources : Observer {
  std::map<std::string, std::vector<Tensor>> of;
  void quantized(const QuantizerCall& call) override { of[std::string(context().module)].push_back(call.from.clone()); }
};

}  // namespace

TEST_CASE("attention's transforms: P and dS are turned along keys and queries, in groups that zeros fill") {
  const Tensor q = random({5, 32}, 1);
  const Tensor k = random({40, 32}, 2);
  const Tensor v = random({40, 32}, 3);
  const auto sources = [&](const AttentionPrecision& how) {
    Sources seen;
    const ObserverScope scope(seen);
    step(q, k, v, [&](const Tensor& a, const Tensor& b, const Tensor& c) {
      return amp::attention_in_blocks(a, b, c, {}, {}, how);
    });
    return seen.of;
  };
  AttentionPrecision how = everywhere(turns(16));
  const auto seen = sources(how);
  for (const char* site : {"p", "ds"}) {
    CAPTURE(site);
    const std::vector<Tensor>& all = seen.at(site);  // of P: forward's blocks, then backward's; of dS: two in a block
    REQUIRE(all.size() == 4);
    const bool p = std::string(site) == "p";
    CHECK(all[0].sizes() == Shape{5, 32});
    CHECK(all[p ? 1 : 2].sizes() == Shape{5, 16});  // the last block has 8 keys
    CHECK(all[p ? 2 : 1].sizes() == Shape{16, 32});
    CHECK(all[3].sizes() == Shape{16, 8});
  }
  how.p->hadamard = false;
  const Tensor plain = sources(how).at("p")[0];
  const std::vector<bool> signs = [] {
    std::vector<bool> bits;
    for (int i = 0; i < 16; ++i) bits.push_back((0x9d2b >> i & 1) != 0);
    return bits;
  }();
  CHECK(same_bits(seen.at("p")[0], hadamard(plain, signs)));
}

TEST_CASE("attention's transforms: drawn signs are new in each call, and the same in its backward") {
  Quantizer q{.format = format("e2m1"), .hadamard = 16, .signs = HadamardSigns::drawn};
  const AttentionPrecision how{.q = q, .k = q};
  const Tensor x = random({5, 32}, 1);
  const auto attend = [&] { return amp::attention_in_blocks(x, x, x, {}, {}, how); };
  CHECK_FALSE(same_bits(attend(), attend()));
  Sources seen;
  const ObserverScope scope(seen);
  step(x, x, x, [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    return amp::attention_in_blocks(a, b, c, {}, {}, how);
  });
  CHECK(same_bits(seen.of.at("q")[0], seen.of.at("q")[1]));  // forward's scores, and backward's
  CHECK(same_bits(seen.of.at("k")[0], seen.of.at("k")[1]));
}

TEST_CASE("attention's transforms: what is refused, and why") {
  const auto refused = [](const AttentionPrecision& how, const std::string& why) {
    const std::string message = message_of([&] { amp::check_valid(how); });
    CHECK_MESSAGE(message.find(why) != std::string::npos, message);
  };
  const Quantizer with = turns(16);
  const Quantizer none = turns(0);
  refused({.q = with}, "q, k: the Hadamard transform of Q K^T is of both operands, in one size; given are 16 and 0");
  refused({.q = with, .k = none}, "given are 16 and 0");
  refused({.q = with, .k = turns(32)}, "given are 16 and 32");
  refused({.q = with, .k = turns(16, HadamardSigns::drawn)}, "the signs of the Hadamard transform of Q K^T are those");
  refused({.v = with}, "do, v: the Hadamard transform of dO V^T");
  refused({.p = with, .d_o = none}, "p, v: the Hadamard transform of P V is of both operands");
  refused({.q = with, .k = with, .d_s = turns(32)}, "ds, k: the Hadamard transform of dS K");
  refused({.d_p = with}, "dp: a Hadamard transform is of the operands of a product: q, k, v, p, do and ds");
  refused({.softmax = with}, "softmax: a Hadamard transform is of the operands");
  AttentionPrecision how = everywhere(with);
  how.block = 24;
  refused(how, "block is 24, no multiple of the Hadamard transform of 16: a group of P V would lie in two blocks");
  how.block = 64;
  const auto refused_call = [&](const Tensor& x, const Tensor& mask, bool causal, const std::string& why) {
    const std::string message = message_of([&] { amp::attention_in_blocks(x, x, x, mask, {{.causal = causal}}, how); });
    CHECK_MESSAGE(message.find(why) != std::string::npos, message);
  };
  refused_call(random({5, 24}, 1), {}, false, "Q K^T in q has groups of 16, which do not divide the head size 24");
  const std::string leak = "a mask hides some of these from a query: their rounding errors would reach its output";
  refused_call(random({5, 16}, 1), {}, true, leak);
  refused_call(random({5, 16}, 1), ones({5, 5}), false, leak);
  how.p->hadamard = false;
  CHECK(amp::attention_in_blocks(ones({5, 16}), ones({5, 16}), ones({5, 16}), {}, {{.causal = true}}, how).numel() ==
        80);
}

TEST_CASE("attention's transforms: an operand that is left unrounded takes its partners' transforms with it") {
  const auto without = [](auto field) {
    AttentionPrecision how = everywhere(turns(16));
    amp::leave_unrounded(how, field);
    amp::check_valid(how);
    std::string turned;
    for (const amp::AttentionField& f : amp::kAttentionFields)
      if (const auto& q = how.*f.quantizer; q && q->hadamard) turned += std::string(f.name) + " ";
    return turned;
  };
  CHECK(without(&AttentionPrecision::q) == "v p do ");
  CHECK(without(&AttentionPrecision::v) == "q k ds ");
  CHECK(without(&AttentionPrecision::d_o) == "q k ds ");
  CHECK(without(&AttentionPrecision::p) == "q k v do ds ");
  CHECK(without(&AttentionPrecision::d_s) == "q k v p do ");
}

TEST_CASE("attention's transforms: what is left after any operand is left unrounded is allowed") {
  const Quantizer with = turns(16);
  Quantizer delayed = with;
  delayed.scaling = DelayedScale{};
  AttentionPrecision of_gradients = everywhere(with);
  of_gradients.d_o = delayed;
  of_gradients.d_s = delayed;
  AttentionPrecision of_scores{.q = with, .k = with, .v = with, .d_o = delayed, .d_p = turns(0), .o = turns(0)};
  of_scores.p = turns(0);
  for (const AttentionPrecision& all : {everywhere(with), of_gradients, of_scores})
    for (const amp::AttentionField& first : amp::kAttentionFields)
      for (const amp::AttentionField& second : amp::kAttentionFields) {
        CAPTURE(first.name);
        CAPTURE(second.name);
        AttentionPrecision how = all;
        amp::leave_unrounded(how, first.quantizer);
        CHECK(message_of([&] { amp::check_valid(how); }) == "no error");
        amp::leave_unrounded(how, second.quantizer);
        CHECK(message_of([&] { amp::check_valid(how); }) == "no error");
        CHECK_FALSE(how.*first.quantizer);
      }
}

namespace {

// Its heads have 16 numbers.
struct WideNet : nn::Module {
  nn::TransformerBlock& block = register_module("block", nn::TransformerBlock(32, 2, {.dropout = 0.1, .causal = true}));
  bool checkpointed = false;
  Tensor forward(const Tensor& x) override {
    if (!checkpointed) return block(x);
    return checkpoint([this](const Tensor& t) { return block(t); }, x);
  }
};
std::vector<Tensor> trained_wide(const amp::Recipe& recipe, bool checkpointed = false, Observer* observer = nullptr) {
  default_generator() = Generator(5);
  WideNet net;
  net.checkpointed = checkpointed;
  amp::RecipeRun run(recipe, net, optim::AdamOptions{.lr = 1e-2});
  std::optional<ObserverScope> scope;
  if (observer) scope.emplace(*observer);
  for (std::uint64_t i = 0; i < 2; ++i) {
    const Tensor x = random({2, 20, 32}, i);
    run.step([&] { return square(net(x)).mean(); });
  }
  std::vector<Tensor> all;
  for (const auto& [name, p] : net.named_parameters()) all.push_back(p.detach().clone());
  return all;
}

}  // namespace

TEST_CASE("mxfp4-attention-hadamard: it trains, checkpointed and observed with the same bits, and goes to JSON") {
  const amp::Recipe r = amp::recipe("mxfp4-attention-hadamard");
  const std::vector<Tensor> plain = trained_wide(r);
  amp::Recipe unturned = r;
  unturned.name = "unturned";
  for (const amp::AttentionField& f : amp::kAttentionFields)
    if (auto& q = (*unturned.quantization->attention).*f.quantizer) q->hadamard = false;
  CHECK_FALSE(all_same(plain, trained_wide(unturned)));
  CHECK_FALSE(all_same(plain, trained_wide(amp::recipe("mxfp4"))));
  CHECK(all_same(plain, trained_wide(r, true)));
  inspect::Shadow shadow;
  CHECK(all_same(plain, trained_wide(r, false, &shadow)));
  int seen = 0;
  for (const inspect::ShadowRow& row : shadow.rows()) {
    CHECK_MESSAGE(row.not_exact.empty(), row.op, row.not_exact);
    if (row.quantised && row.op.find("attention") != std::string::npos) ++seen;
  }
  CHECK(seen == 2);
  inspect::Ledger ledger;
  CHECK(all_same(plain, trained_wide(r, false, &ledger)));
  CHECK_FALSE(ledger.rows().empty());
  CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == r.quantization);
}
