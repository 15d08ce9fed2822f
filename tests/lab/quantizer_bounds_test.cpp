// Bounds of steps whose operands are quantised: by hand, against random inputs, over random orders, and planted bugs.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/quantizer_bounds.h>
#include <gradual/lab/recorded_ops.h>
#include <gradual/lab/tolerance.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "recorded_step.h"

using namespace gradual;

namespace {

// The recorded call of quantize_operand(x, q), whose scale is apart, or of fake_quantize.
lab::RecordedOp call_of(const Tensor& x, const Quantizer& q, bool scale_apart = true, RandomKey key = {}) {
  const nn::Linear none(1, 1);
  lab::RecordedOps ops(none);
  const ObserverScope scope(ops);
  if (scale_apart) quantize_operand(x, q, {.key = key, .stats = {}});
  else fake_quantize(x, q, {.key = key, .stats = {}});
  REQUIRE(ops.all().size() == 1);
  return ops.all()[0];
}

struct Found {
  std::array<Tensor, kMaxOutputs> y, error;
};
Found found(const lab::RecordedOp& op, const Tensor& x, const Tensor& error) {
  const Tensor wide = cast(x, DType::f64);
  Found f;
  f.y = lab::run_quantizer(op, wide);
  f.error = lab::quantizer_error(op, wide, cast(error, DType::f64), f.y);
  return f;
}

Tensor numbers(const std::vector<float>& values) {
  return from_data(values, {1, static_cast<std::int64_t>(values.size())});
}

Quantizer quantizer(const char* name, const Scaling& scaling, const Rounding& rounding = {}) {
  return {.format = format(name), .rounding = rounding, .overflow = Overflow::saturate, .scaling = scaling};
}

struct Case {
  const char* name;
  Quantizer q;
};
std::vector<Case> cases() {
  const PowerBlocks blocks{.block = 4};
  return {{"no scale", quantizer("e4m3fn", NoScale{})},
          {"fixed", quantizer("e4m3fn", FixedScale{.value = 3.7})},
          {"tensor", quantizer("e4m3fn", TensorScale{})},
          {"tensor, rounded products", quantizer("e4m3fn", TensorScale{.product = ScaledProduct::rounded})},
          {"tensor, power of two", quantizer("e5m2", TensorScale{.power_of_two = true})},
          {"integers of rows", quantizer("int8", RowScale{})},
          {"floats of blocks", quantizer("int4", FloatBlocks{.block = 4})},
          {"tiles of a table", quantizer("nf4", FloatBlocks{.block = 4, .square = true})},
          {"powers, floor", quantizer("e2m1", blocks)},
          {"powers, rceil", quantizer("e4m3fn", PowerBlocks{.block = 4, .rule = ScaleRule::rceil})},
          {"powers, even", quantizer("e2m1", PowerBlocks{.block = 4, .rule = ScaleRule::even})},
          {"powers of torchao", quantizer("e2m1", PowerBlocks{.block = 4, .oracle = ScaleOracle::torchao})},
          {"coded", quantizer("e2m1", CodedBlocks{.block = 4})},
          {"two levels", quantizer("e2m1", Nvfp4Blocks{.block = 4})},
          {"two levels of torchao", quantizer("e2m1", Nvfp4Blocks{.block = 4, .oracle = ScaleOracle::torchao})},
          {"at random", quantizer("e2m1", blocks, {.mode = RoundingMode::stochastic})},
          {"at random, few bits", quantizer("e4m3fn", TensorScale{}, rounding_from_name("stochastic:4"))},
          {"toward zero", quantizer("e4m3fn", TensorScale{}, {.mode = RoundingMode::toward_zero})},
          {"to odd", quantizer("e4m3fn", NoScale{}, {.mode = RoundingMode::to_odd})},
          {"range", quantizer("uint8", TensorRange{})},
          {"ranges of rows", quantizer("int8tc", RowRange{})},
          {"ranges of blocks", quantizer("uint4", RangeBlocks{.block = 4})}};
}

}  // namespace

