#include "graph.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "../core/files/json_text.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"

namespace gradual::pt2 {

using Json = nlohmann::json;

std::string to_string(const PythonLine& line) {
  if (line.line == 0) return "";
  const std::string file = line.file.substr(line.file.rfind('/') + 1);
  return fmt::format("{}:{}{}{}", file, line.line, line.text.empty() ? "" : ": ", line.text);
}

namespace {

constexpr std::size_t kMostNodes = 500'000;
constexpr std::size_t kMostValues = 10'000'000;

// torch's ScalarType as the schema numbers it.
struct ScalarType {
  std::int64_t code;
  DType dtype;
};
constexpr ScalarType kScalarTypes[] = {
    {1, DType::u8},  {4, DType::i32},    {5, DType::i64},   {6, DType::f16},       {7, DType::f32},
    {8, DType::f64}, {12, DType::bool_}, {13, DType::bf16}, {29, DType::f8e4m3fn}, {30, DType::f8e5m2},
};

const ScalarType* scalar_type(std::int64_t code) {
  const auto* const found = std::ranges::find(kScalarTypes, code, &ScalarType::code);
  return found == std::end(kScalarTypes) ? nullptr : found;
}

DType stored_dtype(const Json& code, const std::string& key) {
  const ScalarType* const type = scalar_type(code.get<std::int64_t>());
  if (!type) throwf("{}: dtype number {} is not one that Gradual has; cast the model to f32", key, code.dump());
  return type->dtype;
}

// --- Python's lines and modules --------------------------------------------------------------------------------------

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

// `  File "/x/mine.py", line 57, in forward`; line 0 if it is none.
PythonLine parse_frame(std::string_view text) {
  PythonLine frame;
  const std::string line = trimmed(text);
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  const auto end = line.find(kLine);
  if (!line.starts_with(kFile) || end == std::string::npos) return frame;
  frame.file = line.substr(kFile.size(), end - kFile.size());
  unsigned number = 0;
  for (std::size_t i = end + kLine.size(); i < line.size() && line[i] >= '0' && line[i] <= '9'; ++i) {
    if (number > 100'000'000) return {};
    number = number * 10 + static_cast<unsigned>(line[i] - '0');
  }
  frame.line = number;
  return frame;
}

bool is_torch(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.starts_with("torch/");
}

// The innermost frame outside of PyTorch.
PythonLine parse_stack(std::string_view trace) {
  PythonLine found;
  const std::vector<std::string_view> lines = lines_of(trace);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    PythonLine frame = parse_frame(lines[i]);
    if (frame.line == 0 || is_torch(frame.file)) continue;
    if (i + 1 < lines.size() && parse_frame(lines[i + 1]).line == 0) frame.text = trimmed(lines[i + 1]);
    found = frame;
  }
  return found;
}

// "L__self__,,mine.Net;L__self___c,c,torch.nn.modules.conv.Conv2d": key, path and class at each level.
std::vector<ModuleClass> parse_modules(std::string_view stack) {
  std::vector<ModuleClass> modules;
  while (!stack.empty()) {
    const auto end = stack.find(';');
    const std::string_view level = stack.substr(0, end);
    const auto first = level.find(',');
    const auto last = level.rfind(',');
    if (first != std::string_view::npos && last > first && level.starts_with("L__self__")) {
      std::string path(level.substr(first + 1, last - first - 1));
      path = path.substr(0, path.find('@'));  // a second call of the same module: "c@1"
      modules.push_back({path, std::string(level.substr(last + 1))});
    }
    if (end == std::string_view::npos) break;
    stack.remove_prefix(end + 1);
  }
  return modules;
}

// --- the graph -------------------------------------------------------------------------------------------------------

using Scope = std::unordered_map<std::string, Value>;

class Reader {
 public:
  explicit Reader(Graph& graph) : graph_(graph) {}

  void read(const Json& program);

 private:
  struct Surroundings {
    bool grad = true;
    bool autocast = true;
    int depth = 0;
    const Json* tensors = nullptr;  // what the graph says about its tensors
  };

  int define(const std::string& name, Scope& scope, const Json* tensors = nullptr);
  Value lookup(const std::string& name, const Scope& scope) const;
  Value argument(const Json& arg, const Scope& scope) const;
  Value symbolic(const Json& arg, const Scope& scope, const char* constant) const;
  template <class F> Value list(const Json& items, const F& item) const;
  void node(const Json& json, Scope& scope, Surroundings around);
  void read_node(const Json& json, Scope& scope, Surroundings around);
  void outputs(const Json& json, Node& node, Scope& scope, const Json* tensors);
  bool inlined(const Json& json, const std::string& target, Scope& scope, Surroundings around);
  void input(const Json& spec, const Json& arg, const Json& tensors, Scope& scope);
  void output(const Json& spec, const Scope& scope);
  void metadata(const Json& json, Node& node);

