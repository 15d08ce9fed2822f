// Scales of blocks in any format, searched ones, and parts of blocks, by their definitions.
#include <doctest/doctest.h>
#include <gradual/core/quantize/quantizer.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <initializer_list>
#include <string>

#include "support/files.h"
#include "support/tensors.h"

using namespace gradual;
using test::contains;
using test::message_of;

namespace {

std::vector<float> spread(std::int64_t n, std::uint64_t seed) {
  Generator g(seed);
  return (exp(rand({n}, {}, g) * 6 - 3) * randn({n}, {}, g)).to_vector<float>();
}
float rounded(const Format& f, double x, Overflow o = Overflow::saturate) {
  double y = 0;
  Rounder{f, {}, o}.round(&x, &y, 1);
  return static_cast<float>(y);
}
float amax_of(const float* x, std::int64_t n) {
  float most = 0;
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}
double squared_error(const float* x, const float* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  return sum;
}

}  // namespace

TEST_CASE("blocks with coded scales: amax / max rounded in the scale's format") {
  const std::vector<float> x = spread(512, 1);
  for (const char* scale : {"e4m3fn", "ue4m3", "ue5m3", "ue6m2", "bf16", "e5m2", "fp16", "q4.4", "e3m2", "int4"})
    for (const char* element : {"e2m1", "int4", "nf4", "e4m3fn"}) {
      const Quantizer q{.format = format(element), .scaling = CodedBlocks{.block = 16, .scale_format = format(scale)}};
      const Tensor t = from_data(x, {8, 64});
      const QuantizedTensor codes = quantize(t, q);
      const std::vector<float> values = fake_quantize(t, q).to_vector<float>();
      CHECK(codes.dequantize().to_vector<float>() == values);
      const std::vector<float> scales = codes.scale_values().to_vector<float>();
      for (std::size_t b = 0; b < 32; ++b) {
        const float s = rounded(format(scale), amax_of(&x[b * 16], 16) / static_cast<float>(q.format.max()));
        CHECK(scales[b] == s);
        for (std::size_t i = b * 16; i < b * 16 + 16 && s != 0; ++i)
          CHECK(values[i] == rounded(q.format, x[i] * (1 / s)) * s);
      }
    }
}

TEST_CASE("four-over-six takes the better of two scales of a block") {
  const std::vector<float> x = spread(2048, 2);
  const Tensor t = from_data(x, {32, 64});
  for (const bool two_levels : {false, true}) {
    Quantizer q{.format = format("e2m1"), .scaling = CodedBlocks{.block = 16, .rule = CodedRule::four_over_six}};
    if (two_levels) q.scaling = Nvfp4Blocks{.block = 16, .rule = CodedRule::four_over_six};
    const QuantizedTensor codes = quantize(t, q);
    const float global = two_levels ? codes.global_scale.item<float>() : 1;
    // The largest block's scale is 256 for 6, so that 384 for 4 is a number of e4m3fn.
    if (two_levels) CHECK(global == 1 / (256 * 6 / amax_of(x.data(), 2048)));
    const std::vector<float> values = fake_quantize(t, q).to_vector<float>();
    const std::vector<float> scales = codes.scale_values().to_vector<float>();
    CHECK(codes.dequantize().to_vector<float>() == values);
    int fours = 0;
    for (std::size_t b = 0; b < 128; ++b) {
      const float* const block = &x[b * 16];
      const auto with = [&](float largest, std::vector<float>& out) {
        const float s = rounded(format("e4m3fn"), amax_of(block, 16) * (1 / global) / largest);
        out.clear();
        for (int i = 0; i < 16; ++i) out.push_back(rounded(q.format, block[i] * (1 / global / s)) * s * global);
        return s;
      };
      std::vector<float> six, four;
      const float for_six = with(6, six);
      const float for_four = with(4, four);
      const bool better = squared_error(block, four.data(), 16) < squared_error(block, six.data(), 16);
      fours += better;
      CHECK(scales[b] == (better ? for_four : for_six));
      for (std::size_t i = 0; i < 16; ++i) CHECK(values[b * 16 + i] == (better ? four : six)[i]);
    }
    CHECK(fours > 10);
    CHECK(fours < 118);
  }
}

TEST_CASE("least-squares errs no more than a rule, in any block or tile") {
  const std::vector<float> x = spread(4096, 3);
  const Tensor t = from_data(x, {64, 64});
  for (const bool square : {false, true})
    for (const Scaling& scales :
         std::initializer_list<Scaling>{PowerBlocks{.block = 16, .square = square},
                                        PowerBlocks{.block = 16, .square = square, .scale = ScaleFormat::power_of_two},
                                        CodedBlocks{.block = 16, .square = square}})
      for (const char* element : {"e2m1", "e4m3fn", "nf4"}) {
        Quantizer q{.format = format(element), .scaling = scales};
        double least = 1e300;
        for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::rceil, ScaleRule::least_squares}) {
          const bool coded = is_any<CodedBlocks>(scales);
          if (coded && rule == ScaleRule::rceil) continue;  // rceil is for powers of two
          if (coded) set_rule(q.scaling, rule == ScaleRule::floor ? CodedRule::nearest : CodedRule::least_squares);
          else set_rule(q.scaling, rule);
          const std::vector<float> values = fake_quantize(t, q).to_vector<float>();
          double most_of_block = 0;
          double sum = 0;
          for (std::size_t i = 0; i < 4096; i += 16) {
            const double e = squared_error(&x[i], &values[i], 16);
            sum += e;
            most_of_block = std::max(most_of_block, e);
          }
          if (rule == ScaleRule::least_squares) CHECK(sum <= least);
          least = std::min(least, sum);
        }
      }
}

