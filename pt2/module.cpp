#include "module.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "../autograd/activation_checkpoint.h"
#include "../autograd/grad_mode.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "archive.h"
#include "executor.h"
#include "python_line.h"
#include "read_graph.h"
#include "weights.h"

namespace gradual::pt2 {

// A parameter, a buffer or a constant. Slots are in the module tree, whose tensors keep their addresses.
struct ProgramState {
  int value = 0;
  const Tensor* slot = nullptr;  // a parameter or buffer of the module tree
  Tensor constant;               // else: a tensor that the state dict does not have
  bool follows_dtype = false;    // a constant that PyTorch converts with the module
  bool counter = false;          // of a batch norm's batches: stands still in evaluation
};

// What a loaded file becomes.
struct ExportedModule::Program {
  std::string name;  // of the file, for messages
  Graph graph;
  Plan plan;
  LoadOptions options;
  std::vector<InputInfo> inputs;
  std::vector<int> input_values;
  std::vector<char> input_written;  // whether a norm updates it as its running statistics
  std::vector<ProgramState> state;
  std::map<int, std::size_t> state_of;            // by value
  std::map<std::string, int> buffer_values;       // by key
  std::map<std::string, std::string> lines;       // by path
  std::vector<std::vector<nn::Module*>> modules;  // of each step, from the outermost to the innermost
  const Tensor* first_parameter = nullptr;        // a floating one
  DType loaded_dtype = DType::f32;                // of the first parameter in the file
  bool in_training = true;

  CallSite site(bool training, const std::vector<Tensor>& given) const;
  void bind(const std::vector<Tensor>& given, Run& run) const;
  void keep(int value, const Value& now, bool training);
  void run_steps(Run& run);
  std::vector<Tensor> outputs(const Run& run);
};

namespace {

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> texts;
  for (const std::int64_t n : sizes) texts.push_back(n < 0 ? "any" : fmt::to_string(n));
  return "[" + join(texts) + "]";
}

void check_input(const std::string& file, const InputInfo& wanted, const Tensor& given) {
  if (!given.defined()) throwf("pt2 \"{}\": input {} is undefined", file, wanted.name);
  bool fits = given.dim() == static_cast<int>(wanted.sizes.size());
  for (std::size_t i = 0; fits && i < wanted.sizes.size(); ++i)
    fits = wanted.sizes[i] < 0 || wanted.sizes[i] == given.sizes()[static_cast<int>(i)];
  if (!fits)
    throwf(
        "pt2 \"{}\": input {} is {}; the graph was exported for {}. Export it with a dynamic size: "
        "torch.export.export(net, (x,), dynamic_shapes=({{0: torch.export.Dim('batch')}},))",
        file, wanted.name, to_string(given.sizes()), sizes_text(wanted.sizes));
  if (is_floating(wanted.dtype) != given.is_floating())
    throwf("pt2 \"{}\": input {} is {}; the graph was exported for {}", file, wanted.name, to_string(given.dtype()),
           to_string(wanted.dtype));
}

// Adds the tensors of a value, of nested lists in order.
void collect(const Value& v, std::vector<Tensor>& all) {
  if (const Tensor* t = tensor_of(v)) all.push_back(*t);
  if (const Value::List* list = v.get<Value::List>())
    for (const Value& item : *list) collect(item, all);
}

}  // namespace

// --- running ---------------------------------------------------------------------------------------------------------

CallSite ExportedModule::Program::site(bool training, const std::vector<Tensor>& given) const {
  CallSite site;
  site.training = training;
  const Tensor* of = first_parameter;
  if (!of && !given.empty()) of = &given.front();
  if (!of) return site;
  site.device = of->device();
  if (of->dtype() == DType::f64) site.real = DType::f64;
  return site;
}

