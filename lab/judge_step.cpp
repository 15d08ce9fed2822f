#include "judge_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "../autograd/autograd.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "judge_attention.h"
#include "judge_bounds.h"
#include "judge_losses.h"
#include "judge_norms.h"
#include "judge_ops.h"
#include "judge_ties.h"

namespace gradual::lab {

const Tensor& of(const ValueTensors& all, int id) {
  static const Tensor none;
  const auto found = std::ranges::find(all, id, &std::pair<int, Tensor>::first);
  return found == all.end() ? none : found->second;
}

Tensor error_of(const ValueTensors& all, const std::vector<Tensor>& errors, int id) {
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].first == id) return errors[i];
  return {};
}

namespace {

// softmax along the last dim, of floats.
bool is_softmax(const pt2::Step& step, const ValueTensors& inputs) {
  const std::string& target = step.op->target;
  if (!target.starts_with("aten.softmax.") && !target.starts_with("aten._softmax.")) return false;
  const std::int64_t* const dim = step.arguments.size() > 1 ? step.arguments[1].get<std::int64_t>() : nullptr;
  if (!dim || inputs.size() != 1 || !moves(inputs[0].second)) return false;
  return *dim == -1 || *dim == inputs[0].second.dim() - 1;
}

}  // namespace

Units units_of(DType dtype) {
  const FloatInfo info = float_info(dtype);
  const double store = info.epsilon / 2;
  return {dtype == DType::f64 ? store : float_info(DType::f32).epsilon / 2, store, info.min_subnormal};
}

StepBounds::StepBounds(const pt2::Program& program, pt2::Run& run)
    : program_(program), run_(run), executor_(program.plan, run), random_(1) {}

ValueTensors StepBounds::inputs_of(const pt2::Step& step) const {
  ValueTensors inputs;
  for (const int id : pt2::reads_of(program_, step)) {
    const Tensor* const t = pt2::tensor_of(run_.values[static_cast<std::size_t>(id)]);
    if (t && !of(inputs, id).defined()) inputs.emplace_back(id, *t);
  }
  return inputs;
}

ValueTensors StepBounds::evaluate(const pt2::Step& step, const ValueTensors& inputs) {
  std::vector<std::pair<int, pt2::Value>> kept;
  const auto keep = [&](int id) { kept.emplace_back(id, run_.value(id)); };
  const std::vector<int> written = pt2::writes_of(step);
  for (const int id : written) keep(id);
  for (const auto& [id, t] : inputs) keep(id);
  for (const auto& [id, t] : inputs) run_.value(id) = t;
  executor_.run(step);
  ValueTensors outputs;
  for (const int id : written) {
    const Tensor* const t = pt2::tensor_of(run_.value(id));
    if (t && !of(outputs, id).defined()) outputs.emplace_back(id, *t);
  }
  for (const auto& [id, value] : kept) run_.value(id) = value;
  return outputs;
}

std::vector<Tensor> StepBounds::of_outputs(const pt2::Step& step, const ValueTensors& inputs,
                                           const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                           const Units& units) {
  const NoGrad no_grad;
  const bool exact_inputs = std::ranges::none_of(errors, [](const Tensor& e) { return e.defined(); });
  if (const std::optional<Attention> a = attention_of(step, inputs, errors)) return {attention_bound(a->step, units)};
  if (is_softmax(step, inputs)) return {softmax_bound(inputs[0].second, errors[0], units)};
  if (const auto bounds = norm_bounds(step, inputs, errors, outputs, units)) return *bounds;
  if (const auto bounds = variance_bounds(step, inputs, errors, outputs, units)) return *bounds;
  if (const auto bounds = loss_bounds(step, inputs, errors, outputs, units)) return *bounds;
  const bool arranges = only_arranges(step);
  if (chooses(step) && exact_inputs) return contested_places(step, inputs, errors, outputs);
  if (arranges && exact_inputs) return std::vector<Tensor>(outputs.size());
  if (!arranges) {
    if (const std::optional<Tensor> bound = of_arithmetic(step, inputs, errors, outputs, units)) return {*bound};
    const Terms terms = terms_of(step, inputs, outputs);
    if (terms.forward > 0) return of_sum(step, inputs, errors, outputs, units, terms.forward);
  }
  std::vector<Tensor> estimates = of_moved_operands(step, inputs, errors, outputs, units);
  if (!chooses(step)) return estimates;
  const std::vector<Tensor> contested = contested_places(step, inputs, errors, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (!moves(outputs[i].second)) estimates[i] = contested[i];
  return estimates;
}

std::vector<Tensor> StepBounds::gradients(const pt2::Step& step, const ValueTensors& inputs,
                                          const ValueTensors& gradients) {
  ValueTensors leaves;
  std::vector<Tensor> wanted;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor t = inputs[i].second;
    if (moves(t)) {
      t = t.detach();
      t = add(t, 0.0).detach();
      t.set_requires_grad(true);
      wanted.push_back(t);
      places.push_back(i);
    }
    leaves.emplace_back(inputs[i].first, t);
  }
  const ValueTensors outputs = evaluate(step, leaves);
  std::vector<Tensor> roots;
  std::vector<Tensor> weights;
  for (const auto& [id, g] : gradients) {
    const Tensor& y = of(outputs, id);
    if (!g.defined() || !y.defined() || !y.requires_grad()) continue;
    roots.push_back(y);
    weights.push_back(cast(g, y.dtype()));
  }
  std::vector<Tensor> results(inputs.size());
  if (roots.empty() || wanted.empty()) return results;
  const std::vector<Tensor> found = autograd::grad(roots, wanted, weights, {.allow_unused = true});
  for (std::size_t k = 0; k < found.size(); ++k)
    if (found[k].defined()) results[places[k]] = found[k].detach();
  return results;
}

std::vector<Tensor> StepBounds::of_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                             const std::vector<Tensor>& errors, const ValueTensors& given,
                                             const std::vector<Tensor>& gradient_errors,
                                             const std::vector<Tensor>& results, const Units& units) {
  if (const std::optional<Attention> a = attention_of(step, inputs, errors))
    return of_attention_gradients(*a, inputs, given[0].second, gradient_errors[0], units);
  std::vector<Tensor> bounds(inputs.size());
  if (is_softmax(step, inputs)) {
    bounds[0] = softmax_gradient_bound(inputs[0].second, errors[0], given[0].second, gradient_errors[0], units);
    bounds[0] = add(bounds[0], mul(abs(results[0]), 2 * units.store));
    return bounds;
  }
  if (given.size() == 1) {
    const auto& [id, g] = given[0];
    const Tensor& g_error = gradient_errors[0];
    if (const auto found = norm_gradient_bounds(step, inputs, errors, g, g_error, results, units)) return *found;
    if (auto found = loss_gradient_bounds(step, inputs, errors, g, g_error, results, units)) {
      std::vector<std::size_t> left;
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (results[i].defined() && !(*found)[i].defined()) left.push_back(i);
      if (left.empty()) return *found;
      const std::vector<Tensor> estimates =
          of_sampled_gradients(step, inputs, errors, given, gradient_errors, results, units);
      for (const std::size_t i : left) (*found)[i] = estimates[i];
      return *found;
    }
  }
  if (chooses(step)) return of_choice_gradients(step, inputs, errors, given, gradient_errors, units);
  const Terms terms = terms_of(step, inputs, given);
  if (terms.forward > 0)
    return of_product_gradients(step, inputs, errors, given, gradient_errors, results, units, terms.backward);
  return of_sampled_gradients(step, inputs, errors, given, gradient_errors, results, units);
}

}  // namespace gradual::lab
