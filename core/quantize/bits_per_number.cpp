#include "bits_per_number.h"

namespace gradual {
namespace {

// A power of two is an f32 number of which the exponent alone is stored.
constexpr int kExponentBits = 8;

int scale_bits(const Scaling& scaling) {
  if (scaling.kind == ScalingKind::nvfp4 || scaling.scale == ScaleFormat::coded) return scaling.scale_format.bits();
  const bool any_number = scaling.scale == ScaleFormat::f32 && !scaling.power_of_two;
  return any_number ? 32 : kExponentBits;
}

// The bits of a block besides its codes: scale, zero point, and the bits of its parts.
double block_bits(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  double bits = scale_bits(scaling);
  if (scaling.zero_point) bits += quantizer.format.bits();
  if (scaling.part) bits += static_cast<double>(scaling.block) / scaling.part;
  if (scaling.inner_part) bits += static_cast<double>(scaling.block) / scaling.inner_part;
  return bits;
}

}  // namespace

double bits_per_number(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  const double code = quantizer.format.bits();
  if (scaling.kind != ScalingKind::block && scaling.kind != ScalingKind::nvfp4) return code;
  const double block = scaling.block;
  const double elements = scaling.square ? block * block : block;
  return code + block_bits(quantizer) / elements;
}

}  // namespace gradual