  Graph& graph_;
  std::unordered_set<std::string> known_modules_;
};

// A size or stride; of a symbolic one what it was in the exporting run.
std::optional<std::int64_t> size_in_export(const Json& json) {
  const Json* number = &json;
  if (json.contains("as_expr")) {
    const Json& expression = json.at("as_expr");
    if (!expression.contains("hint") || !expression.at("hint").is_object()) return std::nullopt;
    number = &expression.at("hint");
  }
  if (!number->contains("as_int") || !number->at("as_int").is_number_integer()) return std::nullopt;
  return number->at("as_int").get<std::int64_t>();
}

Layout layout_of(const std::string& name, const Json* tensors) {
  if (!tensors || !tensors->is_object() || !tensors->contains(name)) return {};
  const Json& meta = tensors->at(name);
  if (!meta.is_object() || !meta.contains("strides") || !meta.contains("sizes") || !meta.contains("dtype")) return {};
  Layout layout;
  for (const Json& n : meta.at("sizes")) {
    const std::optional<std::int64_t> size = size_in_export(n);
    if (!size) return {};
    layout.sizes.push_back(*size);
  }
  for (const Json& n : meta.at("strides")) {
    const std::optional<std::int64_t> stride = size_in_export(n);
    if (!stride) return {};
    layout.strides.push_back(*stride);
  }
  if (layout.sizes.size() != layout.strides.size()) return {};
  layout.dtype = meta.at("dtype").get<std::int64_t>();
  return layout;
}

int Reader::define(const std::string& name, Scope& scope, const Json* tensors) {
  const int id = static_cast<int>(graph_.values.size());
  if (graph_.values.size() >= kMostValues) throwf("more than {} values", kMostValues);
  graph_.values.push_back(name);
  graph_.layouts.push_back(layout_of(name, tensors));
  if (!scope.emplace(name, Ref{id}).second) throwf("the name {} is defined twice", name);
  return id;
}

Value Reader::lookup(const std::string& name, const Scope& scope) const {
  const auto found = scope.find(name);
  if (found == scope.end()) throwf("{} is not defined by an input or an earlier node", name);
  return found->second;
}

template <class F> Value Reader::list(const Json& items, const F& item) const {
  Value::List all;
  for (const Json& i : items) all.push_back(item(i));
  return all;
}

// {"as_name": ..} or {constant: ..}.
Value Reader::symbolic(const Json& arg, const Scope& scope, const char* constant) const {
  if (arg.contains("as_name")) return lookup(arg.at("as_name").get<std::string>(), scope);
  const Json& value = arg.at(constant);
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return value.get<double>();
}

// JSON has no Inf and NaN; PyTorch writes them as words.
double number_of(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto text = json.get<std::string>();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  throwf("'{}' is not a number", text);
}

Value Reader::argument(const Json& arg, const Scope& scope) const {
  if (!arg.is_object() || arg.size() != 1) throwf("an argument {} is not an object of one key", arg.dump());
  const std::string kind = arg.begin().key();
  const Json& value = arg.begin().value();
  const auto tensor = [&](const Json& t) { return lookup(t.at("name").get<std::string>(), scope); };
  const auto optional = [&](const Json& t) { return t.contains("as_tensor") ? tensor(t.at("as_tensor")) : Value(); };
  if (kind == "as_tensor") return tensor(value);
  if (kind == "as_tensors") return list(value, tensor);
  if (kind == "as_optional_tensor") return optional(value);
  if (kind == "as_optional_tensors") return list(value, optional);
  if (kind == "as_nested_tensors") return list(value, [&](const Json& inner) { return list(inner, tensor); });
  if (kind == "as_int") return value.get<std::int64_t>();
  if (kind == "as_ints") return list(value, [](const Json& n) { return Value(n.get<std::int64_t>()); });
  if (kind == "as_float") return number_of(value);
  if (kind == "as_floats") return list(value, [](const Json& n) { return Value(number_of(n)); });
  if (kind == "as_bool") return value.get<bool>();
  if (kind == "as_bools") return list(value, [](const Json& b) { return Value(b.get<bool>()); });
  if (kind == "as_string") return value.get<std::string>();
  if (kind == "as_strings") return list(value, [](const Json& s) { return Value(s.get<std::string>()); });
  if (kind == "as_sym_int") return symbolic(value, scope, "as_int");
  if (kind == "as_sym_ints") return list(value, [&](const Json& n) { return symbolic(n, scope, "as_int"); });
  if (kind == "as_sym_float") return symbolic(value, scope, "as_float");
  if (kind == "as_sym_floats") return list(value, [&](const Json& n) { return symbolic(n, scope, "as_float"); });
  if (kind == "as_sym_bool") return symbolic(value, scope, "as_bool");
  if (kind == "as_sym_bools") return list(value, [&](const Json& n) { return symbolic(n, scope, "as_bool"); });
  if (kind == "as_memory_format") return value.get<std::int64_t>();
  if (kind == "as_none" || kind == "as_device" || kind == "as_layout") return {};
  if (kind == "as_scalar_type") {
    if (const ScalarType* type = scalar_type(value.get<std::int64_t>())) return type->dtype;
    return fmt::format("dtype number {}", value.dump());
  }
  return kind;  // no op of the table takes it; the op's error names it
}

void Reader::metadata(const Json& json, Node& node) {
  const auto text = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  node.line = parse_stack(text("stack_trace"));
  for (const ModuleClass& module : parse_modules(text("nn_module_stack"))) {
    node.modules.push_back(module.path);
    if (known_modules_.insert(module.path).second) graph_.modules.push_back(module);
  }
}

void Reader::outputs(const Json& json, Node& node, Scope& scope, const Json* tensors) {
  for (const Json& out : json.at("outputs")) {
    Node::Output output;
    const std::string kind = out.is_object() && out.size() == 1 ? out.begin().key() : "";
    const auto name = [&](const Json& t, const char* key) {
      output.values.push_back(define(t.at(key).get<std::string>(), scope, tensors));
    };
    if (kind == "as_tensor") {
      name(out.at(kind), "name");
    } else if (kind == "as_tensors") {
      output.list = true;
      for (const Json& t : out.at(kind)) name(t, "name");
    } else if (kind == "as_optional_tensor" && out.at(kind).contains("as_tensor")) {
      name(out.at(kind).at("as_tensor"), "name");
    } else if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") {
      name(out.at(kind), "as_name");
    } else if (kind != "as_none" && kind != "as_optional_tensor") {
      throwf("an output is {}", out.dump());
    }
    node.outputs.push_back(std::move(output));
  }
}

