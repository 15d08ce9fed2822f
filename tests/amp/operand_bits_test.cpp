// The bits of a number that enters a product, of every recipe and every format with a name.
#include "../../amp/operand_bits.h"

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "../../core/formats/format_table.h"
#include "../../core/quantize/bits_per_number.h"

using namespace gradual;

namespace {

template <class Kind, class... Kinds> constexpr bool is_one_of = (std::is_same_v<Kind, Kinds> || ...);

// Codes of the block and what the block stores beside them, by the definition of each format.
const std::map<std::string, double> kExpected = {
    {"fp32", 32},
    {"tf32", 19},
    {"fp16-pure", 16},
    {"bf16-pure", 16},
    {"fp16-master", 16},
    {"bf16-master", 16},
    {"amp-fp16", 16},
    {"amp-bf16", 16},
    {"fp8-delayed", 8},
    {"fp8-current", 8},
    {"fp8-rowwise", 8},
    // blocks of 128 for x and dy, tiles of 128 x 128 for w
    {"fp8-block128", (4 * (8 + 8.0 / 128) + 2 * (8 + 8.0 / (128 * 128))) / 6},
    {"mxfp8", 8 + 8.0 / 32},
    {"mxfp6", 6 + 8.0 / 32},
    {"mxfp4", 4 + 8.0 / 32},
    {"nvfp4", (4 * (4 + 8.0 / 16) + 2 * (4 + 8.0 / 256)) / 6},
    {"nvfp4-4over6", (4 * (4 + 8.0 / 16) + 2 * (4 + 8.0 / 256)) / 6},
    {"msamp-o1", 8},
    {"msamp-o2", 8},
    {"mxint8", 8 + 8.0 / 32},
    {"msfp12", 4 + 8.0 / 16},
    {"msfp16", 8 + 8.0 / 16},
    // an exponent for 16 numbers, one bit for each pair
    {"mx9", 8 + 8.0 / 16 + 1.0 / 2},
    {"mx6", 5 + 8.0 / 16 + 1.0 / 2},
    {"mx4", 3 + 8.0 / 16 + 1.0 / 2},
    // 8 bits for 64 numbers, one bit for each 8 and one for each 4
    {"hif4", 4 + 8.0 / 64 + 1.0 / 8 + 1.0 / 4},
    // x and w of forward in int8; dy, and the operands of backward, in f32
    {"int8", (8 + 8 + 32 + 8 + 8 + 32) / 6.0},
    {"int8-asym", (8 + 8 + 32 + 8 + 8 + 32) / 6.0},
    {"int4", (2 * 8 + 2 * (4 + 32.0 / 256) + 2 * 32) / 6},
    {"int4-asym", (2 * 8 + 2 * (4 + (32.0 + 4) / 256) + 2 * 32) / 6},
    {"nf4", (4 * 32 + 2 * (4 + 32.0 / 64)) / 6},
    {"int8-rowwise", 8},
    {"switchback", (4 * 8 + 2 * 32) / 6.0},
    {"mxfp4-backward", (2 * 32 + 4 * (4 + 8.0 / 32)) / 6},
    {"mxfp4-centered", 4 + 8.0 / 32},
    {"quartet2", 4 + 8.0 / 16},
    // x and w in all their products
    {"int4-lsq", (4 * 4 + 2 * 32) / 6.0},
    {"mxfp4-clipped", 4 + 8.0 / 32},
    {"e2m1-dge", (2 * 4 + 4 * 32) / 6.0},
    {"fp8-smooth", 8},
    {"fp8-attention", 8},
    {"fp8-attention-delayed", 8},
    {"mxfp4-attention-hadamard", 4 + 8.0 / 32},
    {"bf16-flash", 32},
    {"bf16-flash-shifted", 32},
    {"adam8", 32},
    {"adam4", 32},
    {"eco-fp8", (4 * 32 + 2 * 8.0) / 6},
    {"unscaled-fp8", 8},
    {"muon8", 32},
    // a tenth of the channels in MXFP8, in forward and wgrad
    {"tetrajet-v2", 4.75 + (4 * 0.1 * (8.25 - 4.75)) / 6},
};

// By the sources that the formats name.
const std::map<std::string, int, std::less<>> kFormatBits = {
    {"fp32", 32},      {"tf32", 19},     {"bf16", 16},      {"fp16", 16},     {"e4m3fn", 8},      {"e5m2", 8},
    {"e4m3fnuz", 8},   {"e5m2fnuz", 8},  {"e8m0fnu", 8},    {"e2m3fn", 6},    {"e3m2fn", 6},      {"e2m1fn", 4},
    {"ue4m3", 7},      {"ue5m3", 8},     {"ue6m2", 8},      {"int8", 8},      {"int4", 4},        {"uint8", 8},
    {"uint4", 4},      {"mxint8", 8},    {"msfp12", 4},     {"binary8p1", 8}, {"binary8p1f", 8},  {"binary8p2", 8},
    {"binary8p2f", 8}, {"binary8p3", 8}, {"binary8p3f", 8}, {"binary8p4", 8}, {"binary8p4f", 8},  {"binary8p5", 8},
    {"binary8p5f", 8}, {"binary8p6", 8}, {"binary8p6f", 8}, {"binary8p7", 8}, {"binary8p7f", 8},  {"nf4", 4},
    {"af4", 4},        {"posit8", 8},    {"posit16", 16},   {"posit8es0", 8}, {"posit16es1", 16}, {"takum8", 8},
    {"takum16", 16},   {"hif8", 8},      {"log8", 8},       {"int8tc", 8},    {"int4tc", 4},      {"int2tc", 2},
    {"dynamic8", 8},   {"udynamic8", 8}, {"dynamic4", 4},   {"udynamic4", 4},
};

// The bits of a code, counted: its fields, or the places of the number of a table's last code.
double code_bits(const Format& f) {
  if (!f.table) return (f.is_signed ? 1 : 0) + f.exponent_bits + f.mantissa_bits;
  int bits = 0;
  while ((std::size_t{1} << bits) < f.table->decoded.size()) ++bits;
  return bits;
}

double numbers_in(int block, bool tiles) { return tiles ? double(block) * block : double(block); }

// The bits that a number of a long tensor shares with its block: of the scale, the zero point and the inner scales.
template <class Kind> double bits_of_scales(const Kind& kind, const Format& format) {
  double bits = 0;
  if constexpr (is_one_of<Kind, PowerBlocks>) {
    bits += 8 / numbers_in(kind.block, kind.square);
  } else if constexpr (is_one_of<Kind, FloatBlocks>) {
    bits += (kind.power_of_two ? 8 : 32) / numbers_in(kind.block, kind.square);
  } else if constexpr (is_one_of<Kind, CodedBlocks, Nvfp4Blocks>) {
    bits += code_bits(kind.scale_format) / numbers_in(kind.block, kind.square);
  } else if constexpr (is_one_of<Kind, EdenBlocks>) {
    bits += code_bits(kind.scale_format) / kind.block;
  } else if constexpr (is_one_of<Kind, DoubleBlocks>) {
    bits += code_bits(kind.scale_format) / kind.block + 32.0 / kind.outer;
  } else if constexpr (is_one_of<Kind, RangeBlocks>) {
    bits += (32 + code_bits(format)) / numbers_in(kind.block, kind.square);
  } else if constexpr (is_one_of<Kind, PowerParts, FloatParts, CodedParts>) {
    if constexpr (is_one_of<Kind, PowerParts>) bits += 8.0 / kind.block;
    if constexpr (is_one_of<Kind, FloatParts>) bits += (kind.power_of_two ? 8.0 : 32.0) / kind.block;
    if constexpr (is_one_of<Kind, CodedParts>) bits += code_bits(kind.scale_format) / kind.block;
    bits += 1.0 / kind.part;
    bits += kind.inner_part == 0 ? 0 : 1.0 / kind.inner_part;
  } else {
    static_assert(
        is_one_of<Kind, NoScale, FixedScale, TensorScale, TensorRange, DelayedScale, LearnedScale, RowScale, RowRange>,
        "a new kind of scaling says here what a block stores");
  }
  return bits;
}
double counted_bits(const Quantizer& q) {
  const auto of_scales = [&](const auto& kind) { return bits_of_scales(kind, q.format); };
  return code_bits(q.format) + std::visit(of_scales, q.scaling);
}

}  // namespace

