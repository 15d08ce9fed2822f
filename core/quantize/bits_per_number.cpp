#include "bits_per_number.h"

namespace gradual {
namespace {

// The bits of a block without its codes: those of its scale, its zero point and its parts.
template <class Kind> double block_bits(const Kind& kind, const Format& format) {
  double bits = kind.scale_bits(format);
  if constexpr (requires { kind.part; }) {
    bits += static_cast<double>(kind.block) / kind.part;
    if (kind.inner_part) bits += static_cast<double>(kind.block) / kind.inner_part;
  }
  return bits;
}

}  // namespace

double bits_per_number(const Quantizer& quantizer) {
  const double code = quantizer.format.bits();
  return of_kind(
      quantizer.scaling, code, [&](const auto& kind) requires requires { kind.block; } {
        const double block = kind.block;
        const double elements = has_tiles(quantizer.scaling) ? block * block : block;
        return code + block_bits(kind, quantizer.format) / elements;
      });
}

}  // namespace gradual
