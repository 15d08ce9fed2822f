// Delayed scaling step by step, the Hadamard transform, and what bad input is told.
#include <doctest/doctest.h>
#include <gradual/core/quantize/quantizer.h>

#include <cfloat>
#include <cmath>
#include <limits>

#include "support/files.h"
#include "support/tensors.h"

using namespace gradual;
using namespace gradual::testing;
using test::contains;
using test::message_of;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Quantizer delayed(Scaling scaling) {
  scaling.kind = ScalingKind::delayed;
  return {.format = format("e4m3fn"), .scaling = scaling};
}

// One training step: quantises a tensor of this amax with the scale so far, then takes the amax in. The scale after it.
float step(AmaxHistory& history, const Quantizer& q, float amax) {
  fake_quantize(from_data(std::vector<float>{-amax, 0, amax / 2}, {3}), q, {.history = &history});
  history.advance(q.scaling, q.format);
  return history.scale;
}

}  // namespace

TEST_CASE("delayed scaling: the largest of the history sets the next scale") {
  const Quantizer q = delayed({.history = 3});
  AmaxHistory h;
  // the first tensor is quantised with scale 1
  CHECK(fake_quantize(full({1}, 500), q, {.history = &h}).item() == 448);
  h = {};
  CHECK(step(h, q, 2) == 448 / 2.0F);
  // with 224 a tensor of amax 8 is clipped to 448 / 224, and the scale follows afterwards
  CHECK(fake_quantize(full({1}, 8), q, {.history = &h, .stage = false}).item() == 2);
  CHECK(h.staged == 0);  // only read
  CHECK(step(h, q, 8) == 448 / 8.0F);
  CHECK(h.amax == std::vector<float>{8, 2});
  CHECK(step(h, q, 1) == 448 / 8.0F);
  CHECK(step(h, q, 1) == 448 / 8.0F);
  CHECK(h.amax == std::vector<float>{1, 1, 8});
  CHECK(step(h, q, 1) == 448);  // the 8 has left
  CHECK(h.amax == std::vector<float>{1, 1, 1});
}

TEST_CASE("delayed scaling: several tensors of one step count with their largest") {
  const Quantizer q = delayed({.history = 4});
  AmaxHistory h;
  for (const float amax : {3.0F, 7.0F, 5.0F}) fake_quantize(full({2}, amax), q, {.history = &h});
  CHECK(h.staged == 7);
  CHECK(h.scale == 1);
  h.advance(q.scaling, q.format);
  CHECK(h.scale == 448 / 7.0F);
  CHECK(h.staged == 0);
  CHECK(h.amax == std::vector<float>{7});
}

TEST_CASE("delayed scaling: most recent, and the margin") {
  AmaxHistory h;
  const Quantizer recent = delayed({.history = 3, .most_recent = true});
  CHECK(step(h, recent, 8) == 448 / 8.0F);
  CHECK(step(h, recent, 2) == 448 / 2.0F);
  AmaxHistory with_margin;
  CHECK(step(with_margin, delayed({.margin = 2}), 8) == 448 / 32.0F);
  AmaxHistory short_one;
  const Quantizer one = delayed({.history = 1});
  CHECK(step(short_one, one, 8) == 448 / 8.0F);
  CHECK(step(short_one, one, 4) == 448 / 4.0F);
}

TEST_CASE("delayed scaling: an amax of 0, Inf or NaN keeps the scale, a scale of Inf becomes the largest float") {
  for (const bool most_recent : {false, true}) {
    const Quantizer q = delayed({.history = 2, .most_recent = most_recent});
    AmaxHistory h;
    CHECK(step(h, q, 0) == 1);
    CHECK(step(h, q, 4) == 112);
    for (const float bad : {kInf, kNan}) {
      CHECK(step(h, q, bad) == 112);
      CHECK(step(h, q, 2) == (most_recent ? 224 : 112));  // the history still holds it
      CHECK(step(h, q, 4) == 112);                        // now it does not
    }
    CHECK(step(h, q, 0x1p-140F) == (most_recent ? FLT_MAX : 112));
    CHECK(step(h, q, 0x1p-140F) == FLT_MAX);
    CHECK(step(h, q, 0) == FLT_MAX);
    CHECK(step(h, q, 0) == FLT_MAX);
  }
}

TEST_CASE("amax: the largest magnitude, NaN where there is one") {
  CHECK(amax(zeros({0})) == 0);
  CHECK(amax(from_data(std::vector<float>{1, -3, 2}, {3})) == 3);
  CHECK(amax(from_data(std::vector<float>{1, -kInf}, {2})) == kInf);
  CHECK(std::isnan(amax(from_data(std::vector<float>{kInf, kNan, 1}, {3}))));
  CHECK(amax(from_data(std::vector<double>{0.5, -0.25}, {2}, {.dtype = DType::bf16})) == 0.5F);
  Generator g(5);
  const Tensor x = randn({400, 700}, {}, g);
  double most = 0;
  for (const double v : values(x)) most = std::max(most, std::abs(v));
  CHECK(amax(x) == most);
  CHECK(amax(x.t()) == most);
}

