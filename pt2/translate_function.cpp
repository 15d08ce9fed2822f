#include "translate_function.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "translate_calls.h"

namespace gradual::pt2 {
namespace {

bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The names that a line of Python assigns to: "q, k = .." gives q and k; none if it is no plain assignment.
std::vector<std::string> assigned_names(const std::string& line) {
  std::vector<std::string> names;
  std::string name;
  std::size_t at = 0;
  for (; at < line.size() && line[at] != '='; ++at) {
    const char c = line[at];
    if (is_name_character(c)) {
      if (!name.empty() && line[at - 1] == ' ') return {};  // two words: "return x == y"
      name += c;
    } else if (c == ',') {
      names.push_back(std::exchange(name, ""));
    } else if (c != ' ' && std::string_view("+-*/@|&").find(c) == std::string_view::npos) {
      return {};
    }
  }
  if (at + 1 >= line.size() || line[at + 1] == '=' || name.empty()) return {};
  names.push_back(name);
  for (const std::string& n : names)
    if (n.empty() || std::isdigit(static_cast<unsigned char>(n[0]))) return {};
  return names;
}

// A name without its number: "y2" gives "y". "h" for an expression.
std::string base_of(const std::string& name) {
  if (!std::ranges::all_of(name, is_name_character)) return "h";
  std::string base = name;
  while (base.size() > 1 && std::isdigit(static_cast<unsigned char>(base.back()))) base.pop_back();
  return base;
}

const char* type_of(const Fact& fact) {
  switch (fact.kind) {
    case Fact::Kind::integer: return "std::int64_t";
    case Fact::Kind::number: return "double";
    case Fact::Kind::flag: return "std::int64_t";
    default: return "Tensor";
  }
}

class FunctionWriter {
 public:
  FunctionWriter(const Program& program, const ModuleTree& tree, const ModuleRun& run);
  FunctionText write();

 private:
  std::string name_of(int id) const;
  std::string new_name(const std::string& base);
  std::string name_for(const RunItem& item, std::size_t index, int id);
  bool last_of_line(std::size_t index) const;
  void comment(const PythonLine& line);
  void declare(int id, const std::string& name, const std::string& expression);

  void write_item(std::size_t index);
  void write_step(std::size_t index);
  void write_outputs(std::size_t index, const Expression& e);
  void write_in_place(const Step& step, const Expression& e, std::size_t index);
  void write_views(const Step& step);
  std::string again(int id) const;
  bool try_inline(std::size_t index, int id, const Step& only, const Expression& e);
  bool is_plain(const RunItem& item) const;
  bool reads_once(const RunItem& item, int id) const;
  const PythonLine& only_line(const RunItem& item) const;
  CallToPrint printed(const Step& step) const;
  std::string guarded(const Step& step, const std::string& text) const;

  void write_call(std::size_t index);
  std::string call_text(const ModuleRun& run, const std::vector<std::string>& arguments) const;
  std::vector<std::string> arguments_of(const ModuleRun& run) const;
  std::size_t write_loop(std::size_t index);
  std::size_t loop_end(std::size_t index, std::size_t& chained) const;

  void open_parameters();
  void return_outputs();
  void shorten_return();
  std::vector<std::string> root_outputs();

