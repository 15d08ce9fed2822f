// The update meter against numbers computed by hand.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/update_meter.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

using namespace gradual;
using inspect::Rate, inspect::Update, inspect::UpdateMeter, inspect::UpdatePart;
using enum optim::LowPrecisionUpdate;

namespace {

const Update* part_of(const UpdateMeter& meter, UpdatePart part, std::int64_t step = 0) {
  const auto found =
      std::ranges::find_if(meter.parts(), [&](const Update& u) { return u.part == part && u.step == step; });
  return found == meter.parts().end() ? nullptr : &*found;
}

// A linear layer whose weights are all `value`.
nn::Linear layer_of(double value, DType dtype, std::int64_t n = 8) {
  nn::Linear layer(n, n, {.bias = false});
  {
    const NoGrad off;
    layer.weight.fill_(value);
  }
  layer.to(dtype);
  return layer;
}

// w -= lr g, and m = 0.9 m + 0.1 g, written with ops.
struct BySteps : optim::Optimizer {
  BySteps(std::vector<optim::ParamGroup> groups, const optim::UpdateOptions& precision)
      : Optimizer("by_steps", {"average"}, std::move(groups), {.lr = 1}, precision) {}
  Tensor update(const Update& u) override {
    u.state[0] = 0.9 * u.state[0] + 0.1 * u.gradient;
    Tensor next = u.weight.clone();
    next.add_(u.gradient, -u.group.lr.value());
    return next;
  }
};

// n steps with the same gradient everywhere.
template <class Optimizer> void run(Optimizer& optimizer, nn::Linear& layer, UpdateMeter& meter, double g, int n) {
  const ObserverScope scope(meter);
  for (int i = 0; i < n; ++i) {
    layer.weight.set_grad(full(layer.weight.sizes(), g, layer.weight.dtype()));
    optimizer.step();
  }
}

}  // namespace

TEST_CASE("update meter: an optimizer written with ops arrives in its master, compensation, or by chance") {
  // A weight of 1 in bf16 and an update of 2^-11, a sixteenth of its spacing above 1.
  const auto updates = [](optim::LowPrecisionUpdate update) {
    nn::Linear layer = layer_of(1, DType::bf16, 64);
    BySteps by_ops({optim::named_group(layer.named_parameters())}, {.update = update});
    UpdateMeter meter(layer);
    run(by_ops, layer, meter, -0x1p-11, 4);
    Update all;
    CHECK(meter.updates().size() == 4);
    for (const Update& u : meter.updates()) {
      CHECK(u.parameter == "weight");
      all += u;
    }
    return all;
  };
  const Update lost = updates(none);
  CHECK(lost.intended == 4 * 64 * 64);
  CHECK(lost.vanished == lost.intended);
  CHECK(lost.arriving() == 0);
  CHECK(lost.ratio() == doctest::Approx(0x1p-11));
  for (const auto update : {masters, kahan}) {
    CHECK(updates(update).vanished == 0);
    CHECK(updates(update).arriving() == doctest::Approx(1).epsilon(1e-9));
    CHECK(updates(update).ratio() == doctest::Approx(0x1p-11).epsilon(0.01));
  }
  // One of 16 moves by a whole spacing.
  CHECK(updates(stochastic).vanished_percent() == doctest::Approx(100 * 15.0 / 16).epsilon(0.02));
  CHECK(updates(stochastic).arriving() == doctest::Approx(1).epsilon(0.1));
}

TEST_CASE("update meter: a parameter that is not row-major has one row, with its name") {
  for (const bool decays : {false, true}) {
    nn::Linear layer = layer_of(1, DType::bf16);
    layer.weight.swap_data(layer.weight.detach().t().clone().t());
    REQUIRE(!layer.weight.is_contiguous());
    optim::SGD sgd({optim::named_group(layer.named_parameters())}, {.lr = 1, .weight_decay = decays ? 0x1p-12 : 0});
    UpdateMeter meter(layer);
    run(sgd, layer, meter, -0x1p-3, 3);
    REQUIRE(meter.updates().size() == 3);
    for (const Update& u : meter.updates()) {
      CHECK(u.parameter == "weight");
      CHECK(u.op == "sgd_step_");
      CHECK(u.vanished == 0);
    }
    CHECK(meter.updates()[2].step == 2);
    CHECK(meter.parts().size() == (decays ? 6 : 0));
  }
}