TEST_CASE("operand_bits: every built-in recipe") {
  for (const auto& expected : kExpected) {
    CAPTURE(expected.first);
    CHECK(amp::operand_bits(amp::recipe(expected.first)) == doctest::Approx(expected.second).epsilon(1e-12));
  }
  for (const std::string& name : amp::recipe_names()) {
    CAPTURE(name);
    CHECK(kExpected.count(name) == 1);
  }
}

TEST_CASE("operand_bits: recipes that are made from a format's name") {
  CHECK(amp::operand_bits(amp::recipe("e4m2")) == 7);
  CHECK(amp::operand_bits(amp::recipe("posit8")) == 8);
  CHECK(amp::operand_bits(amp::recipe("q2.13")) == 16);
  CHECK(amp::operand_bits(amp::recipe("mx16:e2m0")) == doctest::Approx(3 + 8.0 / 16));
  CHECK(amp::operand_bits(amp::recipe("pure:e5m7")) == 13);
  CHECK(amp::operand_bits(amp::recipe("O2")) == 16);
}

TEST_CASE("bits_per_number: every format with a name") {
  for (const auto* list : {&named_formats(), &table_formats()})
    for (const NamedFormat& named : *list) {
      CAPTURE(named.name);
      const Format f = named.format;
      const auto expected = kFormatBits.find(named.name);
      REQUIRE(expected != kFormatBits.end());
      CHECK(f.bits() == expected->second);
      CHECK(bits_per_number({.format = f}) == f.bits());
      const Quantizer mx{.format = f, .scaling = PowerBlocks{.block = 32}};
      CHECK(bits_per_number(mx) == f.bits() + 0.25);
      const Quantizer tiles{.format = f, .scaling = PowerBlocks{.block = 4, .square = true}};
      CHECK(bits_per_number(tiles) == f.bits() + 0.5);
    }
}

