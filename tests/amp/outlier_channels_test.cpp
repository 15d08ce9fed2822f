// OutControl: outlier channels of x in a wider format, against their definition in f64 and plain loops.
#include "../../amp/outlier_channels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../../amp/cast_stats.h"
#include "../../amp/operand_bits.h"
#include "../../amp/recipe.h"
#include "../../amp/whole_operands.h"
#include "../../inspect/shadow.h"
#include "../../nn/activation.h"
#include "../../nn/conv.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "support.h"

using namespace gradual;
using amp::OutlierChannels, amp::Quantization, amp::Recipe, amp::RecipeRun;

namespace {

const Quantizer kNarrow{.format = format("e2m1"), .overflow = Overflow::saturate, .scaling = FloatBlocks{.block = 16}};
const Quantizer kWide{.format = format("e4m3fn"), .overflow = Overflow::saturate, .scaling = PowerBlocks{.block = 32}};
const Quantizer kNarrowTensor{.format = format("e2m1"), .overflow = Overflow::saturate, .scaling = TensorScale{}};
const Quantizer kWideTensor{.format = format("e4m3fn"), .overflow = Overflow::saturate, .scaling = TensorScale{}};

Quantization all_operands(const Quantizer& q) {
  return {.forward_x = q, .forward_w = q, .dgrad_dy = q, .dgrad_w = q, .wgrad_x = q, .wgrad_dy = q};
}
Recipe recipe(const Quantization& q, const OutlierChannels& outliers) {
  Recipe r = amp::recipe("fp32");
  r.name = "with outliers";
  r.quantization = q;
  r.quantization->outliers = outliers;
  return r;
}

struct Net final : nn::Module {
  Tensor& weight;
  explicit Net(const Tensor& w) : weight(register_parameter("weight", w)) {}
};

// A tensor whose channels 3 and 8 of the dim are far larger than the others.
Tensor with_large_channels(const Shape& sizes, int dim, std::uint64_t seed) {
  const Tensor x = random(sizes, seed);
  for (const std::int64_t c : {3, 8}) x.narrow(dim, c, 1).mul_(60.0);
  return x;
}

std::vector<std::int64_t> chosen(const RecipeRun& run, std::size_t site = 0) {
  std::vector<std::int64_t> channels;
  const Tensor& outliers = const_cast<RecipeRun&>(run).quantization()->sites().at(site)->channels.outliers();
  if (!outliers.defined()) return {};
  const std::vector<double> mask = outliers.to(DType::f64).to_vector<double>();
  for (std::size_t c = 0; c < mask.size(); ++c)
    if (mask[c] != 0) channels.push_back(static_cast<std::int64_t>(c));
  return channels;
}

// x times 1 at the channels (or at the others), and 0 elsewhere.
Tensor only(const Tensor& x, int dim, const std::vector<std::int64_t>& channels, bool others) {
  std::vector<double> factors(static_cast<std::size_t>(x.size(dim)), others ? 1.0 : 0.0);
  for (const std::int64_t c : channels) factors[static_cast<std::size_t>(c)] = others ? 0.0 : 1.0;
  Shape sizes = Shape::filled(x.dim(), 1);
  sizes[dim] = x.size(dim);
  return x.detach().to(DType::f64) * from_data(factors, {x.size(dim)}).reshape(sizes);
}

Tensor rounded(const Tensor& t, const Quantizer& q, int axis) {
  return fake_quantize(t.to(DType::f32), q, {.axis = axis}).to(DType::f64);
}

double worst(const Tensor& got, const Tensor& want) {
  const Tensor wide = got.detach().to(DType::f64);
  return (max(abs(wide - want)) / max(abs(want))).item<double>();
}

// Outlier channels of a step of the model on x; then a step whose gradients are returned.
struct Gradients {
  Tensor y, dx, dw;
};
Gradients after_choice(RecipeRun& run, const Tensor& weight, const Tensor& x, const Tensor& dy,
                       const std::function<Tensor(const Tensor&)>& f) {
  run.step([&] { return mul(f(x), dy).sum(); });
  const Tensor in = x.detach().clone().set_requires_grad();
  Tensor y;
  const Tensor loss = run.forward([&] {
    y = f(in);
    return mul(y, dy).sum();
  });
  run.backward(loss);
  return {y.detach(), in.grad(), weight.grad()};
}

constexpr OutlierChannels kOneStep{.share = 0.12, .window = 1};  // 2 of 16 channels

}  // namespace