TEST_CASE("quantizer bounds: a code moves where a tie is nearer than the error, and nowhere else") {
  // e4m3fn has 16, 18, 20 with ties at 17 and 19.
  const lab::RecordedOp op = call_of(numbers({16.5F, 17.5F, 18.99F}), quantizer("e4m3fn", NoScale{}));
  const auto errors = [&](float e) { return found(op, numbers({16.5F, 17.5F, 18.99F}), full({1, 3}, e)).error[0]; };
  CHECK(errors(0.005F).to_vector<double>() == std::vector<double>{0, 0, 0});
  CHECK(errors(0.02F).to_vector<double>() == std::vector<double>{0, 0, 2});
  CHECK(errors(0.6F).to_vector<double>() == std::vector<double>{2, 2, 2});
  CHECK(errors(0).to_vector<double>() == std::vector<double>{0, 0, 0});
}

TEST_CASE("quantizer bounds: a power of two changes where its threshold is nearer than the error of the amax") {
  // e2m1 has the exponent 2 for its largest value, so that floor takes 2^-2 for amaxes from 1 to 2.
  const Quantizer q = quantizer("e2m1", PowerBlocks{.block = 2});
  const Tensor far = numbers({1.5F, 0.3F});
  const Tensor near = numbers({1.99F, 0.3F});
  const Tensor error = numbers({0.02F, 0});
  // 0.3 is 1.2 quarters: 1. Half as many halves are 0.6, which becomes 0.5, the same number.
  CHECK(found(call_of(far, q), far, error).error[0].to_vector<double>() == std::vector<double>{0, 0});
  // 1.99 is 7.96 quarters, which saturate to 6: 1.5. 2 is 4 halves.
  CHECK(found(call_of(near, q), near, error).error[0].to_vector<double>() == std::vector<double>{0.5, 0});
  // 0.22 is 0.88 quarters, so 1, and 0.44 halves, so 0.5: the same. 0.35 is 1.4 quarters, so 1.5, and 0.7 halves: 0.5.
  const Tensor moved = numbers({1.99F, 0.35F});
  CHECK(found(call_of(moved, q), moved, error).error[0].to_vector<double>()[1] == 0.125);
}

namespace {

// How far results lie beyond their bounds for 300 inputs within their errors, how far they come, and the largest bound.
struct Trials {
  double beyond = -1;
  double reached = 0;
  double most = 0;
};
// shrinks: the inputs of some trials are nearer to 0, all of them by one factor.
Trials trials_of(const lab::RecordedOp& op, const Shape& sizes, const std::vector<float>& values,
                 const std::vector<float>& errors, bool shrinks, std::mt19937_64& random) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  const Found f = found(op, from_data(values, sizes), from_data(errors, sizes));
  Trials t;
  t.most = max(f.error[0]).item();
  if (f.error[1].defined()) t.most = std::max(t.most, max(f.error[1]).item());
  for (int trial = 0; trial < 300; ++trial) {
    const float factor = shrinks ? std::ldexp(1.0F, -static_cast<int>(random() % 12)) : 1;
    std::vector<float> others = values;
    for (std::size_t i = 0; i < others.size(); ++i) {
      const float part = trial % 3 == 0 ? (random() % 2 == 0 ? -1.0F : 1.0F) : uniform(random);
      const float other = (values[i] + errors[i] * part) * factor;
      const double away = static_cast<double>(other) - static_cast<double>(values[i]);
      // An underflow to 0 in all elements would give a tensor or a row a scale of its own, which the bounds leave out.
      if (other != 0 && std::abs(away) <= static_cast<double>(errors[i])) others[i] = other;
    }
    const auto y = lab::run_quantizer(op, cast(from_data(others, sizes), DType::f64));
    for (std::size_t k = 0; k < 2; ++k) {
      if (!y[k].defined()) continue;
      const Tensor away = abs(sub(y[k], f.y[k]));
      t.beyond = std::max(t.beyond, max(sub(away, f.error[k])).item());
      t.reached = std::max(t.reached, max(away).item());
    }
  }
  return t;
}

}  // namespace

