// f32 scales with zero points, for integers of at most 16 bits on the CPU: x is about scale * (q - z). As PyTorch's
// MinMaxObserver: scale = max(2^-23, (high - low) / (qmax - qmin)) and z = qmin - round(low / scale), where
// low <= 0 <= high are the elements' range; q = clamp(round(x / scale) + z). A range that is not finite has the scale 1
// and z 0; NaN does not count.
#pragma once

#include "scale_kinds.h"

namespace gradual {

struct TensorRange {
  static constexpr std::string_view kKind = "tensor";
  static constexpr ScaleUnit kUnit = ScaleUnit::tensor;
  static constexpr bool kZeroPoints = true;

  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::whole_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  bool operator==(const TensorRange&) const = default;
};

// One scale and zero point per row along the contracted axis.
struct RowRange {
  static constexpr std::string_view kKind = "row";
  static constexpr ScaleUnit kUnit = ScaleUnit::row;
  static constexpr bool kZeroPoints = true;

  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::whole_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  bool operator==(const RowRange&) const = default;
};

// One scale and zero point per block along the contracted axis.
struct RangeBlocks {
  static constexpr std::string_view kKind = "block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;
  static constexpr bool kZeroPoints = true;

  int block = 32;       // elements per block, at least 1; a smaller last block has a range of its own
  bool square = false;  // tiles of block x block elements
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::block_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  int scale_bits(const Format& format) const { return detail::kFloatBits + format.bits(); }
  bool operator==(const RangeBlocks&) const = default;
};

}  // namespace gradual
