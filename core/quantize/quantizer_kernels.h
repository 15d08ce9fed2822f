// How the scales of quantizer.h follow from magnitudes, for CPU and CUDA kernels, and the functions that cuda/ defines
// for quantizers.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "../formats/rounding_kernels.h"
#include "../support/host_device.h"
#include "quantizer.h"

namespace gradual::detail {

// The factor of the source before rounding, and the factor of a code's value less the zero point.
struct Scale {
  float forward = 1;
  float inverse = 1;
  float zero = 0;
};
constexpr Scale inverted(float forward) { return {forward, 1 / forward}; }
// The least scales whose inverses are finite: of all and of powers of two.
constexpr float kLeastScale = 0x1.000008p-128F;
constexpr float kLeastPower = 0x1p-127F;

// The form of the scales that follow from an amax.
enum class ScaleForm : std::uint8_t {
  f32,    // max / amax
  power,  // a power of two, by a ScaleRule
  coded   // of a format of its own
};

// A scaling's rule in the form that kernels read: its kind sets the first part (Kind::set), scale_spec() the rest.
struct ScaleSpec {
  ScaleForm form = ScaleForm::f32;
  bool two_levels = false;    // coded, under a scale of the tensor
  bool zero_point = false;    // f32, from the elements' range
  bool power_of_two = false;  // f32: rounded down to a power of two
  bool e8m0 = false;          // power: stored so
  ScaleRule rule = ScaleRule::floor;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  float factor = 1;  // 2^-margin
  // delayed
  int history = 1024;
  bool most_recent = false;
  float largest_scale = 448;                // two levels: what the largest block's scale becomes
  RoundingSpec<std::uint64_t> stored = {};  // coded: rounds the scales of blocks

  ScaledProduct product = ScaledProduct::exact;
  // The format's largest and lowest value, the exponent of the largest one and the format's mantissa bits.
  double most = 1;
  double least = 0;
  int emax = 0;
  int mantissa_bits = 0;
  bool fits = false;  // amax times the scale is at most `most`
  // two levels: the scale of the tensor
  float global = 1;
  float global_inverse = 1;
};
ScaleSpec scale_spec(const Quantizer& q);
// What scaled elements are rounded to: the format or, under zero points, the integers that codes may differ by.
Format rounded_format(const Quantizer& q);
// The scales of one call: one for the tensor, or one for each block of a grid over [rows, k].
struct ScaleGrid {
  // elements under one scale
  std::int64_t block_rows = 1;
  std::int64_t block_cols = 1;
  bool fixed = false;  // one scale, known before the pass: `one`
  Scale one = {};
  ScaleSpec spec = {};  // not fixed: the rule for each block's scale; spec.global is the tensor's scale (nvfp4)
  Tensor whole;         // on a GPU, for scales from an amax: replaces `one` or spec.global, with its inverse, f32 [2]
};

GRADUAL_HD inline float floor_power(float x) { return std::ldexp(1.0F, std::ilogb(x)); }
GRADUAL_HD inline bool is_nan(double x) { return x != x; }
GRADUAL_HD inline bool is_inf(double x) { return x - x != 0 && x == x; }
// A quiet NaN with the upper bits of `nan`, as a CPU's arithmetic gives it. A GPU's arithmetic has one NaN only.
GRADUAL_HD inline float quieted(float nan) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nan) | SourceBits<std::uint32_t>::kQuiet);
}