TEST_CASE("update meter: where nothing is intended, no share of it arrives, and none is printed") {
  nn::Linear layer = layer_of(0, DType::f32);
  optim::SGD sgd({optim::named_group(layer.named_parameters())}, {.lr = 1, .weight_decay = 0.5});
  UpdateMeter meter(layer);
  run(sgd, layer, meter, 1, 1);
  const Update* decay = part_of(meter, UpdatePart::weight_decay);
  REQUIRE(decay);
  CHECK(decay->intended == 0);
  CHECK(std::isnan(decay->arriving()));
  CHECK(meter.to_string().find("nan") == std::string::npos);
  CHECK(meter.to_csv().find("nan") == std::string::npos);
}

TEST_CASE("update meter: weight decay vanishes alone") {
  // w = 1: the gradient step adds 2^-5, four spacings of bf16; decay takes 2^-11, less than half a spacing (2^-8).
  const auto meter_of = [](optim::LowPrecisionUpdate update) {
    nn::Linear layer = layer_of(1, DType::bf16);
    optim::SGD sgd({optim::named_group(layer.named_parameters())},
                   {.lr = 1, .weight_decay = 0x1p-11, .precision = {.update = update}});
    UpdateMeter meter(layer);
    run(sgd, layer, meter, -0x1p-5, 1);
    return meter;
  };
  const UpdateMeter meter = meter_of(none);
  const Update& whole = meter.updates().at(0);
  CHECK(whole.vanished == 0);
  CHECK(whole.arriving() == doctest::Approx(0x1p-5 / (0x1p-5 - 0x1p-11)));
  const Update* step = part_of(meter, UpdatePart::gradient_step);
  const Update* decay = part_of(meter, UpdatePart::weight_decay);
  REQUIRE(step);
  REQUIRE(decay);
  CHECK(step->arriving() == 1);
  CHECK(step->intended_squares == 64 * 0x1p-10);
  CHECK(decay->intended == 64);
  CHECK(decay->vanished == 64);
  CHECK(decay->arriving() == 0);
  CHECK(decay->ratio() == doctest::Approx(0x1p-11 / (1 + 0x1p-5)));
  for (const auto update : {masters, kahan}) {
    const UpdateMeter kept = meter_of(update);
    CHECK(part_of(kept, UpdatePart::weight_decay)->vanished == 0);
    CHECK(part_of(kept, UpdatePart::weight_decay)->arriving() == doctest::Approx(1).epsilon(1e-9));
  }
}

TEST_CASE("update meter: AdamW's decay alone, and moments in bf16") {
  // Pure bf16: 1 - lr decay = 1 - 2^-12 leaves every weight as it is. Second moments: 0.999 v is v in bf16.
  nn::Linear layer = layer_of(1, DType::bf16);
  optim::AdamW adam({optim::named_group(layer.named_parameters())},
                    {.lr = 0x1p-4, .weight_decay = 0x1p-8, .precision = {.pure_arithmetic = true}});
  UpdateMeter meter(layer);
  {
    const ObserverScope scope(meter);
    for (const double g : {1.0, 0.0, 0.0}) {
      layer.weight.set_grad(full({8, 8}, g, DType::bf16));
      adam.step();
    }
  }
  CHECK(meter.updates().size() == 3);
  CHECK(part_of(meter, UpdatePart::weight_decay)->vanished == 64);
  CHECK(part_of(meter, UpdatePart::gradient_step)->vanished == 0);
  // The first step sets v = 0.001; later ones would take off a thousandth, and half a spacing is at least 2^-9.
  CHECK(part_of(meter, UpdatePart::second_moment, 0)->vanished == 0);
  CHECK(part_of(meter, UpdatePart::second_moment, 1)->intended == 64);
  CHECK(part_of(meter, UpdatePart::second_moment, 1)->vanished == 64);
  CHECK(part_of(meter, UpdatePart::second_moment, 1)->arriving() == 0);
  CHECK(part_of(meter, UpdatePart::second_moment, 1)->ratio() == doctest::Approx(0.001));
  CHECK(part_of(meter, UpdatePart::first_moment, 1)->vanished == 0);  // 0.9 m is not m

  const auto scalar = [&](Rate rate) { return *std::ranges::find(meter.scalars(), rate, &inspect::Scalar::rate); };
  CHECK(scalar(Rate::beta2).used == 1);
  CHECK(scalar(Rate::beta2).lost());
  CHECK(to_string(scalar(Rate::beta2)) == "beta2 0.999 is 1 in bf16");
  CHECK(scalar(Rate::kept_by_decay).lost());
  CHECK(!scalar(Rate::beta1).lost());
  CHECK(!scalar(Rate::lr).lost());
  CHECK(scalar(Rate::lr).used == 0x1p-4);
  CHECK(meter.to_string().find("adam_step_: beta2 0.999 is 1 in bf16") != std::string::npos);
  CHECK(meter.scalars().size() == 8);  // of three steps alike
}