  const Program& p_;
  const ModuleTree& tree_;
  const ModuleRun& run_;
  const ModuleNode& node_;
  std::set<std::string> members_;
  std::set<std::string> taken_;
  std::map<int, std::string> names_;
  std::map<int, std::string> copies_;  // a flag: whether this may_view is a copy
  std::map<int, int> uses_;            // how often a value is read, in the whole plan and by its outputs
  std::string like_;
  std::string last_line_;
  FunctionText text_;
};

FunctionWriter::FunctionWriter(const Program& program, const ModuleTree& tree, const ModuleRun& run)
    : p_(program), tree_(tree), run_(run), node_(tree.node(run.path)) {
  for (const std::string& child : node_.children) members_.insert(member_name(tree.node(child).name));
  for (const StateSlot& slot : node_.slots) members_.insert(member_name(slot.name));
  taken_ = members_;
  for (const std::string& f : function_names()) taken_.insert(f);
  for (const Step& step : p_.plan.steps)
    for (const int id : reads_of(p_, step)) ++uses_[id];
  std::vector<int> read;
  for (const Value& v : p_.plan.outputs) add_refs(v, read);
  for (const int id : read) ++uses_[id];
}

// --- names -----------------------------------------------------------------------------------------------------------

std::string FunctionWriter::name_of(int id) const {
  if (const auto found = names_.find(id); found != names_.end()) return found->second;
  const std::string key = p_.key_below(id, run_.path);
  if (key.empty()) throwf("internal: {} has no name in {}", p_.graph.values[static_cast<std::size_t>(id)], run_.path);
  return tree_.access(run_.path, key);
}

std::string FunctionWriter::new_name(const std::string& base) {
  std::string name = member_name(base);
  for (int i = 2; is_reserved(name) || !taken_.insert(name).second; ++i)
    name = fmt::format("{}{}", member_name(base), i);
  return name;
}

bool FunctionWriter::last_of_line(std::size_t index) const {
  if (index + 1 >= run_.items.size()) return true;
  const auto line_of = [&](const RunItem& item) {
    return to_string(p_.node(item.run ? item.run->first : item.step).line);
  };
  return line_of(run_.items[index]) != line_of(run_.items[index + 1]);
}

// A value's name: that of Python where the line assigns it, else h.
std::string FunctionWriter::name_for(const RunItem& item, std::size_t index, int id) {
  const PythonLine& line = p_.node(item.run ? item.run->last : item.step).line;
  const std::vector<std::string> assigned = is_plain(item) ? assigned_names(line.text) : std::vector<std::string>{};
  if (assigned.size() == 1 && last_of_line(index)) return new_name(assigned[0]);
  return new_name(p_.fact(id).kind == Fact::Kind::tensor ? "h" : "n");
}

void FunctionWriter::comment(const PythonLine& line) {
  const std::string text = to_string(line);
  if (text.empty() || text == last_line_) return;
  last_line_ = text;
  text_.body.push_back("// " + comment_text(text));
}

void FunctionWriter::declare(int id, const std::string& name, const std::string& expression) {
  text_.body.push_back(fmt::format("const {} {} = {};", type_of(p_.fact(id)), name, expression));
  names_[id] = name;
}

// --- steps -----------------------------------------------------------------------------------------------------------

CallToPrint FunctionWriter::printed(const Step& step) const {
  return {p_, step, [this](int id) { return name_of(id); }, like_, members_};
}

std::string FunctionWriter::guarded(const Step& step, const std::string& text) const {
  std::string all = text;
  if (!step.grad) all = fmt::format("pt2::without_grad([&] {{ return {}; }})", all);
  if (!step.autocast) all = fmt::format("pt2::without_autocast([&] {{ return {}; }})", all);
  return all;
}

void FunctionWriter::write_item(std::size_t index) {
  if (run_.items[index].run) write_call(index);
  else write_step(index);
}

void FunctionWriter::write_step(std::size_t index) {
  const Step& step = p_.step(run_.items[index].step);
  const Ref* const first = step.arguments.empty() ? nullptr : step.arguments[0].get<Ref>();
  if (is_identity(step) && first) {
    names_[step.outputs.at(0).values.at(0)] = name_of(first->id);
    return;
  }
  const bool copies_itself = step.op->target == "aten.copy.default" && step.arguments[1].get<Ref>() && first &&
                             step.arguments[1].get<Ref>()->id == first->id;
  if (copies_itself && step.written >= 0) return;
  Expression e = expression_of(printed(step));
  if (step.written >= 0) return write_in_place(step, e, index);
  const bool single = step.outputs.size() == 1 && !step.outputs[0].list && step.outputs[0].values.size() == 1;
  if (single && try_inline(index, step.outputs[0].values[0], step, e)) return;
  comment(p_.node(run_.items[index].step).line);
  e.text = guarded(step, e.text);
  write_outputs(index, e);
}

// Whether the item is a step, or the call of a layer on one line of Python.
bool FunctionWriter::is_plain(const RunItem& item) const {
  return !item.run || tree_.node(item.run->path).form != ModuleNode::Form::structure;
}

bool FunctionWriter::reads_once(const RunItem& item, int id) const {
  if (item.run) return item.run->inputs.size() == 1 && item.run->inputs[0] == id;
  const Step& step = p_.step(item.step);
  if (!step.owners.empty() || is_identity(step) || step.op->target == "aten.dropout.default") return false;
  return std::ranges::count(reads_of(p_, step), id) == 1;
}

// A value that only the next item reads, on the same line of Python, stands inside that one's expression. `only` is
// the item's first step.
bool FunctionWriter::try_inline(std::size_t index, int id, const Step& only, const Expression& e) {
  constexpr std::size_t kLongest = 60;
  if (index + 1 >= run_.items.size() || e.text.size() > kLongest || last_of_line(index)) return false;
  const RunItem& next = run_.items[index + 1];
  const Step& reader = p_.step(next.run ? next.run->first : next.step);
  if (!is_plain(next) || uses_[id] != 1 || !reads_once(next, id) || reader.written == id) return false;
  if (reader.grad != only.grad || reader.autocast != only.autocast) return false;
  if (p_.fact(id).kind != Fact::Kind::tensor) return false;
  comment(only_line(run_.items[index]));
  names_[id] = e.compound ? "(" + e.text + ")" : e.text;
  return true;
}

const PythonLine& FunctionWriter::only_line(const RunItem& item) const {
  return p_.node(item.run ? item.run->first : item.step).line;
}

void FunctionWriter::write_outputs(std::size_t index, const Expression& e) {
  const RunItem& item = run_.items[index];
  const Step& step = p_.step(item.step);
  std::vector<int> ids;
  for (const Node::Output& out : step.outputs) ids.insert(ids.end(), out.values.begin(), out.values.end());
  if (ids.empty()) {
    text_.body.push_back(e.text + ";");
    return;
  }
  const bool single = step.outputs.size() == 1 && !step.outputs[0].list;
  if (single) {
    const int id = ids[0];
    declare(id, name_for(item, index, id), e.text);
    if (step.op->aliasing != Aliasing::may_view) return;
    const bool followed = std::ranges::any_of(p_.plan.steps, [&](const Step& s) {
      return std::ranges::find(s.owners, id) != s.owners.end() ||
             std::ranges::find(s.refreshed, id) != s.refreshed.end();
    });
    const Ref* const of = step.arguments[0].get<Ref>();
    if (!followed || !of) return;
    copies_[id] = new_name(names_[id] + "_is_copy");
    text_.body.push_back(
        fmt::format("const bool {} = !{}.shares_storage({});", copies_[id], names_[id], name_of(of->id)));
    return;
  }
  const std::vector<std::string> assigned = assigned_names(p_.node(item.step).line.text);
  const std::string parts = new_name("parts");
  text_.body.push_back(fmt::format("const std::vector<Tensor> {} = {};", parts, e.text));
  const bool named = assigned.size() == ids.size() && last_of_line(index);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", parts, i);
    if (named) declare(ids[i], new_name(assigned[i]), part);
    else names_[ids[i]] = part;
  }
}

// The value of a view once more, after its owner has changed.
std::string FunctionWriter::again(int id) const {
  const Step& made = *p_.maker(id);
  if (is_identity(made)) return name_of(made.arguments[0].get<Ref>()->id);
  const std::string text = expression_of(printed(made)).text;
  if (made.outputs.size() == 1 && !made.outputs[0].list) return text;
  return fmt::format("{}.at({})", text, p_.plan.place[static_cast<std::size_t>(id)]);
}

void FunctionWriter::write_in_place(const Step& step, const Expression& e, std::size_t index) {
  comment(p_.node(run_.items[index].step).line);
  std::string text = e.text;
  const std::string old = name_of(step.written);
  if (!e.keeps_dtype) text = fmt::format("pt2::in_place_of({}, {})", old, text);
  text = guarded(step, text);
  if (p_.state.contains(step.written)) {
    const bool counter = p_.state.at(step.written)->counts_batches;
    text_.body.push_back(fmt::format("{}pt2::update({}, {});", counter ? "if (training()) " : "", old, text));
  } else {
    const std::vector<std::string> assigned = assigned_names(p_.node(run_.items[index].step).line.text);
    const bool named = assigned.size() == 1 && last_of_line(index);
    declare(step.written, new_name(named ? assigned[0] : base_of(old)), text);
  }
  if (!step.owners.empty()) write_views(step);
}

// Brings the owner of the memory, and the views that are read later, up to date.
void FunctionWriter::write_views(const Step& step) {
  std::string unless;  // flags under which the chain of views ends
  const auto conditional = [&](const std::string& now, const std::string& old) {
    return unless.empty() ? now : fmt::format("{} ? {} : {}", unless, old, now);
  };
  std::vector<int> changed{step.written};
  for (std::size_t i = 0; i + 1 < step.owners.size(); ++i) {
    const int view = step.owners[i];
    const int owner = step.owners[i + 1];
    const Step& made = *p_.maker(view);
    if (made.op->aliasing == Aliasing::may_view) {
      if (!copies_.contains(view)) throwf("{}: writes through a view of another module; not translated", step.where);
      unless += (unless.empty() ? "" : " || ") + copies_.at(view);
    }
    const std::string old = name_of(owner);
    const std::string place = made.outputs.size() == 1 && !made.outputs[0].list
                                  ? ""
                                  : fmt::format(", {}", p_.plan.place[static_cast<std::size_t>(view)]);
    const std::string now = is_identity(made)
                                ? name_of(view)
                                : fmt::format("pt2::write_through(*this, \"{}\", {}, {}{})", made.op->target,
                                              argument_list(printed(made)), name_of(view), place);
    const std::string text = guarded(step, conditional(now, old));
    if (p_.state.contains(owner)) text_.body.push_back(fmt::format("pt2::update({}, {});", old, text));
    else if (text == name_of(view)) names_[owner] = text;
    else declare(owner, new_name(base_of(old)), text);
    changed.push_back(owner);
  }
  for (const int id : step.refreshed) {
    const Step& made = *p_.maker(id);
    const Ref* const of = made.arguments[0].get<Ref>();
    if (!of || std::ranges::find(changed, of->id) == changed.end()) continue;
    std::string text = again(id);
    if (made.op->aliasing == Aliasing::may_view) {
      if (!copies_.contains(id)) throwf("{}: changes a view of another module; not translated", step.where);
      text = fmt::format("{} ? {} : {}", copies_.at(id), name_of(id), text);
    }
    if (text == name_of(of->id)) names_[id] = text;
    else declare(id, new_name(base_of(name_of(id))), guarded(step, conditional(text, name_of(id))));
    changed.push_back(id);
  }
}

// --- calls of modules ------------------------------------------------------------------------------------------------

std::vector<std::string> FunctionWriter::arguments_of(const ModuleRun& run) const {
  std::vector<std::string> arguments;
  for (const int id : run.inputs) arguments.push_back(name_of(id));
  return arguments;
}

std::string FunctionWriter::call_text(const ModuleRun& run, const std::vector<std::string>& arguments) const {
  const ModuleNode& child = tree_.node(run.path);
  const auto function = child.functions.find(&run);
  const std::string variant = function == child.functions.end() ? "" : function->second;
  return fmt::format("{}{}({})", tree_.access(run_.path, run.path), variant.empty() ? "" : "." + variant,
                     join(arguments));
}

void FunctionWriter::write_call(std::size_t index) {
  const ModuleRun& run = *run_.items[index].run;
  const std::string text = call_text(run, arguments_of(run));
  const bool plain = is_plain(run_.items[index]);
  if (plain && run.outputs.size() == 1 && try_inline(index, run.outputs[0], p_.step(run.first), {text})) return;
  if (plain) comment(p_.node(run.first).line);
  if (run.outputs.empty()) {
    text_.body.push_back(text + ";");
    return;
  }
  if (run.outputs.size() == 1) {
    const int id = run.outputs[0];
    declare(id, name_for(run_.items[index], index, id), text);
    return;
  }
  std::vector<std::string> names;
  for (const int id : run.outputs) names.push_back(new_name(p_.fact(id).kind == Fact::Kind::tensor ? "h" : "n"));
  for (std::size_t i = 0; i < names.size(); ++i) names_[run.outputs[i]] = names[i];
  text_.body.push_back(fmt::format("const auto [{}] = {};", join(names), text));
}

// The item behind a run of all elements of a list, each with the output of the one before as one argument (`chained`)
// and the same others; `index` if there is none.
std::size_t FunctionWriter::loop_end(std::size_t index, std::size_t& chained) const {
  const ModuleRun* const first = run_.items[index].run.get();
  if (!first) return index;
  const auto dot = first->path.rfind('.');
  const std::string list = dot == std::string::npos ? "" : first->path.substr(0, dot);
  if (list.empty() || tree_.node(list).form != ModuleNode::Form::list) return index;
  const std::vector<std::string>& elements = tree_.node(list).children;
  if (index + elements.size() > run_.items.size()) return index;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const ModuleRun* const run = run_.items[index + i].run.get();
    if (!run || run->path != fmt::format("{}.{}", list, i) || run->outputs.size() != 1) return index;
    if (run->inputs.size() != first->inputs.size()) return index;
    if (tree_.node(run->path).functions != std::map<const ModuleRun*, std::string>{} &&
        !tree_.node(run->path).functions.at(run).empty())
      return index;
    if (i == 0) continue;
    const ModuleRun& before = *run_.items[index + i - 1].run;
    const int id = before.outputs[0];
    const auto at = static_cast<std::size_t>(std::ranges::find(run->inputs, id) - run->inputs.begin());
    if (at == run->inputs.size() || (i > 1 && at != chained)) return index;
    int reads = 0;
    for (int step = run->first; step <= run->last; ++step)
      for (const int read : reads_of(p_, p_.step(step))) reads += read == id ? 1 : 0;
    if (reads != uses_.at(id)) return index;
    for (std::size_t k = 0; k < run->inputs.size(); ++k)
      if (k != at && run->inputs[k] != before.inputs[k]) return index;
    chained = at;
  }
  return index + elements.size();
}