// x * by rounded to odd: an inexact product becomes the neighbour whose last bit is 1. A rounding to at least two bits
// fewer then gives the rounding of the exact product (Boldo and Melquiond 2005). Unless a factor is Inf, NaN or 0, the
// result is finite and not 0.
GRADUAL_HD inline float times_to_odd(float x, float by) {
  const double exact = static_cast<double>(x) * by;
  const auto near = static_cast<float>(exact);
  const auto error = static_cast<float>((exact - near) * 0x1p200);  // its sign alone matters; NaN: the product is
  const auto inexact = static_cast<std::uint32_t>(error < 0) | static_cast<std::uint32_t>(error > 0);
  const auto bits = std::bit_cast<std::uint32_t>(near);
  const std::uint32_t too_far = (bits ^ std::bit_cast<std::uint32_t>(error)) >> 31;  // rounded away from zero
  return std::bit_cast<float>((bits - (inexact & too_far)) | inexact);
}
// The same in f64. Products of the parts of x, of 29 and 24 bits, are exact.
GRADUAL_HD inline double times_to_odd(double x, float by) {
  const double product = x * by;
  if (x - x != 0 || by - by != 0 || x == 0 || by == 0) return product;
  const bool beyond = product - product != 0;
  const double near = beyond ? std::copysign(DBL_MAX, product) : product;
  const double high = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & ~std::uint64_t{0xffffff});
  const double error = beyond ? 0 : (x - high) * by - (near - high * by);
  // Below 2^-900 the error may itself be inexact. No format reaches there, and no rounding sees more than the sign.
  const bool tiny = std::fabs(near) < 0x1p-900;
  const auto inexact = static_cast<std::uint64_t>(error < 0 || error > 0 || tiny);
  const auto bits = std::bit_cast<std::uint64_t>(near);
  const std::uint64_t too_far = tiny ? 0 : (bits ^ std::bit_cast<std::uint64_t>(error)) >> 63;
  return std::bit_cast<double>((bits - (inexact & too_far)) | inexact);
}
// Whether a scaled f32, rounded to odd in f32, keeps what the rounder reads of the exact product. Rounding by chance
// also reads how far a product beyond f32 is from the largest value, if that is near.
inline bool f32_suffices(const Rounder& r) {
  if (r.format.table) return false;
  const bool by_chance = r.rounding.mode == RoundingMode::stochastic;
  if (by_chance && r.format.max() >= 0x1p126) return false;
  return r.format.mantissa_bits + (by_chance ? r.rounding.random_bits : 1) <= 22;
}

// The value of a code times the scale of its block and that of the tensor, rounded once. If the factors are finite, a
// product beyond f32 becomes its largest number.
GRADUAL_HD inline float unscaled(float value, float inverse) {
  const float product = value * inverse;
  const bool beyond = std::fabs(product) > FLT_MAX && std::fabs(value) <= FLT_MAX && std::fabs(inverse) <= FLT_MAX;
  return beyond ? std::copysign(FLT_MAX, product) : product;
}
GRADUAL_HD inline float unscaled(float value, float inverse, float of_tensor) {
  if (of_tensor == 1) return unscaled(value, inverse);
  const double in_block = static_cast<double>(value) * inverse;
  const auto product = static_cast<float>(times_to_odd(in_block, of_tensor));
  const bool finite = !is_inf(value) && !is_inf(inverse) && !is_inf(of_tensor);
  return is_inf(product) && finite ? std::copysign(FLT_MAX, product) : product;
}

// An amax as AmaxHistory keeps it: rounded up, so that a scale that follows from it does not clip, but at most FLT_MAX
// if it is finite.
GRADUAL_HD inline float history_amax(double amax) {
  if (amax > FLT_MAX && !is_inf(amax)) return FLT_MAX;
  const auto narrow = static_cast<float>(amax);
  return narrow < amax ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(narrow) + 1) : narrow;
}

// max(|a|, b) for b >= 0. Bits of magnitudes have the order of their values, and NaN is the largest.
GRADUAL_HD inline float larger_magnitude(float a, float b) {
  const std::uint32_t x = std::bit_cast<std::uint32_t>(a) & 0x7fffffffu;
  const std::uint32_t y = std::bit_cast<std::uint32_t>(b);
  return std::bit_cast<float>(x > y ? x : y);
}
GRADUAL_HD inline double larger_magnitude(double a, double b) {
  const std::uint64_t x = std::bit_cast<std::uint64_t>(a) & ~(std::uint64_t{1} << 63);
  const auto y = std::bit_cast<std::uint64_t>(b);
  return std::bit_cast<double>(x > y ? x : y);
}

// The functions below take amaxes as f64, so that those of f64 sources are exact.

// The largest f32 of at least `least` and at most `scale` that takes amax to `most` at most; `least` if none does. The
// quotient most / amax, rounded to f32, is that number or the one above it.
GRADUAL_HD inline float fitting_scale(float scale, float least, double amax, double most) {
  if (!(amax * scale > most)) return scale;
  auto fits = static_cast<float>(most / amax);
  if (amax * fits > most) fits = std::bit_cast<float>(std::bit_cast<std::uint32_t>(fits) - 1);
  return fits < least ? least : fits;
}

