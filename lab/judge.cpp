#include "judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "judge_step.h"

namespace gradual::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor in_f64(const Tensor& t) { return t.is_floating() ? cast(t.detach(), DType::f64) : t.detach(); }

bool floats(const Tensor& t) { return t.defined() && t.is_floating(); }

// The tensors of a call of a module, before it ("in") or behind it ("out").
struct Boundary {
  std::string side;
  std::string call;  // "blocks.0.fc", "blocks.0.fc@1" for its second call, "" for the model
  const pt2::ModuleRun* run = nullptr;

  std::string name(int place) const { return fmt::format("{}.{}:{}", side, place, call); }
  std::string gradient_name(int place) const { return fmt::format("{}.{}.grad:{}", side, place, call); }
};

// The result of a function that a module's own forward called.
struct OwnResult {
  std::string name;      // "op.0:h.0.attn/softmax"
  std::string gradient;  // "op.0.grad:h.0.attn/softmax"
  int id = 0;
};

// "aten.softmax.int" -> "softmax".
std::string function_name(const std::string& target) {
  const auto first = target.find('.') + 1;
  return target.substr(first, target.rfind('.') - first);
}

// The only tensor that a step gives; -1 if it gives several or none.
int only_result(const pt2::Step& step) {
  if (step.written >= 0) return step.written;
  const bool one = step.outputs.size() == 1 && !step.outputs[0].list && step.outputs[0].values.size() == 1;
  return one ? step.outputs[0].values[0] : -1;
}

// A value of the graph between two writes.
struct Version {
  int id = 0;
  int writer = -1;  // the step; -1: an input

  auto operator<=>(const Version&) const = default;
};

// A recorded gradient, of a version of a value.
struct RecordedGradient {
  std::string name;
  Tensor tensor;
};

// A step of forward, kept for backward.
struct Kept {
  int step = 0;
  ValueTensors inputs;
  std::vector<Tensor> errors;
  std::vector<int> writers;  // of the inputs
  std::vector<int> written;  // values
  Units units;
  Tensor mask;  // of a dropout: what it multiplied with
};

class Replay {
 public:
  // With `judges`, every recorded tensor is compared and taken over; else the record gives only what goes in.
  Replay(const pt2::Program& program, const StateDict& record, DType dtype, bool judges, const JudgeOptions& options);

  Judgement judgement();
  StateDict recorded();

 private:
  void set_state();
  void set_inputs();
  void find_boundaries();
  void find_own_results(const pt2::ModuleRun& run, const std::string& call);
  void note_dtype(const Boundary& boundary, const std::vector<int>& ids);
  void forward();
  void backward();
  void run_step(int index);
  void keep_step(int index, const ValueTensors& inputs, const Units& units);
  bool run_dropout(int index, const ValueTensors& inputs);
  void pass(const Boundary& boundary, const std::vector<int>& ids);
  void take(const std::string& name, const std::string& gradient, int id);
  int best(const Tensor& recorded, const std::vector<int>& ids, const std::set<int>& used);
  void compare(const std::string& name, JudgedKind kind, const Tensor& recorded, const Tensor& computed,
               const Tensor& error, const std::vector<int>& segment);
  void name_ops(Judged& judged, const std::vector<int>& segment) const;
  void name_unmatched(Judged& judged, const std::vector<int>& segment) const;
  void compare_exactly(const std::string& name, const Tensor& recorded, const Tensor& computed,
                       const std::vector<int>& segment);
  void start_backward();
  void backward_step(const Kept& kept);
  void take_gradient(int id, int writer);
  void name_missing_part(int id, const Tensor& recorded);
  void compare_parameters();
  void compare_buffers();
  Units units_for(const pt2::Step& step, int id) const;
  const Tensor* find(const std::string& name);
  std::vector<int> outputs_of_model() const;

  Tensor value(int id) {
    const Tensor* const t = pt2::tensor_of(run_.value(id));
    return t ? *t : Tensor();
  }
  Tensor in_dtype(const Tensor& t) const { return t.is_floating() ? cast(t.detach(), dtype_) : t.detach(); }

  const pt2::Program& p_;
  const StateDict& record_;
  DType dtype_;
  bool judges_;
  DType unrecorded_ = DType::f32;
  pt2::Run run_;
  std::unique_ptr<StepBounds> bounds_;
  std::map<int, std::vector<Boundary>> before_, behind_;  // by step
  std::map<int, OwnResult> own_results_;                  // by step
  std::set<int> unmatched_;                               // steps that the record has more or less often
  std::vector<Tensor> errors_;                            // by value; undefined: none
  std::vector<int> writer_;                               // by value
  std::vector<std::vector<int>> segments_;                // by value: the steps since the recorded tensors
  std::set<int> unknown_;                                 // values that random numbers decided
  std::map<int, DType> stored_;                           // how a value is recorded, known before it is computed
  std::vector<Kept> kept_;
  std::map<Version, std::vector<RecordedGradient>> recorded_gradients_;
  std::map<Version, Tensor> output_gradients_;
  std::map<int, Tensor> gradients_, gradient_errors_;  // by value
  std::map<int, std::vector<int>> gradient_segments_;
  std::map<int, std::vector<std::pair<int, Tensor>>> gradient_parts_;  // by value: what each step gave
  std::set<int> unknown_gradients_;
  std::map<int, Tensor> state_before_;
  std::set<std::string> used_;
  Judgement result_;
  StateDict written_;
};