std::size_t FunctionWriter::write_loop(std::size_t index) {
  std::size_t chained = 0;
  const std::size_t end = loop_end(index, chained);
  if (end < index + 2) return index;
  const ModuleRun& first = *run_.items[index].run;
  const ModuleRun& last = *run_.items[end - 1].run;
  std::vector<std::string> arguments = arguments_of(first);
  const std::string name = new_name("x");
  const std::string list = first.path.substr(0, first.path.rfind('.'));
  text_.body.push_back(fmt::format("Tensor {} = {};", name, arguments[chained]));
  arguments[chained] = name;
  text_.body.push_back(fmt::format("for (auto* const block : {}) {} = (*block)({});", tree_.access(run_.path, list),
                                   name, join(arguments)));
  names_[last.outputs[0]] = name;
  return end;
}

// --- the whole -------------------------------------------------------------------------------------------------------

void FunctionWriter::open_parameters() {
  const bool root = run_.path.empty();
  std::vector<int> ids = run_.inputs;
  if (root) {
    ids.clear();
    for (const Input& in : p_.graph.inputs)
      if (in.kind == InputKind::user) ids.push_back(in.value);
  }
  for (const int id : ids) {
    const bool tensor = p_.fact(id).kind == Fact::Kind::tensor;
    const std::string base = root ? p_.graph.values[static_cast<std::size_t>(id)] : tensor ? "x" : "n";
    names_[id] = new_name(base);
    text_.names.push_back(names_[id]);
    text_.types.push_back(tensor ? "const Tensor&" : type_of(p_.fact(id)));
    if (tensor && like_.empty()) like_ = names_[id];
  }
}

