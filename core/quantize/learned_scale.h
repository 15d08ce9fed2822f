// One scale per tensor that is trained: Learned Step Size Quantization (Esser et al. 2020, arXiv 1902.08153). The
// parameter is the step s, the number for which a code of 1 stands: the scale is 1 / s, and Q(x) = s q(x / s). Its
// gradient is sum(g (q(u) - slope u)) / sqrt(N max), where u = x / s, g is the gradient of Q(x), slope is the
// quantizer's gradient, N the number of elements of a weight or of the features of a sample, and max the format's
// largest value. s begins as 2 mean|x| / sqrt(max).
#pragma once

#include "scale_kinds.h"

namespace gradual {

struct LearnedScale {
  static constexpr std::string_view kKind = "learned";
  static constexpr ScaleUnit kUnit = ScaleUnit::tensor;

  ScaledProduct product = ScaledProduct::exact;

  template <class Self, class F> static void keys(Self& s, F& key) { key("product", s.product); }
  void check(const Format&) const {}
  std::string text() const { return ", one learned scale per tensor"; }
  void set(detail::ScaleSpec&) const {}
  bool runs_on_gpus() const { return false; }
  bool operator==(const LearnedScale&) const = default;
};
// The step that training begins with, for elements of this mean magnitude; 1 if that is 0, Inf or NaN.
double first_step(double mean_magnitude, const Format& format);
// 1 / sqrt(elements * max), by which the gradient of a step is multiplied.
double step_gradient_scale(std::int64_t elements, const Format& format);
// The scale of a step. Steps below 2^-100, negative ones too, count as 2^-100, and those above 2^100 as 2^100.
float scale_of_step(double step);

}  // namespace gradual