// Gives the inputs and the module's state to their names.
void ExportedModule::Program::bind(const std::vector<Tensor>& given, Run& run) const {
  for (std::size_t i = 0; i < given.size(); ++i) {
    check_input(name, inputs[i], given[i]);
    const Tensor own = input_written[i] ? clone(given[i]) : given[i];
    run.value(input_values[i]) = own;
    run.state.push_back(own);
  }
  const bool converted = first_parameter && first_parameter->dtype() != loaded_dtype;
  for (const ProgramState& s : state) {
    if (s.slot) {
      run.value(s.value) = *s.slot;
      run.state.push_back(*s.slot);
      continue;
    }
    Tensor t = s.constant;
    if (s.follows_dtype && t.is_floating() && converted) t = cast(t, first_parameter->dtype());
    else if (t.dtype() == DType::f32) t = cast(t, run.site.real);
    const Tensor there = to_device(t, run.site.device);
    run.value(s.value) = there;
    run.state.push_back(there);
  }
}

// A step has written into a parameter, buffer or constant: it keeps the new value after the call. Not in a
// recomputation, which repeats a call.
void ExportedModule::Program::keep(int value, const Value& now, bool training) {
  const auto found = state_of.find(value);
  const Tensor* const tensor = tensor_of(now);
  if (found == state_of.end() || !tensor || recomputing()) return;
  ProgramState& s = state[found->second];
  if (s.counter && !training) return;
  const NoGrad no_grad;
  if (!s.slot) {
    s.constant = cast(tensor->detach(), s.constant.dtype());
  } else if (!tensor->is_same(*s.slot)) {
    s.slot->detach().copy_(tensor->detach());
  }
}

void ExportedModule::Program::run_steps(Run& run) {
  Executor executor(plan, run);
  ModuleScopes scopes;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    scopes.enter(modules[i], step.line);
    const Scoped line(context().line, step.line);
    const StageScope autograd(chain().autograd, step.grad ? chain().autograd : nullptr);
    const StageScope amp(chain().amp, step.autocast ? chain().amp : nullptr);
    try {
      executor.run(step);
      if (step.written >= 0) {
        const int owner = step.owners.empty() ? step.written : step.owners.back();
        keep(owner, run.value(owner), run.site.training);
      }
    } catch (const Error& e) { throwf("pt2 \"{}\": {}: {}", name, step.where, e.what()); }
    for (const int id : step.release) run.value(id) = Value();
  }
}

std::vector<Tensor> ExportedModule::Program::outputs(const Run& run) {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const Output& out = graph.outputs[i];
    const Value value = filled(plan.outputs[i], run.values);
    if (out.kind == OutputKind::user) collect(value, all);
    if (out.kind == OutputKind::buffer_update)
      if (const auto buffer = buffer_values.find(out.name); buffer != buffer_values.end())
        keep(buffer->second, value, run.site.training);
  }
  return all;
}

std::vector<Tensor> ExportedModule::run(const std::vector<Tensor>& given) {
  Program& p = *program_;
  if (given.size() != p.inputs.size()) {
    std::vector<std::string> names;
    for (const InputInfo& in : p.inputs) names.push_back(in.name + " " + sizes_text(in.sizes));
    throwf("pt2 \"{}\": {} inputs; the model takes {}: {}", p.name, given.size(), p.inputs.size(), join(names));
  }
  if (training() && !p.in_training && !p.options.train_evaluation_graph)
    throwf(
        "pt2 \"{}\": exported in evaluation, so its {} batch norms and dropouts would not train; export it after "
        "net.train(), or call eval()",
        p.name, p.plan.evaluation_calls);
  Run run;
  run.values.resize(p.graph.values.size());
  run.apart.resize(p.graph.values.size());
  run.site = p.site(training(), given);
  p.bind(given, run);
  p.run_steps(run);
  return p.outputs(run);
}

Tensor ExportedModule::forward(const Tensor& x) {
  const std::vector<Tensor> outputs = run({x});
  if (outputs.empty()) throwf("pt2 \"{}\": the model returns no tensor", program_->name);
  return outputs.front();
}

std::vector<Tensor> ExportedModule::operator()(const std::vector<Tensor>& given, Loc loc) {
  const nn::ModuleCall call(*this, loc);
  std::vector<Tensor> outputs = run(given);
  if (!given.empty() && !outputs.empty()) call.leave(given.front(), outputs.front());
  return outputs;
}

