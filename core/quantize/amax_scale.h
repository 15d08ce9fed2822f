// f32 scales that take the largest magnitude of a tensor, a row or a block to the format's largest value: max / amax.
#pragma once

#include "scale_kinds.h"

namespace gradual {

struct TensorScale {
  static constexpr std::string_view kKind = "tensor";
  static constexpr ScaleUnit kUnit = ScaleUnit::tensor;

  // The scale is 2^margin smaller. Where rounding may go up and overflow is not saturated, it takes the largest element
  // to the largest value at most. The same for rows and blocks.
  double margin = 0;
  bool power_of_two = false;  // the scale is rounded down to a power of two
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::whole_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool operator==(const TensorScale&) const = default;
};

// One scale per row along the contracted axis.
struct RowScale {
  static constexpr std::string_view kKind = "row";
  static constexpr ScaleUnit kUnit = ScaleUnit::row;

  double margin = 0;
  bool power_of_two = false;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::whole_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool operator==(const RowScale&) const = default;
};

// One f32 scale per block along the contracted axis.
struct FloatBlocks {
  static constexpr std::string_view kKind = "block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  double margin = 0;
  bool power_of_two = false;
  int block = 32;       // elements per block, at least 1; zeros pad a smaller last block
  bool square = false;  // tiles of block x block elements
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::block_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  int scale_bits(const Format&) const { return power_of_two ? detail::kExponentBits : detail::kFloatBits; }
  bool operator==(const FloatBlocks&) const = default;
};

// The same with parts, at whose elements' magnitude their scale is that of the block or twice it (see PowerParts).
struct FloatParts {
  static constexpr std::string_view kKind = "block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  double margin = 0;
  bool power_of_two = false;
  int block = 32;
  int part = 2;
  int inner_part = 0;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::block_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  int scale_bits(const Format&) const { return power_of_two ? detail::kExponentBits : detail::kFloatBits; }
  bool operator==(const FloatParts&) const = default;
};

}  // namespace gradual
