// Scaling, rounding and scaling back of blocks in one pass, for what most chunks of f32 numbers are.
#pragma once

#include <cstdint>
#include <span>

#include "block_scales.h"

namespace gradual::detail {

// What multiplies rounded elements.
enum class Unscaling : std::uint8_t {
  none,
  block,         // the inverse of their scale
  block_tensor,  // then the inverse of the tensor's; the first product is exact
};

// A quantizer's pass, prepared. It serves formats whose subnormal numbers are far from f32's, rounded to nearest even.
class OnePass {
 public:
  // exact: scaled elements are rounded as their exact products.
  OnePass(const Rounder& rounder, bool exact);

  // Writes n elements, whole rows of the grid, whose blocks have these scales and largest magnitudes, with the bits
  // that multiplying, Rounder::round() and unscaled() give. Does nothing and returns false if a scaled element is not
  // finite, a result is beyond f32 or the format is not served.
  bool run(const float* from, float* to, std::int64_t n, const Grid& grid, std::span<const Scale> scales,
           std::span<const float> most, Unscaling unscaling) const;

 private:
  bool serves(const Grid& grid, std::span<const Scale> scales, std::span<const float> most, Unscaling unscaling) const;

  RoundingSpec<std::uint32_t> spec_ = {};
  bool usable_ = false;
  bool exact_ = false;
};

}  // namespace gradual::detail