// The scale of a tensor, a row or a block with f32 scales: max / amax. That of a finite amax has a finite inverse.
GRADUAL_HD inline Scale current_scale(double amax, const ScaleSpec& s) {
  float scale = 1;
  if (s.oracle == ScaleOracle::torchao) {
    const float nan = quieted(static_cast<float>(amax));
    if (is_nan(amax)) return {nan, nan};
    scale = static_cast<float>(s.most / (amax < 1e-12 ? 1e-12 : amax));
  } else if (amax > 0 && !is_inf(amax)) {
    scale = static_cast<float>(static_cast<float>(s.most) / amax);
  } else {
    return {};
  }
  scale *= s.factor;
  if (scale > FLT_MAX) scale = FLT_MAX;
  const float least = s.power_of_two ? kLeastPower : kLeastScale;
  if (scale < least && !is_inf(amax)) scale = least;
  if (s.fits) scale = fitting_scale(scale, least, amax, s.most);
  if (s.power_of_two && scale > 0) scale = floor_power(scale);
  return inverted(scale);
}

// Delayed scaling: the scale from the history's amax, or `before` if that is 0, Inf or NaN.
GRADUAL_HD inline float delayed_scale(float amax, float before, const ScaleSpec& s) {
  if (!(amax > 0) || is_inf(amax)) return before;
  const float scale = static_cast<float>(s.most) / amax * s.factor;
  return scale > FLT_MAX ? FLT_MAX : scale < kLeastScale ? kLeastScale : scale;
}

// NVFP4: the scale of the tensor.
GRADUAL_HD inline Scale nvfp4_global(double amax, const ScaleSpec& s) {
  const float nan = quieted(static_cast<float>(amax));
  if (is_nan(amax)) return {nan, nan};
  const auto most = static_cast<float>(s.largest_scale * s.most);
  if (s.oracle == ScaleOracle::torchao) {
    const auto wanted = static_cast<float>(amax / most);
    const float inverse = wanted > FLT_MAX && !is_inf(amax) ? FLT_MAX : wanted;
    return 1 / inverse > FLT_MAX ? Scale{} : Scale{1 / inverse, inverse};
  }
  if (amax == 0 || is_inf(amax)) return {};
  const auto encode = static_cast<float>(most / amax);
  return inverted(encode > FLT_MAX ? FLT_MAX : encode < kLeastScale ? kLeastScale : encode);
}

GRADUAL_HD inline void set_global(ScaleSpec& s, const Scale& of_tensor) {
  s.global = of_tensor.forward;
  s.global_inverse = of_tensor.inverse;
}

// The exponent of a block's scale. amax is finite and not 0.
GRADUAL_HD inline int block_exponent(double amax, const ScaleSpec& s) {
  switch (s.rule) {
    case ScaleRule::least_squares:
    case ScaleRule::floor: return std::ilogb(amax) - s.emax;
    case ScaleRule::ceil: return std::ilogb(amax) + (std::ldexp(1.0, std::ilogb(amax)) < amax ? 1 : 0) - s.emax;
    case ScaleRule::rceil: {
      int e = std::ilogb(amax) - s.emax - 1;
      while (amax > std::ldexp(s.most, e)) ++e;
      return e;
    }
    case ScaleRule::even: {  // the largest significands round to the next power of two
      int e = 0;
      const double significand = std::frexp(amax, &e);
      return e - 1 + (significand >= 1 - std::ldexp(1.0, -2 - s.mantissa_bits) ? 1 : 0) - s.emax;
    }
  }
  return 0;
}

GRADUAL_HD inline Scale power_scale(int e) {
  e = e < -127 ? -127 : e > 127 ? 127 : e;  // the range of e8m0 and of f32's reciprocals
  return {power(-e), power(e)};
}