TEST_CASE("hadamard16 is orthogonal and keeps products") {
  const std::uint16_t signs = 0x5a31;
  const Tensor h = hadamard16(eye(16), signs);
  for (std::int64_t i = 0; i < 256; ++i) CHECK(std::abs(at(h, i)) == 0.25);
  const Tensor unit = matmul(h, h.t());  // sums of 1/16: exact
  for (std::int64_t i = 0; i < 256; ++i) CHECK(at(unit, i) == (i % 17 == 0 ? 1 : 0));
  // row i of H has the sign of bit i, and without signs H is symmetric
  const Tensor plain = hadamard16(eye(16), 0);
  CHECK(same_bits(plain, plain.t().contiguous()));
  for (std::int64_t i = 0; i < 256; ++i) CHECK(at(h, i) == at(plain, i) * ((signs >> (i / 16) & 1) != 0 ? -1 : 1));
  // integers up to 31: every sum is exact in f32, so products do not change at all
  const Tensor a = empty({5, 48}), b = empty({7, 48});
  for (std::int64_t i = 0; i < a.numel(); ++i) a.data<float>()[i] = static_cast<float>(i * 7 % 63 - 31);
  for (std::int64_t i = 0; i < b.numel(); ++i) b.data<float>()[i] = static_cast<float>(i * 11 % 63 - 31);
  CHECK(same_bits(matmul(hadamard16(a, signs), hadamard16(b, signs).t()), matmul(a, b.t())));
  CHECK(contains(message_of([] { hadamard16(zeros({2, 24}), 0); }), "the last dim must be a multiple of 16"));
}

TEST_CASE("what a bad format is told") {
  const auto of = [](auto f) { return message_of(f); };
  CHECK(contains(of([] { Format::ieee(9, 2); }), "format e9m2: 9 exponent bits; allowed are 1 to 8"));
  CHECK(contains(of([] { Format::ieee(0, 2); }), "0 exponent bits; allowed are 1 to 8"));
  CHECK(contains(of([] { Format::ieee(4, 24); }), "24 mantissa bits; allowed are 0 to 23"));
  CHECK(contains(of([] { format("e9m2"); }), "9 exponent bits; allowed are 1 to 8"));
  CHECK(contains(of([] { format("e4m3f"); }), "no format 'e4m3f'; there are fp32, tf32, bf16"));
  CHECK(contains(of([] { format("e4m3f"); }), "did you mean 'e4m3fn'?"));
  const std::pair<const char*, const char*> said[] = {{"fp8", "'e4m3fn', 'e5m2', 'e4m3fnuz' or 'e5m2fnuz'?"},
                                                      {"FP8", "'e4m3fn', 'e5m2', 'e4m3fnuz' or 'e5m2fnuz'?"},
                                                      {"float8_e4m3fn", "'e4m3fn'?"},
                                                      {"mxfp8", "'e4m3fn' or 'e5m2'?"},
                                                      {"fp6", "'e2m3fn' or 'e3m2fn'?"},
                                                      {"fp4", "'e2m1fn'?"},
                                                      {"mxfp4", "'e2m1fn'?"},
                                                      {"nvfp4", "'e2m1fn'?"},
                                                      {"bfloat16", "'bf16'?"},
                                                      {"half", "'fp16'?"},
                                                      {"float", "'fp32'?"}};
  for (const auto& [text, meant] : said) {
    const std::string message = of([text = text] { format(text); });
    CHECK(message.ends_with("; did you mean " + std::string(meant)));
  }
  for (const char* text : {"", "e", "em", "e4", "e4m", "e4mx", "4m3", "e4m3 ", "e4m3m2", "e99999999999m1"})
    CHECK(contains(of([&] { format(text); }), "no format '"));
  CHECK(contains(of([] { format("e-4m3"); }), "-4 exponent bits; allowed are 1 to 8"));
  CHECK(contains(of([] { format_of(DType::i32); }), "i32 has no format"));
  struct Row {
    Format f;
    const char* message;
  };
  const Format e4m3 = format("e4m3fn");
  const auto with = [&](auto change) {
    Format f = e4m3;
    change(f);
    return f;
  };
  const Row rows[] = {
      {with([](Format& f) { f.exponent_bits = 9; }), "9 exponent bits; allowed are 1 to 8"},
      {with([](Format& f) { f.mantissa_bits = -1; }), "-1 mantissa bits; allowed are 0 to 23"},
      {with([](Format& f) { f.has_inf = true; }), "Inf goes with the IEEE encoding of NaN, and only with it"},
      {with([](Format& f) { f.nan = NanEncoding::ieee; }), "Inf goes with the IEEE encoding of NaN"},
      {with([](Format& f) { f.has_inf = true, f.nan = NanEncoding::ieee, f.mantissa_bits = 0; }),
       "Inf and NaN need a mantissa bit"},
      {with([](Format& f) { f.nan = NanEncoding::negative_zero; }),
       "NaN as the code of -0 needs a sign and leaves no -0"},
      {with([](Format& f) { f.is_signed = false; }), "an unsigned format has no -0"},
      {with([](Format& f) { f.has_zero = false; }), "a format without zero is an unsigned one of powers of two"},
      {with([](Format& f) { f.bias = 200; }), "f32 holds 2^-126 to below 2^128"},
      {with([](Format& f) { f.bias = -120; }), "f32 holds 2^-126 to below 2^128"},
      {with([](Format& f) { f.exponent_bits = 8, f.bias = 0; }), "run from 2^1 to below 2^256"},  // beyond f32's own
      {{.exponent_bits = 1, .mantissa_bits = 0, .bias = 0, .nan = NanEncoding::all_ones}, "no value but zero"},
      {{.exponent_bits = 1,
        .mantissa_bits = 2,
        .bias = 0,
        .has_inf = true,
        .nan = NanEncoding::ieee,
        .subnormals = false},
       "no value but zero"},
  };
  for (const Row& row : rows) {
    const std::string message = message_of([&] { check(row.f); });
    CHECK_MESSAGE(contains(message, row.message), message);
  }
}