// Whether a region under torch.autocast leaves autocast as it is around: it does not if it switches it off. Error if it
// switches it on, because the casts of the region are those of the library's caller.
bool enters_autocast(const Json& inputs) {  // device, dtype, enabled, whether casts are cached
  const Json& enabled = inputs.at(2).at("arg");
  if (!enabled.contains("as_bool")) return true;
  if (!enabled.at("as_bool").get<bool>()) return false;
  const Json& dtype = inputs.at(1).at("arg");
  const ScalarType* const to =
      dtype.contains("as_scalar_type") ? scalar_type(dtype.at("as_scalar_type").get<std::int64_t>()) : nullptr;
  if (to && to->dtype == DType::f32) return true;
  throwf("the model switches torch.autocast on, to {}; export it without, and choose a recipe such as amp-bf16 here",
         to ? to_string(to->dtype) : "its device's dtype");
}

// Higher-order calls whose body runs once, in other surroundings: the body's nodes take the place of the call.
bool Reader::inlined(const Json& json, const std::string& target, Scope& scope, Surroundings around) {
  const bool grad = target == "higher_order.wrap_with_set_grad_enabled";
  if (!grad && target != "higher_order.wrap_with_autocast") return false;
  if (++around.depth > kMostJsonLevels) throw_error("calls nest too deep");
  const Json& inputs = json.at("inputs");
  std::size_t at = 0;
  while (at < inputs.size() && !inputs[at].at("arg").contains("as_graph")) ++at;
  if (at == inputs.size()) throw_error("has no graph");
  if (grad) around.grad = inputs.at(0).at("arg").at("as_bool").get<bool>();
  else around.autocast = enters_autocast(inputs);
  const Json& body = inputs[at].at("arg").at("as_graph").at("graph");
  const Json& names = body.at("inputs");
  if (names.size() != inputs.size() - at - 1)
    throwf("its graph has {} inputs, the call {}", names.size(), inputs.size() - at - 1);
  Scope inner;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Json& name = names[i];
    const Value given = argument(inputs[at + 1 + i].at("arg"), scope);
    const std::string key = name.contains("as_tensor")    ? name.at("as_tensor").at("name").get<std::string>()
                            : name.contains("as_sym_int") ? name.at("as_sym_int").at("as_name").get<std::string>()
                                                          : std::string();
    if (!key.empty()) inner.emplace(key, given);
  }
  around.tensors = body.contains("tensor_values") ? &body.at("tensor_values") : nullptr;
  for (const Json& n : body.at("nodes")) node(n, inner, around);
  std::vector<Value> results;
  for (const Json& out : body.at("outputs")) results.push_back(argument(out, inner));
  std::vector<std::string> wanted;
  for (const Json& out : json.at("outputs")) {
    if (out.contains("as_tensor")) wanted.push_back(out.at("as_tensor").at("name").get<std::string>());
    if (out.contains("as_sym_int")) wanted.push_back(out.at("as_sym_int").at("as_name").get<std::string>());
    if (out.contains("as_tensors"))
      for (const Json& t : out.at("as_tensors")) wanted.push_back(t.at("name").get<std::string>());
  }
  if (wanted.size() > results.size()) throwf("gives {} values, its graph {}", wanted.size(), results.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (!scope.emplace(wanted[i], results[i]).second) throwf("the name {} is defined twice", wanted[i]);
  return true;
}

