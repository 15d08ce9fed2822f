// Blocks whose scales have a format of their own, alone, with parts, or under a scale of the tensor (NVFP4).
#pragma once

#include "scale_kinds.h"

namespace gradual {

struct CodedBlocks {
  static constexpr std::string_view kKind = "block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  int block = 32;                    // elements per block, at least 1; zeros pad a smaller last block
  bool square = false;               // tiles of block x block elements
  Format scale_format = kScaleE4m3;  // of exponent and mantissa, with a zero; amax / max rounded in it by `rule`
  CodedRule rule = CodedRule::nearest;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::block_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  detail::ScaleSearch search() const;
  Format codes() const;
  int scale_bits(const Format&) const { return scale_format.bits(); }
  bool operator==(const CodedBlocks&) const = default;
};

// The same with parts, as PowerParts (HiFloat4).
struct CodedParts {
  static constexpr std::string_view kKind = "block";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  int block = 32;
  int part = 2;
  int inner_part = 0;  // 0: none
  Format scale_format = kScaleE4m3;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { detail::block_kind_keys(s, key); }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return false; }
  int scale_bits(const Format&) const { return scale_format.bits(); }
  bool operator==(const CodedParts&) const = default;
};

// Two levels: a coded scale per block and one f32 scale per tensor, for elements of at most 8 bits. GPUs have e4m3fn.
struct Nvfp4Blocks {
  static constexpr std::string_view kKind = "nvfp4";
  static constexpr ScaleUnit kUnit = ScaleUnit::block;

  int block = 32;
  bool square = false;
  Format scale_format = kScaleE4m3;  // as CodedBlocks; at most 2^64
  CodedRule rule = CodedRule::nearest;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) {
    key("block", s.block);
    key("square", s.square);
    detail::coded_rule_keys(s, key);
    detail::product_keys(s, key);
  }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool runs_on_gpus() const { return scale_format == kScaleE4m3 && rule == CodedRule::nearest; }
  detail::ScaleSearch search() const;
  Format codes() const;
  int scale_bits(const Format&) const { return scale_format.bits(); }
  bool operator==(const Nvfp4Blocks&) const = default;
};

}  // namespace gradual
