// No scale, and one given number.
#pragma once

#include "scale_kinds.h"

namespace gradual {

struct NoScale {
  static constexpr std::string_view kKind = "none";
  static constexpr ScaleUnit kUnit = ScaleUnit::tensor;

  template <class Self, class F> static void keys(Self&, F&) {}
  void check(const Format&) const {}
  std::string text() const { return ""; }
  void set(detail::ScaleSpec&) const {}
  bool operator==(const NoScale&) const = default;
};

struct FixedScale {
  static constexpr std::string_view kKind = "fixed";
  static constexpr ScaleUnit kUnit = ScaleUnit::tensor;

  double value = 1;  // the factor of the source, 2^-126 to 2^126
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) {
    key("value", s.value);
    key("product", s.product);
  }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec&) const {}
  bool operator==(const FixedScale&) const = default;
};

}  // namespace gradual