void Reader::read_node(const Json& json, Scope& scope, Surroundings around) {
  Node node;
  node.target = json.at("target").get<std::string>();
  constexpr std::string_view kOps = "torch.ops.";
  if (node.target.starts_with(kOps)) node.target.erase(0, kOps.size());
  if (inlined(json, node.target, scope, around)) return;
  node.grad = around.grad;
  node.autocast = around.autocast;
  if (json.contains("metadata")) metadata(json.at("metadata"), node);
  for (const Json& in : json.at("inputs"))
    node.inputs.emplace_back(in.at("name").get<std::string>(), argument(in.at("arg"), scope));
  outputs(json, node, scope, around.tensors);
  graph_.nodes.push_back(std::move(node));
  if (graph_.nodes.size() > kMostNodes) throwf("more than {} nodes", kMostNodes);
}

void Reader::node(const Json& json, Scope& scope, Surroundings around) {
  const auto text = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>() : std::string("?");
  };
  try {
    read_node(json, scope, around);
  } catch (const Json::exception& e) {
    throwf("node {} ({}): {}", text("name"), text("target"), json_problem(e));
  } catch (const Error& e) { throwf("node {} ({}): {}", text("name"), text("target"), e.what()); }
}

std::vector<std::int64_t> sizes_of(const Json& sizes) {
  std::vector<std::int64_t> all;
  for (const Json& n : sizes) all.push_back(n.contains("as_int") ? n.at("as_int").get<std::int64_t>() : -1);
  return all;
}

void Reader::input(const Json& spec, const Json& arg, const Json& tensors, Scope& scope) {
  if (!spec.is_object() || spec.size() != 1) throwf("an input {} is not an object of one key", spec.dump());
  const std::string kind = spec.begin().key();
  const Json& of = spec.begin().value();
  Input in;
  std::string value;
  if (arg.contains("as_tensor")) value = arg.at("as_tensor").at("name").get<std::string>();
  else if (arg.contains("as_sym_int")) value = arg.at("as_sym_int").at("as_name").get<std::string>();
  if (kind == "parameter") {
    in.kind = InputKind::parameter;
    in.name = of.at("parameter_name").get<std::string>();
  } else if (kind == "buffer") {
    in.kind = InputKind::buffer;
    in.name = of.at("buffer_name").get<std::string>();
    in.persistent = !of.contains("persistent") || of.at("persistent").get<bool>();
    in.counts_batches = in.name.ends_with("num_batches_tracked");
  } else if (kind == "tensor_constant") {
    in.kind = InputKind::constant;
    in.name = of.at("tensor_constant_name").get<std::string>();
  } else if (kind == "user_input") {
    in.name = value;
    in.tensor = arg.contains("as_tensor");
    if (value.empty()) return;  // a constant of Python: no node reads it by name
  } else if (kind == "constant_input" || kind == "token") {
    return;
  } else {
    throwf("an input of kind {} cannot be read", kind);
  }
  if (value.empty()) throwf("input {} has no name in the graph", in.name);
  if (in.tensor && tensors.contains(value)) {
    const Json& meta = tensors.at(value);
    in.dtype = stored_dtype(meta.at("dtype"), in.name);
    in.sizes = sizes_of(meta.at("sizes"));
  }
  in.value = define(value, scope, &tensors);
  graph_.inputs.push_back(std::move(in));
}

