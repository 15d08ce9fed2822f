// Forward of a replay: each step from the recorded tensors, with what rounding explains.
#include <algorithm>
#include <optional>
#include <string_view>

#include "../autograd/grad_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_ops.h"
#include "judge_orders.h"
#include "judge_replay.h"
#include "judge_statistics.h"
#include "judge_ties.h"

namespace gradual::lab {

// A recurrent layer may compute inside in a coarser dtype than its result shows.
Units Replay::units_for(const pt2::Step& step, int id) const {
  const auto found = stored_.find(id);
  constexpr std::string_view kRecurrent[] = {"aten.lstm", "aten.gru", "aten.rnn"};
  const bool inside = std::ranges::any_of(kRecurrent, [&](auto start) { return step.op->target.starts_with(start); });
  if (found == stored_.end()) return units_of(unrecorded_);
  const bool coarser = inside && float_info(unrecorded_).epsilon > float_info(found->second).epsilon;
  return units_of(coarser ? unrecorded_ : found->second);
}

void Replay::keep_step(int index, const ValueTensors& inputs, const Units& units) {
  if (!p_.step(index).grad) return;
  Kept kept;
  kept.step = index;
  kept.units = units;
  for (const auto& [id, t] : inputs) {
    const auto k = static_cast<std::size_t>(id);
    const bool state = p_.state.contains(id);
    kept.inputs.emplace_back(id, state ? clone(t) : t);
    kept.errors.push_back(errors_[k]);
    kept.unknown = kept.unknown || is_unknown(id);
    kept.writers.push_back(writer_[k]);
  }
  for (const int id : pt2::writes_of(p_.step(index))) kept.written.push_back(id);
  kept_.push_back(std::move(kept));
}

// A dropout whose result is recorded: what it kept shows in the record. True if it was done so.
bool Replay::run_dropout(int index, const ValueTensors& inputs) {
  const pt2::Step& step = p_.step(index);
  const double* const p = step.arguments.size() > 1 ? step.arguments[1].get<double>() : nullptr;
  if (!judges_ || !step.op->target.starts_with("aten.dropout.") || !p || *p >= 1) return false;
  const auto at = behind_.find(index);
  if (at == behind_.end() || inputs.empty()) return false;
  const Tensor* const recorded = find(at->second.front().name(0));
  const Tensor x = inputs[0].second;
  if (!recorded || recorded->sizes() != x.sizes()) return false;
  const int id = step.written >= 0 ? step.written : step.outputs.at(0).values.at(0);
  const Tensor mask = mul(cast(ne(in_f64(*recorded), 0), DType::f64), 1 / (1 - *p));
  kept_.back().mask = mask;
  run_.value(id) = mul(x, mask);
  unknown_.erase(id);
  const Tensor error = mul(abs(mul(x, mask)), 4 * units_for(step, id).store);
  errors_[static_cast<std::size_t>(id)] = error;
  return true;
}

void Replay::run_step(int index) {
  const pt2::Step& step = p_.step(index);
  const ValueTensors inputs = bounds_->inputs_of(step);
  const bool random = draws(step);
  std::vector<int> segment;
  std::vector<Tensor> errors;
  bool unknown = random;
  for (const auto& [id, t] : inputs) {
    const auto k = static_cast<std::size_t>(id);
    errors.push_back(errors_[k]);
    unknown = unknown || is_unknown(id);
    for (const int i : segments_[k])
      if (std::ranges::find(segment, i) == segment.end()) segment.push_back(i);
  }
  std::ranges::sort(segment);
  segment.push_back(index);
  const std::vector<int> written = pt2::writes_of(step);
  const Units units = written.empty() ? units_of(unrecorded_) : units_for(step, written[0]);
  keep_step(index, inputs, units);
  std::map<int, Tensor> old;
  for (const int id : written) old[id] = value(id);
  pt2::Executor executor(p_.plan, run_);
  {
    const NoGrad no_grad;
    executor.run(step);
  }
  ValueTensors outputs;
  for (const int id : written)
    if (const Tensor t = value(id); t.defined()) outputs.emplace_back(id, t);
  std::vector<Tensor> bounds(outputs.size());
  if (judges_ && !unknown) {
    ValueTensors given = inputs;
    for (auto& [id, t] : given)
      if (p_.state.contains(id)) t = clone(t);
    bounds = bounds_->of_outputs(step, given, errors, outputs, units);
    for (const auto& [id, bound] : running_statistics_bounds(step, given, errors, units)) {
      Tensor& all = statistics_errors_[id];
      all = all.defined() ? add(all, bound) : bound;
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const int id = outputs[i].first;
    const auto k = static_cast<std::size_t>(id);
    errors_[k] = bounds[i];
    sampled_.erase(id);
    const auto stored = stored_.find(id);
    if (judges_ && !unknown && stored != stored_.end())
      if (const std::optional<double> spread =
              sampled_orders(*bounds_, step, inputs, id, outputs[i].second, stored->second))
        sampled_[id] = *spread;
    writer_[k] = index;
    segments_[k] = segment;
    if (unknown) unknown_.insert(id);
    else unknown_.erase(id);
    const bool tie = chooses(step) && !outputs[i].second.is_floating() && bounds[i].defined();
    if (tie && max(bounds[i]).item() > 0) contested_.insert(id);
    else contested_.erase(id);
  }
  if (random && !kept_.empty() && kept_.back().step == index) run_dropout(index, inputs);
}

void Replay::forward() {
  for (int i = 0; i < static_cast<int>(p_.plan.steps.size()); ++i) {
    for (const Boundary& b : before_[i]) pass(b, b.run->inputs);
    run_step(i);
    if (const auto own = own_results_.find(i); own != own_results_.end() && value(own->second.id).defined())
      take(own->second.name, own->second.gradient, own->second.id);
    for (const Boundary& b : behind_[i]) pass(b, b.run->outputs);
  }
}

}  // namespace gradual::lab
