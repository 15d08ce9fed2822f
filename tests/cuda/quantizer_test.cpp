// Quantizers of tensors on a GPU against the CPU: bits, codes, scales, counts and histograms.
#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>

#include <gradual/core/quantize/quantizer.h>
#include <gradual/core/quantize/what_if.h>
#include <gradual/cuda/cuda.h>
#include <gradual/cuda/runtime/graph.h>
#include "support/gpu.h"
#include "support/tensors.h"

namespace gradual {
namespace {

using testing::same_bits;

// Numbers of many binades with zeros among them; some rows are all zeros.
Tensor spread(const Shape& sizes, DType dtype, bool special = false, float nan = NAN) {
  Generator g(3);
  Tensor x = randn(sizes, {}, g);
  const Tensor powers = randint(-24, 20, sizes, {.dtype = DType::i64}, g);
  auto* v = x.data<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    v[i] = std::ldexp(v[i], static_cast<int>(powers.data<std::int64_t>()[i]));
    if (i % 11 == 0) v[i] = i % 2 ? -0.0F : 0.0F;
    if (i >= 128 && i < 224) v[i] = 0;
    if (special && i % 53 == 5) v[i] = i % 2 ? nan : NAN;
    if (special && i % 37 == 9) v[i] = i % 2 ? -INFINITY : INFINITY;
  }
  return x.to(dtype);
}

std::vector<Quantizer> quantizers() {
  std::vector<Quantizer> all;
  const auto add = [&](const char* f, const Scaling& s, Rounding r = {}, Overflow o = Overflow::saturate) {
    all.push_back({.format = format(f), .rounding = r, .overflow = o, .scaling = s});
  };
  using enum RoundingMode;
  for (const char* f : {"e4m3fn", "e5m2", "e2m1fn", "e3m2fn", "bf16", "fp16", "e8m23", "e4m3fnuz", "e5m10"})
    for (const Overflow o : {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite}) add(f, {}, {}, o);
  for (const RoundingMode m : {nearest_away, toward_zero, up, down, to_odd, stochastic}) {
    add("e4m3fn", {}, {.mode = m});
    add("e4m3fn", PowerBlocks{}, {.mode = m, .random_bits = 9});
  }
  Quantizer flushed{.format = format("e5m2")};
  flushed.format.subnormals = false;
  all.push_back(flushed);
  for (const char* f : {"e4m3fn", "e5m2", "e2m1fn"})
    for (const Overflow o : {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite}) {
      Quantizer unsigned_one{.format = format(f), .rounding = {}, .overflow = o};
      unsigned_one.format.is_signed = false;
      unsigned_one.format.has_negative_zero = false;
      all.push_back(unsigned_one);
      unsigned_one.scaling = PowerBlocks{};
      all.push_back(unsigned_one);
      unsigned_one.scaling = TensorScale{};
      unsigned_one.rounding.mode = stochastic;
      all.push_back(unsigned_one);
    }
  for (const RoundingMode m : {nearest_even, nearest_away, toward_zero, up, down, to_odd, stochastic})
    for (const Overflow o : {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite})
      add("e8m0fnu", {}, {.mode = m}, o);
  Quantizer powers{.format = format("e8m0fnu")};  // packed codes
  powers.format.exponent_bits = 4;
  powers.format.bias = 7;
  all.push_back(powers);
  powers.format.exponent_bits = 6;
  powers.format.bias = 80;
  powers.format.nan = NanEncoding::none;
  for (const Overflow o : {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite}) {
    powers.overflow = o;
    all.push_back(powers);
  }
  for (const char* f : {"e4m3fn", "e5m2", "e2m1fn"}) {
    add(f, FixedScale{.value = 3});
    for (const ScaleOracle oracle : {ScaleOracle::transformer_engine, ScaleOracle::torchao}) {
      add(f, TensorScale{.margin = 1, .oracle = oracle});
      add(f, RowScale{.power_of_two = true, .oracle = oracle});
      add(f, Nvfp4Blocks{.block = 16, .oracle = oracle});
      for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::rceil, ScaleRule::ceil, ScaleRule::even})
        add(f, PowerBlocks{.rule = rule, .oracle = oracle});
      add(f, FloatBlocks{.block = 16, .oracle = oracle});
      add(f, PowerBlocks{.block = 8, .scale = ScaleFormat::power_of_two, .oracle = oracle});
      add(f, PowerBlocks{.block = 8, .square = true, .oracle = oracle});
    }
    add(f, TensorScale{}, {.mode = stochastic});
    add(f, DelayedScale{});
    add(f, Nvfp4Blocks{.block = 16, .square = true}, {.mode = stochastic, .random_bits = 3});
  }
  return all;
}

