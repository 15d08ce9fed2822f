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
  float forward = 1, inverse = 1, zero = 0;
};
constexpr Scale inverted(float forward) { return {forward, 1 / forward}; }

// A quantizer's rule for scales in the form that kernels read.
struct ScaleSpec : Scaling {
  float factor = 1;  // 2^-margin
  // The format's largest and lowest value, the exponent of the largest one and the format's mantissa bits.
  double most = 1, least = 0;
  int emax = 0, mantissa_bits = 0;
  bool fits = false;                        // amax times the scale is at most `most`
  float global = 1, global_inverse = 1;     // nvfp4: the scale of the tensor
  float largest_scale = 448;                // nvfp4: what the largest block's scale becomes
  RoundingSpec<std::uint32_t> stored = {};  // nvfp4, coded: rounds the scales of blocks
};
ScaleSpec scale_spec(const Quantizer& q);
// What scaled elements are rounded to: the format or, under zero points, the integers that codes may differ by.
Format rounded_format(const Quantizer& q);
// Whether scales have a format of their own.
constexpr bool coded_scales(ScalingKind kind, ScaleFormat scale) {
  return kind == ScalingKind::nvfp4 || (kind == ScalingKind::block && scale == ScaleFormat::coded);
}

// The scales of one call: one for the tensor, or one for each block of a grid over [rows, k].
struct ScaleGrid {
  std::int64_t block_rows = 1, block_cols = 1;  // elements under one scale
  bool fixed = false;                           // one scale, known before the pass: `one`
  Scale one = {};
  ScaleSpec spec = {};  // not fixed: the rule for each block's scale; spec.global is the tensor's scale (nvfp4)
  Tensor whole;         // on a GPU, for scales from an amax: replaces `one` or spec.global, with its inverse, f32 [2]
};

GRADUAL_HD inline float floor_power(float x) { return std::ldexp(1.0F, std::ilogb(x)); }
GRADUAL_HD inline bool is_nan(float x) { return x != x; }
GRADUAL_HD inline bool is_inf(float x) { return x > FLT_MAX || x < -FLT_MAX; }
// A quiet NaN with the upper bits of `nan`, as a CPU's arithmetic gives it. A GPU's arithmetic has one NaN only.
GRADUAL_HD inline float quieted(float nan) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nan) | SourceBits<std::uint32_t>::kQuiet);
}

// max(|a|, b) for b >= 0. Bits of magnitudes have the order of their values, and NaN is the largest.
GRADUAL_HD inline float larger_magnitude(float a, float b) {
  const std::uint32_t x = std::bit_cast<std::uint32_t>(a) & 0x7fffffffu, y = std::bit_cast<std::uint32_t>(b);
  return std::bit_cast<float>(x > y ? x : y);
}

// The scale of a tensor, a row or a block with f32 scales: max / amax.
GRADUAL_HD inline Scale current_scale(float amax, const ScaleSpec& s) {
  float scale = 1;
  if (s.oracle == ScaleOracle::torchao) {
    if (is_nan(amax)) return {quieted(amax), quieted(amax)};
    const double wide = amax;
    scale = static_cast<float>(s.most / (wide < 1e-12 ? 1e-12 : wide));
  } else if (amax > 0 && !is_inf(amax)) {
    scale = static_cast<float>(s.most) / amax;
  } else {
    return {};
  }
  scale *= s.factor;
  if (scale > FLT_MAX) scale = FLT_MAX;
  if (s.power_of_two && scale > 0) scale = floor_power(scale);
  while (s.fits && scale <= FLT_MAX && static_cast<double>(amax) * scale > s.most)
    scale = std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) - 1);
  return inverted(scale);
}

// Delayed scaling: the scale from the history's amax, or `before` if that is 0, Inf or NaN.
GRADUAL_HD inline float delayed_scale(float amax, float before, const ScaleSpec& s) {
  if (!(amax > 0) || is_inf(amax)) return before;
  const float scale = static_cast<float>(s.most) / amax * s.factor;
  return scale > FLT_MAX ? FLT_MAX : scale;
}

// NVFP4: the scale of the tensor.
GRADUAL_HD inline Scale nvfp4_global(float amax, const ScaleSpec& s) {
  if (is_nan(amax)) return {quieted(amax), quieted(amax)};
  if (s.oracle == ScaleOracle::torchao) {
    const float inverse = amax / static_cast<float>(s.largest_scale * s.most);
    return 1 / inverse > FLT_MAX ? Scale{} : Scale{1 / inverse, inverse};
  }
  const float encode = static_cast<float>(s.largest_scale * s.most) / amax;
  if (amax == 0 || encode == 0) return {};
  return inverted(encode > FLT_MAX ? FLT_MAX : encode);
}

GRADUAL_HD inline void set_global(ScaleSpec& s, const Scale& of_tensor) {
  s.global = of_tensor.forward, s.global_inverse = of_tensor.inverse;
}

