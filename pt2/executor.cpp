#include "executor.h"

#include <algorithm>

#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::pt2 {

Value filled(const Value& v, const std::vector<Value>& values) {
  if (const Ref* r = v.get<Ref>()) return values[static_cast<std::size_t>(r->id)];
  if (const Value::List* list = v.get<Value::List>()) {
    Value::List all;
    for (const Value& item : *list) all.push_back(filled(item, values));
    return all;
  }
  return v;
}

const Tensor* tensor_of(const Value& v) {
  const Tensor* const t = v.get<Tensor>();
  return t && t->defined() ? t : nullptr;
}

namespace {

std::vector<Value> arguments_of(const Step& step, const std::vector<Value>& values) {
  std::vector<Value> arguments = step.arguments;
  for (const int i : step.incoming) {
    Value& a = arguments[static_cast<std::size_t>(i)];
    a = filled(a, values);
  }
  return arguments;
}

// Gives what an op returned to the names of its outputs.
void set_outputs(const Step& step, Value result, Run& run) {
  std::vector<int> names;
  for (const Node::Output& out : step.outputs) names.insert(names.end(), out.values.begin(), out.values.end());
  const bool single = step.outputs.size() == 1 && !step.outputs.front().list;
  if (single && !names.empty()) run.value(names.front()) = std::move(result);
  if (single || names.empty()) return;
  Value::List* const list = result.get<Value::List>();
  if (!list || list->size() < names.size())
    throwf("gives {}, the graph reads {} outputs", describe(result), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) run.value(names[i]) = std::move((*list)[i]);
}

// The place of a value in the list that its step returns.
int place_of(const Step& step, int id) {
  int place = 0;
  for (const Node::Output& out : step.outputs)
    for (const int name : out.values) {
      if (name == id) return place;
      ++place;
    }
  return 0;
}

}  // namespace

Value Executor::call(const Step& step) {
  std::vector<Value> arguments = arguments_of(step, run_.values);
  run_.site.names = step.op->names.data();
  return step.op->call(Arguments(arguments, run_.site));
}

// An op that gives new memory may return its argument where it changes nothing (clone, dropout in evaluation). The
// module's state and the caller's tensors may be written in place, so their numbers are copied then.
Value Executor::apart_from_state(const Step& step, Value result) {
  const Tensor* const t = tensor_of(result);
  if (!t || step.op->aliasing != Aliasing::none) return result;
  const auto shares = [t](const Tensor& other) { return other.defined() && other.shares_storage(*t); };
  const bool returned = std::ranges::any_of(step.incoming, [&](int i) {
    const Ref* const of = step.arguments[static_cast<std::size_t>(i)].get<Ref>();
    const Tensor* const from = of ? tensor_of(run_.value(of->id)) : nullptr;
    return from && shares(*from);
  });
  return returned && std::ranges::any_of(run_.state, shares) ? Value(clone(*t)) : result;
}

void Executor::run(const Step& step) {
  Value result = apart_from_state(step, call(step));
  if (step.written >= 0) return write(step, result);
  set_outputs(step, std::move(result), run_);
  if (!step.shares_known) note_copy(step);
}

// Notes whether what may be a view is one, where the file does not say it.
void Executor::note_copy(const Step& step) {
  const Ref* const of = step.arguments[0].get<Ref>();
  if (!of || step.outputs.empty() || step.outputs[0].values.empty()) return;
  const int out = step.outputs[0].values[0];
  const Tensor* const from = tensor_of(run_.value(of->id));
  const Tensor* const to = tensor_of(run_.value(out));
  if (from && to) run_.apart[static_cast<std::size_t>(out)] = !from->shares_storage(*to);
}

bool Executor::is_copy(const Step& made, int id) const {
  return !made.shares_known && run_.apart[static_cast<std::size_t>(id)];
}

// The value of the written name becomes the result, in the target's dtype and sizes.
void Executor::write(const Step& step, const Value& result) {
  const Tensor* const old = tensor_of(run_.value(step.written));
  const Tensor* const now = tensor_of(result);
  if (!old || !now) throw_error("its target and its result must be tensors");
  if (!step.grad && old->requires_grad())
    throw_error("writes without gradients into a tensor that has one; this is not supported");
  Tensor written = cast(*now, old->dtype());
  if (written.sizes() != old->sizes()) written = expand(written, old->sizes());
  run_.value(step.written) = std::move(written);
  if (!step.owners.empty()) write_through(step);
}

void Executor::write_through(const Step& step) {
  std::vector<int> changed{step.written};
  for (std::size_t i = 0; i + 1 < step.owners.size(); ++i) {
    const int view = step.owners[i];
    const int owner = step.owners[i + 1];
    const Step& made = maker(view);
    if (is_copy(made, view)) break;
    if (!made.op->write_through)
      throwf(
          "writes into the result of {}, a view of a tensor that is read later; that view cannot be written through. "
          "Give the new value a name of its own in Python",
          made.where);
    std::vector<Value> arguments = arguments_of(made, run_.values);
    run_.site.names = made.op->names.data();
    const Arguments given(arguments, run_.site);
    run_.value(owner) = made.op->write_through(given, *tensor_of(run_.value(view)), place_of(made, view));
    changed.push_back(owner);
  }
  for (const int id : step.refreshed) {
    const Step& made = maker(id);
    const Ref* const of = made.arguments[0].get<Ref>();
    if (!of || is_copy(made, id) || std::ranges::find(changed, of->id) == changed.end()) continue;
    Value again = call(made);
    const Value::List* const list = again.get<Value::List>();
    run_.value(id) = list ? (*list)[static_cast<std::size_t>(place_of(made, id))] : again;
    changed.push_back(id);
  }
}

ModuleScopes::~ModuleScopes() {
  while (!calls_.empty()) calls_.pop_back();
}

void ModuleScopes::enter(const std::vector<nn::Module*>& modules, const SourceLocation& line) {
  std::size_t kept = 0;
  while (kept < calls_.size() && kept < modules.size() && calls_[kept].first == modules[kept]) ++kept;
  while (calls_.size() > kept) calls_.pop_back();
  for (; kept < modules.size(); ++kept)
    calls_.emplace_back(modules[kept], std::make_unique<nn::ModuleCall>(*modules[kept], line));
}

}  // namespace gradual::pt2