// NVFP4 (NVIDIA 2025): the scale of a block, relative to the tensor's scale, before it is rounded to its format.
GRADUAL_HD inline double nvfp4_wanted(double amax, const ScaleSpec& s) {
  const auto narrow = static_cast<float>(amax);
  const auto most = static_cast<float>(s.most);
  const float nan = is_nan(amax) ? narrow : s.global;
  double wanted = quieted(nan);
  if (s.oracle == ScaleOracle::torchao && !is_nan(nan)) {
    const float ratio = narrow / most / s.global_inverse;
    wanted = is_nan(ratio) ? std::numeric_limits<float>::quiet_NaN() : ratio < 0x1p-6F ? 0x1p-6F : ratio;
  } else if (!is_nan(nan)) {
    wanted = s.product == ScaledProduct::exact ? times_to_odd(amax, s.global) / s.most : narrow * s.global / most;
  }
  return wanted;
}
// The scale of a block that is stored as this number.
GRADUAL_HD inline Scale stored_scale(float stored, const ScaleSpec& s) {
  if (is_nan(stored)) return {stored, stored};
  const float forward = stored == 0 ? 0 : s.global / stored;
  return {forward > FLT_MAX ? FLT_MAX : forward, stored};
}
GRADUAL_HD inline Scale nvfp4_scale(double amax, const ScaleSpec& s) {
  LoopCounts unused;
  const auto rounded = round_bits<static_cast<int>(RoundingMode::nearest_even), false, false, false>(
      std::bit_cast<std::uint64_t>(nvfp4_wanted(amax, s)), 0, s.stored, unused);
  return stored_scale(static_cast<float>(std::bit_cast<double>(rounded)), s);
}

// The scale of a row or a block with the largest magnitude `amax`.
GRADUAL_HD inline Scale scale_of(double amax, const ScaleSpec& s) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (s.form == ScaleForm::coded) return nvfp4_scale(amax, s);
  if (s.form == ScaleForm::f32) return current_scale(amax, s);
  const bool torchao = s.oracle == ScaleOracle::torchao;
  const bool up = s.rule == ScaleRule::rceil;
  if (is_nan(amax)) return {torchao && !up ? 0 : kNan, kNan};
  if (is_inf(amax)) return power_scale(torchao && !up ? 128 - s.emax : 127);
  if (amax == 0 && !s.e8m0) return {};
  const Scale scale = power_scale(amax == 0 ? -127 : block_exponent(amax, s));
  const bool least = torchao && s.e8m0 && scale.inverse == 0x1p-127F;
  return least ? Scale{up ? 1 : 0x1p126F, scale.inverse} : scale;
}

}  // namespace gradual::detail

namespace gradual::device {

// One quantizer's pass over a GPU's tensor, seen as [rows, k]: scales, rounds and counts.
struct RoundingPass : detail::ScaleGrid {
  Tensor x;  // floating, with the axis last
  std::int64_t rows = 1;
  std::int64_t k = 1;
  Rounder rounder = {};
  bool wide = false;  // scaled elements are rounded as doubles
  QuantizeOptions options = {};
  Tensor values;         // the output, f32 (x is f64 and has no scale: f64) [rows, k], or
  Tensor codes;          // the output as packed codes, u8
  bool unscale = false;  // multiply values by the inverse of their scale
  bool last = false;     // then multiply them by the inverse of the tensor's scale
  Tensor scales;         // not fixed: the output for the inverse scales, f32 or u8 codes; may be undefined
};
void round_scaled(const RoundingPass& pass);
// Writes the values of a QuantizedTensor's codes on a GPU, in their order, to `values`, f32 with q.numel() elements:
// times `scale_values` and times `global`, which may be undefined.
void dequantize(const QuantizedTensor& q, const Tensor& scale_values, const Tensor& global, const Tensor& values);
// Writes the largest magnitude of a GPU's tensor to `to`, f32 (x is f64: f64) [] on that GPU.
void amax(const Tensor& x, const Tensor& to);
// Writes the scale of a tensor with this amax (f32, f64) and its inverse to `to`, f32 [2]. spec.two_levels: the scale
// of the tensor over its blocks.
void whole_scale(const Tensor& amax, const detail::ScaleSpec& spec, const Tensor& to);
// The same from a history. Stages `amax` if it is defined. See QuantizeFor.
void delayed_scale(DeviceAmaxHistory* history, const Tensor& amax, QuantizeFor use, const Tensor& to);
// AmaxHistory::advance() for a history of spec.history amaxes.
void advance_amax(DeviceAmaxHistory* history, Device device, const detail::ScaleSpec& spec);
// Copies the bytes of `from` to `to`, unless *skipped on the GPU is not 0 (null: always). Both have one size and no
// gaps.
void copy_unless(const std::int64_t* skipped, const Tensor& to, const Tensor& from);

}  // namespace gradual::device