TEST_CASE("outlier channels: forward and the gradient of W have them in the wider format, the gradient of x not") {
  for (const bool as_matmul : {false, true})
    for (const bool high : {false, true}) {
      CAPTURE(as_matmul);
      CAPTURE(high);
      nn::Linear net(16, 32, {.bias = !as_matmul});
      OutlierChannels outliers = kOneStep;
      if (!high) outliers.quantizer = kWide;
      RecipeRun run(recipe(all_operands(kNarrow), outliers), net, optim::SGDOptions{.lr = 0});
      const Tensor x = with_large_channels({48, 16}, 1, 1);
      const Tensor dy = random({48, 32}, 2);
      const Gradients got = after_choice(run, net.weight, x, dy, [&](const Tensor& in) {
        return as_matmul ? matmul(in, Tensor(net.weight).t()) : net(in);
      });
      const std::vector<std::int64_t> large = chosen(run);
      CHECK(large == std::vector<std::int64_t>{3, 8});
      const Tensor w = net.weight;
      const auto wide = [&](const Tensor& t, int axis) { return high ? t : rounded(t, kWide, axis); };
      const Tensor other_x = only(x, 1, large, true);
      const Tensor other_w = only(w, 1, large, true);
      const Tensor large_x = only(x, 1, large, false);
      const Tensor large_w = only(w, 1, large, false);
      Tensor y = matmul(rounded(other_x, kNarrow, 1), rounded(other_w, kNarrow, 1).t()) +
                 matmul(wide(large_x, 1), wide(large_w, 1).t());
      if (!as_matmul) y = y + Tensor(net.bias).detach().to(DType::f64);
      const Tensor dy64 = dy.to(DType::f64);
      const Tensor dw = matmul(rounded(dy, kNarrow, 0).t(), rounded(other_x, kNarrow, 0)) +
                        matmul(wide(dy64, 0).t(), wide(large_x, 0));
      CHECK(worst(got.y, y) < 1e-6);
      CHECK(worst(got.dw, dw) < 1e-6);
      CHECK(worst(got.dx, matmul(rounded(dy, kNarrow, 1), rounded(w, kNarrow, 0))) < 1e-6);
      // Without it the others share blocks with the large channels.
      const Tensor plain = matmul(rounded(x, kNarrow, 1), rounded(w, kNarrow, 1).t());
      CHECK(worst(got.y, plain) > 1e-3);
    }
}

