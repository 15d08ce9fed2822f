// TetraJet-v2's double blocks (Chen et al. 2025, arXiv 2510.27527): NVFP4 with an f32 scale for each outer block of a
// row instead of one for the tensor.
#pragma once

#include "scale_kinds.h"

namespace gradual {

// The f32 scale of an outer block takes its amax to the largest scale times the largest value (448 * 6); the scale of a
// block in it follows as in Nvfp4Blocks, to nearest. Their product is rounded to f32. Read: the abstract and the
// authors' code, not the paper's text. CPU only.
struct DoubleBlocks {
  static constexpr std::string_view kKind = "double-block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  int block = 16;                    // elements per block, at least 1; zeros pad a smaller last block
  int outer = 128;                   // elements of a row under one f32 scale, a multiple of block
  Format scale_format = kScaleE4m3;  // as Nvfp4Blocks

  template <class Self, class F> static void keys(Self& s, F& key) {
    key("block", s.block);
    key("outer", s.outer);
    key("scale_format", s.scale_format);
  }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  // Its own and its part of the outer scale.
  double scale_bits(const Format&) const {
    return scale_format.bits() + static_cast<double>(detail::kFloatBits) * block / outer;
  }
  bool operator==(const DoubleBlocks&) const = default;
};

}  // namespace gradual
