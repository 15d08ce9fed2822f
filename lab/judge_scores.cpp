// Steps that are attention, for the bounds of judge_attention.h.
#include <cmath>
#include <limits>
#include <optional>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_attention.h"
#include "judge_bounds.h"
#include "judge_ops.h"
#include "judge_step.h"

namespace gradual::lab {
namespace {

// What is added to the scores; undefined: nothing.
Tensor added_mask(const Tensor& mask, bool causal, const Tensor& q, const Tensor& k) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const auto added = [](const Tensor& allowed) {
    return masked_fill(zeros(allowed.sizes(), {.dtype = DType::f64}), logical_not(allowed), kNever);
  };
  if (causal) return added(cast(tril(ones({q.size(-2), k.size(-2)})), DType::bool_));
  if (!mask.defined()) return {};
  return mask.is_floating() ? mask : added(mask);
}

}  // namespace

std::optional<StepBounds::Attention> StepBounds::attention_of(const pt2::Step& step, const ValueTensors& inputs,
                                                              const std::vector<Tensor>& errors) {
  if (!step.op->target.starts_with("aten.scaled_dot_product_attention.")) return std::nullopt;
  const auto id_of = [&](std::size_t argument) {
    const pt2::Ref* const r = step.arguments[argument].get<pt2::Ref>();
    return r ? r->id : -1;
  };
  const auto error_of = [&](int id) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].first == id) return errors[i];
    return Tensor();
  };
  Attention a;
  a.q = id_of(0);
  a.k = id_of(1);
  a.v = id_of(2);
  a.step.q = of(inputs, a.q);
  a.step.k = of(inputs, a.k);
  a.step.v = of(inputs, a.v);
  if (!moves(a.step.q) || !moves(a.step.k) || !moves(a.step.v)) return std::nullopt;
  a.step.q_error = error_of(a.q);
  a.step.k_error = error_of(a.k);
  a.step.v_error = error_of(a.v);
  const int mask = id_of(3);
  const bool* const causal = step.arguments[5].get<bool>();
  const Tensor given = of(inputs, mask);
  a.step.mask = added_mask(given, causal && *causal, a.step.q, a.step.k);
  if (moves(given)) {
    a.mask = mask;
    a.step.mask_error = error_of(mask);
  }
  const double* const scale = step.arguments[6].get<double>();
  a.step.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(a.step.q.size(-1)));
  return a;
}

std::vector<Tensor> StepBounds::of_attention_gradients(const Attention& attention, const ValueTensors& inputs,
                                                       const Tensor& gradient, const Tensor& gradient_error,
                                                       const Units& units) {
  const AttentionGradientBounds found = attention_gradient_bounds(attention.step, gradient, gradient_error, units);
  std::vector<Tensor> bounds(inputs.size());
  const auto give = [&](int id, const Tensor& bound) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].first == id && bound.defined()) bounds[i] = bounds[i].defined() ? add(bounds[i], bound) : bound;
  };
  give(attention.q, found.q);
  give(attention.k, found.k);
  give(attention.v, found.v);
  if (attention.mask >= 0) give(attention.mask, found.mask);
  return bounds;
}

}  // namespace gradual::lab