TEST_CASE("outlier channels: convolutions, in groups and transposed") {
  struct Case {
    const char* name;
    std::int64_t in, out, groups;
    bool transposed;
  };
  for (const Case& c : {Case{"plain", 16, 6, 1, false},
                        {"groups", 16, 8, 4, false},
                        {"transposed", 16, 6, 1, true},
                        {"transposed groups", 16, 8, 2, true}}) {
    CAPTURE(c.name);
    const Shape sizes = c.transposed ? Shape{c.in, c.out / c.groups, 3, 3} : Shape{c.out, c.in / c.groups, 3, 3};
    Net net(random(sizes, 5));
    OutlierChannels outliers = kOneStep;
    outliers.quantizer = kWideTensor;
    RecipeRun run(recipe(all_operands(kNarrowTensor), outliers), net, optim::SGDOptions{.lr = 0});
    const Tensor x = with_large_channels({3, c.in, 7, 7}, 1, 1);
    const auto f = [&](const Tensor& in, const Tensor& w) {
      return c.transposed ? conv_transpose2d(in, w, {}, {.groups = c.groups}) : conv2d(in, w, {}, {.groups = c.groups});
    };
    const Tensor dy = random(f(x, net.weight).sizes(), 2);
    const Gradients got = after_choice(run, net.weight, x, dy, [&](const Tensor& in) { return f(in, net.weight); });
    const std::vector<std::int64_t> large = chosen(run);
    CHECK(large == std::vector<std::int64_t>{3, 8});
    // The columns of W that a channel of x meets: those of its group.
    const auto weight_part = [&](bool others) {
      Tensor part = Tensor(net.weight).detach().to(DType::f64).clone();
      for (std::int64_t channel = 0; channel < c.in; ++channel) {
        const bool is_large = channel == 3 || channel == 8;
        if (is_large != others) continue;
        const std::int64_t group = channel / (c.in / c.groups);
        if (c.transposed) part.narrow(0, channel, 1).mul_(0.0);
        else
          part.narrow(0, group * (c.out / c.groups), c.out / c.groups)
              .narrow(1, channel % (c.in / c.groups), 1)
              .mul_(0.0);
      }
      return part;
    };
    const auto gradients = [&](const Tensor& a, const Tensor& w, const Tensor& g) {
      const Tensor in = a.clone().set_requires_grad();
      const Tensor by = w.clone().set_requires_grad();
      mul(f(in, by), g).sum().backward();
      return std::pair(in.grad(), by.grad());
    };
    const Tensor other_x = rounded(only(x, 1, large, true), kNarrowTensor, 1);
    const Tensor large_x = rounded(only(x, 1, large, false), kWideTensor, 1);
    const Tensor narrow_dy = rounded(dy, kNarrowTensor, 1);
    const Tensor wide_dy = rounded(dy, kWideTensor, 1);
    const Tensor w64 = Tensor(net.weight).detach().to(DType::f64);
    CHECK(worst(got.y, f(other_x, rounded(weight_part(true), kNarrowTensor, 1)) +
                           f(large_x, rounded(weight_part(false), kWideTensor, 1))) < 1e-6);
    CHECK(worst(got.dw, gradients(other_x, w64, narrow_dy).second + gradients(large_x, w64, wide_dy).second) < 1e-6);
    CHECK(worst(got.dx, gradients(other_x, rounded(w64, kNarrowTensor, 1), narrow_dy).first) < 1e-6);
  }
}

TEST_CASE("outlier channels: requantize hands forward's numbers to backward, in both formats") {
  for (const bool high : {false, true}) {
    CAPTURE(high);
    nn::Linear net(16, 32, {.bias = false});
    OutlierChannels outliers = kOneStep;
    if (!high) outliers.quantizer = kWide;
    Quantization q = all_operands(kNarrow);
    q.requantize = true;
    RecipeRun run(recipe(q, outliers), net, optim::SGDOptions{.lr = 0});
    const Tensor x = with_large_channels({48, 16}, 1, 1);
    const Tensor dy = random({48, 32}, 2);
    const Gradients got = after_choice(run, net.weight, x, dy, [&](const Tensor& in) { return net(in); });
    const std::vector<std::int64_t> large = chosen(run);
    const auto wide = [&](const Tensor& t, int axis) { return high ? t : rounded(t, kWide, axis); };
    const auto of_forward = [&](const Tensor& t) {
      return rounded(only(t, 1, large, true), kNarrow, 1) + wide(only(t, 1, large, false), 1);
    };
    const Tensor x_again = of_forward(x);
    const Tensor dw = matmul(rounded(dy, kNarrow, 0).t(), rounded(only(x_again, 1, large, true), kNarrow, 0)) +
                      matmul(wide(dy.to(DType::f64), 0).t(), wide(only(x_again, 1, large, false), 0));
    CHECK(worst(got.dw, dw) < 1e-6);
    CHECK(worst(got.dx, matmul(rounded(dy, kNarrow, 1), rounded(of_forward(net.weight), kNarrow, 0))) < 1e-6);
  }
}

