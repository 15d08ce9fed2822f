#include "translate_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "../core/support/throwf.h"
#include "translate_calls.h"

namespace gradual::pt2 {
namespace {

constexpr const char* kReserved[] = {
    "alignas",
    "alignof",
    "and",
    "asm",
    "auto",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "concept",
    "const",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "not",
    "operator",
    "or",
    "private",
    "protected",
    "public",
    "register",
    "requires",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "try",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
    "compl",
    "bitand",
    "bitor",
    "and_eq",
    "or_eq",
    "xor_eq",
    "not_eq",
    "constexpr",
    "consteval",
    "constinit",
    "decltype",
    "noexcept",
    "nullptr",
    "typeid",
    "static_assert",
    "thread_local",
    "char8_t",
    "char16_t",
    "char32_t",
    "wchar_t",
    "co_await",
    "co_return",
    "co_yield",
    "const_cast",
    "dynamic_cast",
    "reinterpret_cast",
    "static_cast",
    "Loc",
    "forward",
    "train",
    "eval",
    "training",
    "kind",
    "path",
    "to",
    "children",
    "parameters",
    "gradual",
    "pt2",
    "nn",
    "std",
    "call",
    "loc",
    "Tensor",
    "Shape",
    "Size2",
    "DType",
    "Gelu",
    "INFINITY",
    "NAN",
    "register_module",
    "register_buffer",
    "register_parameter",
    "state_dict",
    "load_state_dict",
    "zero_grad",
    "set_hook",
    "no_grad",
    "block",
};

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

}  // namespace

bool is_reserved(const std::string& name) { return std::ranges::find(kReserved, name) != std::end(kReserved); }

std::string member_name(const std::string& name) {
  std::string result;
  for (const char c : name) result += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  if (result.empty() || std::isdigit(static_cast<unsigned char>(result[0]))) result = "m" + result;
  return is_reserved(result) ? result + "_" : result;
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (at < path.size()) {
    const std::size_t end = std::min(path.find('.', at), path.size());
    parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

ModuleTree::ModuleTree(const Program& program) : program_(program) {
  add("");
  for (const ModuleClass& of : program.graph.modules) add(of.path);
  add_state();
  add_runs(*program.root);
  find_ties();
  find_reached(*program.root);
  for (const auto& [first, second] : ties_) {
    reach(first);
    reach(second);
  }
}

ModuleNode& ModuleTree::add(const std::string& path) {
  if (const auto found = nodes_.find(path); found != nodes_.end()) return found->second;
  ModuleNode node;
  node.path = path;
  if (!path.empty()) {
    const std::string parent = parent_of(path);
    node.name = path.substr(parent.empty() ? 0 : parent.size() + 1);
    add(parent).children.push_back(path);
  }
  if (const auto known = program_.classes.find(path); known != program_.classes.end())
    node.python_class = known->second;
  return nodes_.emplace(path, std::move(node)).first->second;
}

void ModuleTree::add_state() {
  const auto add_slot = [&](const std::string& key, const Weight& weight) -> StateSlot& {
    const std::string owner = parent_of(key);
    const std::string name = key.substr(owner.empty() ? 0 : owner.size() + 1);
    return add(owner).slots.emplace_back(StateSlot{.name = name, .key = key, .weight = &weight});
  };
  std::set<std::string> done;
  for (const Input& in : program_.graph.inputs) {  // in PyTorch's order
    if (in.kind == InputKind::user || !done.insert(in.name).second) continue;
    StateSlot& slot = add_slot(in.name, program_.weight(in));
    slot.registered = in.kind != InputKind::constant && in.persistent && program_.weights.contains(in.name);
    slot.statistic = is_running_statistic(program_.plan, in.value);
  }
  for (const auto& [key, weight] : program_.weights)
    if (done.insert(key).second) add_slot(key, weight);
}

void ModuleTree::add_runs(const ModuleRun& run) {
  add(run.path).runs.push_back(&run);
  for (const RunItem& item : run.items)
    if (item.run) add_runs(*item.run);
}

void ModuleTree::find_ties() {
  std::vector<std::string> keys;  // those that ops read come first
  for (const Input& in : program_.graph.inputs)
    if (in.kind != InputKind::user && in.persistent && program_.weights.contains(in.name)) keys.push_back(in.name);
  for (const auto& [key, weight] : program_.weights) keys.push_back(key);
  std::map<const void*, std::string> owner;
  for (const std::string& key : keys) {
    const Tensor& tensor = program_.weights.at(key).tensor;
    if (tensor.numel() == 0) continue;
    const auto [at, made] = owner.emplace(tensor.raw(), key);
    if (made || at->second == key) continue;
    const bool known = std::ranges::find(ties_, std::pair(at->second, key)) != ties_.end();
    if (!known && program_.weights.at(at->second).tensor.sizes() == tensor.sizes()) ties_.emplace_back(at->second, key);
  }
}

void ModuleTree::reach(const std::string& key) {
  for (std::string path = parent_of(key); !path.empty(); path = parent_of(path)) reached_.insert(path);
}

// Tensors that a module reads of another one.
void ModuleTree::find_reached(const ModuleRun& run) {
  for (const RunItem& item : run.items) {
    if (item.run) {
      find_reached(*item.run);
      for (const int id : item.run->inputs)
        if (program_.keys.contains(id)) reach(program_.keys.at(id).front());
      continue;
    }
    for (const int id : reads_of(program_, program_.step(item.step))) {
      const std::string key = program_.key_below(id, run.path);
      if (!key.empty() && parent_of(key) != run.path) reach(key);
    }
  }
}

bool ModuleTree::is_reached(const std::string& path) const { return reached_.contains(path); }

std::string ModuleTree::access(const std::string& from, const std::string& to) const {
  if (!from.empty() && !to.starts_with(from + "."))
    throwf("the module {} uses {}, which is not below it; not translated", from, to);
  std::string text;
  std::string path = from;
  const std::string below = to.substr(from.empty() ? 0 : from.size() + 1);
  for (const std::string& part : parts_of(below)) {
    const auto parent = nodes_.find(path);
    const ModuleNode::Form form = parent == nodes_.end() ? ModuleNode::Form::structure : parent->second.form;
    if (form == ModuleNode::Form::chain) throwf("{}: internal: reaches into a Sequential", to);
    if (form == ModuleNode::Form::list && !nodes_.contains(path + "." + part))
      throwf("{}: there is no such module", to);
    if (form == ModuleNode::Form::list) text += fmt::format("[{}]", part);
    else if (form == ModuleNode::Form::layer) text += "." + member_name(part);
    else text += (text.empty() ? "" : ".") + member_name(part);
    path += (path.empty() ? "" : ".") + part;
  }
  return text;
}

}  // namespace gradual::pt2
