// What the kinds of scaling share: the vocabulary of their fields and what each kind says about itself.
//
// A kind is a struct of its options in a file of its own, with
//   kKind                     its name in JSON; kinds of one name are told apart by their keys
//   kUnit                     how many elements are under one scale
//   keys(self, visit)         its keys in JSON, in order
//   check(format)             throws Error that names the wrong option
//   text()                    its part of describe(Quantizer)
//   set(spec)                 how scales follow from magnitudes
// and, where they differ from what most kinds do,
//   kZeroPoints               whether scales have zero points
//   runs_on_gpus()            whether GPUs have it
//   search()                  the scales that it tries on a block's elements
//   codes()                   the format of QuantizedTensor::scales
//   scale_bits(format)        (blocks) the bits of a block's scale and zero point
// scaling.h lists the kinds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../formats/format.h"

namespace gradual {

// The elements under one scale.
enum class ScaleUnit : std::uint8_t {
  tensor,  // one scale for all, or none
  row,     // along the contracted axis
  block    // along the contracted axis, or a square tile of a matrix
};

// The storage of a scale that is a power of two.
enum class ScaleFormat : std::uint8_t { power_of_two, e8m0 };
template <> inline constexpr std::string_view kEnumNames<ScaleFormat>[] = {"power-of-two", "e8m0"};

// How a power of two follows from a block's amax (OCP MX; torchao's names). emax is the format's largest exponent.
enum class ScaleRule : std::uint8_t {
  floor,         // 2^(floor(log2 amax) - emax), as in the specification; the largest elements may saturate
  rceil,         // the smallest power of two at or above amax / max; no element saturates
  ceil,          // 2^(ceil(log2 amax) - emax)
  even,          // as floor, with the amax first rounded to the element's mantissa bits
  least_squares  // of floor's, the one above and two below: the least squared error of rounding to nearest. CPU only
};
template <>
inline constexpr std::string_view kEnumNames<ScaleRule>[] = {"floor", "rceil", "ceil", "even", "least-squares"};

// How a scale with a format of its own follows from a block's amax. The searches take the least squared error of
// rounding to nearest, on the CPU only.
enum class CodedRule : std::uint8_t {
  nearest,        // amax / max, rounded to nearest
  up,             // rounded up: no element exceeds the largest value while the format reaches that scale. CPU only
  stochastic,     // rounded up or down at random, right on average. CPU only
  four_over_six,  // the amax becomes max or 2/3 of it (6 or 4), whichever errs less (arXiv 2512.02010)
  least_squares   // of the amax as 1/2 to 3/2 of max in steps of 1/16
};
// Files call the nearest one floor.
template <>
inline constexpr std::string_view kEnumNames<CodedRule>[] = {"floor", "up", "stochastic", "four-over-six",
                                                             "least-squares"};
constexpr bool searches(CodedRule rule) { return rule == CodedRule::four_over_six || rule == CodedRule::least_squares; }

// The implementation whose scales for an amax of 0, Inf or NaN are used; implementations differ.
enum class ScaleOracle : std::uint8_t {
  transformer_engine,  // tensor, row: 1. Blocks: 0 gives the smallest scale, Inf the largest (e8m0 FE), NaN gives NaN
  // tensor, row: max / max(amax, 1e-12) in f64. Blocks: Inf counts as 2^128, but FE by rceil; NaN gives FF, and the
  // codes of the others are 0. The source under an e8m0 scale of 2^-127 is multiplied by 2^126 only (rceil: by 1).
  // nvfp4: a block's scale is at least 2^-6, and its arithmetic is torchao's.
  torchao
};
template <> inline constexpr std::string_view kEnumNames<ScaleOracle>[] = {"transformer-engine", "torchao"};

// How an element is multiplied by its scale before it is rounded to the format.
enum class ScaledProduct : std::uint8_t {
  exact,   // the exact product is rounded once
  rounded  // the product is rounded to f32 (f64 sources: to f64) first, as kernels of GPUs do; likewise the products of
           // the amaxes from which coded scales of blocks follow
};
template <> inline constexpr std::string_view kEnumNames<ScaledProduct>[] = {"exact", "rounded"};

// e4m3fn: the default of coded scales, and the only one that GPUs have under two levels.
inline constexpr Format kScaleE4m3 = {.exponent_bits = 4, .mantissa_bits = 3, .bias = 7, .nan = NanEncoding::all_ones};

namespace detail {

// Keys in JSON that several kinds share, in their order. For an option that a kind lacks it writes what it always has,
// or a value that readers ignore.
template <class Self, class F> void margin_keys(Self& s, F& key) {
  if constexpr (requires { s.margin; }) {
    key("margin", s.margin);
    key("power_of_two", s.power_of_two);
  } else {
    key.always("margin", 0.0);
    key.always("power_of_two", false);
  }
  constexpr bool zero_points = requires { Self::kZeroPoints; };
  key.always("zero_point", zero_points);
}
template <class Self, class F> void block_keys(Self& s, F& key) {
  key("block", s.block);
  if constexpr (requires { s.square; }) key("square", s.square);
  else key.always("square", false);
  if constexpr (requires { s.part; }) {
    key("part", s.part);
    key("inner_part", s.inner_part);
  } else {
    key.always("part", 0);
    key.always("inner_part", 0);
  }
}
template <class Self, class F> void rule_keys(Self& s, F& key) {
  if constexpr (requires { s.scale; }) key("scale", s.scale);
  else key.always("scale", std::string_view("f32"));
  key.ignored("scale_format", kScaleE4m3);
  if constexpr (requires { s.rule; }) key("rule", s.rule);
  else key.ignored("rule", ScaleRule::floor);
}
template <class Self, class F> void coded_rule_keys(Self& s, F& key) {
  key("scale_format", s.scale_format);
  if constexpr (requires { s.rule; }) key("rule", s.rule);
  else key.always("rule", CodedRule::nearest);
}
template <class Self, class F> void product_keys(Self& s, F& key) {
  if constexpr (requires { s.oracle; }) key("oracle", s.oracle);
  else key.ignored("oracle", ScaleOracle::transformer_engine);
  key("product", s.product);
}
// All keys of the kinds named "tensor" and "row", and of those named "block".
template <class Self, class F> void whole_kind_keys(Self& s, F& key) {
  margin_keys(s, key);
  product_keys(s, key);
}
template <class Self, class F> void block_kind_keys(Self& s, F& key) {
  margin_keys(s, key);
  block_keys(s, key);
  if constexpr (requires { s.scale_format; }) {
    key.always("scale", std::string_view("coded"));
    coded_rule_keys(s, key);
  } else {
    rule_keys(s, key);
  }
  product_keys(s, key);
}

struct Scale;
struct ScaleSpec;
// The scales that a search tries for a block with this amax; the first is the one without a search.
using ScaleSearch = std::vector<Scale> (*)(double amax, const ScaleSpec& spec);

void check_block(int block);
void check_margin(double margin);
void check_parts(int block, int part, int inner_part);
void check_scale_format(const Format& format);
// "blocks of 32", "tiles of 32x32".
std::string blocks_text(int block, bool square);
// ", parts of 8 and 4 and their doubles".
std::string parts_text(int part, int inner_part);
// The exponents that a power of two stores, and the bits of an f32.
inline constexpr int kExponentBits = 8;
inline constexpr int kFloatBits = 32;

}  // namespace detail

}  // namespace gradual