std::vector<Tensor> ExportedModule::operator()(const nn::NamedTensors& given, Loc loc) {
  std::vector<Tensor> ordered(inputs().size());
  std::vector<std::string> names;
  for (const InputInfo& in : inputs()) names.push_back(in.name);
  for (const auto& [name, tensor] : given) {
    const auto at = std::ranges::find(names, name);
    if (at == names.end()) throwf("pt2 \"{}\": no input '{}'; the model takes {}", program_->name, name, join(names));
    ordered[static_cast<std::size_t>(at - names.begin())] = tensor;
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!ordered[i].defined()) throwf("pt2 \"{}\": input '{}' is missing", program_->name, names[i]);
  return (*this)(ordered, loc);
}

ExportedModule::ExportedModule(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ExportedModule::~ExportedModule() = default;
const std::vector<InputInfo>& ExportedModule::inputs() const { return program_->inputs; }
bool ExportedModule::exported_in_training() const { return program_->in_training; }
const std::map<std::string, std::string>& ExportedModule::lines() const { return program_->lines; }
std::string kind_of(const nn::Module& module) {
  const auto* const python = dynamic_cast<const PythonModule*>(&module);
  if (!python || python->python_class.empty()) return module.kind();
  return python->python_class.substr(python->python_class.rfind('.') + 1);
}

const std::string& ExportedModule::torch_version() const { return program_->graph.torch_version; }

// --- loading ---------------------------------------------------------------------------------------------------------

namespace {

// Builds the module tree.
class Tree {
 public:
  Tree(nn::Module& root, const std::vector<ModuleClass>& classes) {
    modules_[""] = &root;
    for (const ModuleClass& of : classes) classes_[of.path] = of.python_class;
  }

  nn::Module& module(const std::string& path) {
    if (const auto found = modules_.find(path); found != modules_.end()) return *found->second;
    check_levels(path);
    const auto dot = path.rfind('.');
    nn::Module& parent = module(dot == std::string::npos ? "" : path.substr(0, dot));
    const std::string name = path.substr(dot == std::string::npos ? 0 : dot + 1);
    const std::string& python_class = classes_[path];
    const std::string kind = python_class.substr(python_class.rfind('.') + 1);
    if (kind.find("Norm") != std::string::npos) make<Norm>(parent, name, path);
    else if (kind == "Embedding") make<Embedding>(parent, name, path);
    else make<Submodule>(parent, name, path);
    return *modules_[path];
  }
  // The tensor of this key, registered the first time.
  const Tensor* add(const std::string& key, const Weight& weight, nn::BufferKind kind = nn::BufferKind::other) {
    if (const auto found = slots_.find(key); found != slots_.end()) return found->second;
    const auto dot = key.rfind('.');
    nn::Module& owner = module(dot == std::string::npos ? "" : key.substr(0, dot));
    const std::string name = key.substr(dot == std::string::npos ? 0 : dot + 1);
    const bool trained = weight.parameter && weight.requires_grad && weight.tensor.is_floating();
    const Tensor& slot = weight.parameter ? owner.register_parameter(name, weight.tensor, trained)
                                          : owner.register_buffer(name, weight.tensor, kind);
    return slots_[key] = &slot;
  }

 private:
  template <class M> void make(nn::Module& parent, const std::string& name, const std::string& path) {
    const std::shared_ptr<M> made = parent.register_module(name, std::make_shared<M>());
    made->python_class = classes_[path];
    modules_[path] = made.get();
  }

  std::map<std::string, std::string> classes_;  // of Python, by path
  std::map<std::string, nn::Module*> modules_;
  std::map<std::string, const Tensor*> slots_;
};

const Weight& find(const std::map<std::string, Weight>& weights, const std::string& key) {
  const auto found = weights.find(key);
  if (found == weights.end()) throwf("the archive has no tensor {}", key);
  return found->second;
}

// A node without a line in Python gets its place in the graph: "net.pt2:17".
void set_lines(Graph& graph, const std::string& file) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& n = graph.nodes[i];
    if (n.line.line == 0) n.line = {file, static_cast<unsigned>(i + 1), n.target};
  }
}

}  // namespace

// By the line's place, "mine.py:57". Of another file of that name the text is not the line's: none is given then.
static void add_line(std::map<std::string, std::string>& lines, const PythonLine& line) {
  const std::string place = to_string(PythonLine{line.file, line.line, ""});
  const std::string whole = to_string(line);
  const auto [found, is_new] = lines.emplace(place, whole);
  if (!is_new && found->second != whole) found->second = place;
}