TEST_CASE("update meter: scalars of other arithmetics") {
  const auto lost = [](DType dtype, const optim::UpdateOptions& precision) {
    nn::Linear layer = layer_of(1, dtype);
    optim::Adam adam({optim::named_group(layer.named_parameters())}, {.eps = 1e-8, .precision = precision});
    UpdateMeter meter(layer);
    run(adam, layer, meter, 1, 1);
    std::vector<Rate> rates;
    for (const inspect::Scalar& s : meter.scalars())
      if (s.lost()) rates.push_back(s.rate);
    return rates;
  };
  CHECK(lost(DType::f16, {.pure_arithmetic = true}) == std::vector{Rate::eps});
  CHECK(lost(DType::bf16, {.pure_arithmetic = true}) == std::vector{Rate::beta2});
  CHECK(lost(DType::bf16, {}).empty());
  CHECK(lost(DType::f16, {.update = masters}).empty());
}

TEST_CASE("update meter: moments that are kept in few bits") {
  const Quantizer e4m3{.format = format("e4m3fn"), .scaling = TensorScale{}};
  nn::Linear layer = layer_of(1, DType::f32);
  optim::SGD sgd({optim::named_group(layer.named_parameters())},
                 {.lr = 1, .momentum = 0.96875, .precision = {.moments = {e4m3}}});
  UpdateMeter meter(layer);
  {
    // One element of 1 sets the scale: 448 / 1. The others' 0.5 becomes 31/32 of it, 0.484375, which is 217 in units of
    // 1 / 448; between 208 and 224 that rounds to 224, which is 0.5 again. The 1 becomes 0.96875, the scale follows.
    const ObserverScope scope(meter);
    layer.weight.set_grad(full({8, 8}, 0.5));
    sgd.step();
    layer.weight.set_grad(zeros({8, 8}));
    sgd.step();
  }
  const Update* kept = part_of(meter, UpdatePart::first_moment, 1);
  REQUIRE(kept);
  CHECK(kept->intended == 64);
  CHECK(kept->vanished == 0);  // all elements are the amax: the scale carries them
  CHECK(kept->arriving() == doctest::Approx(1));

  optim::SGD fixed({optim::named_group(layer.named_parameters())},
                   {.lr = 1,
                    .momentum = 0.96875,
                    .precision = {.moments = {Quantizer{.format = format("e4m3fn"), .scaling = NoScale{}}}}});
  UpdateMeter other(layer);
  run(fixed, layer, other, 0.5, 1);
  run(fixed, layer, other, 0, 1);
  CHECK(part_of(other, UpdatePart::first_moment, 1)->vanished == 64);  // 0.484375 is 0.5 in three mantissa bits
  CHECK(part_of(other, UpdatePart::first_moment, 1)->arriving() == 0);
}

TEST_CASE("update meter: state of an optimizer written with ops") {
  nn::Linear layer = layer_of(1, DType::f32);
  BySteps by_ops({optim::named_group(layer.named_parameters())}, {.state_dtype = DType::bf16});
  UpdateMeter meter(layer);
  run(by_ops, layer, meter, 1, 2);
  const Update* state = part_of(meter, UpdatePart::first_moment, 1);
  REQUIRE(state);
  CHECK(state->parameter == "weight");
  // bf16 rounds 0.1 to 0.10009765625; 0.9 of it and 0.1 are 0.190087890625, which it rounds to 0.1904296875.
  CHECK(state->intended_squares == doctest::Approx(64 * 0.089990234375 * 0.089990234375).epsilon(1e-5));
  CHECK(state->arriving() == doctest::Approx((0.1904296875 - 0.10009765625) / 0.089990234375).epsilon(1e-5));
}