// One call's results, all on the CPU.
struct Result {
  std::vector<Tensor> tensors;
  CastCounts counts;
  ExponentHistogram exponents;
  AmaxHistory history;
};
Result run(const Tensor& x, const Quantizer& q, int axis, bool scaled_exponents) {
  Result r;
  r.history.scale = 0.25F;
  QuantizeOptions o{.axis = axis, .key = {5, 7}, .history = &r.history, .stats = {&r.counts, &r.exponents}};
  o.scaled_exponents = scaled_exponents;
  const Device device = x.device();
  const QuantizedTensor codes = quantize(x, q, o);
  o.stats = {};
  const Tensor fake = fake_quantize(x, q, o);
  const QuantizedOperand operand = quantize_operand(x, q, o);
  r.history.read();
  r.tensors = {codes.codes, codes.scales,   codes.dequantize(), codes.decode(),       codes.unpack(),
               fake,        operand.values, operand.scale,      codes.scale_values(), codes.global_scale};
  for (Tensor& t : r.tensors) {
    if (!t.defined()) continue;
    CHECK(t.device() == device);
    t = t.to(Device::cpu());
  }
  return r;
}

void check_same(const Tensor& x, const Quantizer& q, int axis, bool scaled_exponents) {
  INFO(describe(q) << " " << to_string(q.overflow) << " of " << to_string(x.sizes()) << " " << to_string(x.dtype())
                   << ", axis " << axis);
  // The sign of a NaN times a NaN is unspecified. torchao's scales of blocks with NaN are NaN: Inf becomes such a NaN.
  const bool no_sign = is_any<PowerBlocks, FloatBlocks>(q.scaling) && oracle_of(q.scaling) == ScaleOracle::torchao;
  const auto comparable = [&](const Tensor& t) { return no_sign && t.is_floating() ? where(t != t, NAN, t) : t; };
  const Result cpu = run(x, q, axis, scaled_exponents);
  const Result gpu = run(x.to(Device::cuda()), q, axis, scaled_exponents);
  for (std::size_t i = 0; i < cpu.tensors.size(); ++i) {
    INFO("result " << i);
    if (!cpu.tensors[i].defined() && gpu.tensors[i].defined()) CHECK(gpu.tensors[i].item() == 1);
    else REQUIRE(cpu.tensors[i].defined() == gpu.tensors[i].defined());
    if (cpu.tensors[i].defined()) CHECK(same_bits(comparable(cpu.tensors[i]), comparable(gpu.tensors[i])));
  }
  CHECK(cpu.counts == gpu.counts);
  CHECK(cpu.exponents.bins == gpu.exponents.bins);
  CHECK(cpu.history.is_staged == gpu.history.is_staged);
  const bool same_history =
      cpu.history.staged == gpu.history.staged || (std::isnan(cpu.history.staged) && std::isnan(gpu.history.staged));
  CHECK(same_history);
}

TEST_CASE("quantizers have the bits and counts of the CPU" * doctest::test_suite("slow")) {
  if (!test::have_gpu()) return;
  for (const Quantizer& q : quantizers()) {
    check_same(spread({12, 96}, DType::f32), q, -1, false);
    // of NaN times a scale that is NaN, either may stay
    check_same(spread({12, 96}, DType::f32, true, is_any<NoScale>(q.scaling) ? -NAN : NAN), q, -1, true);
    check_same(spread({3, 7, 45}, DType::bf16), q, 1, true);
    check_same(spread({21, 40}, DType::f16).transpose(0, 1), q, 0, false);
  }
}

TEST_CASE("quantizers of odd shapes and of doubles") {
  if (!test::have_gpu()) return;
  for (const Quantizer& q : quantizers()) {
    check_same(spread({}, DType::f32), q, -1, false);
    check_same(spread({5, 33}, DType::f64, true, is_any<NoScale>(q.scaling) ? -NAN : NAN), q, -1, true);
    check_same(spread({1, 1}, DType::f32), q, -1, false);
    if (is_any<TensorScale>(q.scaling) || is_any<NoScale>(q.scaling))
      check_same(spread({0, 4}, DType::f32), q, -1, false);
  }
}