TEST_CASE("outlier channels: the largest by their norms in the steps of a window, once or again") {
  nn::Linear net(10, 4, {.bias = false});
  const auto batch = [](int step) {
    const Tensor x = random({6, 10}, static_cast<std::uint64_t>(step) + 1);
    x.narrow(1, step % 10, 1).mul_(1.0 + step);
    return x;
  };
  for (const int period : {0, 4}) {
    CAPTURE(period);
    const OutlierChannels options{.share = 0.3, .from = 2, .window = 3, .period = period};
    RecipeRun run(recipe(all_operands(kNarrow), options), net, optim::SGDOptions{.lr = 0});
    std::vector<double> sizes(10, 0.0);
    std::vector<std::int64_t> expected;
    for (int step = 0; step < 12; ++step) {
      CAPTURE(step);
      run.step([&] { return net(batch(step)).sum(); });
      run.evaluate([&] { return net(random({6, 10}, 99) * 1e6); });  // an evaluation counts nothing
      const int since = step - options.from;
      const int in_period = period > 0 ? since % period : since;
      if (since >= 0 && in_period < options.window) {
        const std::vector<double> x = batch(step).to(DType::f64).to_vector<double>();
        for (std::size_t c = 0; c < 10; ++c) {
          double squares = 0;
          for (std::size_t row = 0; row < 6; ++row) squares += x[row * 10 + c] * x[row * 10 + c];
          sizes[c] += std::sqrt(squares);
        }
      }
      if (since >= 0 && in_period == options.window - 1) {
        std::vector<std::int64_t> order{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
        std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
          return sizes[static_cast<std::size_t>(a)] > sizes[static_cast<std::size_t>(b)];
        });
        expected.assign(order.begin(), order.begin() + 3);
        std::ranges::sort(expected);
        std::ranges::fill(sizes, 0.0);
      }
      CHECK(chosen(run) == expected);
    }
    CHECK(expected.size() == 3);
  }
}

TEST_CASE("outlier channels: equal ones by their order, at least one, none of size 0, and another number is refused") {
  amp::ChannelSizes channels;
  channels.stage(zeros({6}, {.dtype = DType::f64}));
  channels.take_staged();
  CHECK_FALSE(channels.choose({.share = 0.5}));
  CHECK_FALSE(channels.outliers().defined());
  channels.stage(from_data(std::vector<double>{1, 2, 2, 2, 3, 0}, {6}));
  CHECK(message_of([&] { channels.stage(zeros({5}, {.dtype = DType::f64})); }).find("5 channels now and had 6") !=
        std::string::npos);
  channels.take_staged();
  CHECK(channels.choose({.share = 0.5}));
  CHECK(channels.outliers().to(DType::f64).to_vector<double>() == std::vector<double>{0, 1, 1, 0, 1, 0});
  CHECK_FALSE(channels.choose({.share = 0.5}));  // nothing was measured since
  CHECK(channels.outliers().to(DType::f64).to_vector<double>() == std::vector<double>{0, 1, 1, 0, 1, 0});
  channels.stage(from_data(std::vector<double>{1, 2, 3, 0, 0, 0}, {6}));
  channels.forget_staged();
  channels.take_staged();
  channels.choose({.share = 0.01});
  CHECK(channels.outliers().to(DType::f64).to_vector<double>() == std::vector<double>{0, 1, 1, 0, 1, 0});
  channels.stage(from_data(std::vector<double>{0, 0, 3, 0, 0, 0}, {6}));
  channels.take_staged();
  CHECK(channels.choose({.share = 0.5}));
  CHECK(channels.outliers().to(DType::f64).to_vector<double>() == std::vector<double>{0, 0, 1, 0, 0, 0});
}

TEST_CASE("outlier channels: a call with Inf or NaN, which a loss scale skips, decides nothing") {
  for (const double bad : {HUGE_VAL, std::nan("")}) {
    CAPTURE(bad);
    nn::Linear net(16, 8);
    Recipe r = recipe(all_operands(kNarrow), {.share = 0.12, .window = 3});
    r.scaling.emplace();
    RecipeRun run(r, net, optim::SGDOptions{.lr = 0});
    for (int step = 0; step < 3; ++step) {
      const Tensor x = with_large_channels({12, 16}, 1, static_cast<std::uint64_t>(step));
      if (step == 0) x.narrow(1, 5, 1).mul_(bad);
      CHECK(run.step([&] { return square(net(x)).mean(); }).result.skipped() == (step == 0));
    }
    CHECK(chosen(run) == std::vector<std::int64_t>{3, 8});
  }
}

TEST_CASE("outlier channels: casts count those of the product's own quantizers once") {
  nn::Linear net(16, 8, {.bias = false});
  OutlierChannels outliers = kOneStep;
  outliers.quantizer = kWide;
  RecipeRun run(recipe(all_operands(kNarrow), outliers), net, optim::SGDOptions{.lr = 0});
  const Tensor x = with_large_channels({32, 16}, 1, 1);
  const auto casts = [&] {
    amp::CastStatsTable table;
    {
      const amp::CastStatsScope scope(table);
      run.step([&] { return square(net(x)).mean(); });
    }
    return table;
  };
  const amp::CastStatsTable before = casts();
  REQUIRE(chosen(run) == std::vector<std::int64_t>{3, 8});
  const amp::CastStatsTable after = casts();
  REQUIRE(before.size() == 3);
  for (const auto& [key, tally] : before) CHECK(after.at(key).counts.elements == tally.counts.elements);
}

