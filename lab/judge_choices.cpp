// What is explained of steps that choose one of several elements: any of those that are equal, or nearer than their
// errors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"
#include "judge_ops.h"
#include "judge_step.h"
#include "judge_ties.h"

namespace gradual::lab {
namespace {

// The elements of x at the places that argmax, argsort and their like chose; undefined for others.
Tensor chosen_values(const pt2::Step& step, const Tensor& x, const Tensor& places) {
  const std::int64_t* const given = step.arguments.size() > 1 ? step.arguments[1].get<std::int64_t>() : nullptr;
  const Tensor index = cast(places, DType::i64);
  if (!given) return reshape(gather(flatten(x), 0, flatten(index)), places.sizes());
  const int dim = static_cast<int>(*given < 0 ? *given + x.dim() : *given);
  const bool dropped = places.dim() + 1 == x.dim();
  if (!dropped && places.dim() != x.dim()) return {};
  const Tensor values = gather(x, dim, dropped ? unsqueeze(index, dim) : index);
  return dropped ? squeeze(values, dim) : values;
}

}  // namespace

// Of the places that a step chose, those that may be other ones. Values have no entry.
std::vector<Tensor> StepBounds::contested_places(const pt2::Step& step, const ValueTensors& inputs,
                                                 const std::vector<Tensor>& errors, const ValueTensors& outputs) {
  std::vector<Tensor> contested(outputs.size());
  if (inputs.empty() || !inputs[0].second.defined()) return contested;
  const Tensor x = cast(inputs[0].second, DType::f64);
  // Of integers, the first result has the values if there are two.
  const bool has_values = outputs.size() == 2 || (outputs.size() == 1 && moves(outputs[0].second));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& places = outputs[i].second;
    if (moves(places) || (has_values && i == 0)) continue;
    const Tensor chosen = has_values ? cast(outputs[0].second, DType::f64) : chosen_values(step, x, places);
    if (chosen.defined() && chosen.sizes() == places.sizes())
      contested[i] = contested_choice(step, x, errors[0], chosen);
  }
  return contested;
}

// The gradient goes to the chosen elements, or to those that are as large. Those of several windows are added up.
std::vector<Tensor> StepBounds::of_choice_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                                    const std::vector<Tensor>& errors, const ValueTensors& given,
                                                    const std::vector<Tensor>& gradient_errors, const Units& units) {
  std::vector<Tensor> bounds(inputs.size());
  const ValueTensors outputs = evaluate(step, inputs);
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& [id, g] = given[i];
    if (!moves(of(outputs, id)) || !g.defined()) continue;
    const Tensor size = gradient_errors[i].defined() ? add(abs(g), gradient_errors[i]) : abs(g);
    const Tensor times = gradients(step, inputs, {{id, ones_like(g)}})[0];
    if (!times.defined()) continue;
    const Tensor additions = where(gt(times, 1), times, 0);
    const Tensor added = gradients(step, inputs, {{id, size}})[0];
    Tensor bound = mul(mul(added, additions), units.store);
    if (gradient_errors[i].defined()) bound = add(bound, gradients(step, inputs, {{id, gradient_errors[i]}})[0]);
    const Tensor contested = contested_gradient(step, inputs[0].second, errors[0], of(outputs, id), size);
    if (contested.defined()) bound = add(bound, contested);
    bounds[0] = bounds[0].defined() ? add(bounds[0], bound) : bound;
  }
  return bounds;
}

}  // namespace gradual::lab
