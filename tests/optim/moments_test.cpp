// Moments that are kept as codes and scales.
#include <doctest/doctest.h>

#include <algorithm>
#include <variant>
#include <vector>

#include "gradual/core/formats/format_table.h"
#include "gradual/core/tensor/memory.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

const Quantizer kE4m3{.format = format("e4m3fn"), .scaling = TensorScale{.power_of_two = true}};
const Quantizer kFp16{.format = format("fp16"), .scaling = TensorScale{.power_of_two = true}};
const Quantizer kBlocks{
    .format = format("e2m1"), .rounding = {.mode = RoundingMode::stochastic}, .scaling = PowerBlocks{.block = 16}};
const Quantizer kTwoLevels{.format = format("e3m2"), .scaling = Nvfp4Blocks{.block = 16}};

UpdateOptions coded(const Quantizer& first, const Quantizer& second) {
  UpdateOptions o;
  o.moments[0] = first;
  o.moments[1] = second;
  return o;
}

Tensor matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Tensor t = from_data(numbers(static_cast<std::size_t>(rows * cols), seed), {rows, cols}, {.dtype = DType::f32});
  return t.set_requires_grad();
}

StateDict copied(const StateDict& state) {
  StateDict out;
  for (const auto& [name, value] : state) {
    const Tensor* t = std::get_if<Tensor>(&value);
    out.set(name, t ? StateValue(t->clone()) : value);
  }
  return out;
}

}  // namespace

TEST_CASE("a step decodes the moments, updates and encodes them again") {
  const Tensor p = matrix(20, 35, 1);
  const Tensor q = matrix(20, 35, 1);
  const Tensor bias = leaf(numbers(35, 2));
  const Tensor other = leaf(numbers(35, 2));
  Adam codes({p, bias}, {.lr = 0.01, .precision = coded(kE4m3, kFp16)});
  Adam plain({q, other}, {.lr = 0.01});
  for (std::uint64_t step = 0; step < 6; ++step) {
    for (const Tensor& t : {p, q}) set_gradient(t, numbers(700, 10 + step));
    for (const Tensor& t : {bias, other}) set_gradient(t, numbers(35, 30 + step));
    codes.step();
    plain.step();
    CHECK(same_bits(p, q));
    CHECK(same_bits(bias, other));
    const StateDict live = plain.state_dict();  // handles: what is written here the next step reads
    for (const auto& [key, quantizer] : {std::pair("params.0.exp_avg", kE4m3), {"params.0.exp_avg_sq", kFp16}}) {
      const Tensor moment = live.tensor(key);
      const Tensor rounded = fake_quantize(moment, quantizer);
      CHECK_FALSE(same_bits(moment, rounded));
      moment.copy_(rounded);
    }
  }
  const StateDict state = codes.state_dict();
  CHECK(state.tensor("params.0.exp_avg.codes").sizes() == Shape{700});
  CHECK(state.tensor("params.0.exp_avg_sq.codes").sizes() == Shape{1400});
  CHECK_FALSE(state.contains("params.0.exp_avg"));
  CHECK(state.contains("params.1.exp_avg"));  // one dim: as it is
}

TEST_CASE("codes are what the optimizer holds, one parameter's moments at a time are more") {
  const auto bytes = [](Category c, bool peak) {
    const MemoryStats::Entry e = memory_stats()[c];
    return peak ? e.peak : e.current;
  };
  constexpr std::int64_t kNumel = 256 * 256;
  const std::vector<Tensor> params = {matrix(256, 256, 1), matrix(256, 256, 2), matrix(256, 256, 3)};
  for (const Tensor& p : params) set_gradient(p, numbers(kNumel, 4));
  const std::int64_t before = bytes(Category::optimizer, false);
  const std::int64_t workspace = bytes(Category::workspace, false);
  Adam adam(params, {.precision = coded(kE4m3, kFp16)});
  reset_peak_memory();
  adam.step();
  adam.step();
  const std::int64_t kept = bytes(Category::optimizer, false) - before;
  CHECK(kept >= 3 * 3 * kNumel);                                  // a byte and two
  CHECK(kept <= 3 * (3 * kNumel + 256));                          // and a scale each, however it is padded
  CHECK(bytes(Category::optimizer, true) - before <= kept + 64);  // what is f32 for a moment is counted elsewhere
  // In f32 two moments of one parameter, and the copies that decoding makes of one more.
  CHECK(bytes(Category::workspace, true) - workspace <= 4 * 4 * kNumel);
  CHECK(bytes(Category::workspace, false) == workspace);
}

