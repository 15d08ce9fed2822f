#include "program.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "archive.h"
#include "executor.h"
#include "read_graph.h"

namespace gradual::pt2 {

const Weight& Program::weight(const Input& in) const {
  const bool stored = in.kind != InputKind::constant && in.persistent && weights.contains(in.name);
  const std::map<std::string, Weight>& tensors = stored || !constants.contains(in.name) ? weights : constants;
  const auto found = tensors.find(in.name);
  if (found == tensors.end()) throwf("the archive has no tensor {}", in.name);
  return found->second;
}

std::string Program::key_below(int id, const std::string& module) const {
  const auto found = keys.find(id);
  if (found == keys.end()) return "";
  for (const std::string& key : found->second)
    if (module.empty() || key.starts_with(module + ".")) return key;
  return "";
}

void add_refs(const Value& v, std::vector<int>& ids) {
  if (const Ref* const r = v.get<Ref>()) ids.push_back(r->id);
  if (const Value::List* const list = v.get<Value::List>())
    for (const Value& item : *list) add_refs(item, ids);
}

std::vector<int> reads_of(const Program& program, const Step& step) {
  std::vector<int> ids;
  for (const Value& v : step.arguments) add_refs(v, ids);
  const auto add_arguments_of = [&](int id) {
    if (const Step* const made = program.maker(id))
      for (const Value& v : made->arguments) add_refs(v, ids);
  };
  for (const int id : step.owners) {
    ids.push_back(id);
    add_arguments_of(id);
  }
  for (const int id : step.refreshed) {
    ids.push_back(id);
    add_arguments_of(id);
  }
  return ids;
}

std::vector<int> writes_of(const Step& step) {
  std::vector<int> ids;
  const auto add = [&](const std::vector<int>& more) {
    for (const int id : more)
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  for (const Node::Output& out : step.outputs) add(out.values);
  if (step.written >= 0) add({step.written});
  add(step.owners);
  add(step.refreshed);
  return ids;
}

namespace {

// --- a run on zeros --------------------------------------------------------------------------------------------------

Fact fact_of(const Value& v) {
  using Kind = Fact::Kind;
  if (const Tensor* const t = v.get<Tensor>(); t && t->defined()) return {Kind::tensor, t->dtype(), t->dim()};
  if (v.get<std::int64_t>()) return {Kind::integer};
  if (v.get<double>()) return {Kind::number};
  if (v.get<bool>()) return {Kind::flag};
  if (v.get<std::string>()) return {Kind::text};
  if (v.get<Value::List>()) return {Kind::list};
  return {};
}

Tensor zeros_for(const Input& in, std::int64_t any_size) {
  Shape sizes;
  for (const std::int64_t n : in.sizes) sizes.push_back(n < 0 ? any_size : n);
  return zeros(sizes, {.dtype = in.dtype});
}

}  // namespace

void find_facts(Program& p, std::int64_t any_size) {
  const NoGrad no_grad;
  p.facts.resize(p.graph.values.size());
  Run run;
  run.values.resize(p.graph.values.size());
  run.apart.resize(p.graph.values.size());
  run.site.training = p.plan.training_calls > 0 || p.plan.evaluation_calls == 0;
  for (const Input& in : p.graph.inputs) {
    Tensor t = in.kind == InputKind::user ? zeros_for(in, any_size) : clone(p.weight(in).tensor);
    p.facts[static_cast<std::size_t>(in.value)] = fact_of(t);
    run.value(in.value) = std::move(t);
  }
  Executor executor(p.plan, run);
  for (const Step& step : p.plan.steps) {
    try {
      executor.run(step);
    } catch (const Error& e) {
      throwf("{}, run on zeros of which every size that may differ is {}: {}", step.where, any_size, e.what());
    }
    for (const Node::Output& out : step.outputs)
      for (const int id : out.values) p.facts[static_cast<std::size_t>(id)] = fact_of(run.value(id));
    for (const int id : step.release) run.value(id) = Value();
  }
}

namespace {

// --- calls of modules ------------------------------------------------------------------------------------------------

// The modules of a step without the root. A step that no module called (Python's arithmetic on sizes) belongs to those
// of the step before. A module that its caller does not contain (in Python an argument of the call) is a part of the
// caller's call.
std::vector<std::string> path_of(const Node& node, const std::vector<std::string>& before) {
  if (node.modules.empty()) return before;
  std::vector<std::string> path;
  for (const std::string& module : node.modules)
    if (!module.empty() && (path.empty() || module.starts_with(path.back() + "."))) path.push_back(module);
  return path;
}

void add_to_runs(std::vector<std::shared_ptr<ModuleRun>>& open, int step, const std::vector<std::string>& path) {
  std::size_t kept = 1;
  while (kept < open.size() && kept - 1 < path.size() && open[kept]->path == path[kept - 1]) ++kept;
  open.resize(kept);
  for (std::size_t i = kept - 1; i < path.size(); ++i) {
    const auto run = std::make_shared<ModuleRun>();
    run->path = path[i];
    run->first = step;
    open.back()->items.push_back({-1, run});
    open.push_back(run);
  }
  open.back()->items.push_back({step, nullptr});
  for (const std::shared_ptr<ModuleRun>& run : open) run->last = step;
}

void find_runs(Program& p) {
  p.root = std::make_shared<ModuleRun>();
  std::vector<std::shared_ptr<ModuleRun>> open{p.root};
  std::vector<std::string> before;
  for (int i = 0; i < static_cast<int>(p.plan.steps.size()); ++i) {
    before = path_of(p.node(i), before);
    add_to_runs(open, i, before);
  }
}

bool inside(const Program& p, int id, const std::string& path) { return !p.key_below(id, path).empty(); }

bool one_tensor(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() && a.sizes() == b.sizes() && a.dtype() == b.dtype() && a.numel() > 0;
}

void find_keys(Program& p) {
  for (const Input& in : p.graph.inputs) {
    if (in.kind == InputKind::user) continue;
    p.state[in.value] = &in;
    std::vector<std::string>& keys = p.keys[in.value];
    keys.push_back(in.name);
    for (const auto& [key, weight] : p.weights)
      if (key != in.name && one_tensor(weight.tensor, p.weight(in).tensor)) keys.push_back(key);
  }
}

void find_ends(const Program& p, const std::vector<int>& last_read, ModuleRun& run) {
  std::set<int> given;
  for (int i = run.first; i <= run.last; ++i) {
    for (const int id : reads_of(p, p.step(i)))
      if (!inside(p, id, run.path) && given.insert(id).second) run.inputs.push_back(id);
    for (const int id : writes_of(p.step(i))) {
      if (p.state.contains(id) && !inside(p, id, run.path))
        throwf("{}: writes a tensor of another module; this cannot be translated", p.step(i).where);
      given.insert(id);
      const bool known = std::ranges::find(run.outputs, id) != run.outputs.end();
      if (!known && !p.state.contains(id) && last_read[static_cast<std::size_t>(id)] > run.last)
        run.outputs.push_back(id);
    }
  }
  for (const RunItem& item : run.items)
    if (item.run) find_ends(p, last_read, *item.run);
}

void find_all_ends(Program& p) {
  std::vector<int> last_read(p.graph.values.size(), -1);
  const auto read = [&](int id, int step) {
    int& last = last_read[static_cast<std::size_t>(id)];
    last = std::max(last, step);
  };
  const int end = static_cast<int>(p.plan.steps.size());
  for (int i = 0; i < end; ++i)
    for (const int id : reads_of(p, p.step(i))) read(id, i);
  for (const Value& v : p.plan.outputs) {
    std::vector<int> ids;
    add_refs(v, ids);
    for (const int id : ids) read(id, end);
  }
  find_ends(p, last_read, *p.root);
}

}  // namespace

Program read_program(const std::string& path) {
  const Archive archive(path);
  return in_context("pt2 \"" + path + "\"", [&] {
    Program p;
    p.name = archive.name();
    p.path = path;
    p.graph = read_graph(archive);
    p.plan = make_plan(p.graph);
    p.weights = read_weights(archive);
    p.constants = read_constants(archive);
    for (const auto& [key, weight] : p.weights) check_levels(key);
    for (const auto& [key, weight] : p.constants) check_levels(key);
    for (const ModuleClass& of : p.graph.modules) p.classes[of.path] = of.python_class;
    find_keys(p);
    find_runs(p);
    find_all_ends(p);
    return p;
  });
}

}  // namespace gradual::pt2