TEST_CASE("quantizer bounds: all inputs within their errors give results within the bounds, which are no wider") {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const Case& c : cases())
    for (const bool scale_apart : {true, false})
      for (const float size : {1e-6F, 1e-3F, 1e-2F, 0.3F}) {
        CAPTURE(std::string(c.name));
        CAPTURE(scale_apart);
        CAPTURE(size);
        std::vector<float> values(48);
        std::vector<float> errors(48);
        for (float& x : values) x = std::ldexp(uniform(random), static_cast<int>(random() % 4));
        for (float& e : errors) e = random() % 3 == 0 ? 0 : size * std::abs(uniform(random));
        const lab::RecordedOp op = call_of(from_data(values, {6, 8}), c.q, scale_apart, {5, 7});
        const Trials t = trials_of(op, {6, 8}, values, errors, false, random);
        CHECK(t.beyond <= 0);
        CHECK(std::isfinite(t.most));
        // Not lax: the worst of 300 inputs comes near, since each of a few codes or scales decides. 1e-6 is about a
        // unit of f32.
        CHECK(t.most <= 6 * t.reached + 1e-6);
      }
}

TEST_CASE("quantizer bounds: they hold where scales become 0 or the smallest ones, and blocks all 0") {
  std::mt19937_64 random(4);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<Case> all = cases();
  for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::rceil})
    all.push_back({"powers of torchao",
                   quantizer("e4m3fn", PowerBlocks{.block = 4, .rule = rule, .oracle = ScaleOracle::torchao})});
  for (const Case& c : all)
    for (const bool scale_apart : {true, false})
      for (const int exponent : {-140, -126, -120, -114, -106, -10, -7, -4})
        for (const float size : {1e-3F, 1e-2F, 1.0F}) {
          CAPTURE(std::string(c.name));
          CAPTURE(scale_apart);
          CAPTURE(exponent);
          CAPTURE(size);
          std::vector<float> values(8);
          std::vector<float> errors(8);
          for (float& x : values) x = std::ldexp(uniform(random), exponent - static_cast<int>(random() % 6));
          for (float& e : errors) e = random() % 3 == 0 ? 0 : std::ldexp(size * std::abs(uniform(random)), exponent);
          if (random() % 2 == 0) std::fill_n(values.begin(), 4, 0.0F);
          const lab::RecordedOp op = call_of(from_data(values, {2, 4}), c.q, scale_apart, {5, 7});
          CHECK(trials_of(op, {2, 4}, values, errors, true, random).beyond <= 0);
        }
}

TEST_CASE("quantizer bounds: behind a stored scale of 0 is the smallest one") {
  const Quantizer q = quantizer("e2m1", CodedBlocks{.block = 4});
  const Tensor x = numbers({0.02F, 0.0009F});
  const lab::RecordedOp op = call_of(x, q);
  const Found f = found(op, x, numbers({0.018F, 0}));
  // An amax of 0.01 has the scale 2^-9, in which 0.0009 is 0.46: 0.5.
  const auto other = lab::run_quantizer(op, cast(numbers({0.01F, 0.0009F}), DType::f64));
  const double moved = std::abs(other[0].to_vector<double>()[1] - f.y[0].to_vector<double>()[1]);
  CHECK(moved == 0x1p-10);
  CHECK(f.error[0].to_vector<double>()[1] >= moved);
}

TEST_CASE("quantizer bounds: behind torchao's factor 1 of the scale 2^-127 by rceil is the largest factor") {
  const Quantizer q =
      quantizer("e2m1", PowerBlocks{.block = 2, .rule = ScaleRule::rceil, .oracle = ScaleOracle::torchao});
  const Tensor x = numbers({0x1p-129F, 0.7F * 0x1p-125F});
  const Found f = found(call_of(x, q), x, numbers({5.9F * 0x1p-125F, 0}));
  CHECK(f.y[0].to_vector<double>()[1] == 0);
  // An amax of 3 * 2^-125 has the scale 2^-126, in which the second number is 1.4: 1.5. Under 2^-125 it is 0.5.
  const auto other = lab::run_quantizer(call_of(x, q), cast(numbers({3 * 0x1p-125F, 0.7F * 0x1p-125F}), DType::f64));
  CHECK(other[0].to_vector<double>()[1] == 1.5 * 0x1p-126);
  CHECK(f.error[0].to_vector<double>()[1] >= 1.5 * 0x1p-126);
}

