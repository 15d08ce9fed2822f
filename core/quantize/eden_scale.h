// MS-EDEN (Panferov et al. 2026, arXiv 2601.22813): NVFP4 whose elements are rounded to nearest and whose scales are
// random. For numbers that a random rotation has turned, the expectation of the turned back result is x.
#pragma once

#include "scale_kinds.h"

namespace gradual {

// A block's scale first is that of Nvfp4Blocks, and elements are rounded under it. Then the scales of a group are
// multiplied by <x, x> / <x, Q(x)> of its elements, as in EDEN (Vargaftik et al. 2022, from memory), and rounded at
// random to one of the two neighbours in their format. The tensor's scale takes the largest block's to a power of two,
// 256 in e4m3fn, which leaves room for the factor. A factor that is not finite is 1. CPU only.
struct EdenBlocks {
  static constexpr std::string_view kKind = "ms-eden";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  int block = 16;   // elements per block, at least 1; zeros pad a smaller last block
  int group = 128;  // elements of a row that share a factor: those that were turned together; a multiple of block
  Format scale_format = kScaleE4m3;  // as Nvfp4Blocks

  template <class Self, class F> static void keys(Self& s, F& key) {
    key("block", s.block);
    key("group", s.group);
    key("scale_format", s.scale_format);
  }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  Format codes() const;
  int scale_bits(const Format&) const { return scale_format.bits(); }
  bool operator==(const EdenBlocks&) const = default;
};

}  // namespace gradual
