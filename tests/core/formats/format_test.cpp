// The errors of bad formats, roundings and overflow policies.
#include <doctest/doctest.h>
#include <gradual/core/formats/rounding.h>

#include <string>
#include <utility>

#include "support/files.h"

using namespace gradual;
using test::contains;
using test::message_of;

TEST_CASE("errors of names and widths that are no format") {
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
}

TEST_CASE("errors of fields that together are no format") {
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
      {with([](Format& f) {
         f.has_inf = true;
         f.nan = NanEncoding::ieee;
         f.mantissa_bits = 0;
       }),
       "Inf and NaN need a mantissa bit"},
      {with([](Format& f) { f.nan = NanEncoding::negative_zero; }),
       "NaN as the code of -0 needs a sign and leaves no -0"},
      {with([](Format& f) { f.is_signed = false; }), "an unsigned format has no -0: negative_zero is false for it"},
      {with([](Format& f) { f.has_zero = false; }), "a format without zero is an unsigned one of powers of two"},
      {with([](Format& f) { f.bias = 200; }), "f32 holds 2^-126 to below 2^128"},
      {with([](Format& f) { f.bias = -120; }), "f32 holds 2^-126 to below 2^128"},
      {with([](Format& f) {
         f.exponent_bits = 8;
         f.bias = 0;
       }),
       "run from 2^1 to below 2^256"},  // beyond f32's own
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
    const std::string message = message_of([&] { check_valid(row.f); });
    CHECK_MESSAGE(contains(message, row.message), message);
  }
}

TEST_CASE("ueXmY is eXmY without a sign") {
  const Format f = format("ue4m4");
  CHECK_FALSE(f.is_signed);
  CHECK(f.bits() == 8);
  CHECK(f.max() == Format::ieee(4, 4).max());
  CHECK(f.min_positive() == Format::ieee(4, 4).min_positive());
  CHECK(f.min() == 0);
  CHECK(to_string(f) == "ue4m4");
  CHECK(to_string(format("ue4m3")) == "ue4m3");  // a name of its own: e4m3fn without a sign
  CHECK(format("ue4m3").max() == 448);
  CHECK(format("ue8m0") == format("e8m0fnu"));
  for (const char* of_ocp : {"ue2m1", "ue2m3", "ue3m2"}) CHECK_THROWS_AS(format(of_ocp), Error);
  CHECK_THROWS_WITH_AS(format("ue9m1"), "format e9m1: 9 exponent bits; allowed are 1 to 8", Error);
}

TEST_CASE("errors of invalid roundings and overflow policies") {
  CHECK(contains(message_of([] { rounding_from_name("nearest"); }), "no rounding 'nearest'; there are nearest-even,"));
  CHECK(contains(message_of([] { rounding_from_name("to-zero"); }), "did you mean"));
  for (const char* text : {"stochastic:0", "stochastic:33", "stochastic:x", "stochastic:", "stochastic:8 "})
    CHECK(contains(message_of([&] { rounding_from_name(text); }),
                   "must be followed by the number of random bits, 1 to 32"));
  CHECK(contains(message_of([] { overflow_from_name("clip"); }),
                 "no overflow policy 'clip'; there are ieee, saturate, saturate-finite, ml-dtypes"));
  for (const char* text :
       {"nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic", "stochastic:8"})
    CHECK(to_string(rounding_from_name(text)) == text);
  for (const char* text : {"ieee", "saturate", "saturate-finite", "ml-dtypes"})
    CHECK(to_string(overflow_from_name(text)) == text);
  float x = 1;
  const Rounder r{format("bf16"), {RoundingMode::stochastic, 40}, Overflow::ieee};
  CHECK(contains(message_of([&] { r.round(&x, &x, 1); }), "takes 1 to 32 random bits, not 40"));
}
