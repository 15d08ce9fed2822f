#include "translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "translate_calls.h"
#include "translate_function.h"

namespace gradual::pt2 {
namespace {

constexpr std::size_t kColumns = 118;
constexpr std::int64_t kMostInText = 4096;  // numbers of a constant that are written out

// Whether the code ends inside a string literal.
bool ends_in_literal(std::string_view code) {
  bool inside = false;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (inside && code[i] == '\\') ++i;
    else if (code[i] == '"') inside = !inside;
  }
  return inside;
}

// Breaks a line of code behind a comma or before an operator; comments stay whole.
std::vector<std::string> wrapped(const std::string& line, std::size_t indent) {
  std::vector<std::string> lines;
  std::string rest = line;
  std::string lead(indent, ' ');
  while (lead.size() + rest.size() > kColumns && !rest.starts_with("//")) {
    std::size_t at = rest.rfind(", ", kColumns - lead.size());
    if (at == std::string::npos || at == 0) break;
    if (ends_in_literal(std::string_view(rest).substr(0, at))) break;
    lines.push_back(lead + rest.substr(0, at + 1));
    rest = rest.substr(at + 2);
    lead = std::string(indent + 4, ' ');
  }
  lines.push_back(lead + rest);
  return lines;
}

// The last part of a class's name as an identifier.
std::string class_name(const std::string& python_class) {
  const std::string last = python_class.substr(python_class.rfind('.') + 1);
  std::string name;
  for (const char c : last) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) name = "M" + name;
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

std::string shape_text(const Shape& sizes) {
  std::vector<std::string> texts;
  for (const std::int64_t n : sizes) texts.push_back(fmt::to_string(n));
  return texts.empty() ? "Shape()" : "{" + join(texts) + "}";
}

std::string dtype_name(DType d) { return d == DType::bool_ ? "bool_" : std::string(to_string(d)); }

// A constant with its numbers: "from_data(std::vector<double>{1.0, 2.0}, {2})".
std::string numbers_text(const Tensor& t) {
  const std::string options = fmt::format("{{.dtype = DType::{}}}", dtype_name(t.dtype()));
  std::vector<std::string> texts;
  if (t.is_floating()) {
    for (const double x : cast(t, DType::f64).to_vector<double>()) texts.push_back(number_text(x));
    return fmt::format("gradual::from_data(std::vector<double>{{{}}}, {}, {})", join(texts), shape_text(t.sizes()),
                       options);
  }
  for (const std::int64_t n : cast(t, DType::i64).to_vector<std::int64_t>()) texts.push_back(fmt::to_string(n));
  return fmt::format("gradual::from_data(std::vector<std::int64_t>{{{}}}, {}, {})", join(texts), shape_text(t.sizes()),
                     options);
}

Program with_facts(const std::string& path, const TranslateOptions& options) {
  Program program = read_program(path);
  in_context("pt2 \"" + path + "\"", [&] { find_facts(program, options.any_size); });
  return program;
}

class Translator {
 public:
  Translator(const std::string& path, const TranslateOptions& options) : p_(with_facts(path, options)), tree_(p_) {}

  std::string text();

 private:
  void build(const std::string& path);
  bool build_layer(ModuleNode& node);
  bool build_chain(ModuleNode& node);
  bool is_chain(const ModuleNode& node, const ModuleRun& run) const;
  bool build_list(ModuleNode& node);
  void check_members(const ModuleNode& node) const;
  void build_structure(ModuleNode& node);
  std::vector<std::string> functions_of(ModuleNode& node);
  void add_function(const FunctionText& f, const std::string& variant, std::vector<std::string>& lines) const;
  void add_slot(const StateSlot& slot, std::vector<std::string>& lines) const;
  std::string constant_text(const StateSlot& slot) const;
  std::string name_of_structure(const ModuleNode& node);
  std::vector<std::string> ties() const;
  std::string member_of(const ModuleNode& child) const;

