// Delayed scales inside attention: scales of earlier steps, amaxes over all blocks, state that is saved with a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../../amp/attention.h"
#include "../../amp/product_transform.h"
#include "../../amp/recipe.h"
#include "../../autograd/autograd.h"
#include "../../inspect/shadow.h"
#include "attention_case.h"
#include "attention_loops.h"
#include "support.h"

using namespace gradual;
using amp::AttentionHistories;
using amp::AttentionPrecision;
using attention_test::all_same;
using attention_test::Matrix;
using attention_test::matrix_of;
using attention_test::Net;
using attention_test::Row;
using attention_test::trained;

namespace {

const amp::Recipe& delayed_recipe() {
  static const amp::Recipe recipe = amp::recipe("fp8-attention-delayed");
  return recipe;
}
AttentionPrecision inside() { return *delayed_recipe().quantization->attention; }

struct Inputs {
  Tensor q, k, v, dy;
};
Inputs inputs_of(std::uint64_t seed, const Shape& queries, const Shape& keys) {
  return {random(queries, seed), random(keys, seed + 1), random(keys, seed + 2), random(queries, seed + 3)};
}

// [y, dq, dk, dv].
std::vector<Tensor> step(const Inputs& in, const AttentionPrecision& how, const amp::AttentionScales& scales,
                         bool causal = false) {
  const auto leaf = [](const Tensor& t) { return t.detach().clone().set_requires_grad(); };
  const Tensor q = leaf(in.q);
  const Tensor k = leaf(in.k);
  const Tensor v = leaf(in.v);
  const Tensor y = amp::attention_in_blocks(q, k, v, {}, {{.causal = causal}}, how, scales);
  autograd::backward({y}, {in.dy});
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

// Under it the numbers are those of the reference's ops.
struct Writer : Observer {
  bool writes_numbers() const override { return true; }
};

// All finite magnitudes of a format with a sign.
std::vector<double> magnitudes(int exponent_bits, int mantissa_bits, double most) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int parts = 1 << mantissa_bits;
  std::vector<double> all;
  for (int e = 0; e < 1 << exponent_bits; ++e)
    for (int m = 0; m < parts; ++m) {
      const double size =
          e == 0 ? std::ldexp(double(m) / parts, 1 - bias) : std::ldexp(1 + double(m) / parts, e - bias);
      if (size <= most) all.push_back(size);
    }
  return all;
}

// To the nearest magnitude times a scale, of two the even code, at most the largest; f32 products.
attention_test::RowChange rounding(const std::vector<double>& values, float scale) {
  return [=](const Row& row) {
    Row all;
    for (const float x : row) {
      const double magnitude = std::abs(double(x) * scale);
      auto above = std::ranges::lower_bound(values, magnitude) - values.begin();
      if (above == std::ssize(values)) --above;
      if (above > 0) {
        const double down = magnitude - values[static_cast<std::size_t>(above - 1)];
        const double up = values[static_cast<std::size_t>(above)] - magnitude;
        if (down < up || (down == up && above % 2 != 0)) --above;
      }
      all.push_back(std::copysign(static_cast<float>(values[static_cast<std::size_t>(above)]), x) * (1 / scale));
    }
    return all;
  };
}

}  // namespace