TEST_CASE("outlier channels: parts of an operand are refused from the first call on") {
  nn::Linear net(16, 8);
  RecipeRun run(recipe(all_operands(kNarrowTensor), kOneStep), net, optim::SGDOptions{.lr = 0});
  const Tensor x = with_large_channels({12, 16}, 1, 1);
  const amp::WholeOperandsScope parts(
      std::make_shared<amp::WholeOperands>(amp::WholeOperands{.x = x, .weight = net.weight, .dy = {}}));
  CHECK(message_of([&] { run.forward([&] { return net(x).sum(); }); }).find("parts of an operand do not agree") !=
        std::string::npos);
}

namespace {

struct Trained {
  nn::Sequential net{nn::Linear(16, 24), nn::ReLU(), nn::Linear(24, 8)};
  RecipeRun run;

  explicit Trained(const Recipe& r) : run(r, net, optim::SGDOptions{.lr = 0.01, .momentum = 0.9}) {}
  void steps(int from, int to) {
    for (int k = from; k < to; ++k)
      run.step([&] {
        return square(net(with_large_channels({12, 16}, 1, static_cast<std::uint64_t>(k) + 50))).mean();
      });
  }
  bool equals(Trained& other) {
    const StateDict a = run.state_dict();
    const StateDict b = other.run.state_dict();
    for (const auto& entry : a)
      if (const auto* const t = std::get_if<Tensor>(&entry.value); t && !same_bits(*t, b.tensor(entry.name)))
        return false;
    return a.size() == b.size();
  }
};

Recipe refreshed() {
  OutlierChannels outliers{.share = 0.15, .from = 1, .window = 2, .period = 4, .quantizer = kWide};
  Quantization q = all_operands(kNarrow);
  q.wgrad_dy->rounding.mode = RoundingMode::stochastic;
  return recipe(q, outliers);
}

}  // namespace

TEST_CASE("outlier channels: before they are chosen no bit differs, and then the loss is another one") {
  for (const bool at_random : {false, true})
    for (const int steps : {3, 4}) {
      CAPTURE(at_random);
      CAPTURE(steps);
      // At random only the outliers' quantizer draws, and a step draws after it.
      Recipe r = refreshed();
      if (at_random) {
        r.quantization->wgrad_dy->rounding.mode = RoundingMode::nearest_even;
        r.quantization->outliers->quantizer->rounding.mode = RoundingMode::stochastic;
      }
      Recipe without = r;
      without.quantization->outliers.reset();
      default_generator().manual_seed(4);
      Trained plain(without);
      plain.steps(0, steps);
      const double drawn = rand({}).item();
      default_generator().manual_seed(4);
      Trained with(r);
      with.steps(0, steps);
      CHECK_FALSE(chosen(with.run).empty());
      CHECK(same_bits(plain.net.named_parameters()[0].second, with.net.named_parameters()[0].second) == (steps == 3));
      if (steps == 3) CHECK(rand({}).item() == drawn);
    }
}

TEST_CASE("outlier channels: resumed and observed runs have the same bits") {
  default_generator().manual_seed(4);
  Trained whole(refreshed());
  whole.steps(0, 9);
  for (const int broken : {1, 2, 3, 6}) {
    CAPTURE(broken);
    default_generator().manual_seed(4);
    Trained first(refreshed());
    first.steps(0, broken);
    const RandomKey key = default_generator().state();
    Trained second(refreshed());
    second.run.load_state_dict(first.run.state_dict());
    default_generator().set_state(key);
    second.steps(broken, 9);
    CHECK(second.equals(whole));
  }
  default_generator().manual_seed(4);
  Trained observed(refreshed());
  inspect::Shadow shadow(observed.net, &observed.run.optimizer(), {.attribution = true});
  {
    const ObserverScope scope(shadow);
    observed.steps(0, 9);
  }
  CHECK(observed.equals(whole));
  for (const inspect::ShadowRow& row : shadow.rows()) CHECK_MESSAGE(row.not_exact.empty(), row.op, row.not_exact);
}

