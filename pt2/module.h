// PyTorch's exported models as modules. docs/pt2.md lists ops, versions and limits.
//
//   // python: batch = torch.export.Dim("batch")
//   // python: torch.export.save(torch.export.export(net, (x,), dynamic_shapes=({0: batch},)), "net.pt2")
//   const std::shared_ptr<pt2::ExportedModule> net = pt2::load("net.pt2");
//   const Tensor logits = (*net)(x);
//   cross_entropy(logits, y).backward();
//
// Every op runs inside the scope of the Python module that called it ("blocks.3.mlp.fc2"), and its source line is
// Python's (mine.py:57).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../nn/embedding.h"
#include "../nn/module.h"
#include "../nn/norm.h"
#include "ops_table.h"

namespace gradual::pt2 {

class Archive;

// The modules of the exported model: their parameters, buffers and children. Recipes tell three kinds apart: norms,
// which mode `half` leaves in f32, embeddings, which are no product, and others.
struct PythonModule {
  virtual ~PythonModule() = default;
  std::string python_class;  // "torch.nn.modules.conv.Conv2d"; empty if no op ran in it
};
struct Submodule : nn::Module, PythonModule {};
struct Embedding : nn::Module, nn::LookupTable, PythonModule {};
struct Norm : nn::Norm, PythonModule {};

// The name of a module's class: of Python for one of an exported model ("Conv2d"), otherwise Module::kind().
std::string kind_of(const nn::Module& module);

// An input of forward.
struct InputInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> sizes;  // -1: any size
};

struct LoadOptions {
  // Allows training a graph that was exported in evaluation: its batch norms keep the running statistics, its dropouts
  // drop nothing. Without it, a call in training mode is an Error.
  bool train_evaluation_graph = false;
};

class ExportedModule : public nn::Module {
 public:
  ExportedModule(ExportedModule&&) = delete;
  ~ExportedModule() override;

  // For a model of one input: its first output. Error naming the inputs if there are more.
  Tensor forward(const Tensor& x) override;
  using nn::Module::operator();
  // All outputs, in PyTorch's order, of tuples and dictionaries flattened. `inputs` are in the order of inputs().
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, Loc loc = Loc::current());
  // The same, by name. Error for a missing or unknown name.
  std::vector<Tensor> operator()(const nn::NamedTensors& inputs, Loc loc = Loc::current());

  const std::vector<InputInfo>& inputs() const;
  // Whether the graph was exported in training mode; true if no op depends on the mode.
  bool exported_in_training() const;
  const std::string& torch_version() const;
  // The Python line "mine.py:57: x = fc2(h)" of the first op of each module, by its path and those of its parameters;
  // and of every op, by the line's place "mine.py:57". Where files of one name differ there, it has no text.
  const std::map<std::string, std::string>& lines() const;

 private:
  friend std::shared_ptr<ExportedModule> build(const Archive& archive, const LoadOptions& options);
  struct Program;
  explicit ExportedModule(std::unique_ptr<Program> program);
  std::vector<Tensor> run(const std::vector<Tensor>& inputs);

  std::unique_ptr<Program> program_;
};

std::shared_ptr<ExportedModule> build(const Archive& archive, const LoadOptions& options);  // of load()

// Reads a file of torch.export.save. The module is in training mode if the graph was exported in it, else in
// evaluation. Parameters and buffers have PyTorch's names, so state_dict() fits load_state_dict in Python; tied weights
// are one tensor. Errors name the file, and list every unknown op with its count and Python lines.
std::shared_ptr<ExportedModule> load(const std::string& path, const LoadOptions& options = {});
// The same from memory; `name` stands for the file in messages.
std::shared_ptr<ExportedModule> load_bytes(std::string_view bytes, const std::string& name,
                                           const LoadOptions& options = {});

}  // namespace gradual::pt2