void Reader::output(const Json& spec, const Scope& scope) {
  if (!spec.is_object() || spec.size() != 1) throwf("an output {} is not an object of one key", spec.dump());
  const std::string kind = spec.begin().key();
  const Json& of = spec.begin().value();
  Output out;
  if (kind == "user_output") {
    out.value = argument(of.at("arg"), scope);
  } else if (kind == "loss_output") {
    out.value = lookup(of.at("arg").at("name").get<std::string>(), scope);
  } else if (kind == "buffer_mutation") {
    out.kind = OutputKind::buffer_update;
    out.value = lookup(of.at("arg").at("name").get<std::string>(), scope);
    out.name = of.at("buffer_name").get<std::string>();
  } else {
    out.kind = OutputKind::ignored;  // gradients and updates of the caller's tensors
  }
  graph_.outputs.push_back(std::move(out));
}

void Reader::read(const Json& program) {
  const Json& version = program.at("schema_version");
  graph_.schema_major = version.at("major").get<std::int64_t>();
  graph_.schema_minor = version.at("minor").get<std::int64_t>();
  if (program.contains("torch_version") && program.at("torch_version").is_string())
    graph_.torch_version = program.at("torch_version").get<std::string>();
  if (graph_.schema_major != kSchemaMajor)
    throwf("written by PyTorch {} with schema version {}.{}; {}.x is read (PyTorch 2.9 and newer)",
           graph_.torch_version.empty() ? "?" : graph_.torch_version, graph_.schema_major, graph_.schema_minor,
           kSchemaMajor);
  const Json& module = program.at("graph_module");
  const Json& graph = module.at("graph");
  const Json& inputs = module.at("signature").at("input_specs");
  if (inputs.size() != graph.at("inputs").size())
    throwf("the signature has {} inputs, the graph {}", inputs.size(), graph.at("inputs").size());
  Scope scope;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    input(inputs[i], graph.at("inputs")[i], graph.at("tensor_values"), scope);
  const Surroundings around{.tensors = &graph.at("tensor_values")};
  for (const Json& n : graph.at("nodes")) node(n, scope, around);
  for (const Json& spec : module.at("signature").at("output_specs")) output(spec, scope);
}

// Errors of the JSON library as the library's own.
template <class F> void reading(const std::string& what, const F& f) {
  try {
    f();
  } catch (const Json::exception& e) { throwf("{}: {}", what, json_problem(e)); }
}

}  // namespace

// Counted in the text, in which each node has the key once: the objects of a graph take many times its memory.
static void check_size(std::string_view json) {
  constexpr std::string_view kKey = "\"target\":";  // in a string its quotes are escaped
  std::size_t nodes = 0;
  for (auto at = json.find(kKey); at != std::string_view::npos; at = json.find(kKey, at + kKey.size())) ++nodes;
  if (nodes > kMostNodes) throwf("models/model.json: {} nodes; at most {} are read", nodes, kMostNodes);
}

Graph parse_graph(const std::string& json) {
  check_size(json);
  Graph graph;
  const Json program = parse_json<Json>(json, [](std::size_t, const std::string&) {});
  reading("models/model.json", [&] { Reader(graph).read(program); });
  return graph;
}

std::vector<StoredTensor> parse_tensor_config(const std::string& json, const std::string& entry) {
  std::vector<StoredTensor> all;
  const Json config = parse_json<Json>(json, [](std::size_t, const std::string&) {});
  reading(entry, [&] {
    for (const auto& [key, of] : config.at("config").items()) {
      if (of.contains("use_pickle") && of.at("use_pickle").get<bool>())
        throwf("{}: {} is a pickle, which is never opened; export again with PyTorch 2.9 or newer", entry, key);
      if (!of.contains("tensor_meta") || of.at("tensor_meta").is_null()) continue;
      const Json& meta = of.at("tensor_meta");
      StoredTensor t;
      t.key = key;
      t.file = of.at("path_name").get<std::string>();
      t.dtype = stored_dtype(meta.at("dtype"), key);
      t.sizes = sizes_of(meta.at("sizes"));
      t.strides = sizes_of(meta.at("strides"));
      const Json& offset = meta.at("storage_offset");
      t.offset = offset.contains("as_int") ? offset.at("as_int").get<std::int64_t>() : -1;
      t.parameter = of.contains("is_param") && of.at("is_param").get<bool>();
      t.requires_grad = meta.at("requires_grad").get<bool>();
      all.push_back(std::move(t));
    }
  });
  return all;
}

}  // namespace gradual::pt2