// The exponent of a block's scale. amax is finite and not 0.
GRADUAL_HD inline int block_exponent(float amax, const ScaleSpec& s) {
  switch (s.rule) {
    case ScaleRule::four_over_six:
    case ScaleRule::least_squares:
    case ScaleRule::floor: return std::ilogb(amax) - s.emax;
    case ScaleRule::ceil: return std::ilogb(amax) + (floor_power(amax) < amax ? 1 : 0) - s.emax;
    case ScaleRule::rceil: {
      int e = std::ilogb(amax) - s.emax - 1;
      while (static_cast<double>(amax) > std::ldexp(s.most, e)) ++e;
      return e;
    }
    case ScaleRule::even: {  // the largest significands round to the next power of two
      int e = 0;
      const double significand = std::frexp(static_cast<double>(amax), &e);
      return e - 1 + (significand >= 1 - std::ldexp(1.0, -2 - s.mantissa_bits) ? 1 : 0) - s.emax;
    }
  }
  return 0;
}

GRADUAL_HD inline Scale power_scale(int e) {
  e = e < -127 ? -127 : e > 127 ? 127 : e;  // the range of e8m0 and of f32's reciprocals
  return {power(-e), power(e)};
}

// NVFP4 (NVIDIA 2025): the coded scale of a block, relative to the tensor's scale.
GRADUAL_HD inline Scale nvfp4_scale(float amax, const ScaleSpec& s) {
  const float nan = is_nan(amax) ? amax : s.global;
  float wanted = is_nan(nan) ? quieted(nan) : amax * s.global / static_cast<float>(s.most);
  if (s.oracle == ScaleOracle::torchao && !is_nan(nan)) {
    wanted = amax / static_cast<float>(s.most) / s.global_inverse;
    wanted = is_nan(wanted) ? std::numeric_limits<float>::quiet_NaN() : wanted < 0x1p-6F ? 0x1p-6F : wanted;
  }
  LoopCounts unused;
  const auto scale = std::bit_cast<float>(round_bits<static_cast<int>(RoundingMode::nearest_even), false, false, false>(
      std::bit_cast<std::uint32_t>(wanted), 0, s.stored, unused));
  if (is_nan(scale)) return {scale, scale};
  const float forward = scale == 0 ? 0 : s.global / scale;
  return {forward > FLT_MAX ? FLT_MAX : forward, scale};
}

// The scale of a row or a block with the largest magnitude `amax`.
GRADUAL_HD inline Scale scale_of(float amax, const ScaleSpec& s) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (coded_scales(s.kind, s.scale)) return nvfp4_scale(amax, s);
  if (s.kind != ScalingKind::block || s.scale == ScaleFormat::f32) return current_scale(amax, s);
  const bool torchao = s.oracle == ScaleOracle::torchao, up = s.rule == ScaleRule::rceil;
  if (is_nan(amax)) return {torchao && !up ? 0 : kNan, kNan};
  if (is_inf(amax)) return power_scale(torchao && !up ? 128 - s.emax : 127);
  if (amax == 0 && s.scale != ScaleFormat::e8m0) return {};
  const Scale scale = power_scale(amax == 0 ? -127 : block_exponent(amax, s));
  const bool least = torchao && s.scale == ScaleFormat::e8m0 && scale.inverse == 0x1p-127F;
  return least ? Scale{up ? 1 : 0x1p126F, scale.inverse} : scale;
}

}  // namespace gradual::detail

namespace gradual::device {

// One quantizer's pass over a GPU's tensor, seen as [rows, k]: scales, rounds and counts.
struct RoundingPass : detail::ScaleGrid {
  Tensor x;  // floating, with the axis last
  std::int64_t rows = 1, k = 1;
  Rounder rounder = {};
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
// Writes the largest magnitude of a GPU's tensor to `to`, f32 [] on that GPU.
void amax(const Tensor& x, const Tensor& to);
// Writes the scale of a tensor with this amax, by spec.kind (tensor or nvfp4), and its inverse to `to`, f32 [2].
void whole_scale(const Tensor& amax, const detail::ScaleSpec& spec, const Tensor& to);
// The same from a history. Stages `amax` if it is defined. keep, again: see QuantizeOptions.
void delayed_scale(DeviceAmaxHistory* history, const Tensor& amax, bool keep, bool again, const Tensor& to);
// AmaxHistory::advance() for a history of spec.history amaxes.
void advance_amax(DeviceAmaxHistory* history, Device device, const detail::ScaleSpec& spec);
// Copies the bytes of `from` to `to`, unless *skipped on the GPU is not 0 (null: always). Both have one size and no
// gaps.
void copy_unless(const std::int64_t* skipped, const Tensor& to, const Tensor& from);

}  // namespace gradual::device
