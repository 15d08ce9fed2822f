// OsciReset: weights that oscillate around a threshold of rounding.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "../../amp/recipe.h"
#include "../../inspect/update_meter.h"
#include "../../nn/conv.h"
#include "../../nn/linear.h"
#include "../../nn/norm.h"
#include "../../nn/sequential.h"
#include "support.h"

using namespace gradual;
using amp::OscillationReset, amp::Recipe, amp::RecipeRun;

namespace {

constexpr OscillationReset kOften{.from = 0, .period = 8, .window = 5, .ratio = 4};

// Weights in multiples of 1/4, without scales: the bins are plain.
Recipe recipe(const std::optional<OscillationReset>& reset = kOften) {
  Recipe r = amp::recipe("fp32");
  r.name = "quarters";
  r.quantization.emplace().forward_w = Quantizer{.format = Format::fixed_point(8, 2), .overflow = Overflow::saturate};
  r.oscillation_reset = reset;
  return r;
}

// Half of the weights have targets at thresholds, where they oscillate, half at centres; those of the last row are
// far from them, and rounded they go as far.
struct Trained {
  nn::Linear net{8, 6, {.bias = false}};
  Tensor target = zeros({6, 8});
  std::unique_ptr<RecipeRun> run;

  explicit Trained(const Recipe& r) {
    const Tensor weight = net.weight;
    const NoGrad off;
    for (int i = 0; i < 6; ++i)
      for (int j = 0; j < 8; ++j) {
        const double centre = 0.25 * (i - j);
        const double travel = i == 5 ? 3 : 0;
        target.narrow(0, i, 1).narrow(1, j, 1).fill_(centre + travel + (j % 2 == 0 ? 0.125 : 0));
        weight.narrow(0, i, 1).narrow(1, j, 1).fill_(centre + 0.01 * (j + i) + (j % 2 == 0 ? 0.07 : 0));
      }
    run = std::make_unique<RecipeRun>(r, net, optim::SGDOptions{.lr = 0.02});
  }
  void step() {
    run->step([&] { return square(net(eye(8)) - target.t()).sum(); });
  }
  std::vector<float> weights() const { return net.weight.detach().to(DType::f32).to_vector<float>(); }
};

float in_quarters(float w) { return std::nearbyint(w * 4) / 4; }

}  // namespace

TEST_CASE("oscillation reset: what goes four times as far rounded as it goes itself is set to its bin's centre") {
  // The reference: the training without resets, and the definition in plain loops.
  Trained plain(recipe(std::nullopt));
  std::vector<std::vector<float>> seen;
  for (int k = 0; k < kOften.period + kOften.window; ++k) {
    plain.step();
    seen.push_back(plain.weights());
  }
  std::vector<float> expected = seen.back();
  std::int64_t resets = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    float distance = 0;
    float rounded_distance = 0;
    for (auto k = static_cast<std::size_t>(kOften.period); k < seen.size(); ++k) {
      distance += std::abs(seen[k][i] - seen[k - 1][i]);
      rounded_distance += std::abs(in_quarters(seen[k][i]) - in_quarters(seen[k - 1][i]));
    }
    if (distance <= 0 || rounded_distance < 4 * distance) continue;
    expected[i] = in_quarters(expected[i]);
    ++resets;
  }
  Trained reset(recipe());
  for (int k = 0; k < kOften.period + kOften.window - 1; ++k) reset.step();
  CHECK(reset.run->oscillation()->resets() == 0);
  reset.step();
  CHECK(resets > 5);
  CHECK(resets < 40);
  CHECK(reset.run->oscillation()->resets() == resets);
  CHECK(reset.run->oscillation()->windows() == 1);
  CHECK(reset.weights() == expected);
  for (int k = 0; k < kOften.period - 1; ++k) reset.step();
  CHECK(reset.run->oscillation()->windows() == 1);
  reset.step();
  CHECK(reset.run->oscillation()->windows() == 2);
}

TEST_CASE("oscillation reset: from a step on, and never without a window") {
  Recipe late = recipe();
  late.oscillation_reset->from = 9;
  Trained t(late);
  for (int k = 0; k < 16 + 4; ++k) t.step();
  CHECK(t.run->oscillation()->windows() == 0);
  t.step();
  CHECK(t.run->oscillation()->windows() == 1);
  CHECK(Trained(recipe(std::nullopt)).run->oscillation() == nullptr);
}

TEST_CASE("oscillation reset: a window in which other outlier channels are chosen is dropped") {
  Recipe r = recipe();
  r.quantization->outliers = amp::OutlierChannels{.share = 0.12, .from = 10, .window = 1};
  Trained t(r);
  for (int k = 0; k < kOften.period + kOften.window; ++k) t.step();
  CHECK(t.run->quantization()->sites().at(0)->channels.outliers().defined());
  CHECK(t.run->oscillation()->windows() == 0);
  for (int k = 0; k < kOften.period; ++k) t.step();
  CHECK(t.run->oscillation()->windows() == 1);
}

TEST_CASE("oscillation reset: a phase without outlier channels watches all weights") {
  Recipe r = recipe();
  r.quantization->outliers = amp::OutlierChannels{.share = 0.12, .window = 1};
  r.schedule = {{.from = 2, .recipe = "mxfp4"}};
  Trained t(r);
  for (int k = 0; k < kOften.period; ++k) t.step();
  REQUIRE(t.run->quantization()->sites().at(0)->channels.outliers().defined());
  const StateDict state = t.run->state_dict();
  const Tensor value = state.tensor("oscillation.watched..value");
  const Tensor rounded = fake_quantize(value, *amp::recipe("mxfp4").quantization->forward_w, {.axis = 1});
  CHECK(same_bits(state.tensor("oscillation.watched..rounded"), rounded));
  for (int column = 0; column < 8; ++column)
    CHECK_FALSE(same_bits(value.narrow(1, column, 1), rounded.narrow(1, column, 1)));
}

