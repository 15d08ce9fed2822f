// Scaling, rounding and scaling back of blocks in one pass, for what most chunks of f32 numbers are.
#pragma once

#include <cstdint>
#include <span>

#include "../formats/round_by_chance.h"
#include "block_scales.h"

namespace gradual::detail {

// What multiplies rounded elements.
enum class Unscaling : std::uint8_t {
  none,
  block,         // the inverse of their scale
  block_tensor,  // then the inverse of the tensor's; the first product is exact
};

// A quantizer's pass, prepared. It serves formats whose subnormal numbers are far from f32's, rounded to nearest even
// or by chance.
class OnePass {
 public:
  // exact: scaled elements are rounded as their exact products.
  OnePass(const Rounder& rounder, bool exact);

  // Writes n elements, whole rows of the grid, whose blocks have these scales and largest magnitudes, with the bits
  // that multiplying, Rounder::round() and unscaled() give. The first one has the number `first` for random words.
  // Counts the scaled elements as those functions do. Counts nothing and returns false if a scaled element is not
  // finite (by chance: beyond the next power of two), a result is beyond f32, the format is not served, or an f32 does
  // not tell the exponents to count.
  bool run(const float* from, float* to, std::int64_t n, std::int64_t first, const Grid& grid,
           std::span<const Scale> scales, std::span<const float> most, Unscaling unscaling, CastStats stats = {}) const;
  // Whether run() may serve products that are rounded as doubles otherwise.
  bool rounds_products() const { return usable_ && by_chance_ && exact_; }

 private:
  struct Chunk;
  bool serves(const Grid& grid, std::span<const Scale> scales, std::span<const float> most, Unscaling unscaling) const;

  void round(const Chunk& chunk, bool inexact, Unscaling unscaling) const;
  bool round_counted(const Chunk& chunk, bool inexact, Unscaling unscaling, CastStats stats) const;

  RoundingSpec<std::uint32_t> spec_ = {};
  ChanceSpec chance_ = {};
  RandomKey key_ = {};
  bool by_chance_ = false;
  bool usable_ = false;
  bool exact_ = false;
};

}  // namespace gradual::detail
