#include "plan.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "python_line.h"

namespace gradual::pt2 {
namespace {

// Checks of the exporting run, which compute nothing.
constexpr std::string_view kIgnored[] = {
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten._assert_async.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
    "_check",
    "aten._functional_assert_async.msg",
};
bool ignored(const std::string& target) { return std::ranges::find(kIgnored, target) != std::end(kIgnored); }

// "aten.relu_.default" -> "aten.relu.default"; empty if the name is not that of an in-place op.
std::string functional_name(const std::string& target) {
  const auto dot = target.rfind('.');
  if (dot == std::string::npos || dot < 2 || target[dot - 1] != '_' || target[dot - 2] == '_') return "";
  return target.substr(0, dot - 1) + target.substr(dot);
}

std::string where_of(const Node& n) {
  const std::string line = to_string(n.line);
  return line.empty() ? n.target : fmt::format("{} ({})", n.target, line);
}

// Dims that one stride walks.
struct Block {
  std::int64_t size = 1;
  std::int64_t stride = 0;
  friend bool operator==(const Block&, const Block&) = default;
};

// The blocks of a layout from the last dim on. Two layouts of one memory have the same elements in the same order if
// and only if their blocks are equal.
std::vector<Block> blocks_of(const Layout& layout) {
  std::vector<Block> blocks;
  for (std::size_t d = layout.sizes.size(); d-- > 0;) {
    const std::int64_t size = layout.sizes[d];
    const std::int64_t stride = layout.strides[d];
    if (size == 1) continue;
    std::int64_t next = 0;
    std::int64_t product = 0;
    if (!blocks.empty() && !__builtin_mul_overflow(blocks.back().size, blocks.back().stride, &next) && next == stride &&
        !__builtin_mul_overflow(blocks.back().size, size, &product))
      blocks.back().size = product;
    else blocks.push_back({size, stride});
  }
  return blocks;
}

class Planner {
 public:
  explicit Planner(const Graph& graph) : graph_(graph), same_as_(graph.values.size()) {
    for (std::size_t i = 0; i < same_as_.size(); ++i) same_as_[i] = static_cast<int>(i);
    plan_.made_by.assign(graph.values.size(), -1);
    plan_.place.assign(graph.values.size(), 0);
    parent_.assign(graph.values.size(), -1);
    last_use_.assign(graph.values.size(), -1);
    root_ = same_as_;
  }

  Plan make();

 private:
  std::shared_ptr<const Op> op_of(const std::string& target);
  void add(int node);
  void set_arguments(Step& step, const Node& node) const;
  Value renamed(const Value& v) const;
  template <class F> static void each_ref(const Value& v, const F& f);
  void use(const Value& v, int step);
  struct Copy {
    const Layout& from;
    const Layout& to;
  };
  std::optional<Copy> copy_of(const Step& step) const;
  static void decide_sharing(Step& step, const Copy& copy);
  static void drop_dtype_of_move(Step& step, const Copy& copy);
  void link_views(const Step& step);
  void plan_write(int index);
  void set_releases();
  [[noreturn]] void report_unknown() const;

