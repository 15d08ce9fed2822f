// Blocks whose scales are powers of two (OCP MX), and shared microexponents.
#pragma once

#include "scale_kinds.h"

namespace gradual {

struct PowerBlocks {
  static constexpr std::string_view kKind = "block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  int block = 32;       // elements per block, at least 1; zeros pad a smaller last block
  bool square = false;  // tiles of block x block elements
  ScaleFormat scale = ScaleFormat::e8m0;
  ScaleRule rule = ScaleRule::floor;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::block_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return rule != ScaleRule::least_squares; }
  detail::ScaleSearch search() const;
  Format codes() const;
  int scale_bits(const Format&) const { return detail::kExponentBits; }
  bool operator==(const PowerBlocks&) const = default;
};

// Parts of a block, at whose elements' magnitude their scale is that of the block or twice it, so that the block's is
// half as large (Rouhani et al. 2023, shared microexponents). Parts of parts double again. Each size divides the one
// before it. CPU only; a QuantizedTensor has one scale for each innermost part.
struct PowerParts {
  static constexpr std::string_view kKind = "block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  int block = 32;
  int part = 2;
  int inner_part = 0;  // 0: none
  ScaleFormat scale = ScaleFormat::e8m0;
  ScaleRule rule = ScaleRule::floor;  // one that does not search
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::block_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  Format codes() const;
  int scale_bits(const Format&) const { return detail::kExponentBits; }
  bool operator==(const PowerParts&) const = default;
};

}  // namespace gradual
