// The cure that is offered first is of the mechanism itself and the smallest; causes that look alike are told apart by
// trials.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/cures.h>
#include <gradual/lab/lab.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace gradual;
using inspect::Cause;
using inspect::Cure;
namespace cures = inspect::cures;

namespace {

data::Split digits() { return data::split(data::digits(), 1437, 0); }

lab::Options short_run(int epochs) {
  lab::Options o;
  o.epochs = epochs;
  return o;
}

// The first finding about the recipe's first seed.
lab::Finding first_finding(const amp::Recipe& recipe, const lab::MakeModel& model, const lab::Options& options,
                           const data::Split& data = digits()) {
  const lab::Result r = lab::compare(model, data, {recipe}, "", options).front();
  MESSAGE(r.recipe << ": " << to_string(r.verdict));
  for (const lab::Finding& f : r.findings) MESSAGE("   " << to_string(f));
  REQUIRE(!r.findings.empty());
  return r.findings.front();
}

// A function of the hidden numbers between two layers.
struct Between : nn::Module {
  std::function<Tensor(const Tensor&)> f;
  nn::Linear& in = register_module("in", nn::Linear(64, 32));
  nn::Linear& out = register_module("out", nn::Linear(32, 10, {.bias = false}));
  double range;  // of the numbers that f gives: the results are divided by it
  explicit Between(std::function<Tensor(const Tensor&)> between, double size) : f(std::move(between)), range(size) {}
  Tensor forward(const Tensor& x) override { return out(f(relu(in(x.reshape({x.size(0), 64}))))) * (1 / range); }
};
lab::MakeModel between(std::function<Tensor(const Tensor&)> f, double range = 1) {
  return [f, range] { return std::make_shared<Between>(f, range); };
}

Quantizer quantizer(const std::string& name, const Scaling& scaling) {
  return {.format = format(name), .scaling = scaling};
}
amp::Recipe of_activations(const Quantizer& q) {
  amp::Recipe r = amp::recipe("fp32");
  r.name = "activations";
  r.quantization.emplace();
  r.quantization->forward_x = q;
  r.quantization->wgrad_x = q;
  return r;
}

}  // namespace

TEST_CASE("an op that leaves the range of f16 is offered in f32 before bf16 for everything") {
  const amp::Recipe half = amp::recipe("fp16-master");
  const auto gain = [](const Tensor& h) { return (h * 1e6) * 1e-6; };
  const lab::Finding large = first_finding(half, between(gain), short_run(1));
  CHECK(large.cause == Cause::activation_overflow);
  CHECK(large.remedy == "mul in f32");
  REQUIRE(large.cures.size() > 1);
  CHECK(large.cures.back().remedy.starts_with("bf16"));
  const auto divided = [](const Tensor& h) {
    const Tensor small = (abs(h) + 0.05) * 1e-9;
    return small / amax(small, {1}, true);
  };
  const lab::Finding small = first_finding(half, between(divided), short_run(1));
  CHECK(small.cause == Cause::activation_underflow);
  CHECK(small.remedy == "mul in f32");
}

TEST_CASE("gradients beyond f16 have a loss scale below 1 as their cure") {
  amp::Recipe unscaled = amp::recipe("fp16-master");
  unscaled.scaling.reset();
  lab::Options o = short_run(1);
  o.loss = {"a large loss", [](const Tensor& x, const Tensor& y) { return cross_entropy(x, y) * 2e7; }};
  const lab::Finding f = first_finding(unscaled, between([](const Tensor& h) { return h; }), o);
  CHECK(f.cause == Cause::gradient_overflow);
  CHECK(f.remedy == "a loss scale of 2^-8");
}

TEST_CASE("a loss scale that is far too high is the cause, though bf16 in a trial undoes more than one lower scale") {
  amp::Recipe high = amp::recipe("fp16-master");
  high.scaling = optim::GradScalerOptions{.init_scale = std::exp2(23), .dynamic = false};
  const lab::Finding f = first_finding(high, between([](const Tensor& h) { return h; }), short_run(3));
  CHECK(f.cause == Cause::scale_too_high);
  CHECK(f.remedy.starts_with("a loss scale of"));
}

TEST_CASE("second moments that overflow in an earlier step are the cause of the step that reads them") {
  amp::Recipe r = amp::recipe("bf16-master");
  r.optimizer_state = DType::f16;
  lab::Options o = short_run(1);
  o.loss = {"a large loss", [](const Tensor& x, const Tensor& y) { return cross_entropy(x, y) * 1e6; }};
  CHECK(first_finding(r, between([](const Tensor& h) { return h; }), o).cause == Cause::second_moment);
}