TEST_CASE("attention's delayed scales: the bits of loops over numbers, whose scales are those of the step before") {
  const std::vector<double> e4m3 = magnitudes(4, 3, 448);
  const std::vector<double> e5m2 = magnitudes(5, 2, 57344);
  const auto histories = std::make_shared<AttentionHistories>();
  std::map<std::string, float> scale;
  for (const amp::AttentionField& field : amp::kAttentionFields) scale[field.name] = 1;
  for (std::uint64_t number = 0; number < 3; ++number) {
    CAPTURE(number);
    const Inputs in = inputs_of(10 * number, {6, 8}, {37, 8});
    const std::vector<Tensor> got = step(in, inside(), {.histories = histories});
    const attention_test::LoopRounding by{.q = rounding(e4m3, scale["q"]),
                                          .k = rounding(e4m3, scale["k"]),
                                          .v = rounding(e4m3, scale["v"]),
                                          .p = rounding(e4m3, scale["p"]),
                                          .d_o = rounding(e5m2, scale["do"]),
                                          .d_p = rounding(e5m2, scale["dp"]),
                                          .d_s = rounding(e5m2, scale["ds"]),
                                          .o = rounding(e4m3, scale["o"])};
    const attention_test::LoopResult want =
        attention_test::attention_by_loops(matrix_of(in.q), matrix_of(in.k), matrix_of(in.v), matrix_of(in.dy), by);
    CHECK(matrix_of(got[0]) == want.y);
    CHECK(matrix_of(got[1]) == want.dq);
    CHECK(matrix_of(got[2]) == want.dk);
    CHECK(matrix_of(got[3]) == want.dv);
    const auto staged = [&](auto field) { return histories->of(field).read().staged; };
    CHECK(staged(&AttentionPrecision::q) == static_cast<float>(absmax(in.q)));
    CHECK(staged(&AttentionPrecision::k) == static_cast<float>(absmax(in.k)));
    CHECK(staged(&AttentionPrecision::v) == static_cast<float>(absmax(in.v)));
    CHECK(staged(&AttentionPrecision::p) == 1);
    CHECK(staged(&AttentionPrecision::d_o) == static_cast<float>(absmax(in.dy)));
    histories->take_staged(inside(), false);
    CHECK(histories->of(&AttentionPrecision::q).amax.size() == number + 1);
    CHECK(histories->of(&AttentionPrecision::d_o).amax.size() == number);
    histories->take_staged(inside(), true);
    for (const amp::AttentionField& field : amp::kAttentionFields) {
      const AmaxHistory& history = histories->of(field.quantizer);
      const float most = field.name[0] == 'd' ? 57344 : 448;
      if (!history.amax.empty()) scale[field.name] = most / *std::ranges::max_element(history.amax);
      CHECK(history.scale == scale[field.name]);
    }
  }
}

TEST_CASE("attention's delayed scales: the kernel has the reference's bits, and stages the same amaxes") {
  for (const bool random_rounding : {false, true})
    for (const bool causal : {false, true}) {
      CAPTURE(random_rounding);
      CAPTURE(causal);
      AttentionPrecision how = inside();
      how.block = 16;
      if (random_rounding)
        for (const auto field : {&AttentionPrecision::p, &AttentionPrecision::d_p, &AttentionPrecision::d_s})
          (how.*field)->rounding.mode = RoundingMode::stochastic;
      const auto by_kernel = std::make_shared<AttentionHistories>();
      const auto by_ops = std::make_shared<AttentionHistories>();
      for (std::uint64_t number = 0; number < 3; ++number) {
        const Inputs in = inputs_of(10 * number, {2, 3, 40, 8}, {2, 3, 40, 8});
        default_generator() = Generator(11);
        const std::vector<Tensor> fused = step(in, how, {.histories = by_kernel}, causal);
        default_generator() = Generator(11);
        Writer writer;
        const ObserverScope scope(writer);
        CHECK(all_same(fused, step(in, how, {.histories = by_ops}, causal)));
        for (const amp::AttentionField& field : amp::kAttentionFields) {
          CAPTURE(field.name);
          CHECK(by_kernel->of(field.quantizer).staged == by_ops->of(field.quantizer).staged);
          CHECK(by_kernel->of(field.quantizer).is_staged == by_ops->of(field.quantizer).is_staged);
        }
        for (const auto& histories : {by_kernel, by_ops})
          for (const bool backward : {false, true}) histories->take_staged(how, backward);
      }
    }
}

TEST_CASE("attention's delayed scales: backward has forward's scales, though the histories have advanced since") {
  const auto histories = std::make_shared<AttentionHistories>();
  const Inputs in = inputs_of(1, {5, 8}, {9, 8});
  const auto gradient = [&](bool advances) {
    *histories = {};
    const Tensor q = in.q.detach().clone().set_requires_grad();
    const Tensor y = amp::attention_in_blocks(q, in.k, in.v, {}, {}, inside(), {.histories = histories});
    if (advances) histories->take_staged(inside(), false);
    autograd::backward({y}, {in.dy});
    return q.grad();
  };
  CHECK(same_bits(gradient(false), gradient(true)));
}

