// What a replay reads before it computes: parameters, inputs, and which tensors of the record belong where.
#include <fmt/format.h>
#include <algorithm>
#include <variant>

#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "judge_replay.h"

namespace gradual::lab {
namespace {

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

}  // namespace

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

}  // namespace gradual::lab