TEST_CASE("a delayed scale is the cause of zeros that the tensor's own amax undoes, and no other scale is") {
  data::Split data = digits();
  data.train.inputs.narrow(0, 0, 1).mul_(1e7);  // one sample keeps the scale large
  const amp::Recipe delayed = of_activations(quantizer("e4m3fn", DelayedScale{.history = 1024}));
  CHECK(first_finding(delayed, between([](const Tensor& h) { return tanh(h); }), short_run(2), data).cause ==
        Cause::delayed_scale);
  const amp::Recipe none = of_activations(quantizer("e4m3fn", NoScale{}));
  const auto tiny = [](const Tensor& h) { return h * 1e-6; };
  CHECK(first_finding(none, between(tiny, 1e-6), short_run(2)).cause == Cause::format_range);
}

TEST_CASE("blocks whose coded scale is 0 are a finding, though no count has their numbers") {
  const amp::Recipe coded =
      of_activations(quantizer("e2m3fn", CodedBlocks{.block = 16, .scale_format = format("e4m3fn")}));
  const lab::Finding f = first_finding(coded, between([](const Tensor& h) { return h * 1e-7; }, 1e-7), short_run(2));
  CHECK(f.cause == Cause::scale_range);
  CHECK(f.site == "out");
  CHECK(f.remedy == "scales of blocks in f32");
}

TEST_CASE("NaN in the data of a recurrent model is the data's fault: its zero state is no dead unit") {
  struct Recurrent : nn::Module {
    nn::GRU& layer = register_module("layer", nn::GRU(8, 16));
    nn::Linear& out = register_module("out", nn::Linear(16, 10));
    Tensor forward(const Tensor& x) override {
      const Tensor h = layer(x.reshape({x.size(0), 8, 8}));
      return out(select(h, 1, 7));
    }
  };
  data::Split data = data::split(data::digits(), 256, 0);
  data.train.inputs.narrow(0, 9, 1).narrow(2, 3, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  const lab::MakeModel model = [] { return std::make_shared<Recurrent>(); };
  CHECK(first_finding(amp::recipe("tf32"), model, short_run(1), data).cause == Cause::data);
}

TEST_CASE("cures of quantisers: smaller blocks, finer scales, stochastic rounding, a sign; each once") {
  const amp::Recipe mx = amp::recipe("mxfp4");
  CHECK(block_size(cures::smaller_blocks(mx, 8).recipe.quantization->forward_x->scaling) == 8);
  CHECK(cures::valid(mx, {cures::smaller_blocks(mx, 32), cures::smaller_blocks(mx, 5)}).empty());
  CHECK(cures::valid(mx, {cures::smaller_blocks(mx, 4), cures::smaller_blocks(mx, 4)}).size() == 1);

  const amp::Recipe whole = of_activations(quantizer("e2m1", TensorScale{}));
  const amp::Recipe fine = cures::finer_scales(whole, amp::Role::activation, 16).recipe;
  CHECK(block_size(fine.quantization->forward_x->scaling) == 16);
  CHECK(block_size(fine.quantization->wgrad_x->scaling) == 16);
  CHECK(cures::valid(whole, {cures::finer_scales(whole, amp::Role::error, 16)}).empty());
  const amp::Recipe random = cures::stochastic(whole, amp::Role::activation).recipe;
  CHECK(random.quantization->forward_x->rounding.mode == RoundingMode::stochastic);

  for (const char* name : {"ue4m3", "ue5m3"}) {
    const amp::Recipe positive = of_activations(quantizer(name, TensorScale{}));
    const Format got = cures::signed_format(positive, amp::Role::activation).recipe.quantization->forward_x->format;
    CHECK(got.is_signed);
    CHECK(got.bits() <= 8);
  }
  CHECK(cures::valid(whole, {cures::signed_format(whole, amp::Role::activation)}).empty());

  amp::Recipe unscaled = amp::recipe("fp16-master");
  unscaled.scaling.reset();
  CHECK(cures::static_scale(unscaled, -8).recipe.scaling->init_scale == std::exp2(-8));
  CHECK(cures::bf16(unscaled).generic);
  CHECK_FALSE(cures::static_scale(unscaled, -8).generic);
}

TEST_CASE("scales of blocks that saturate are the cause, and f32 scales the cure; RCEIL changes nothing") {
  // e5m1 ends at 1.5 * 2^16 as the format of scales: activations of 10^7 times their size exceed it.
  const CodedBlocks coded{.block = 24, .scale_format = format("e5m1")};
  const auto huge = [](const Tensor& h) { return h * 1e7; };
  const lab::Finding f = first_finding(of_activations(quantizer("e2m1", coded)), between(huge, 1e7), short_run(2));
  CHECK(f.cause == Cause::scale_range);
  CHECK(f.remedy.find("f32") != std::string::npos);
  for (const lab::Finding::Cure& c : f.cures) CHECK(c.remedy.find("RCEIL") == std::string::npos);
}