// Fills the module tree and the program's state from the archive's tensors.
static void add_state(const Archive& archive, const Graph& graph, const Plan& plan, Tree& tree,
                      std::vector<ProgramState>& state) {
  if (archive.contains("data/weights/model.pt"))
    throwf(
        "written by PyTorch {}, which keeps weights in a pickle; pickles are never opened. Export it again with 2.9 or "
        "newer",
        graph.torch_version.empty() ? "?" : graph.torch_version);
  const std::map<std::string, Weight> weights = read_weights(archive);
  const std::map<std::string, Weight> constants = read_constants(archive);
  for (const Input& in : graph.inputs) {
    if (in.kind == InputKind::user) continue;
    ProgramState s;
    s.value = in.value;
    s.counter = in.counts_batches;
    if (weights.contains(in.name) && in.persistent && in.kind != InputKind::constant) {
      const bool statistic = is_running_statistic(plan, in.value);
      const auto kind = statistic ? nn::BufferKind::running_statistic : nn::BufferKind::other;
      s.slot = tree.add(in.name, find(weights, in.name), kind);
    } else {
      s.constant = find(constants.contains(in.name) ? constants : weights, in.name).tensor;
      s.follows_dtype = in.kind != InputKind::constant;
    }
    state.push_back(std::move(s));
  }
  for (const auto& [key, weight] : weights) tree.add(key, weight);  // what no op reads, and further names of tied ones
}

// Reads the whole archive.
std::shared_ptr<ExportedModule> build(const Archive& archive, const LoadOptions& options) {
  auto program = std::make_unique<ExportedModule::Program>();
  ExportedModule::Program& p = *program;
  p.name = archive.name();
  p.options = options;
  p.graph = read_graph(archive);
  set_lines(p.graph, p.name);
  p.plan = make_plan(p.graph);
  p.in_training = p.plan.training_calls > 0 || p.plan.evaluation_calls == 0;
  const std::shared_ptr<ExportedModule> module(new ExportedModule(std::move(program)));
  Tree tree(*module, p.graph.modules);
  add_state(archive, p.graph, p.plan, tree, p.state);
  for (std::size_t i = 0; i < p.state.size(); ++i) {
    const Tensor* const slot = p.state[i].slot;
    p.state_of[p.state[i].value] = i;
    if (p.first_parameter || !slot || !slot->is_floating()) continue;
    p.first_parameter = slot;
    p.loaded_dtype = slot->dtype();
  }
  for (const Input& in : p.graph.inputs) {
    if (in.kind == InputKind::buffer) p.buffer_values[in.name] = in.value;
    if (in.kind != InputKind::user) continue;
    p.inputs.push_back({in.name, in.dtype, in.sizes});
    p.input_values.push_back(in.value);
  }
  for (const int value : p.input_values) p.input_written.push_back(is_running_statistic(p.plan, value));
  for (const ModuleClass& of : p.graph.modules) tree.module(of.path);
  for (const Step& step : p.plan.steps) {
    std::vector<nn::Module*>& scopes = p.modules.emplace_back();
    const Node& node = p.graph.nodes[static_cast<std::size_t>(step.node)];
    add_line(p.lines, node.line);
    for (const std::string& path : node.modules) {
      if (path.empty()) continue;
      scopes.push_back(&tree.module(path));
      p.lines.emplace(path, to_string(node.line));
    }
  }
  for (const auto& [key, parameter] : module->named_parameters())
    if (const auto line = p.lines.find(key.substr(0, key.rfind('.'))); line != p.lines.end())
      p.lines.emplace(key, line->second);
  module->train(p.in_training);
  return module;
}

std::shared_ptr<ExportedModule> load(const std::string& path, const LoadOptions& options) {
  const Archive archive(path);
  return in_context("pt2 \"" + path + "\"", [&] { return build(archive, options); });
}

std::shared_ptr<ExportedModule> load_bytes(std::string_view bytes, const std::string& name,
                                           const LoadOptions& options) {
  const Archive archive(bytes, name);
  return in_context("pt2 \"" + name + "\"", [&] { return build(archive, options); });
}

}  // namespace gradual::pt2