TEST_CASE("oscillation reset: a master is reset, and its half parameter is the master rounded") {
  Recipe r = recipe();
  r.mode = amp::Mode::half;
  r.dtype = DType::bf16;
  r.masters = amp::Masters::per_tensor;
  Trained t(r);
  for (int k = 0; k < kOften.period + kOften.window; ++k) t.step();
  CHECK(t.run->oscillation()->resets() > 5);
  const Tensor master = t.run->optimizer().master(t.net.weight);
  CHECK(master.dtype() == DType::f32);
  CHECK(same_bits(master.to(DType::bf16), t.net.weight));
  std::int64_t in_centre = 0;
  for (const float w : master.to_vector<float>()) in_centre += w == in_quarters(w) ? 1 : 0;
  CHECK(in_centre >= t.run->oscillation()->resets());
  t.step();  // the optimizer goes on from the reset masters
  CHECK(same_bits(t.run->optimizer().master(t.net.weight).to(DType::bf16), t.net.weight));
}

TEST_CASE("oscillation reset: resumed runs and observed runs have the same bits") {
  Trained whole(recipe());
  for (int k = 0; k < 30; ++k) whole.step();
  for (const int broken : {7, 8, 10, 13, 14}) {
    CAPTURE(broken);
    Trained first(recipe());
    for (int k = 0; k < broken; ++k) first.step();
    Trained second(recipe());
    second.run->load_state_dict(first.run->state_dict());
    for (int k = broken; k < 30; ++k) second.step();
    CHECK(second.weights() == whole.weights());
    CHECK(second.run->oscillation()->resets() == whole.run->oscillation()->resets());
  }
  Trained observed(recipe());
  inspect::UpdateMeter meter(observed.net);
  const ObserverScope scope(meter);
  for (int k = 0; k < 30; ++k) observed.step();
  CHECK(observed.weights() == whole.weights());
}

TEST_CASE("oscillation reset: convolutions along their channels, and layers that the recipe leaves out") {
  default_generator().manual_seed(2);
  nn::Sequential net{nn::Conv2d(16, 4, {3, 3}), nn::Conv2d(4, 4, {3, 3})};
  Recipe r = amp::recipe("tetrajet-v2");
  r.name = "often";
  r.oscillation_reset = kOften;
  r.quantization->forward_w->scaling = Nvfp4Blocks{.block = 16};
  RecipeRun run(r, net, optim::SGDOptions{.lr = 0.5});
  const Tensor x = random({2, 16, 8, 8}, 1);
  for (int k = 0; k < 10; ++k) run.step([&] { return square(net(x)).mean(); });
  // Blocks of 16 do not divide 4 channels: these lie across the kernel.
  const StateDict state = run.state_dict();
  CHECK(state.contains("oscillation.watched.0.distance"));
  CHECK_FALSE(state.contains("oscillation.watched.1.distance"));
  const Tensor rounded =
      fake_quantize(state.tensor("oscillation.watched.0.value"), *r.quantization->forward_w, {.axis = 1});
  CHECK(same_bits(state.tensor("oscillation.watched.0.rounded"), rounded));
}

TEST_CASE("oscillation reset: in files, and what contradicts") {
  const Recipe known = amp::recipe("tetrajet-v2");
  CHECK(known.oscillation_reset == OscillationReset{});
  const Recipe r = amp::recipe_from_json(
      R"({"name": "mine", "base": "mxfp4",
          "oscillation_reset": {"from": 100, "period": 20, "window": 4, "ratio": 16}})");
  CHECK(r.oscillation_reset == OscillationReset{100, 20, 4, 16});
  CHECK(amp::recipe_from_json(amp::to_json(r)).oscillation_reset == r.oscillation_reset);
  CHECK(amp::to_json(amp::recipe("mxfp4")).find("oscillation") == std::string::npos);
  const auto message = [](const std::string& keys, const std::string& base = "mxfp4") {
    return message_of_recipe(base, R"("oscillation_reset": )" + keys);
  };
  const std::pair<std::string, std::string> rows[] = {
      {message(R"({"period": 50})"), "period is 50 and window 50; the period is longer"},
      {message(R"({"window": 0})"), "window is 0; allowed is at least 1"},
      {message(R"({"ratio": 1})"), "ratio is 1; allowed is above 1"},
      {message(R"({"from": -1})"), "from is -1; allowed is at least 0"},
      {message(R"({"every": 1})"), "unknown key \"every\""},
      {message("{}", "fp32"), "there is no quantizer of forward_w"},
      {message("{}", "fp8-delayed"), "needs a rounding of weights that is the same in each step"},
      {message("{}", "int4-lsq"), "needs a rounding of weights that is the same in each step"},
      {message("{}", "msamp-o1"), "leave weight, master and result out"}};
  for (const auto& row : rows) {
    const std::string& said = row.first;
    CAPTURE(said);
    CHECK(said.find(row.second) != std::string::npos);
  }
  Recipe half = recipe();
  half.mode = amp::Mode::half;
  half.dtype = DType::bf16;
  CHECK(message_of([&] { check_valid(half); }).find("f32 parameters or masters") != std::string::npos);
  nn::Sequential norm{nn::LayerNorm({4})};
  CHECK(message_of([&] {
          RecipeRun(recipe(), norm, optim::SGDOptions{.lr = 1});
        }).find("the model Sequential has none") != std::string::npos);
}