TEST_CASE("outlier channels: the number of steps is one entry, and a state that has it elsewhere is resumed") {
  default_generator().manual_seed(4);
  Trained whole(refreshed());
  whole.steps(0, 9);
  default_generator().manual_seed(4);
  Trained first(refreshed());
  first.steps(0, 2);
  const StateDict state = first.run.state_dict();
  CHECK(state.real("steps") == 2);
  CHECK_FALSE(state.contains("quantization.steps"));
  // As earlier versions wrote it.
  StateDict earlier;
  for (const auto& entry : state)
    if (entry.name != "steps") std::visit([&](const auto& value) { earlier.set(entry.name, value); }, entry.value);
  earlier.set("quantization.steps", std::int64_t{2});
  const RandomKey key = default_generator().state();
  Trained second(refreshed());
  second.run.load_state_dict(earlier);
  default_generator().set_state(key);
  second.steps(2, 9);
  CHECK(second.equals(whole));
}

TEST_CASE("outlier channels: a step that throws leaves nothing") {
  default_generator().manual_seed(4);
  Trained whole(refreshed());
  whole.steps(0, 4);
  default_generator().manual_seed(4);
  Trained broken(refreshed());
  broken.steps(0, 2);
  CHECK_THROWS(broken.run.step([&]() -> Tensor {
    broken.net(random({12, 16}, 1) * 1e3);
    throw_error("no loss");
  }));
  broken.steps(2, 4);
  CHECK(broken.equals(whole));
}

TEST_CASE("outlier channels: in files, in words, in bits, and what contradicts") {
  const Recipe known = amp::recipe("tetrajet-v2");
  REQUIRE(known.quantization->outliers.has_value());
  CHECK(known.quantization->outliers->share == 0.1);
  const Recipe r = amp::recipe_from_json(R"({"name": "mine", "base": "mxfp4", "quantization": {"outliers":
      {"share": 0.25, "from": 7, "window": 3, "period": 9, "quantizer": {"format": "e5m2"}}}})");
  const OutlierChannels& o = *r.quantization->outliers;
  CHECK(o.share == 0.25);
  CHECK(o.from == 7);
  CHECK(o.window == 3);
  CHECK(o.period == 9);
  CHECK(o.quantizer->format == format("e5m2"));
  CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == r.quantization);
  CHECK(amp::to_json(amp::recipe("mxfp4")).find("outliers") == std::string::npos);
  CHECK(describe(o).starts_with("25% of the channels of x, chosen by steps 7 to 9 and again every 9: e5m2"));
  CHECK(describe(*r.quantization).back().operands == std::vector<std::string>{"outliers"});
  // forward and wgrad: a quarter in 8 bits, the rest in 4.25; dgrad in 4.25
  CHECK(amp::operand_bits(r) == doctest::Approx((4 * (0.25 * 8 + 0.75 * 4.25) + 2 * 4.25) / 6));
  const auto message = [](const std::string& keys, const std::string& base = "mxfp4") {
    return message_of_recipe(base, R"("quantization": {"outliers": )" + keys + "}");
  };
  const std::pair<std::string, std::string> rows[] = {
      {message(R"({"share": 0})"), "share is 0; allowed is above 0 and below 1"},
      {message(R"({"share": 1})"), "share is 1; allowed is above 0 and below 1"},
      {message(R"({"from": -1})"), "from is -1; allowed is at least 0"},
      {message(R"({"window": 0})"), "window is 0; allowed is at least 1"},
      {message(R"({"period": 10})"), "period is 10 and window 50; allowed is 0 (chosen once) or at least the window"},
      {message(R"({"every": 1})"), "unknown key \"every\""},
      {message(R"({"quantizer": {"format": "e4m3fn", "hadamard": true}})"), "without a transform"},
      {message(R"({"quantizer": {"format": "e4m3fn", "scaling": {"kind": "delayed"}}})"),
       "allowed are scales from the operand's own numbers"},
      {message("{}", "int4-lsq"), "outliers go with scales that are not learned"},
      {message("{}", "e2m1-dge"), "outliers go with straight gradients, not with a differentiable one"}};
  for (const auto& row : rows) {
    const std::string& said = row.first;
    CAPTURE(said);
    CHECK(said.find(row.second) != std::string::npos);
  }
}
