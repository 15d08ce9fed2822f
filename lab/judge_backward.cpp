// Backward of a replay: gradients from the recorded ones behind them.
#include <algorithm>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "judge_ops.h"
#include "judge_replay.h"

namespace gradual::lab {

void Replay::start_backward() {
  const std::vector<int> ids = outputs_of_model();
  const Boundary model{"out", "", p_.root.get()};
  for (int place = 0; place < static_cast<int>(ids.size()); ++place) {
    const int id = ids[static_cast<std::size_t>(place)];
    const Tensor y = value(id);
    if (!floats(y)) continue;
    const Tensor* g = find(model.gradient_name(place));
    if (!g) continue;
    if (g->sizes() != y.sizes())
      throwf("{} is {}; the output is {}", model.gradient_name(place), to_string(g->sizes()), to_string(y.sizes()));
    gradients_[id] = in_dtype(*g);
    output_gradients_[{id, writer_[static_cast<std::size_t>(id)]}] = gradients_[id];
    if (!judges_) written_.set(model.gradient_name(place), g->detach());
  }
}

// A version's gradient is complete: it is compared with the record, which replaces it.
void Replay::take_gradient(int id, int writer) {
  // What came from outside the model is in the record alone.
  if (const auto output = output_gradients_.find({id, writer}); output != output_gradients_.end()) {
    gradients_[id] = output->second;
    gradient_errors_[id] = {};
    gradient_segments_[id].clear();
    unknown_gradients_.erase(id);
  }
  const auto recorded = recorded_gradients_.find({id, writer});
  if (recorded == recorded_gradients_.end()) return;
  for (const RecordedGradient& r : recorded->second) {
    if (!judges_) {
      if (gradients_.contains(id)) written_.set(r.name, gradients_.at(id));
      continue;
    }
    if (gradients_.contains(id) && !unknown_gradients_.contains(id)) {
      compare(r.name, JudgedKind::gradient, r.tensor, gradients_[id], gradient_errors_[id], gradient_segments_[id]);
      name_missing_part(id, r.tensor);
    }
    if (r.tensor.sizes() != value(id).sizes() && gradients_.contains(id)) continue;
    gradients_[id] = in_f64(r.tensor);
    gradient_errors_[id] = {};
    gradient_segments_[id].clear();
    gradient_parts_[id].clear();
    unknown_gradients_.erase(id);
  }
}

void Replay::backward_step(const Kept& kept) {
  const pt2::Step& step = p_.step(kept.step);
  ValueTensors given;
  std::vector<Tensor> given_errors;
  std::vector<int> segment;
  bool unknown = (draws(step) || kept.unknown) && !kept.mask.defined();
  for (const int id : kept.written) {
    take_gradient(id, kept.step);
    if (!gradients_.contains(id)) continue;
    unknown = unknown || unknown_gradients_.contains(id);
    given.emplace_back(id, gradients_.at(id));
    given_errors.push_back(gradient_errors_[id]);
    for (const int i : gradient_segments_[id])
      if (std::ranges::find(segment, i) == segment.end()) segment.push_back(i);
    gradients_.erase(id);
    gradient_errors_.erase(id);
    gradient_segments_.erase(id);
    gradient_parts_.erase(id);
    unknown_gradients_.erase(id);
  }
  if (given.empty()) return;
  segment.push_back(kept.step);
  std::vector<Tensor> results;
  std::vector<Tensor> bounds(kept.inputs.size());
  if (kept.mask.defined()) {
    results = {mul(given[0].second, kept.mask)};
    bounds[0] = mul(abs(results[0]), 4 * kept.units.store);
    if (given_errors[0].defined()) bounds[0] = add(bounds[0], mul(given_errors[0], kept.mask));
    results.resize(kept.inputs.size());
  } else {
    results = bounds_->gradients(step, kept.inputs, given);
    if (judges_ && !unknown)
      bounds = bounds_->of_gradients(step, kept.inputs, kept.errors, given, given_errors, results, kept.units);
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;
    const int id = kept.inputs[i].first;
    Tensor& g = gradients_[id];
    Tensor& error = gradient_errors_[id];
    const bool first = !g.defined();
    g = first ? results[i] : add(g, results[i]);
    if (bounds[i].defined()) error = error.defined() ? add(error, bounds[i]) : bounds[i];
    if (!first) {
      const Tensor rounding = mul(abs(g), 2 * kept.units.store);
      error = error.defined() ? add(error, rounding) : rounding;
    }
    std::vector<int>& steps = gradient_segments_[id];
    for (const int s : segment)
      if (std::ranges::find(steps, s) == steps.end()) steps.push_back(s);
    gradient_parts_[id].emplace_back(kept.step, results[i]);
    if (unknown) unknown_gradients_.insert(id);
  }
}

// A gradient with several parts from which exactly one is missing: its step is the wrong one.
void Replay::name_missing_part(int id, const Tensor& recorded) {
  Judged& judged = result_.tensors.back();
  const auto parts = gradient_parts_.find(id);
  if (judged.explained() || parts == gradient_parts_.end() || parts->second.size() < 2) return;
  const Tensor given = in_f64(recorded);
  if (given.sizes() != gradients_[id].sizes()) return;
  const double away = norm(sub(given, gradients_[id])).item();
  for (const auto& [step, part] : parts->second) {
    constexpr double kMuchNearer = 1e-2;
    if (!(norm(sub(given, sub(gradients_[id], part))).item() < kMuchNearer * away)) continue;
    judged.op = p_.step(step).op->target;
    judged.line = to_string(p_.node(step).line);
    judged.between.clear();
    return;
  }
}

void Replay::backward() {
  start_backward();
  for (std::size_t i = kept_.size(); i > 0; --i) {
    backward_step(kept_[i - 1]);
    kept_[i - 1] = {};
  }
  compare_parameters();
}

}  // namespace gradual::lab