TEST_CASE(
    "quantizer bounds: the product of a row that is all 0, or may be, is within those of its codes and its scale") {
  const Quantizer q = quantizer("int8", RowScale{});
  const std::vector<float> nothing{0, 0};
  const std::vector<float> small{1e-3F, -4e-4F};
  for (const bool from_nothing : {true, false}) {
    CAPTURE(from_nothing);
    const Tensor x = numbers(from_nothing ? nothing : small);
    const Tensor other = numbers(from_nothing ? small : nothing);
    const lab::RecordedOp op = call_of(x, q, true);
    const Found f = found(op, x, abs(sub(x, other)));
    const auto y = lab::run_quantizer(op, cast(other, DType::f64));
    REQUIRE(y[1].defined());
    const Tensor wide = mul(add(abs(f.y[0]), f.error[0]), add(abs(f.y[1]), f.error[1]));
    const Tensor bound = sub(wide, mul(abs(f.y[0]), abs(f.y[1])));
    const Tensor apart = abs(sub(mul(y[0], y[1]), mul(f.y[0], f.y[1])));
    CHECK(max(apart).item() > 3e-4);
    CHECK(max(sub(apart, bound)).item() <= 0);
    CHECK(std::isfinite(max(bound).item()));
  }
}

TEST_CASE("quantizer bounds: a zero point moves by what f32 loses between the ends of a range") {
  const Quantizer q = quantizer("uint8", TensorRange{});
  std::mt19937_64 random(6);
  std::uniform_real_distribution<float> uniform(0.1F, 1);
  for (int range_at = 0; range_at < 60; ++range_at) {
    // The quotient low / scale is near a tie: low / (high - low) = (k + 1/2) / 255.
    const double share = (static_cast<double>(random() % 254) + 0.5) / 255;
    const float range = uniform(random);
    const auto low = static_cast<float>(-share * range);
    const auto high = static_cast<float>((1 - share) * range);
    const float error = 0x1p-22F * range;
    const Tensor x = numbers({low, high});
    const lab::RecordedOp op = call_of(x, q);
    const Trials t = trials_of(op, {1, 2}, {low, high}, {error, error}, false, random);
    CHECK(t.beyond <= 0);
  }
}

TEST_CASE("quantizer bounds: under a fixed scale only the element without a bound has none") {
  const Tensor x = numbers({1, 2, 3});
  const Tensor error = numbers({0, INFINITY, 0});
  for (const Scaling& scaling : {Scaling(NoScale{}), Scaling(FixedScale{.value = 3})}) {
    const Found f = found(call_of(x, quantizer("e4m3fn", scaling)), x, error);
    const auto errors = f.error[0].to_vector<double>();
    CHECK(errors[0] == 0);
    CHECK(std::isinf(errors[1]));
    CHECK(errors[2] == 0);
    if (f.error[1].defined()) CHECK(f.error[1].item() == 0);
  }
}

TEST_CASE("quantizer bounds: an input without a bound has none behind it; other groups keep theirs") {
  const Tensor x = from_data(std::vector<float>{1, 2, 3, 4}, {2, 2});
  const Tensor error = from_data(std::vector<float>{INFINITY, 0, 0, 0}, {2, 2});
  const auto rows = found(call_of(x, quantizer("int8", RowScale{})), x, error).error[0].to_vector<double>();
  CHECK(std::isinf(rows[0]));
  CHECK(std::isinf(rows[1]));
  CHECK(rows[2] == 0);
  CHECK(rows[3] == 0);
}

namespace {

struct Net : nn::Module {
  Tensor forward(const Tensor& x) override { return head(relu(norm(fc(x.reshape({x.size(0), 64}))))); }

  nn::Linear& fc = register_module("fc", nn::Linear(64, 32));
  nn::LayerNorm& norm = register_module("norm", nn::LayerNorm(32));
  nn::Linear& head = register_module("head", nn::Linear(32, 10));
};
lab::MakeModel net() {
  return [] { return std::make_shared<Net>(); };
}
lab::StudyOptions early(std::int64_t step) { return {.step = step, .batch = 16, .epochs = 1}; }

StateDict recorded(const amp::Recipe& recipe) {
  lab::Study study(net(), lab::data_for("digits"), recipe, early(0));
  return test::recorded_step(study);
}

}  // namespace