TEST_CASE("attention's delayed scales: backward has the scales of its own forward, though another has come since") {
  const Inputs a = inputs_of(1, {2, 40, 8}, {2, 40, 8});
  Inputs b = inputs_of(5, {2, 40, 8}, {2, 40, 8});
  for (Tensor* const t : {&b.q, &b.k, &b.v}) *t = *t * 3.0;
  struct Call {
    Tensor q, k, v, y, dy;
    std::vector<Tensor> gradients() const {
      autograd::backward({y}, {dy});
      return {q.grad(), k.grad(), v.grad()};
    }
  };
  const auto histories = std::make_shared<AttentionHistories>();
  const auto forward = [&](const Inputs& in) {
    const auto leaf = [](const Tensor& t) { return t.detach().clone().set_requires_grad(); };
    Call call{leaf(in.q), leaf(in.k), leaf(in.v), {}, in.dy};
    call.y = amp::attention_in_blocks(call.q, call.k, call.v, {}, {}, inside(), {.histories = histories});
    histories->take_staged(inside(), false);
    return call;
  };
  for (const bool by_ops : {false, true}) {
    CAPTURE(by_ops);
    Writer writer;
    std::optional<ObserverScope> scope;
    if (by_ops) scope.emplace(writer);
    *histories = {};
    const std::vector<Tensor> a_alone = forward(a).gradients();
    *histories = {};
    forward(a);
    const std::vector<Tensor> b_alone = forward(b).gradients();
    *histories = {};
    const Call first = forward(a);
    const Call second = forward(b);
    const float used = histories->of(&AttentionPrecision::k).used;
    CHECK(used != 1);
    CHECK(all_same(first.gradients(), a_alone));
    CHECK(histories->of(&AttentionPrecision::k).used == used);
    CHECK(all_same(second.gradients(), b_alone));
  }
}

namespace {

// The run's state after a step.
StateDict state_after(amp::RecipeRun& run, Net& net, std::uint64_t number, std::vector<double>& losses) {
  const Tensor x = random({2, 20, 16}, number);
  losses.push_back(run.step([&] { return square(net(x)).mean(); }).loss.item());
  return run.state_dict();
}

const std::string kSite = "block.self_attn#activations";

const AttentionHistories& histories_of(amp::RecipeRun& run) {
  const auto& sites = run.quantization()->sites();
  const auto site = std::ranges::find(sites, kSite, [](const auto& s) { return to_string(s->name); });
  REQUIRE(site != sites.end());
  REQUIRE((*site)->attention);
  return *(*site)->attention;
}

}  // namespace

TEST_CASE("fp8-attention-delayed: a run keeps, saves and takes over attention's histories") {
  default_generator() = Generator(5);
  Net net;
  amp::RecipeRun run(delayed_recipe(), net, optim::AdamOptions{.lr = 1e-2});
  std::vector<double> losses;
  for (std::uint64_t i = 0; i < 2; ++i) state_after(run, net, i, losses);
  const StateDict saved = run.state_dict();
  const RandomKey drawn = default_generator().state();
  for (const amp::AttentionField& field : amp::kAttentionFields) {
    CAPTURE(field.name);
    const std::size_t index = static_cast<std::size_t>(&field - amp::kAttentionFields);
    const bool kept = amp::has_delayed_scales(inside()) && (inside().*field.quantizer).has_value();
    CHECK(histories_of(run).fields[index].amax.size() == (kept ? 2 : 0));
  }
  {  // evaluation leaves them
    net.eval();
    const AmaxHistory before = histories_of(run).fields[0];
    run.forward([&] { return square(net(random({2, 20, 16}, 9) * 100.0)).mean(); });
    CHECK(histories_of(run).fields[0].amax == before.amax);
    CHECK_FALSE(histories_of(run).fields[0].is_staged);
    net.train();
  }
  Net other;
  amp::RecipeRun resumed(delayed_recipe(), other, optim::AdamOptions{.lr = 1e-2});
  resumed.load_state_dict(saved);
  CHECK(histories_of(resumed).fields[0].amax.size() == 2);
  std::vector<double> on;
  std::vector<double> again;
  default_generator().set_state(drawn);
  const StateDict state = state_after(run, net, 2, on);
  default_generator().set_state(drawn);
  const StateDict resumed_state = state_after(resumed, other, 2, again);
  CHECK(on == again);
  for (const auto& entry : state)
    if (const auto* const t = std::get_if<Tensor>(&entry.value)) {
      CAPTURE(entry.name);
      CHECK(same_bits(*t, resumed_state.tensor(entry.name)));
    }
}