TEST_CASE("doubles are rounded once, from all their bits and beyond the range of floats") {
  if (!test::have_gpu()) return;
  const Tensor x = from_data(std::vector<double>{0x1.08p0, 0x1.0800000000001p0, -0x1.07fffffffffffp0, 1e300, -1e300,
                                                 1e-300, 0x1p-1074, -0x1p-130, 0x1.fp128},
                             {9}, {.dtype = DType::f64});
  std::vector<Format> formats;
  for (const char* f : {"e4m3fn", "e5m2", "bf16", "fp32", "e8m0fnu"}) formats.push_back(format(f));
  formats.push_back(format("e4m3fn"));
  formats.back().is_signed = false;
  formats.back().has_negative_zero = false;
  using enum RoundingMode;
  for (const Format& f : formats)
    for (const RoundingMode m : {nearest_even, nearest_away, toward_zero, up, down, to_odd, stochastic})
      for (const Overflow o : {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite})
        check_same(x, {.format = f, .rounding = {.mode = m}, .overflow = o}, -1, false);
}

TEST_CASE("powers of two from the smallest floats on") {
  if (!test::have_gpu()) return;
  const Tensor x = from_data(std::vector<float>{0x1p-149F, 0x1p-128F, 0x1.8p-127F, 0x1p-127F, 0x1.8p-126F, 0x1p-126F,
                                                0x1.fffffep127F, -0x1p-149F},
                             {8});
  using enum RoundingMode;
  for (const RoundingMode m : {nearest_even, toward_zero, up, stochastic})
    check_same(x, {.format = format("e8m0fnu"), .rounding = {.mode = m}}, -1, false);
}

TEST_CASE("a graph records every kind of quantizer") {
  if (!test::have_gpu()) return;
  Quantizer unsigned_one{.format = format("e4m3fn"), .scaling = RowScale{}};
  unsigned_one.format.is_signed = false;
  unsigned_one.format.has_negative_zero = false;
  const Tensor x = spread({12, 96}, DType::f64).to(Device::cuda());
  const Tensor other = spread({12, 96}, DType::f64) * 3;
  for (const Quantizer& q :
       {unsigned_one, Quantizer{.format = format("e8m0fnu")}, Quantizer{.format = format("e5m2")}}) {
    INFO(describe(q));
    Tensor values;
    QuantizedTensor codes;
    const auto step = [&] {
      values = fake_quantize(x, q);
      codes = quantize(x, q);
    };
    step();
    cuda::Graph graph;
    graph.capture(step);
    x.copy_(other);
    graph.replay();
    CHECK(same_bits(values.to(Device::cpu()), fake_quantize(other, q)));
    CHECK(same_bits(codes.codes.to(Device::cpu()), quantize(other, q).codes));
  }
}

TEST_CASE("a large tensor" * doctest::test_suite("slow")) {
  if (!test::have_gpu()) return;
  const Tensor x = spread({100, 1000}, DType::f32);
  for (const Scaling& s : std::initializer_list<Scaling>{TensorScale{}, PowerBlocks{}})
    check_same(x, {.format = format("e4m3fn"), .scaling = s}, -1, true);
}

TEST_CASE("the Hadamard transform") {
  if (!test::have_gpu()) return;
  const Tensor x = spread({7, 48}, DType::f32);
  const Tensor here = hadamard16(x, 0x1234);
  const Tensor there = hadamard16(x.to(Device::cuda()), 0x1234);
  CHECK(there.device() == Device::cuda());
  CHECK(absmax(here - there.to(Device::cpu())) <= 0x1p-20F * absmax(x));  // sums of 16 in another order
}

TEST_CASE("what a tensor would lose in other formats") {
  if (!test::have_gpu()) return;
  const Tensor x = spread({7, 48}, DType::f16);
  CHECK(to_string(what_if(x.to(Device::cuda()))) == to_string(what_if(x)));
}

TEST_CASE("the largest magnitude") {
  if (!test::have_gpu()) return;
  const Tensor x = spread({7, 48}, DType::f16);
  CHECK(absmax(x.to(Device::cuda())) == absmax(x));
  CHECK(absmax(empty({0}).to(Device::cuda())) == 0);
  CHECK(std::isnan(absmax(spread({100}, DType::f32, true).to(Device::cuda()))));
}

}  // namespace
}  // namespace gradual