TEST_CASE("bits_per_number: the fields of every operand of every recipe, counted") {
  std::set<std::size_t> kinds;
  int operands = 0;
  const auto check = [&](const std::string& name) {
    const amp::Recipe recipe = amp::recipe(name);
    if (!recipe.quantization) return;
    const amp::Quantization& q = *recipe.quantization;
    double sum = 0;
    for (const auto& [operand, stored] : {std::pair(&q.forward_x, &q.result),
                                          {&q.forward_w, &q.weight},
                                          {&q.dgrad_dy, &q.result},
                                          {&q.dgrad_w, &q.weight},
                                          {&q.wgrad_x, &q.result},
                                          {&q.wgrad_dy, &q.result}}) {
      const std::optional<Quantizer>& last = *operand ? *operand : *stored;
      const double bits = last ? counted_bits(*last) : 8.0 * static_cast<double>(size_of(recipe.dtype));
      const bool of_dgrad = operand == &q.dgrad_dy || operand == &q.dgrad_w;
      const double outliers = q.outliers && *operand && !of_dgrad ? q.outliers->share : 0;
      sum += bits + (outliers > 0 ? outliers * (counted_bits(*q.outliers->quantizer) - bits) : 0);
      if (!last) continue;
      CAPTURE(name);
      CHECK(bits_per_number(*last) == doctest::Approx(counted_bits(*last)).epsilon(1e-12));
      kinds.insert(last->scaling.index());
      ++operands;
    }
    CHECK(amp::operand_bits(recipe) == doctest::Approx(sum / 6).epsilon(1e-12));
  };
  for (const std::string& name : amp::recipe_names()) check(name);
  for (const auto* list : {&named_formats(), &table_formats()})
    for (const NamedFormat& named : *list)
      for (const char* prefix : {"pure:", "mx:", "mx16:"}) {
        const std::string name = prefix + std::string(named.name);
        try {
          static_cast<void>(amp::recipe(name));
        } catch (const Error&) { continue; }  // a scale's format, which no product takes
        check(name);
      }
  for (int exponent = 2; exponent <= 8; ++exponent)
    for (int mantissa = 1; mantissa <= 7; ++mantissa) {
      const std::string name = "e" + std::to_string(exponent) + "m" + std::to_string(mantissa);
      check("mx:" + name);
      check(name);
    }
  CHECK(operands > 1000);
  CHECK(kinds.size() >= 9);
}

TEST_CASE("bits_per_number: what a block stores beside its codes") {
  Quantizer q{.format = format("e2m1"), .scaling = PowerBlocks{.block = 8}};
  q.scaling = FloatBlocks{.block = 8};
  CHECK(bits_per_number(q) == 4 + 32.0 / 8);
  q.scaling = FloatBlocks{.power_of_two = true, .block = 8};
  CHECK(bits_per_number(q) == 4 + 8.0 / 8);
  q.scaling = CodedBlocks{.block = 8, .scale_format = format("e5m1")};
  CHECK(bits_per_number(q) == 4 + 7.0 / 8);
  q.format = format("uint4");
  q.scaling = RangeBlocks{.block = 8};
  CHECK(bits_per_number(q) == 4 + (32.0 + 4) / 8);
}