Replay::Replay(const pt2::Program& program, const StateDict& record, DType dtype, bool judges,
               const JudgeOptions& options)
    : p_(program), record_(record), dtype_(dtype), judges_(judges) {
  const std::size_t count = p_.graph.values.size();
  run_.values.resize(count);
  run_.apart.resize(count);
  errors_.resize(count);
  writer_.assign(count, -1);
  segments_.resize(count);
  run_.site.training = p_.plan.training_calls > 0 || p_.plan.evaluation_calls == 0;
  run_.site.real = dtype == DType::f64 ? DType::f64 : DType::f32;
  bounds_ = std::make_unique<StepBounds>(p_, run_);
  for (const auto& entry : record_) {
    const Tensor* const t = std::get_if<Tensor>(&entry.value);
    const bool activation = entry.name.starts_with("out.") && entry.name.find(".grad:") == std::string::npos;
    if (t && t->is_floating() && activation && float_info(t->dtype()).epsilon > float_info(unrecorded_).epsilon)
      unrecorded_ = t->dtype();
  }
  unrecorded_ = options.dtype.value_or(unrecorded_);
  find_boundaries();
  set_state();
  set_inputs();
}

const Tensor* Replay::find(const std::string& name) {
  if (!record_.contains(name)) return nullptr;
  used_.insert(name);
  return std::get_if<Tensor>(&record_.at(name));
}

// --- what goes in ----------------------------------------------------------------------------------------------------

void Replay::set_state() {
  for (const auto& [id, in] : p_.state) {
    Tensor t = p_.weight(*in).tensor;
    for (const std::string& key : p_.keys.at(id)) {
      const Tensor* const given = find("before:" + key);
      if (!given) continue;
      if (given->sizes() != t.sizes())
        throwf("before:{} is {}; the graph has {}", key, to_string(given->sizes()), to_string(t.sizes()));
      t = *given;
    }
    run_.value(id) = clone(in_dtype(t));
    state_before_[id] = clone(in_dtype(t));
    if (!judges_ && in->kind != pt2::InputKind::constant && in->persistent) written_.set("before:" + in->name, t);
  }
}

void Replay::set_inputs() {
  int place = 0;
  for (const pt2::Input& in : p_.graph.inputs) {
    if (in.kind != pt2::InputKind::user) continue;
    const std::string name = fmt::format("in.{}:", place++);
    const Tensor* const given = find(name);
    if (!given) throwf("the record has no {}, the input {} of the model", name, in.name);
    bool fits = given->dim() == static_cast<int>(in.sizes.size());
    for (std::size_t i = 0; fits && i < in.sizes.size(); ++i)
      fits = in.sizes[i] < 0 || in.sizes[i] == given->sizes()[static_cast<int>(i)];
    if (!fits) throwf("{} is {}, which the graph was not exported for", name, to_string(given->sizes()));
    run_.value(in.value) = in_dtype(*given);
    if (floats(*given)) stored_[in.value] = given->dtype();
    if (!judges_) written_.set(name, given->detach());
  }
}

// How the only tensor at a boundary is stored decides how the op that makes it rounds.
void Replay::note_dtype(const Boundary& boundary, const std::vector<int>& ids) {
  const Tensor* const t = ids.size() == 1 && judges_ ? find(boundary.name(0)) : nullptr;
  if (t && floats(*t)) stored_.emplace(ids[0], t->dtype());
}

// The n-th call of a function by a module is the n-th step of that name, if the record has as many as the graph.
void Replay::find_own_results(const pt2::ModuleRun& run, const std::string& call) {
  std::map<std::string, std::vector<int>> steps;
  for (const pt2::RunItem& item : run.items)
    if (!item.run) steps[function_name(p_.step(item.step).op->target)].push_back(item.step);
  const auto name_of = [&](const char* start, const std::string& function, std::size_t n) {
    return fmt::format("{}:{}/{}{}", start, call, function, n == 0 ? "" : fmt::format("@{}", n));
  };
  for (const auto& [function, places] : steps) {
    std::size_t recorded = 0;
    while (record_.contains(name_of("op.0", function, recorded))) ++recorded;
    for (std::size_t n = 0; n < places.size(); ++n) {
      const int id = only_result(p_.step(places[n]));
      if (recorded != places.size()) unmatched_.insert(places[n]);
      else if (id >= 0) own_results_[places[n]] = {name_of("op.0", function, n), name_of("op.0.grad", function, n), id};
    }
  }
}