TEST_CASE("update meter: batch statistics that stand still") {
  // In f16 a running mean of 1 and a batch mean of 2 with momentum 2^-12: 2^-12 is a quarter of the spacing.
  nn::Sequential net(nn::BatchNorm1d(4, {.momentum = 0x1p-12}));
  net.to(DType::f16);
  net.named_buffers()[0].second.fill_(1);
  UpdateMeter meter(net);
  const Tensor x = tensor({1.0, 3.0}).reshape({2, 1}).expand({2, 4}).contiguous().to(DType::f16);
  {
    const ObserverScope scope(meter);
    net(x);
  }
  const Update* mean = part_of(meter, UpdatePart::running_mean);
  const Update* var = part_of(meter, UpdatePart::running_variance);
  REQUIRE(mean);
  REQUIRE(var);
  CHECK(mean->parameter == "0");
  CHECK(mean->intended == 4);
  CHECK(mean->vanished == 4);
  CHECK(mean->ratio() == doctest::Approx(0x1p-12));
  // The variance is 1, unbiased 2: 1 + 2^-12 (2 - 1).
  CHECK(var->vanished == 4);
  CHECK(var->ratio() == doctest::Approx(0x1p-12).epsilon(0.02));
  CHECK(meter.updates().empty());
}

TEST_CASE("update meter: a moving average, however it is written") {
  // w = 2, average = 1 in bf16, decay 1 - 2^-9: 2^-9 is a quarter of the spacing of bf16 above 1.
  for (const bool composed : {false, true})
    for (const DType dtype : {DType::bf16, DType::f32}) {
      nn::Linear layer = layer_of(2, DType::f32);
      const Tensor average = full({8, 8}, 1, dtype);
      constexpr double kDecay = 1 - 0x1p-9;
      UpdateMeter meter(layer);
      meter.watch_average("ema.weight", average, layer.weight, kDecay);
      optim::SGD sgd({optim::named_group(layer.named_parameters())}, {.lr = 1});
      for (int i = 0; i < 2; ++i) {
        run(sgd, layer, meter, 0, 1);
        const ObserverScope scope(meter);
        const NoGrad off;
        if (composed) {
          average.mul_(kDecay);
          average.add_(layer.weight.to(dtype), 1 - kDecay);
        } else {
          average.copy_(kDecay * average.to(DType::f32) + (1 - kDecay) * layer.weight);
        }
      }
      CHECK(meter.parts().size() == 2);
      const Update* second = part_of(meter, UpdatePart::average, 1);
      REQUIRE(second);
      CHECK(second->parameter == "ema.weight");
      CHECK(second->vanished == (dtype == DType::bf16 ? 64 : 0));
      CHECK(second->intended == 64);
      if (dtype == DType::f32) CHECK(second->arriving() == doctest::Approx(1).epsilon(1e-4));
      else CHECK(second->ratio() == 0x1p-9);
    }
}

TEST_CASE("update meter: stored weights that flip back and forth") {
  // A spacing up, down, up, down: what an update makes is seen at the next one.
  nn::Linear layer = layer_of(1, DType::bf16);
  optim::SGD sgd({optim::named_group(layer.named_parameters())}, {.lr = 1});
  UpdateMeter meter(layer);
  for (const double g : {-0x1p-7, 0x1p-7, -0x1p-7, 0.0, -0x1p-7}) run(sgd, layer, meter, g, 1);
  std::vector<std::int64_t> moved, flipped;
  for (const Update& u : meter.updates()) {
    moved.push_back(u.moved);
    flipped.push_back(u.flipped);
  }
  CHECK(moved == std::vector<std::int64_t>{0, 64, 64, 64, 0});
  CHECK(flipped == std::vector<std::int64_t>{0, 0, 64, 64, 0});
  CHECK(meter.updates()[2].flipped_percent() == 100);
}