// What the model returns: its tensors, in order. Buffers that it gives new values keep them.
std::vector<std::string> FunctionWriter::root_outputs() {
  std::vector<std::string> outputs;
  for (std::size_t i = 0; i < p_.graph.outputs.size(); ++i) {
    std::vector<int> ids;
    add_refs(p_.plan.outputs[i], ids);
    for (const int id : ids) {
      const bool user = p_.graph.outputs[i].kind == OutputKind::user;
      if (user && p_.fact(id).kind == Fact::Kind::tensor) outputs.push_back(name_of(id));
      if (p_.graph.outputs[i].kind != OutputKind::buffer_update || p_.state.contains(id)) continue;
      text_.body.push_back(
          fmt::format("pt2::update({}, {});", tree_.access("", p_.graph.outputs[i].name), name_of(id)));
    }
  }
  return outputs;
}

void FunctionWriter::return_outputs() {
  std::vector<std::string> outputs;
  std::vector<std::string> types;
  if (run_.path.empty()) {
    outputs = root_outputs();
    types.assign(outputs.size(), "Tensor");
  } else {
    for (const int id : run_.outputs) {
      outputs.push_back(name_of(id));
      types.emplace_back(type_of(p_.fact(id)));
    }
  }
  text_.result = "void";
  if (outputs.empty()) return;
  const bool one = outputs.size() == 1;
  text_.result = one ? types[0] : "std::tuple<" + join(types) + ">";
  text_.body.push_back(one ? fmt::format("return {};", outputs[0]) : fmt::format("return {{{}}};", join(outputs)));
  if (one) shorten_return();
}

// "const Tensor y = f(x); return y;" becomes "return f(x);".
void FunctionWriter::shorten_return() {
  if (text_.body.size() < 2) return;
  const std::string& returned = text_.body.back();
  const std::string& before = text_.body[text_.body.size() - 2];
  const std::string name = returned.substr(7, returned.size() - 8);
  const std::string start = fmt::format("const {} {} = ", text_.result, name);
  if (!before.starts_with(start)) return;
  const std::string whole = "return " + before.substr(start.size());
  text_.body.pop_back();
  text_.body.back() = whole;
}

FunctionText FunctionWriter::write() {
  open_parameters();
  std::size_t index = 0;
  while (index < run_.items.size()) {
    const std::size_t end = write_loop(index);
    if (end > index) {
      index = end;
      continue;
    }
    write_item(index);
    ++index;
  }
  return_outputs();
  return text_;
}

}  // namespace

FunctionText function_of(const Program& program, const ModuleTree& tree, const ModuleRun& run) {
  return FunctionWriter(program, tree, run).write();
}

}  // namespace gradual::pt2