  const Graph& graph_;
  Plan plan_;
  std::vector<int> same_as_;  // the name under which a value is kept: an in-place op's output is its target
  std::vector<int> parent_;   // the value that this one is a view of, or -1
  std::vector<int> root_;     // the value that owns its memory
  std::vector<int> last_use_;
  std::map<std::string, std::shared_ptr<const Op>> ops_;
  std::map<std::string, std::vector<const Node*>> unknown_;
  std::map<int, std::vector<int>> tree_;  // the values that share the memory of a root, the root included
};

std::shared_ptr<const Op> Planner::op_of(const std::string& target) {
  std::shared_ptr<const Op>& known = ops_[target];
  if (!known)
    if (const Op* op = find_op(target)) known = std::make_shared<const Op>(*op);
  return known;
}

Value Planner::renamed(const Value& v) const {
  if (const Ref* r = v.get<Ref>()) return Ref{same_as_[static_cast<std::size_t>(r->id)]};
  if (const Value::List* list = v.get<Value::List>()) {
    Value::List all;
    for (const Value& item : *list) all.push_back(renamed(item));
    return all;
  }
  return v;
}

template <class F> void Planner::each_ref(const Value& v, const F& f) {
  if (const Ref* r = v.get<Ref>()) f(r->id);
  if (const Value::List* list = v.get<Value::List>())
    for (const Value& item : *list) each_ref(item, f);
}

// Arguments by name; without a name (Python's own functions) by position.
void Planner::set_arguments(Step& step, const Node& node) const {
  const Op& op = *step.op;
  step.arguments = op.defaults;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const auto& [name, value] = node.inputs[i];
    auto at = static_cast<std::size_t>(std::ranges::find(op.names, name) - op.names.begin());
    if (at == op.names.size() && (name.empty() || i == 0)) at = i;  // in-place forms call argument 0 "self"
    if (at >= op.names.size()) throwf("{}: no argument '{}'; allowed are {}", step.where, name, join(op.names));
    step.arguments[at] = renamed(value);
  }
  for (std::size_t i = 0; i < step.arguments.size(); ++i) {
    bool refers = false;
    each_ref(step.arguments[i], [&](int id) {
      if (id < 0) throwf("{}: lacks the argument '{}'", step.where, op.names[i]);
      refers = true;
    });
    if (refers) step.incoming.push_back(static_cast<int>(i));
  }
}

void Planner::add(int index) {
  const Node& node = graph_.nodes[static_cast<std::size_t>(index)];
  if (ignored(node.target)) return;
  std::shared_ptr<const Op> op = op_of(node.target);
  bool in_place = false;
  if (!op) {
    const std::string functional = functional_name(node.target);
    if (!functional.empty()) op = op_of(functional);
    if (op && op->aliasing != Aliasing::none) op = nullptr;  // squeeze_ changes what its target is, not its numbers
    in_place = op != nullptr;
  }
  if (!op) {
    unknown_[node.target].push_back(&node);
    return;
  }
  Step step;
  step.op = op;
  step.node = index;
  step.grad = node.grad;
  step.autocast = node.autocast;
  step.where = where_of(node);
  step.line = location_of(node.line);
  set_arguments(step, node);
  const int position = static_cast<int>(plan_.steps.size());
  if (in_place) {
    const Ref* const target = step.arguments.at(0).get<Ref>();
    if (!target) throwf("{}: argument 0 is not a tensor of the graph", step.where);
    step.written = target->id;
    for (const Node::Output& out : node.outputs)
      for (const int id : out.values) same_as_[static_cast<std::size_t>(id)] = target->id;
  } else {
    step.outputs = node.outputs;
    for (std::size_t place = 0; place < step.outputs.size(); ++place)
      for (const int id : step.outputs[place].values) {
        plan_.made_by[static_cast<std::size_t>(id)] = position;
        plan_.place[static_cast<std::size_t>(id)] = static_cast<int>(place);
      }
  }
  if (op->mode >= 0) {
    const bool* const flag = step.arguments[static_cast<std::size_t>(op->mode)].get<bool>();
    if (flag != nullptr) ++(*flag ? plan_.training_calls : plan_.evaluation_calls);
  }
  plan_.steps.push_back(std::move(step));
}

void Planner::use(const Value& v, int step) {
  each_ref(v, [&](int id) {
    int& last = last_use_[static_cast<std::size_t>(id)];
    last = std::max(last, step);
  });
}

// The layouts that PyTorch had of what a step may copy and of the result. None if the file does not say both.
std::optional<Planner::Copy> Planner::copy_of(const Step& step) const {
  const Ref* const of = step.arguments.at(0).get<Ref>();
  if (!of || step.outputs.empty() || step.outputs[0].values.empty()) return {};
  const Layout& from = graph_.layouts[static_cast<std::size_t>(of->id)];
  const Layout& to = graph_.layouts[static_cast<std::size_t>(step.outputs[0].values[0])];
  if (from.dtype == 0 || to.dtype == 0) return {};
  return Copy{from, to};
}

// Whether PyTorch copied: it does if dtype or order of the elements in memory differ, or if it was told to.
void Planner::decide_sharing(Step& step, const Copy& copy) {
  const auto flag = static_cast<std::size_t>(std::ranges::find(step.op->names, "copy") - step.op->names.begin());
  const bool* const asked = flag < step.arguments.size() ? step.arguments[flag].get<bool>() : nullptr;
  step.shares_known = true;
  step.shares = copy.from.dtype == copy.to.dtype && !(asked && *asked) && blocks_of(copy.from) == blocks_of(copy.to);
}

// x.to(device) is exported as a cast to the dtype that x had there. It keeps the dtype that x has here, which a recipe
// chooses.
void Planner::drop_dtype_of_move(Step& step, const Copy& copy) {
  if (step.op->target == "aten.to.dtype_layout" && copy.from.dtype == copy.to.dtype) step.arguments.at(1) = Value();
}

// Notes which values share memory.
void Planner::link_views(const Step& step) {
  if (step.op->aliasing == Aliasing::none || step.written >= 0 || !step.shares) return;
  const Ref* const of = step.arguments.at(0).get<Ref>();
  if (!of) return;
  for (const Node::Output& out : step.outputs)
    for (const int id : out.values) {
      parent_[static_cast<std::size_t>(id)] = of->id;
      const int root = root_[static_cast<std::size_t>(of->id)];
      root_[static_cast<std::size_t>(id)] = root;
      std::vector<int>& tree = tree_[root];
      if (tree.empty()) tree.push_back(root);
      tree.push_back(id);
    }
}

// Finds who sees the write of this step. Steps are visited from the last to the first, because what a later write reads
// must be up to date.
void Planner::plan_write(int index) {
  Step& step = plan_.steps[static_cast<std::size_t>(index)];
  if (step.written < 0) return;
  std::vector<int> owners{step.written};
  while (parent_[static_cast<std::size_t>(owners.back())] >= 0)
    owners.push_back(parent_[static_cast<std::size_t>(owners.back())]);
  const auto tree = tree_.find(owners.back());
  if (tree == tree_.end()) return;
  const auto alive = [&](int id) {
    return id != step.written && last_use_[static_cast<std::size_t>(id)] > index &&
           plan_.made_by[static_cast<std::size_t>(id)] < index;
  };
  std::set<int> needed;
  for (const int id : tree->second) {
    if (!alive(id)) continue;
    for (int v = id; v >= 0 && needed.insert(v).second;) v = parent_[static_cast<std::size_t>(v)];
  }
  if (needed.empty()) return;
  step.owners = owners;
  for (const int id : owners) use(Ref{id}, index);
  for (const int id : tree->second) {
    if (!needed.contains(id) || std::ranges::find(owners, id) != owners.end()) continue;
    step.refreshed.push_back(id);
    const int maker = plan_.made_by[static_cast<std::size_t>(id)];
    for (const Value& v : plan_.steps[static_cast<std::size_t>(maker)].arguments) use(v, index);
  }
  for (const int id : owners) {  // the arguments of the views to write through
    const int maker = plan_.made_by[static_cast<std::size_t>(id)];
    if (maker < 0) continue;
    for (const Value& v : plan_.steps[static_cast<std::size_t>(maker)].arguments) use(v, index);
  }
}

void Planner::set_releases() {
  for (std::size_t id = 0; id < last_use_.size(); ++id) {
    const int maker = plan_.made_by[id];
    const int last = std::max(last_use_[id], maker);
    if (last >= 0 && last < static_cast<int>(plan_.steps.size()) && same_as_[id] == static_cast<int>(id))
      plan_.steps[static_cast<std::size_t>(last)].release.push_back(static_cast<int>(id));
  }
}

void Planner::report_unknown() const {
  std::string text;
  for (const auto& [target, nodes] : unknown_) {
    text += fmt::format("\n  {} ({} {})", target, nodes.size(), nodes.size() == 1 ? "call" : "calls");
    std::set<std::string> lines;
    for (const Node* n : nodes)
      if (const std::string line = to_string(n->line); !line.empty() && lines.size() < 3) lines.insert(line);
    for (const std::string& line : lines) text += "\n      " + line;
  }
  throwf("{} op{} that Gradual does not have; pt2::register_op adds one:{}", unknown_.size(),
         unknown_.size() == 1 ? "" : "s", text);
}

Plan Planner::make() {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add(static_cast<int>(i));
  if (!unknown_.empty()) report_unknown();
  const int end = static_cast<int>(plan_.steps.size());
  for (int i = 0; i < end; ++i) {
    Step& step = plan_.steps[static_cast<std::size_t>(i)];
    for (const Value& v : step.arguments) use(v, i);
    if (step.op->aliasing == Aliasing::may_view) {
      const std::optional<Copy> copy = copy_of(step);
      step.shares_known = copy.has_value();
      if (copy) {
        decide_sharing(step, *copy);
        drop_dtype_of_move(step, *copy);
      }
    }
    link_views(step);
  }
  for (const Output& out : graph_.outputs) {
    plan_.outputs.push_back(renamed(out.value));
    use(plan_.outputs.back(), end);
  }
  for (const Input& in : graph_.inputs)  // the module's state outlives the call
    if (in.kind != InputKind::user) use(Ref{in.value}, end);
  for (int i = end - 1; i >= 0; --i) plan_write(i);
  set_releases();
  return std::move(plan_);
}

}  // namespace

Plan make_plan(const Graph& graph) { return Planner(graph).make(); }

bool is_running_statistic(const Plan& plan, int value) {
  const auto updates = [value](const Step& step) {
    if (step.op->target != "aten.batch_norm.default") return false;
    return std::ranges::any_of(std::initializer_list<std::size_t>{3, 4}, [&](std::size_t i) {
      const Ref* const of = i < step.arguments.size() ? step.arguments[i].get<Ref>() : nullptr;
      return of && of->id == value;
    });
  };
  return std::ranges::any_of(plan.steps, updates);
}

}  // namespace gradual::pt2