TEST_CASE("update meter: codes that flip while the weight hardly moves") {
  // 0.25 lies between 0 and 0.5 of e2m1 with scale 1: 0.26 rounds up, 0.24 down. One 6 in each block holds the scale.
  nn::Linear layer = layer_of(0.24, DType::f32, 32);
  {
    const NoGrad off;
    layer.weight.narrow(1, 0, 1).fill_(6);
  }
  nn::Sequential net(std::move(layer));
  const Tensor weight = net.parameters()[0];
  optim::SGD sgd({optim::named_group(net.named_parameters())}, {.lr = 1});
  UpdateMeter meter(net);
  const auto q = amp::recipe("mxfp4").quantization.value();
  for (const double g : {-0.02, 0.02, -0.02, 0.0}) {
    const ObserverScope scope(meter);
    {
      amp::AutocastOptions options;
      amp::quantize_region(options, q, nullptr);
      const amp::Autocast region(options);
      net(ones({2, 32}));
      net(ones({2, 32}));  // twice: the same codes
    }
    const Tensor grad = full({32, 32}, g);
    grad.narrow(1, 0, 1).fill_(0);
    weight.set_grad(grad);
    sgd.step();
  }
  std::vector<std::int64_t> moved, flipped;
  for (const Update& u : meter.updates()) {
    CHECK(u.vanished == 0);
    moved.push_back(u.moved);
    flipped.push_back(u.flipped);
  }
  CHECK(moved == std::vector<std::int64_t>{0, 31 * 32, 31 * 32, 31 * 32});
  CHECK(flipped == std::vector<std::int64_t>{0, 0, 31 * 32, 31 * 32});
  CHECK(meter.updates()[3].flipped_percent() == doctest::Approx(100 * 31.0 / 32));
}

TEST_CASE("update meter: weights that a recipe rounds after the step") {
  // e4m3 holds 1 and 1.125: an update of 2^-5 is a quarter of that and vanishes, one of 0.125 arrives.
  const Quantizer e4m3{.format = format("e4m3fn")};
  for (const double step : {0x1p-5, 0.125}) {
    nn::Linear layer = layer_of(1, DType::f32);
    nn::Sequential net(std::move(layer));
    const Tensor weight = net.parameters()[0];
    const amp::Recipe recipe{.name = "kept", .quantization = amp::Quantization{.weight = e4m3}};
    amp::RecipeRun run(recipe, net, optim::SGDOptions{.lr = 1});
    UpdateMeter meter(net);
    {
      const ObserverScope scope(meter);
      run.step([&] { return sum(net(full({1, 8}, 1.0))) * -step; });
    }
    REQUIRE(meter.updates().size() == 1);
    CHECK(meter.updates()[0].intended == 64);
    CHECK(meter.updates()[0].vanished == (step == 0.125 ? 0 : 64));
    CHECK(meter.updates()[0].arriving() == doctest::Approx(step == 0.125 ? 1 : 0));
  }
}

TEST_CASE("update meter: a weight gradient against the noise of its quantisers") {
  // dW = dy x^T. x = 1 is exact. dy in e2m1 with scale 1 and a 6 in each column's block: 5 becomes 4 (a tie), the rest
  // is exact. So column by column the noise is 1 where dy is 5.
  nn::Linear layer(1, 2, {.bias = false});
  nn::Sequential net(std::move(layer));
  const Quantizer e2m1{.format = format("e2m1"), .overflow = Overflow::saturate};
  const amp::Recipe recipe{.name = "noise", .quantization = amp::Quantization{.wgrad_x = e2m1, .wgrad_dy = e2m1}};
  amp::RecipeRun run(recipe, net, optim::SGDOptions{.lr = 0});
  UpdateMeter meter(net);
  const auto step = [&](const Tensor& dy) {
    const ObserverScope scope(meter);
    run.step([&] { return sum(net(ones({2, 1})) * dy); });
  };
  step(tensor({5.0, 6.0, 2.0, 6.0}).reshape({2, 2}));
  REQUIRE(meter.gradient_noise().size() == 1);
  const inspect::GradientNoise first = meter.gradient_noise()[0];
  CHECK(first.layer == "0");
  CHECK(first.gradient_squares == 7 * 7 + 12 * 12);
  CHECK(first.noise_squares == 1);
  CHECK(first.ratio() == doctest::Approx(std::sqrt(193.0)));
  CHECK(!first.drowns());
  meter.clear();
  step(tensor({5.0, 6.0, -4.0, -6.0}).reshape({2, 2}));  // the gradient is [1, 0], its noise [-1, 0]
  CHECK(meter.gradient_noise()[0].ratio() == 1);
  CHECK(meter.gradient_noise()[0].drowns());
  CHECK(meter.to_string().find("0: |gradient| is 1 times its quantisation noise, below sqrt(3)") != std::string::npos);
}