void Replay::find_boundaries() {
  std::map<std::string, int> calls;
  const auto visit = [&](const auto& self, const pt2::ModuleRun& run) -> void {
    for (const pt2::RunItem& item : run.items) {
      if (!item.run) continue;
      const int before = calls[item.run->path]++;
      const std::string call = before == 0 ? item.run->path : fmt::format("{}@{}", item.run->path, before);
      before_[item.run->first].push_back({"in", call, item.run.get()});
      self(self, *item.run);
      behind_[item.run->last].push_back({"out", call, item.run.get()});
      note_dtype(behind_[item.run->last].back(), item.run->outputs);
      note_dtype({"in", call, item.run.get()}, item.run->inputs);
    }
  };
  visit(visit, *p_.root);
  const bool functions = std::ranges::any_of(record_, [](const auto& e) { return e.name.starts_with("op."); });
  if (!judges_ || !functions) return;
  find_own_results(*p_.root, "");
  for (const auto& [step, boundaries] : before_)
    for (const Boundary& b : boundaries) find_own_results(*b.run, b.call);
  for (const auto& [step, own] : own_results_)
    if (const Tensor* const t = find(own.name); t && floats(*t)) stored_.emplace(own.id, t->dtype());
}

std::vector<int> Replay::outputs_of_model() const {
  std::vector<int> ids;
  for (std::size_t i = 0; i < p_.graph.outputs.size(); ++i)
    if (p_.graph.outputs[i].kind == pt2::OutputKind::user) pt2::add_refs(p_.plan.outputs[i], ids);
  std::erase_if(ids, [&](int id) { return !pt2::tensor_of(run_.values[static_cast<std::size_t>(id)]); });
  return ids;
}

// --- comparing -------------------------------------------------------------------------------------------------------

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

// Integers and masks.
void Replay::compare_exactly(const std::string& name, const Tensor& recorded, const Tensor& computed,
                             const std::vector<int>& segment) {
  Judged judged;
  judged.name = name;
  judged.dtype = recorded.dtype();
  name_ops(judged, segment);
  const bool same = recorded.sizes() == computed.sizes() &&
                    (recorded.numel() == 0 || sum(cast(ne(recorded, computed), DType::i64)).item() == 0);
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
      const bool only = ids.size() == 1 && place == 0 && floats(value(ids[0])) && floats(*recorded);
      if (only)
        compare(name, JudgedKind::value, *recorded, value(ids[0]), {}, segments_[static_cast<std::size_t>(ids[0])]);
      else result_.not_judged.push_back(name);
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
  else if (!computed.is_floating()) compare_exactly(name, recorded, computed, segments_[k]);
  else compare(name, JudgedKind::value, recorded, computed, errors_[k], segments_[k]);
  if (const Tensor* const g = find(gradient)) recorded_gradients_[{id, writer_[k]}].push_back({gradient, *g});
  unknown_.erase(id);
  errors_[k] = {};
  segments_[k].clear();
  if (recorded.sizes() != computed.sizes()) return;
  run_.value(id) = in_f64(recorded);
  if (floats(recorded)) stored_[id] = recorded.dtype();
}

// --- forward ---------------------------------------------------------------------------------------------------------

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
    unknown = unknown || unknown_.contains(id);
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
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const int id = outputs[i].first;
    const auto k = static_cast<std::size_t>(id);
    errors_[k] = bounds[i];
    writer_[k] = index;
    segments_[k] = segment;
    if (unknown) unknown_.insert(id);
    else unknown_.erase(id);
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

// --- backward --------------------------------------------------------------------------------------------------------

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
  bool unknown = draws(step) && !kept.mask.defined();
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
      compare_exactly(name, *recorded, now, segment);
      result_.tensors.back().kind = JudgedKind::buffer;
      continue;
    }
    // Sums over a batch, and one weighted mean.
    constexpr double kUnits = 64;
    const Tensor size = add(abs(now), abs(state_before_.at(id)));
    const double most = size.numel() > 0 ? max(size).item() : 0;
    const double u = float_info(recorded->dtype()).epsilon / 2;
    compare(name, JudgedKind::buffer, *recorded, now, mul(add(size, most), kUnits * u), segment);
  }
}

Judgement Replay::judgement() {
  forward();
  pass({"out", "", p_.root.get()}, outputs_of_model());
  backward();
  compare_buffers();
  for (const auto& entry : record_)
    if (!used_.contains(entry.name)) result_.not_judged.push_back(entry.name);
  return std::move(result_);
}

StateDict Replay::recorded() {
  forward();
  pass({"out", "", p_.root.get()}, outputs_of_model());
  backward();
  compare_buffers();
  return std::move(written_);
}

}  // namespace

const Judged* Judgement::first() const {
  const auto found = std::ranges::find_if(tensors, [](const Judged& j) { return !j.explained(); });
  return found == tensors.end() ? nullptr : &*found;
}

Judgement judge(const pt2::Program& program, const StateDict& record, const JudgeOptions& options) {
  return Replay(program, record, DType::f64, true, options).judgement();
}

StateDict record_step(const pt2::Program& program, const StateDict& record, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::f64)
    throwf("a step is recorded in f32 or f64, not in {}", to_string(dtype));
  return Replay(program, record, dtype, false, {}).recorded();
}

}  // namespace gradual::lab