TEST_CASE("an optimizer with coded moments resumes to the bit, from its own state and from that of numbers") {
  for (const auto& pair : {std::pair(kE4m3, kFp16), {kBlocks, kBlocks}, {kTwoLevels, kTwoLevels}}) {
    const Quantizer& first = pair.first;
    const Quantizer& second = pair.second;
    CAPTURE(describe(first));
    const auto steps = [](Optimizer& optimizer, const Tensor& p, std::uint64_t from, std::uint64_t to) {
      for (; from < to; ++from) {
        set_gradient(p, numbers(700, 10 + from));
        optimizer.step();
      }
    };
    const Tensor p = matrix(20, 35, 1);
    AdamW straight({p}, {.precision = coded(first, second)});
    steps(straight, p, 0, 4);
    const StateDict saved = copied(straight.state_dict());
    const Tensor q = p.detach().clone().set_requires_grad();
    steps(straight, p, 4, 8);
    AdamW resumed({q}, {.precision = coded(first, second)});
    resumed.load_state_dict(saved);
    CHECK_FALSE(same_bits(p, q));
    steps(resumed, q, 4, 8);
    CHECK(same_bits(p, q));
  }
  const Tensor p = matrix(4, 4, 1);
  Adam plain({p});
  Adam codes({p}, {.precision = coded(kE4m3, kFp16)});
  set_gradient(p, numbers(16, 2));
  plain.step();
  codes.load_state_dict(plain.state_dict());
  codes.step();
  CHECK(codes.state_dict().contains("params.0.exp_avg.codes"));
  CHECK_FALSE(codes.state_dict().contains("params.0.exp_avg"));
}

TEST_CASE("moments in codes of checkpoints with the former words load: one power of two a tensor") {
  const Tensor p = matrix(4, 4, 1);
  Adam codes({p}, {.precision = coded(kE4m3, kFp16)});
  set_gradient(p, numbers(16, 2));
  codes.step();
  StateDict former = codes.state_dict();
  CHECK(former.text("params.0.exp_avg.quantizer") == "e4m3fn, one power of two per tensor");
  former.set("params.0.exp_avg.quantizer", "e4m3fn, one power of two a tensor");
  Adam loaded({p}, {.precision = coded(kE4m3, kFp16)});
  loaded.load_state_dict(former);
  CHECK(loaded.state_dict().text("params.0.exp_avg.quantizer") == "e4m3fn, one power of two per tensor");
}

TEST_CASE("codes that do not fit and moments that cannot be coded are named") {
  const Tensor p = matrix(4, 4, 1);
  const Tensor q = matrix(4, 5, 1);
  Adam codes({p}, {.precision = coded(kE4m3, kFp16)});
  Adam plain({p});
  Adam halves({p}, {.precision = coded(kFp16, kFp16)});
  Adam wide({q}, {.precision = coded(kE4m3, kFp16)});
  set_gradient(p, numbers(16, 2));
  set_gradient(q, numbers(20, 2));
  codes.step();
  wide.step();
  CHECK(error_of([&] { plain.load_state_dict(codes.state_dict()); }) ==
        "load_state_dict: exp_avg of parameter 0 is kept as 'e4m3fn, one power of two per tensor', the optimizer's as "
        "'numbers'");
  CHECK(error_of([&] { halves.load_state_dict(codes.state_dict()); }) ==
        "load_state_dict: exp_avg of parameter 0 is kept as 'e4m3fn, one power of two per tensor', the optimizer's as "
        "'fp16, one "
        "power of two per tensor'");
  CHECK(error_of([&] { codes.load_state_dict(wide.state_dict()); }) ==
        "load_state_dict: exp_avg of parameter 0: .codes is u8 [20], it should be u8 [16]");
  Quantizer bad = kE4m3;
  bad.scaling = DelayedScale{};
  const auto refused = [&](const UpdateOptions& o) { return error_of([&] { Adam({p}, {.precision = o}); }); };
  const std::string how =
      "optimizer: moments are kept as codes without delayed or learned scaling, zero points, Hadamard transform and "
      "pure_arithmetic";
  CHECK(refused(coded(bad, kFp16)) == how);
  UpdateOptions pure = coded(kE4m3, kFp16);
  pure.pure_arithmetic = true;
  CHECK(refused(pure) == how);
  bad.scaling = PowerBlocks{.block = 0};
  CHECK(refused(coded(kE4m3, bad)) == "optimizer, moments: quantizer to e4m3fn: a block has at least 1 element, not 0");
}