TEST_CASE("tolerance: bounds of recipes that quantise hold for random orders") {
  const char* const recipes[] = {"fp8-delayed",  "fp8-current", "fp8-rowwise",     "fp8-block128",  "mxfp8",
                                 "mxfp6",        "mxfp4",       "nvfp4",           "mxint8",        "msfp12",
                                 "int8",         "int4",        "int8-asym",       "int4-asym",     "nf4",
                                 "int8-rowwise", "switchback",  "mxfp4-backward",  "unscaled-fp8",  "pure:bf16",
                                 "msamp-o1",     "adam8",       "e5m3:stochastic", "mxfp4-centered"};
  for (const char* name : recipes) {
    CAPTURE(std::string(name));
    const lab::Tolerances t =
        lab::tolerance(net(), lab::data_for("digits"), amp::recipe(name), {.study = early(3), .orders = 4});
    int differ = 0;
    for (const lab::Tolerated& one : t.tensors) {
      CAPTURE(one.name);
      CHECK(one.worst <= 1);
      CHECK(std::isfinite(one.local));
      differ += one.sampled > 0 ? 1 : 0;
    }
    CHECK(differ > 3);
  }
}

TEST_CASE("tolerance: another rounding, and a scale that is missing, are outside of a quantised step's bounds") {
  const amp::Recipe right = amp::recipe("fp8-current");
  const lab::Tolerances t = lab::tolerance(net(), lab::data_for("digits"), right, {.study = early(0), .orders = 1});
  for (const lab::Exceeded& e : t.exceeded(recorded(right))) {
    CAPTURE(e.name);
    CHECK(!e.always);
  }
  const auto first = [&](auto change) {
    amp::Recipe wrong = right;
    change(*wrong.quantization);
    for (const lab::Exceeded& e : t.exceeded(recorded(wrong)))
      if (e.always) return e.name;
    return std::string("none");
  };
  CHECK(first([](amp::Quantization& q) {
          q.forward_x->rounding.mode = RoundingMode::toward_zero;
          q.wgrad_x = q.forward_x;
        }) == "fc.quantize");
  CHECK(first([](amp::Quantization& q) {
          q.forward_w->scaling = NoScale{};
          q.dgrad_w = q.forward_w;
        }) == "fc.quantize#2");
  CHECK(first([](amp::Quantization& q) {
          q.dgrad_dy->format = format("e4m3fn");
          q.wgrad_dy = q.dgrad_dy;
        }).starts_with("backward:"));
}

TEST_CASE("tolerance: a quantised layer has the name, the result and the local bound of its op") {
  const lab::Tolerances t =
      lab::tolerance(net(), lab::data_for("digits"), amp::recipe("mxfp8"), {.study = early(0), .orders = 1});
  const auto y = std::ranges::find(t.tensors, std::string("fc.linear"), &lab::Tolerated::name);
  REQUIRE(y != t.tensors.end());
  // The inputs of the first layer have no errors, so its operands have the same codes, and its sums those of f32.
  CHECK(y->bound == y->local);
  CHECK(y->bound > 0);
  CHECK(y->bound < 65 * 0x1p-24 * 20);
  // Behind the norm a code may be another one, which weighs more than the errors of the sums.
  const auto x = std::ranges::find(t.tensors, std::string("head.linear"), &lab::Tolerated::name);
  CHECK(x->bound >= x->local);
}

TEST_CASE("tolerance: quantizers without bounds are an Error that names them") {
  const auto of = [](const char* recipe) {
    return lab::tolerance(net(), lab::data_for("digits"), amp::recipe(recipe), {.study = early(0), .orders = 1});
  };
  CHECK_THROWS_WITH_AS(of("mx6"), doctest::Contains("scales that parts of a block double"), Error);
  CHECK_THROWS_WITH_AS(of("nvfp4-4over6"), doctest::Contains("searched for"), Error);
  CHECK_THROWS_WITH_AS(of("quartet2"), doctest::Contains("searched for"), Error);
  CHECK_THROWS_WITH_AS(of("tetrajet-v2"), doctest::Contains("outer blocks"), Error);
  CHECK_THROWS_WITH_AS(of("int4-lsq"), doctest::Contains("a learned scale"), Error);
  CHECK_THROWS_WITH_AS(of("mxfp4-clipped"), doctest::Contains("a gradient that follows from its operand"), Error);
  CHECK_THROWS_WITH_AS(of("fp8-smooth"), doctest::Contains("numbers of [1, 64] that no op gave"), Error);
}