TEST_CASE("what a bad rounding or overflow is told") {
  CHECK(contains(message_of([] { rounding_from_name("nearest"); }), "no rounding 'nearest'; there are nearest-even,"));
  CHECK(contains(message_of([] { rounding_from_name("to-zero"); }), "did you mean"));
  for (const char* text : {"stochastic:0", "stochastic:33", "stochastic:x", "stochastic:", "stochastic:8 "})
    CHECK(contains(message_of([&] { rounding_from_name(text); }), "stands the number of random bits, 1 to 32"));
  CHECK(contains(message_of([] { overflow_from_name("clip"); }),
                 "no overflow policy 'clip'; there are ieee, saturate, saturate-finite"));
  for (const char* text :
       {"nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic", "stochastic:8"})
    CHECK(name(rounding_from_name(text)) == text);
  for (const char* text : {"ieee", "saturate", "saturate-finite"}) CHECK(name(overflow_from_name(text)) == text);
  float x = 1;
  const Rounder r{format("bf16"), {RoundingMode::stochastic, 40}, Overflow::ieee};
  CHECK(contains(message_of([&] { r.round(&x, &x, 1); }), "takes 1 to 32 random bits, not 40"));
}

TEST_CASE("what a bad quantizer is told") {
  const auto message = [](auto change, QuantizeOptions o = {}, const Tensor& x = zeros({2, 3})) {
    Quantizer q{.format = format("e4m3fn")};
    change(q);
    const std::string first = message_of([&] { fake_quantize(x, q, o); });
    CHECK(!contains(message_of([&] { quantize(x, q, o); }), "nothing was thrown"));
    return first;
  };
  using enum ScalingKind;
  CHECK(contains(message([](Quantizer& q) { q.format.exponent_bits = 9; }), "9 exponent bits; allowed are 1 to 8"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = {.kind = block, .block = 0}; }),
                 "a block has at least 1 element, not 0"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = {.kind = delayed, .history = -1}; }),
                 "the history keeps at least 1 amax, not -1"));
  CHECK(
      contains(message([](Quantizer& q) { q.scaling = {.kind = delayed}; }), "needs the history of a tensor's amaxes"));
  for (const double value : {0.0, -2.0, 1e-44, 1e60, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK(contains(message([&](Quantizer& q) { q.scaling = {.kind = fixed, .value = value}; }),
                   "a fixed scale is a number from 2^-126 to 2^126, not "));
  CHECK(
      contains(message([](Quantizer& q) { q.scaling = {.kind = tensor, .margin = 100}; }), "the margin is -64 to 64"));
  CHECK(contains(message([](Quantizer& q) {
                   q.rounding = {RoundingMode::stochastic, 0};
                 }),
                 "takes 1 to 32 random bits, not 0"));
  CHECK(contains(message([](Quantizer& q) { q.format = format("fp16"), q.scaling.kind = nvfp4; }),
                 "for elements of at most 8 bits, not 16"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = {.kind = delayed, .power_of_two = true}; }),
                 "power_of_two goes with scales of a tensor or a row and with blocks' f32 ones"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = {.kind = block, .margin = 1}; }),
                 "a margin goes with scales of a tensor or a row and with blocks' f32 ones"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = {.kind = tensor, .value = 2}; }),
                 "a value goes with a fixed scale"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = {.kind = tensor, .most_recent = true}; }),
                 "most_recent goes with delayed scaling"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = {.kind = row, .square = true}; }),
                 "square tiles go with blocks"));
  CHECK(contains(message([](Quantizer& q) { q.format = format("e8m0"), q.scaling.kind = tensor; }), "without zero"));
  CHECK(contains(message([](Quantizer&) {}, {.axis = 2}), "2"));
  CHECK(contains(
      message_of([] { fake_quantize(zeros({2}, {.dtype = DType::i64}), Quantizer{.format = format("e4m3fn")}); }),
      "takes a floating tensor, not i64"));
  CHECK(contains(message_of([] { quantize(zeros({2}), Quantizer{.format = format("e4m3fn"), .hadamard = true}); }),
                 "the Hadamard transform belongs to a product"));
}