  Program p_;
  ModuleTree tree_;
  std::map<std::string, std::string> known_;  // names of structures, by their text
  std::set<std::string> names_;
  std::string structures_;
};

void Translator::build(const std::string& path) {
  ModuleNode& node = tree_.node(path);
  for (const std::string& child : node.children) build(child);
  if (!path.empty() && (build_layer(node) || build_chain(node) || build_list(node))) return;
  build_structure(node);
}

bool Translator::build_layer(ModuleNode& node) {
  if (!node.children.empty()) return false;
  constexpr const char* kNames[] = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"};
  for (const StateSlot& slot : node.slots)
    if (!slot.registered || std::ranges::find(kNames, slot.name) == std::end(kNames)) return false;
  const std::optional<Construction> layer = library_layer(p_, node.path, node.runs);
  if (!layer) return false;
  node.construction = *layer;
  node.form = ModuleNode::Form::layer;
  return true;
}

// Whether the call runs the children in order, each with the output of the one before.
bool Translator::is_chain(const ModuleNode& node, const ModuleRun& run) const {
  if (run.inputs.size() != 1 || run.outputs.size() != 1 || run.items.size() != node.children.size()) return false;
  int input = run.inputs[0];
  for (std::size_t i = 0; i < run.items.size(); ++i) {
    const ModuleRun* const child = run.items[i].run.get();
    if (!child || child->path != fmt::format("{}.{}", node.path, i)) return false;
    if (child->inputs.size() != 1 || child->inputs[0] != input || child->outputs.size() != 1) return false;
    const ModuleNode& of = tree_.node(child->path);
    const auto function = of.functions.find(child);
    if (function != of.functions.end() && !function->second.empty()) return false;
    if (p_.fact(input).kind != Fact::Kind::tensor) return false;
    input = child->outputs[0];
  }
  return input == run.outputs[0];
}

bool Translator::build_chain(ModuleNode& node) {
  if (!node.python_class.ends_with(".Sequential") || node.runs.empty() || !node.slots.empty()) return false;
  if (node.children.empty() || tree_.is_reached(node.path)) return false;
  for (const ModuleRun* const run : node.runs)
    if (!is_chain(node, *run)) return false;
  std::vector<std::string> children;
  for (const std::string& child : node.children) children.push_back(tree_.node(child).construction.text());
  node.construction = {"nn::Sequential", join(children)};
  node.form = ModuleNode::Form::chain;
  return true;
}

bool Translator::build_list(ModuleNode& node) {
  if (!node.runs.empty() || !node.slots.empty() || node.children.size() < 2) return false;
  const Construction& element = tree_.node(node.children[0]).construction;
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    const ModuleNode& child = tree_.node(node.children[i]);
    if (child.name != fmt::to_string(i) || child.construction != element) return false;
  }
  node.form = ModuleNode::Form::list;
  node.construction.type = fmt::format("pt2::ListOf<{}>", element.type);
  node.construction.arguments = fmt::to_string(node.children.size());
  if (!element.arguments.empty()) node.construction.arguments += fmt::format(", [] {{ return {}; }}", element.text());
  return true;
}

// --- structures ------------------------------------------------------------------------------------------------------

std::string Translator::constant_text(const StateSlot& slot) const {
  const Tensor& t = slot.weight->tensor;
  if (t.numel() <= kMostInText) return numbers_text(t);
  return fmt::format("pt2::constant({}, {})", quoted(p_.path), quoted(slot.key));
}

void Translator::add_slot(const StateSlot& slot, std::vector<std::string>& lines) const {
  const Tensor& t = slot.weight->tensor;
  const std::string member = member_name(slot.name);
  const std::string dtype =
      t.dtype() == DType::f32 ? "" : fmt::format(", {{.dtype = DType::{}}}", dtype_name(t.dtype()));
  const std::string value = fmt::format("gradual::zeros({}{})", shape_text(t.sizes()), dtype);
  if (!slot.registered) {
    lines.push_back(fmt::format("Tensor {} = {};  // not in the state dict", member, constant_text(slot)));
  } else if (slot.weight->parameter) {
    const char* const trained = slot.weight->requires_grad && t.is_floating() ? "" : ", false";
    lines.push_back(
        fmt::format("Tensor& {} = register_parameter({}, {}{});", member, quoted(slot.name), value, trained));
  } else {
    const char* const kind = slot.statistic ? ", nn::BufferKind::running_statistic" : "";
    lines.push_back(fmt::format("Tensor& {} = register_buffer({}, {}{});", member, quoted(slot.name), value, kind));
  }
}

void Translator::add_function(const FunctionText& f, const std::string& variant,
                              std::vector<std::string>& lines) const {
  std::vector<std::string> parameters;
  for (std::size_t i = 0; i < f.names.size(); ++i) parameters.push_back(f.types[i] + " " + f.names[i]);
  const bool forward = variant.empty() && f.is_forward();
  if (!forward) parameters.emplace_back("Loc loc = Loc::current()");
  lines.emplace_back();
  lines.push_back(fmt::format("{} {}({}){} {{", f.result,
                              forward           ? "forward"
                              : variant.empty() ? "operator()"
                                                : variant,
                              join(parameters), forward ? " override" : ""));
  if (!forward) lines.emplace_back("  const nn::ModuleCall call(*this, loc);");
  for (const std::string& line : f.body) lines.push_back("  " + line);
  const bool shown = !forward && f.result == "Tensor" && !f.types.empty() && f.types[0] == "const Tensor&";
  if (shown && lines.back().starts_with("  return ")) {
    const std::string value = lines.back().substr(9, lines.back().size() - 10);
    lines.back() = fmt::format("  return call.leave({}, {});", f.names[0], value);
  }
  lines.emplace_back("}");
}