TEST_CASE("shared microexponents: pairs under an exponent of 16, and HiFloat4, by the papers") {
  const std::vector<float> x = spread(1024, 4);
  const Tensor t = from_data(x, {4, 256});
  for (const char* element : {"mxint8", "q1.3", "q1.1"}) {
    const Quantizer q{.format = format(element), .scaling = PowerParts{.block = 16, .part = 2}};
    const std::vector<float> values = fake_quantize(t, q).to_vector<float>();
    CHECK(quantize(t, q).dequantize().to_vector<float>() == values);
    for (std::size_t b = 0; b < 1024; b += 16) {
      const int shared = std::ilogb(amax_of(&x[b], 16));
      for (std::size_t p = b; p < b + 16; p += 2) {
        const int shift = std::ilogb(amax_of(&x[p], 2)) < shared ? 1 : 0;  // the microexponent
        for (std::size_t i = p; i < p + 2; ++i) {
          const double scale = std::ldexp(1, shared - shift);
          CHECK(values[i] == rounded(q.format, x[i] / scale) * scale);
        }
      }
    }
  }
  const Quantizer hif4{.format = format("msfp12"),
                       .scaling = CodedParts{.block = 64, .part = 8, .inner_part = 4, .scale_format = format("ue6m2")}};
  const std::vector<float> values = fake_quantize(t, hif4).to_vector<float>();
  CHECK(quantize(t, hif4).dequantize().to_vector<float>() == values);
  for (std::size_t b = 0; b < 1024; b += 64) {
    const float scale = rounded(format("ue6m2"), amax_of(&x[b], 64) / 7);
    const float by = 1 / scale;
    for (std::size_t i = b; i < b + 64; ++i) {
      const float of8 = amax_of(&x[i / 8 * 8], 8) * by;
      const float of4 = amax_of(&x[i / 4 * 4], 4) * by;
      const float first = of8 >= 4 ? 2 : 1;
      const float second = of4 / first >= 2 ? 2 : 1;
      CHECK(values[i] == rounded(hif4.format, x[i] * (by / (first * second))) * (scale * (first * second)));
    }
  }
  // A last block that is shorter, and zeros.
  const Quantizer q{.format = format("q1.3"), .scaling = PowerParts{.block = 16, .part = 2}};
  const Tensor odd = from_data(std::vector<float>(x.begin(), x.begin() + 57), {3, 19});
  const Tensor padded = zeros({3, 32});
  for (std::int64_t r = 0; r < 3; ++r) std::copy_n(odd.data<float>() + r * 19, 19, padded.data<float>() + r * 32);
  const Tensor wide = fake_quantize(padded, q);
  const Tensor narrow = fake_quantize(odd, q);
  for (std::int64_t r = 0; r < 3; ++r)
    for (std::int64_t c = 0; c < 19; ++c) CHECK(wide.data<float>()[r * 32 + c] == narrow.data<float>()[r * 19 + c]);
}

TEST_CASE("quantizers to tables, with every kind of scale") {
  const std::vector<float> x = spread(256, 5);
  const Tensor t = from_data(x, {4, 64});
  for (const char* element : {"nf4", "posit8", "hif8", "log8", "takum16"})
    for (const Scaling& s : std::initializer_list<Scaling>{NoScale{}, TensorScale{}, RowScale{},
                                                           PowerBlocks{.block = 16}, FixedScale{.value = 4}}) {
      const Quantizer q{.format = format(element), .scaling = s};
      const QuantizedTensor codes = quantize(t, q);
      const std::vector<float> values = fake_quantize(t, q).to_vector<float>();
      CHECK(codes.dequantize().to_vector<float>() == values);
      if (!is_any<NoScale>(s)) continue;
      for (std::size_t i = 0; i < 256; ++i) CHECK(values[i] == rounded(q.format, x[i]));
    }
  CHECK(quantize(t, {.format = format("nf4")}).codes.nbytes() == 128);
}

TEST_CASE("errors of block scales") {
  const auto of = [](const Scaling& s) {
    return message_of([&] { check_valid(Quantizer{.format = format("e2m1"), .scaling = s}); });
  };
  CHECK(contains(of(CodedBlocks{.scale_format = format("e8m0")}), "with a zero, not e8m0fnu"));
  CHECK(contains(of(CodedBlocks{.scale_format = format("nf4")}), "with a zero, not nf4"));
  CHECK(contains(of(Nvfp4Blocks{.scale_format = format("bf16")}), "the tensor's scale takes the largest block's to"));
  CHECK(contains(of(PowerParts{.rule = ScaleRule::least_squares}), "parts need a rule that does not search"));
  CHECK(contains(of(PowerParts{.block = 16, .part = 3}), "blocks of 16 have no parts of 3 with parts of 0"));
  CHECK(contains(of(PowerParts{.block = 16, .part = 4, .inner_part = 3}), "have no parts of 4 with parts of 3"));
  CHECK(contains(of(PowerParts{.block = 16, .part = 0, .inner_part = 4}), "have no parts of 0"));
  CHECK(describe({.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16, .rule = CodedRule::four_over_six}}) ==
        "e2m1fn, blocks of 16 with e4m3fn scales under one of the tensor (four-over-six)");
  CHECK(describe({.format = format("msfp12"),
                  .scaling = CodedParts{.block = 64, .part = 8, .inner_part = 4, .scale_format = format("ue6m2")}}) ==
        "msfp12, blocks of 64 with ue6m2 scales, parts of 8 and 4 and their doubles");
}