TEST_CASE("an f16 second moment that is stuck makes steps 1.4 and 1.7 times too large, and is counted") {
  constexpr double kSmallest = 0x1p-24;  // of f16
  for (const auto& [multiple, ratio] : {std::pair(1000.0, std::sqrt(2.0)), {750.0, std::sqrt(3.0)}}) {
    CAPTURE(multiple);
    const double g = std::sqrt(multiple * kSmallest);
    const auto trained = [&](std::optional<DType> state) {
      const Tensor p = leaf({0});
      auto adam = std::make_unique<Adam>(std::vector<Tensor>{p},
                                         AdamOptions{.lr = 1e-3, .eps = 1e-12, .precision = {.state_dtype = state}});
      for (int i = 0; i < 6000; ++i) {
        set_gradient(p, {g});
        adam->step();
      }
      const double before = p.item();
      set_gradient(p, {g});
      adam->step();
      return std::pair(p.item() - before, adam->moment_faults());
    };
    const auto [exact, none] = trained({});
    const auto [low, faults] = trained(DType::f16);
    CHECK(low / exact == doctest::Approx(ratio).epsilon(0.02));
    CHECK(none.elements == 0);
    CHECK(faults.elements == 1);
    CHECK(faults.stuck == 1);
    CHECK(faults.overflowed + faults.vanished == 0);
    CHECK(to_string(faults).find("1 are stuck") != std::string::npos);
  }
}

TEST_CASE("second moments as codes: those that vanish beside a large one are counted, in every format") {
  for (const char* format : {"e4m3fn", "fp16", "int8", "e5m2"}) {
    CAPTURE(format);
    UpdateOptions options;
    options.moments[1] =
        Quantizer{.format = gradual::format(format), .overflow = Overflow::saturate, .scaling = TensorScale{}};
    const Tensor p = zeros({2, 2}).set_requires_grad();
    Adam adam({p}, {.precision = options});
    p.set_grad(from_data(std::vector<float>{1, 1, 1, 1e-8F}, {2, 2}));
    adam.step();
    CHECK(adam.moment_faults().elements == 4);
    CHECK(adam.moment_faults().vanished == 1);
    CHECK(adam.moment_faults().parameter == "parameter 0");
    p.set_grad(ones({2, 2}));
    adam.step();
    CHECK(adam.moment_faults().vanished == 0);
  }
}

TEST_CASE("the dynamic maps of 8-bit optimizers have the values of bitsandbytes") {
  struct Map {
    const char* name;
    std::size_t values;
    double least, second, below_one;  // above 0
  };
  // The middles of the parts of 0.1 to 1: of one part 0.55, of two 0.325 and 0.775, of 64 and 128 the last.
  for (const Map& m : {Map{"dynamic8", 256, 0.55e-6, 0.325e-5, 0.1 + 0.9 * 63.5 / 64},
                       Map{"udynamic8", 256, 0.325e-6, 0.775e-6, 0.1 + 0.9 * 127.5 / 128},
                       Map{"dynamic4", 16, 0.55e-2, 0.325e-1, 0.1 + 0.9 * 3.5 / 4},
                       Map{"udynamic4", 16, 0.325e-2, 0.775e-2, 0.1 + 0.9 * 7.5 / 8}}) {
    CAPTURE(m.name);
    const std::vector<float>& values = format(m.name).table->values;
    CHECK(values.size() == m.values);
    CHECK(values.back() == 1);
    CHECK(values[values.size() - 2] == doctest::Approx(m.below_one).epsilon(1e-7));
    const auto zero = std::ranges::find(values, 0.0F);
    REQUIRE(zero != values.end());
    CHECK(zero[1] == doctest::Approx(m.least).epsilon(1e-6));
    CHECK(zero[2] == doctest::Approx(m.second).epsilon(1e-6));
    const bool is_signed = m.name[0] == 'd';
    CHECK(values.front() == (is_signed ? -values[values.size() - 2] : 0));  // 1 has no negative
  }
}

TEST_CASE("Adam with moments in dynamic maps of 8 bits follows that of f32") {
  const auto quantizer = [](const char* name) {
    return Quantizer{.format = format(name), .overflow = Overflow::saturate, .scaling = FloatBlocks{.block = 256}};
  };
  const auto trained = [&](const UpdateOptions& options) {
    const Tensor p = ones({8, 256}).set_requires_grad();
    auto adam = std::make_unique<Adam>(std::vector<Tensor>{p}, AdamOptions{.lr = 1e-2, .precision = options});
    Generator g(1);
    for (int i = 0; i < 30; ++i) {
      p.set_grad(randn({8, 256}, {}, g) + 0.5);
      adam->step();
    }
    return std::pair(p.detach(), adam->state_dict());
  };
  UpdateOptions options;
  options.moments[0] = quantizer("dynamic8");
  options.moments[1] = quantizer("udynamic8");
  const auto [exact, f32] = trained({});
  const auto [coded, codes] = trained(options);
  CHECK(norm(coded - exact).item() < 0.02 * norm(exact - 1.0).item());
  CHECK(norm(coded - exact).item() > 0);
}
