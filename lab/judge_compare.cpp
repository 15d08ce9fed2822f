// A recorded tensor against the computed one, and the names of the ops between.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_replay.h"

namespace gradual::lab {

// The last op that computes something is named, the others are listed.
void Replay::name_ops(Judged& judged, const std::vector<int>& segment) const {
  for (const int i : segment) {
    const bool arranges = p_.step(i).op->aliasing != pt2::Aliasing::none;
    if (judged.op.empty() || !arranges) {
      if (!judged.op.empty())
        judged.between.push_back(judged.line.empty() ? judged.op : judged.op + " (" + judged.line + ")");
      judged.op = p_.step(i).op->target;
      judged.line = to_string(p_.node(i).line);
    } else {
      judged.between.push_back(p_.step(i).where);
    }
  }
  name_unmatched(judged, segment);
}

// An op that the record lacks, or has more often than the graph, comes first.
void Replay::name_unmatched(Judged& judged, const std::vector<int>& segment) const {
  for (const int i : segment) {
    const pt2::Step& step = p_.step(i);
    if (!unmatched_.contains(i) || step.op->aliasing != pt2::Aliasing::none || step.op->target == judged.op) continue;
    const std::string other = judged.line.empty() ? judged.op : judged.op + " (" + judged.line + ")";
    judged.op = step.op->target;
    judged.line = to_string(p_.node(i).line);
    std::erase(judged.between, judged.line.empty() ? judged.op : judged.op + " (" + judged.line + ")");
    judged.between.push_back(other);
    return;
  }
}

void Replay::compare(const std::string& name, JudgedKind kind, const Tensor& recorded, const Tensor& computed,
                     const Tensor& error, const std::vector<int>& segment) {
  Judged judged;
  judged.name = name;
  judged.kind = kind;
  judged.dtype = recorded.dtype();
  name_ops(judged, segment);
  const FloatInfo info = float_info(recorded.dtype());
  Tensor allowed = add(mul(abs(computed), info.epsilon), 4 * info.min_subnormal);
  if (error.defined()) allowed = add(allowed, error);
  const Tensor given = in_f64(recorded);
  if (given.sizes() != computed.sizes()) {
    judged.worst = kInfinity;
    judged.difference = kInfinity;
    result_.tensors.push_back(judged);
    return;
  }
  const Tensor difference = where(eq(given, computed), 0, abs(sub(given, computed)));
  const double size = std::max(norm(computed).item(), std::numeric_limits<double>::min());
  judged.difference = norm(difference).item() / size;
  judged.allowed = norm(allowed).item() / size;
  if (given.numel() > 0) judged.worst = max(div(difference, allowed)).item();
  if (std::isnan(judged.worst) || std::isnan(judged.difference)) judged.worst = kInfinity;
  result_.tensors.push_back(judged);
}

// Integers and masks; `open` is 1 where an element may be another one.
void Replay::compare_exactly(const std::string& name, const Tensor& recorded, const Tensor& computed,
                             const Tensor& open, const std::vector<int>& segment) {
  Judged judged;
  judged.name = name;
  judged.dtype = recorded.dtype();
  name_ops(judged, segment);
  bool same = recorded.sizes() == computed.sizes();
  if (same && recorded.numel() > 0) {
    Tensor other = cast(ne(recorded, computed), DType::f64);
    if (open.defined()) other = where(gt(open, 0), 0, other);
    same = sum(other).item() == 0;
  }
  judged.worst = same ? 0 : kInfinity;
  result_.tensors.push_back(judged);
}

// The value of `ids` that the recorded tensor is: of its sizes, and the nearest of several.
int Replay::best(const Tensor& recorded, const std::vector<int>& ids, const std::set<int>& used) {
  int found = -1;
  double least = kInfinity;
  for (const int id : ids) {
    const Tensor t = value(id);
    if (used.contains(id) || !t.defined() || t.sizes() != recorded.sizes()) continue;
    if (t.is_floating() != recorded.is_floating()) continue;
    const double away = unknown_.contains(id) ? 0 : norm(sub(cast(t, DType::f64), cast(recorded, DType::f64))).item();
    if (found >= 0 && !(away < least)) continue;
    found = id;
    least = std::isnan(away) ? kInfinity : away;
  }
  return found;
}

// Indices or a mask that differ from an input of the graph are another one: the module does not use this one, or the
// export gave two equal inputs one name.
bool Replay::other_input(const Tensor& recorded, int id) {
  const auto k = static_cast<std::size_t>(id);
  if (recorded.is_floating() || writer_[k] >= 0 || !segments_[k].empty() || recorded.numel() == 0) return false;
  return sum(cast(ne(recorded, value(id)), DType::f64)).item() > 0;
}

// A call of a module begins or ends: its recorded tensors are compared, and replace what was computed.
void Replay::pass(const Boundary& boundary, const std::vector<int>& ids) {
  std::set<int> taken;
  for (int place = 0;; ++place) {
    const std::string name = boundary.name(place);
    if (!judges_) {
      if (place >= static_cast<int>(ids.size())) return;
      const int id = ids[static_cast<std::size_t>(place)];
      if (!value(id).defined()) continue;
      written_.set(name, clone(value(id).detach()));
      recorded_gradients_[{id, writer_[static_cast<std::size_t>(id)]}].push_back({boundary.gradient_name(place), {}});
      continue;
    }
    const Tensor* const recorded = find(name);
    if (!recorded) return;
    const bool model = boundary.call.empty();
    const int id = model ? (place < static_cast<int>(ids.size()) ? ids[static_cast<std::size_t>(place)] : -1)
                         : best(*recorded, ids, taken);
    if (id < 0) {
      const bool only = ids.size() == 1 && place == 0 && !record_.contains(boundary.name(1)) && floats(value(ids[0])) &&
                        floats(*recorded);
      if (only)
        compare(name, JudgedKind::value, *recorded, value(ids[0]), {}, segments_[static_cast<std::size_t>(ids[0])]);
      else result_.not_judged.push_back(name);
      continue;
    }
    if (other_input(*recorded, id)) {
      result_.not_judged.push_back(name);
      continue;
    }
    taken.insert(id);
    take(name, boundary.gradient_name(place), id);
  }
}

void Replay::take(const std::string& name, const std::string& gradient, int id) {
  const auto k = static_cast<std::size_t>(id);
  const Tensor& recorded = *find(name);
  const Tensor computed = value(id);
  const bool other_function = name.starts_with("op.") && recorded.sizes() != computed.sizes();
  if (recorded.is_floating() != computed.is_floating() || other_function) {
    result_.not_judged.push_back(name);
    return;
  }
  // Where no op lies between two records, what made the value is named.
  if (segments_[k].empty() && writer_[k] >= 0) segments_[k] = {writer_[k]};
  if (unknown_.contains(id)) result_.not_judged.push_back(name);
  else if (!computed.is_floating()) compare_exactly(name, recorded, computed, errors_[k], segments_[k]);
  else compare(name, JudgedKind::value, recorded, computed, errors_[k], segments_[k]);
  const auto sampled = sampled_.find(id);
  if (sampled != sampled_.end() && !unknown_.contains(id)) result_.tensors.back().sampled = sampled->second;
  if (const Tensor* const g = find(gradient)) recorded_gradients_[{id, writer_[k]}].push_back({gradient, *g});
  sampled_.erase(id);
  unknown_.erase(id);
  contested_.erase(id);
  errors_[k] = {};
  segments_[k].clear();
  if (recorded.sizes() != computed.sizes()) return;
  run_.value(id) = in_f64(recorded);
  if (floats(recorded)) stored_[id] = recorded.dtype();
}

void Replay::compare_parameters() {
  std::vector<std::pair<int, int>> order;  // by the last step in backward
  for (const auto& [id, in] : p_.state)
    if (in->kind == pt2::InputKind::parameter && gradients_.contains(id))
      order.emplace_back(gradient_segments_[id].empty() ? 0 : -gradient_segments_[id].back(), id);
  std::ranges::sort(order);
  for (const auto& [by, id] : order) {
    const std::string name = "grad:" + p_.state.at(id)->name;
    if (!judges_) {
      written_.set(name, gradients_.at(id));
      continue;
    }
    const Tensor* recorded = find(name);
    for (const std::string& key : p_.keys.at(id))
      if (!recorded) recorded = find("grad:" + key);
    if (!recorded) continue;
    if (unknown_gradients_.contains(id)) {
      result_.not_judged.push_back(name);
      continue;
    }
    compare(name, JudgedKind::parameter_gradient, *recorded, gradients_[id], gradient_errors_[id],
            gradient_segments_[id]);
    name_missing_part(id, *recorded);
  }
}

void Replay::compare_buffers() {
  for (const auto& [id, in] : p_.state) {
    if (in->kind != pt2::InputKind::buffer) continue;
    const std::string name = "after:" + in->name;
    if (!judges_) {
      if (in->persistent) written_.set(name, clone(value(id)));
      continue;
    }
    const Tensor* const recorded = find(name);
    if (!recorded) continue;
    std::vector<int> segment;
    for (int i = 0; i < static_cast<int>(p_.plan.steps.size()); ++i) {
      const std::vector<int> reads = pt2::reads_of(p_, p_.step(i));
      if (std::ranges::find(reads, id) != reads.end()) segment = {i};
    }
    const Tensor now = value(id);
    if (!now.is_floating()) {
      compare_exactly(name, *recorded, now, {}, segment);
      result_.tensors.back().kind = JudgedKind::buffer;
      continue;
    }
    // The weighted mean of old and new; of other buffers, sums over a batch.
    constexpr double kWeightedMean = 4;
    constexpr double kUnits = 64;
    const Tensor size = add(abs(now), abs(state_before_.at(id)));
    const double u = float_info(recorded->dtype()).epsilon / 2;
    const double most = size.numel() > 0 ? max(size).item() : 0;
    const auto sums = statistics_errors_.find(id);
    const Tensor error = sums == statistics_errors_.end() ? mul(add(size, most), kUnits * u)
                                                          : add(sums->second, mul(size, kWeightedMean * u));
    compare(name, JudgedKind::buffer, *recorded, now, error, segment);
  }
}

}  // namespace gradual::lab