TEST_CASE("fp8-attention-delayed: checkpointed and observed steps have the same bits") {
  const std::vector<Tensor> plain = trained(delayed_recipe());
  CHECK_FALSE(all_same(plain, trained(amp::recipe("fp8-attention"))));
  CHECK(all_same(plain, trained(delayed_recipe(), {.checkpointed = true})));
  inspect::Shadow shadow;
  CHECK(all_same(plain, trained(delayed_recipe(), {.observer = &shadow})));
  for (const inspect::ShadowRow& row : shadow.rows()) CHECK_MESSAGE(row.not_exact.empty(), row.op, row.not_exact);
  amp::CastStatsTable counts;
  CHECK(all_same(plain, trained(delayed_recipe(), {.counts = &counts})));
  CHECK(amp::recipe_from_json(amp::to_json(delayed_recipe())).quantization == delayed_recipe().quantization);
}

TEST_CASE("attention's delayed scales: what is refused, and why") {
  const auto refused = [](const AttentionPrecision& how, const std::string& why) {
    const std::string message = message_of([&] { amp::check_valid(how); });
    CHECK_MESSAGE(message.find(why) != std::string::npos, message);
  };
  Quantizer q{.format = format("e4m3fn"), .scaling = DelayedScale{}};
  refused({.softmax = q},
          "softmax: delayed scaling; in attention every scaling but learned is allowed, delayed not of");
  refused({.running = q}, "running: delayed scaling");
  refused({.q = Quantizer{.format = format("int4"), .scaling = LearnedScale{}}}, "q: learned scaling; in attention");
  // Forward alone stages q, k, v and p, along one of the two axes along which they are transformed.
  const Quantizer plain{.format = format("e4m3fn"), .hadamard = true};
  q.hadamard = true;
  const std::string why = "delayed scaling keeps one history, from the amaxes of forward, and a Hadamard transform has";
  for (const bool all : {false, true})
    for (const auto field :
         {&AttentionPrecision::q, &AttentionPrecision::k, &AttentionPrecision::v, &AttentionPrecision::p}) {
      AttentionPrecision how{.q = plain, .k = plain, .v = plain, .d_o = plain};
      if (all || field == &AttentionPrecision::p) {
        how.p = plain;
        how.d_s = plain;
      }
      how.*field = q;
      refused(how, why);
    }
  AttentionPrecision gradients{.q = plain, .k = plain, .v = plain, .p = plain, .d_o = q, .d_s = q};
  amp::check_valid(gradients);
  gradients.p.reset();
  amp::check_valid(gradients);
  const Tensor x = ones({5, 8});
  CHECK(message_of([&] {
          amp::attention_in_blocks(x, x, x, {}, {}, inside());
        }).find("delayed scaling keeps amax histories") != std::string::npos);
}

TEST_CASE("attention's delayed scales: do has amaxes of both axes along which it is transformed") {
  const Quantizer plain{.format = Format::ieee(8, 23), .hadamard = true};
  const Quantizer q{.format = format("e5m2"), .scaling = DelayedScale{}, .hadamard = true};
  const AttentionPrecision how{.q = plain, .k = plain, .v = plain, .p = plain, .d_o = q, .d_s = q};
  const std::vector<bool> signs = amp::fixed_signs(16);
  for (const bool constant_rows : {false, true}) {
    CAPTURE(constant_rows);
    // A column or a row of H has an amax of 1 after the transform along its axis, and of 1/4 along the other.
    Inputs in = inputs_of(1, {16, 16}, {16, 16});
    const Tensor one = hadamard(eye(16), signs).narrow(1, 0, 1);
    in.dy = constant_rows ? one.expand({16, 16}).contiguous() : transpose(one, 0, 1).expand({16, 16}).contiguous();
    const auto histories = std::make_shared<AttentionHistories>();
    step(in, how, {.histories = histories});
    CHECK(histories->of(&AttentionPrecision::d_o).read().staged == 1);
  }
}
