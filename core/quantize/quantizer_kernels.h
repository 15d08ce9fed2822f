// How the scales of quantizer.h follow from magnitudes, for the CPU and for CUDA kernels; and what cuda/ gives quantizers.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "../formats/rounding_kernels.h"
#include "../support/host_device.h"
#include "quantizer.h"

namespace gradual::detail {

// What the source is multiplied by before it is rounded, and a code's value afterwards.
struct Scale {
  float forward = 1, inverse = 1;
};
constexpr Scale inverted(float forward) { return {forward, 1 / forward}; }

// A quantizer's rule for scales, as kernels take it.
struct ScaleSpec {
  ScalingKind kind = ScalingKind::none;
  ScaleFormat scale = ScaleFormat::f32;
  ScaleRule rule = ScaleRule::floor;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  bool power_of_two = false;
  float margin = 1;  // 2^-margin
  double most = 1;   // of the format: the largest value, its exponent, its mantissa bits
  int emax = 0, mantissa_bits = 0;
  float global = 1;                       // nvfp4: of the tensor
  RoundingSpec<std::uint32_t> e4m3 = {};  // nvfp4: of blocks' scales
};
ScaleSpec scale_spec(const Quantizer& q);

GRADUAL_HD inline float floor_power(float x) { return std::ldexp(1.0F, std::ilogb(x)); }
GRADUAL_HD inline bool is_nan(float x) { return x != x; }
GRADUAL_HD inline bool is_inf(float x) { return x > FLT_MAX || x < -FLT_MAX; }
// With NaN's upper bits kept, as arithmetic on the CPU does it: a GPU's has one NaN only.
GRADUAL_HD inline float quieted(float nan) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nan) | SourceBits<std::uint32_t>::kQuiet);
}

// The larger of two magnitudes by their bits, which are ordered as the values are; NaN wins.
GRADUAL_HD inline float larger_magnitude(float a, float b) {
  const std::uint32_t x = std::bit_cast<std::uint32_t>(a) & 0x7fffffffu, y = std::bit_cast<std::uint32_t>(b);
  return std::bit_cast<float>(x > y ? x : y);
}

// One scale for a tensor or a row: max / amax.
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
  scale *= s.margin;
  if (scale > FLT_MAX) scale = FLT_MAX;
  if (s.power_of_two && scale > 0) scale = floor_power(scale);
  return inverted(scale);
}

// Delayed scaling: from the amax that its history gives.
GRADUAL_HD inline float delayed_scale(float amax, float before, const ScaleSpec& s) {
  if (!(amax > 0) || is_inf(amax)) return before;
  const float scale = static_cast<float>(s.most) / amax * s.margin;
  return scale > FLT_MAX ? FLT_MAX : scale;
}

// NVFP4: the scale of the tensor, under which blocks have theirs.
GRADUAL_HD inline Scale nvfp4_global(float amax, const ScaleSpec& s) {
  if (is_nan(amax)) return {quieted(amax), quieted(amax)};
  const float encode = static_cast<float>(448 * s.most) / amax;
  if (amax == 0 || encode == 0) return {};
  return inverted(encode > FLT_MAX ? FLT_MAX : encode);
}

// The exponent of a block's scale, amax finite and not 0.
GRADUAL_HD inline int block_exponent(float amax, const ScaleSpec& s) {
  switch (s.rule) {
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
  e = e < -127 ? -127 : e > 127 ? 127 : e;  // e8m0 ends there; f32's reciprocals as well
  return {std::ldexp(1.0F, -e), std::ldexp(1.0F, e)};
}

// NVFP4 (NVIDIA 2025): the scale of a block is e4m3fn, relative to the tensor's.
GRADUAL_HD inline Scale nvfp4_scale(float amax, const ScaleSpec& s) {
  const float nan = is_nan(amax) ? amax : s.global;
  const float wanted = is_nan(nan) ? quieted(nan) : amax * s.global / static_cast<float>(s.most);
  LoopCounts unused;
  const auto scale = std::bit_cast<float>(round_bits<static_cast<int>(RoundingMode::nearest_even), false, false, false>(
      std::bit_cast<std::uint32_t>(wanted), 0, s.e4m3, unused));
  if (is_nan(scale)) return {scale, scale};
  const float forward = scale == 0 ? 0 : s.global / scale;
  return {forward > FLT_MAX ? FLT_MAX : forward, scale};
}

// The scale of a row or a block with this largest magnitude.
GRADUAL_HD inline Scale scale_of(float amax, const ScaleSpec& s) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (s.kind == ScalingKind::nvfp4) return nvfp4_scale(amax, s);
  if (s.kind != ScalingKind::block || s.scale == ScaleFormat::f32) return current_scale(amax, s);
  if (is_nan(amax)) return {kNan, kNan};
  if (is_inf(amax)) return s.oracle == ScaleOracle::torchao ? Scale{kNan, kNan} : power_scale(127);
  if (amax == 0) return s.scale == ScaleFormat::e8m0 ? power_scale(-127) : Scale{};
  return power_scale(block_exponent(amax, s));
}

}  // namespace gradual::detail

namespace gradual::device {

// A tensor of a GPU scaled, rounded and counted as a quantizer does it, in the order [rows, k].
struct RoundingPass {
  Tensor x;  // floating, the axis last
  std::int64_t rows = 1, k = 1;
  bool wide = false;  // x is f64, rounded as it is and not scaled; else f64 is rounded to f32 first
  Rounder rounder = {};
  const std::int64_t* steps = nullptr;  // QuantizeOptions::steps
  bool fixed = false;                   // one scale,
  detail::Scale one = {};               // this
  detail::ScaleSpec spec = {};          // else one for each block
  Tensor
      whole;  // f32 [2]: in the place of `one`; not fixed, the scale of the tensor (nvfp4): spec.global and its inverse
  std::int64_t block_rows = 1, block_cols = 1;
  Tensor values;         // f32 (wide: f64) [rows, k], or
  Tensor codes;          // u8, packed
  bool unscale = false;  // values times the inverse of their scale,
  bool last = false;     // and then times that of the tensor's
  Tensor scales;         // not fixed: where the inverse scales go, if anywhere: f32, or u8 as codes
  CastStats stats = {};
  bool scaled_exponents = false;
};
void round_scaled(const RoundingPass& pass);
// The values of a QuantizedTensor's codes on a GPU, in their order, into f32 [numel]; with `scale_values`, which may be
// undefined, and its global scale.
void decode(const QuantizedTensor& q, const Tensor& values);
void dequantize(const QuantizedTensor& q, const Tensor& scale_values, const Tensor& values);
// The largest magnitude of a tensor of a GPU, into `to`: f32 [] there.
void amax(const Tensor& x, const Tensor& to);
// What follows from it, into `to`, f32 [2]: the scale of the tensor by spec.kind (tensor, nvfp4), and its inverse.
void whole_scale(const Tensor& amax, const detail::ScaleSpec& spec, const Tensor& to);
// The same by a history, in which an amax is staged if it is defined. keep, again: as in QuantizeOptions.
void delayed_scale(DeviceAmaxHistory* history, const Tensor& amax, bool keep, bool again, const Tensor& to);
// AmaxHistory::advance() with room for so many amaxes.
void advance_amax(DeviceAmaxHistory* history, Device device, int length, bool most_recent,
                  const detail::ScaleSpec& spec);
// The bytes of `from` into `to`, both without gaps and of one size, unless *skipped is not 0 there (null: always).
void copy_unless(const std::int64_t* skipped, const Tensor& to, const Tensor& from);

}  // namespace gradual::device
