// One scale per tensor, from the amaxes of earlier tensors (AmaxHistory).
#pragma once

#include "scale_kinds.h"

namespace gradual {

struct DelayedScale {
  static constexpr std::string_view kKind = "delayed";
  static constexpr ScaleUnit kUnit = ScaleUnit::tensor;

  double margin = 0;         // the scale is 2^margin smaller
  int history = 1024;        // the number of amaxes kept, at least 1
  bool most_recent = false;  // the scale follows from the last amax, not from the largest one kept
  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) {
    key("margin", s.margin);
    key("history", s.history);
    key("most_recent", s.most_recent);
    key("product", s.product);
  }
  void check(const Format& format) const;
  std::string text() const;
  void set(detail::ScaleSpec& spec) const;
  bool operator==(const DelayedScale&) const = default;
};

}  // namespace gradual