TEST_CASE("update meter: noise of every quantised layer of a CNN, and no bit differs") {
  const auto after = [](UpdateMeter* given, const std::string& recipe) {
    manual_seed(4);
    nn::Sequential net(nn::Conv2d(2, 8, 3, {.padding = 1}), nn::BatchNorm2d(8), nn::ReLU(), nn::Flatten(),
                       nn::Linear(8 * 16, 4));
    amp::RecipeRun run(amp::recipe(recipe), net, optim::AdamWOptions{.lr = 1e-2});
    const Tensor x = randn({6, 2, 4, 4});
    const Tensor y = zeros({6}, DType::i64);
    UpdateMeter meter(net);
    for (int i = 0; i < 2; ++i) {
      std::optional<ObserverScope> scope;
      if (given) scope.emplace(meter);
      run.step([&] { return cross_entropy(net(x), y); });
    }
    if (given) *given = meter;
    std::vector<float> all;
    for (const Tensor& p : net.parameters())
      for (const float v : p.to_vector<float>()) all.push_back(v);
    return all;
  };
  for (const std::string recipe :
       {"mxfp4", "nvfp4", "fp8-current", "fp8-rowwise", "msamp-o2", "bf16-pure", "amp-bf16"}) {
    CAPTURE(recipe);
    UpdateMeter meter{nn::Sequential()};
    CHECK(after(&meter, recipe) == after(nullptr, recipe));
    CHECK(meter.updates().size() == 12);
    CHECK(meter.updates().back().step == 1);
    CHECK(part_of(meter, UpdatePart::running_mean, 1));
    const bool quantised = amp::recipe(recipe).quantization.has_value();
    REQUIRE(meter.gradient_noise().size() == (quantised ? 2 : 0));
    if (!quantised) continue;
    const double noise = 1 / meter.gradient_noise()[0].ratio();
    CHECK(noise > (meter.gradient_noise()[0].layer == "4" ? 0.001 : 0.0001));
    CHECK(noise < 1);
  }
}

TEST_CASE("update meter: rows as CSV") {
  nn::Linear layer = layer_of(1, DType::f32);
  optim::AdamW adam({optim::named_group(layer.named_parameters())}, {.lr = 1e-3});
  UpdateMeter meter(layer);
  run(adam, layer, meter, 1, 2);
  std::istringstream csv(meter.to_csv());
  std::string line;
  std::getline(csv, line);
  CHECK(line.starts_with("step,parameter,op,part,elements,intended,vanished,ratio,arriving,moved,flipped"));
  int rows = 0;
  for (; std::getline(csv, line); ++rows) CHECK(line.find(",weight,adam_step_,") != std::string::npos);
  CHECK(rows == 2 + 2 * 4);
  meter.clear();
  CHECK(meter.updates().empty());
  CHECK(meter.parts().empty());
}

TEST_CASE("update meter: a sample of elements with their updates") {
  nn::Linear layer = layer_of(1, DType::bf16, 16);
  optim::SGD sgd({optim::named_group(layer.named_parameters())}, {.lr = 1});
  UpdateMeter meter(layer);
  run(sgd, layer, meter, 0x1p-11, 1);
  const Update& u = meter.updates().at(0);
  CHECK(u.dtype == DType::bf16);
  REQUIRE(u.sample.size() == 64);  // of 256
  for (const Update::Element& e : u.sample) {
    CHECK(e.weight == 1);
    CHECK(e.intended == -0x1p-11);
    CHECK(e.made == 0);  // an eighth of bf16's spacing below 1
  }
}

TEST_CASE("update meter: second moments of f16 that overflow or vanish are counted and told") {
  struct Row {
    double gradient;
    std::int64_t overflowed, zeroed;
  };
  for (const Row& row : {Row{1e4, 64, 0}, Row{1e-3, 0, 64}, Row{1, 0, 0}}) {
    CAPTURE(row.gradient);
    nn::Linear layer = layer_of(1, DType::f32);
    optim::Adam adam({layer.weight}, {.precision = {.state_dtype = DType::f16}});
    UpdateMeter meter(layer);
    run(adam, layer, meter, row.gradient, 1);
    CHECK(part_of(meter, inspect::UpdatePart::second_moment)->overflowed == row.overflowed);
    CHECK(part_of(meter, inspect::UpdatePart::second_moment)->zeroed == row.zeroed);
    const bool told = meter.to_string().find("weight: of 64 second moments") != std::string::npos;
    CHECK(told == (row.overflowed + row.zeroed > 0));
  }
}