// The text of all different functions; the node learns which call is which.
std::vector<std::string> Translator::functions_of(ModuleNode& node) {
  std::vector<std::string> lines;
  std::vector<std::pair<std::vector<std::string>, std::string>> known;
  for (const ModuleRun* const run : node.runs) {
    const FunctionText f = function_of(p_, tree_, *run);
    std::vector<std::string> key = f.body;
    key.insert(key.end(), f.types.begin(), f.types.end());
    const auto found = std::ranges::find(known, key, &std::pair<std::vector<std::string>, std::string>::first);
    if (found != known.end()) {
      node.functions[run] = found->second;
      continue;
    }
    const std::string variant = known.empty() ? "" : fmt::format("call_{}", known.size() + 1);
    add_function(f, variant, lines);
    known.emplace_back(key, variant);
    node.functions[run] = variant;
  }
  return lines;
}

std::string Translator::name_of_structure(const ModuleNode& node) {
  const bool of_torch = node.python_class.starts_with("torch.") || node.python_class.empty();
  std::string base = of_torch && !node.name.empty() && !std::isdigit(static_cast<unsigned char>(node.name[0]))
                         ? class_name(node.name)
                         : class_name(node.python_class.empty() ? "Part" : node.python_class);
  if (is_reserved(base)) base += "Module";
  std::string name = base;
  for (int i = 2; !names_.insert(name).second; ++i) name = fmt::format("{}{}", base, i);
  return name;
}

std::string Translator::member_of(const ModuleNode& child) const {
  return fmt::format("{}& {} = register_module({}, {});", child.construction.type, member_name(child.name),
                     quoted(child.name), child.construction.text());
}

std::vector<std::string> Translator::ties() const {
  std::vector<std::string> lines;
  for (const auto& [has, shall] : tree_.ties())
    lines.push_back(fmt::format("{} = {};  // one tensor", tree_.access("", shall), tree_.access("", has)));
  return lines;
}

// Error if two members get one name.
void Translator::check_members(const ModuleNode& node) const {
  std::map<std::string, std::string> members;
  const auto check = [&](const std::string& name) {
    const auto [at, made] = members.emplace(member_name(name), name);
    if (!made)
      throwf("the module \"{}\" has {} and {}; in C++ both are {}", node.path, at->second, name, member_name(name));
  };
  for (const StateSlot& slot : node.slots) check(slot.name);
  for (const std::string& child : node.children) check(tree_.node(child).name);
}

void Translator::build_structure(ModuleNode& node) {
  check_members(node);
  std::vector<std::string> lines;
  for (const StateSlot& slot : node.slots) add_slot(slot, lines);
  for (const std::string& child : node.children) lines.push_back(member_of(tree_.node(child)));
  const std::vector<std::string> functions = functions_of(node);
  lines.insert(lines.end(), functions.begin(), functions.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const bool root = node.path.empty();
  const auto known = known_.find(text);
  node.construction = {known != known_.end() && !root ? known->second : name_of_structure(node), ""};
  if (known != known_.end() && !root) return;
  known_.emplace(text, node.construction.type);
  const bool evaluated = root && p_.plan.evaluation_calls > 0 && p_.plan.training_calls == 0;
  std::vector<std::string> made = root ? ties() : std::vector<std::string>{};
  if (evaluated) made.emplace_back("eval();  // the model was exported in evaluation");
  structures_ += fmt::format("\n{}struct {} : nn::Module {{\n",
                             node.python_class.empty() ? "" : fmt::format("// {}\n", comment_text(node.python_class)),
                             node.construction.type);
  if (!made.empty()) {
    structures_ += fmt::format("  {}() {{\n", node.construction.type);
    for (const std::string& line : made) structures_ += "    " + line + "\n";
    structures_ += "  }\n\n";
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() && i == 0) continue;
    const std::size_t inside = lines[i].find_first_not_of(' ');
    if (lines[i].empty()) structures_ += "\n";
    else
      for (const std::string& part : wrapped(lines[i].substr(inside), 2 + inside)) structures_ += part + "\n";
  }
  structures_ += "};\n";
}

std::string Translator::text() {
  build("");
  const std::string stem = p_.name.substr(p_.name.rfind('/') + 1);
  const std::string shown = comment_text(stem);
  const std::string space = member_name(stem.substr(0, stem.find('.')) + "_model");
  const std::string root = tree_.node("").construction.type;
  std::string all = fmt::format(
      "// {} of PyTorch {}, written by gradual-lab translate. Parameters start from the layers' initial values;\n"
      "// those of the file come with\n"
      "//   {}::{} model;\n"
      "//   model.load_state_dict(pt2::load(\"{}\")->state_dict());\n"
      "// pt2::call runs a row of the table of aten ops where the library has no function of its own.\n"
      "#pragma once\n\n"
      "#include <gradual/gradual.h>\n#include <gradual/pt2/module.h>\n#include <gradual/pt2/translated.h>\n\n"
      "#include <cmath>\n#include <cstdint>\n#include <tuple>\n#include <vector>\n\n"
      "namespace {} {{\n\nusing namespace gradual;\n",
      shown, comment_text(p_.graph.torch_version), space, root, shown, space);
  return all + structures_ + fmt::format("\n}}  // namespace {}\n", space);
}

}  // namespace

std::string translate(const std::string& path, const TranslateOptions& options) {
  return Translator(path, options).text();
}

}  // namespace gradual::pt2
