// An exported program as PyTorch's torch.export.save writes it (torch/_export/serde/schema.py is the format's
// definition), read into typed structs. Every name is resolved to an index while reading, in the order of the file, so
// a graph that was read has no cycle and no undefined name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "value.h"

namespace gradual::pt2 {

// The schema version that is read; the minor number may be any.
inline constexpr std::int64_t kSchemaMajor = 8;

// Where the user's Python called an op: the innermost line outside of PyTorch.
struct PythonLine {
  std::string file;
  unsigned line = 0;  // 0: unknown
  std::string text;   // of the line, without leading blanks
};
// "mine.py:57: x = self.fc2(h)"; "" if the line is unknown.
std::string to_string(const PythonLine& line);

// A call of one op.
struct Node {
  std::string target;  // "aten.conv2d.default"
  std::vector<std::pair<std::string, Value>> inputs;
  // One entry an output; a list of tensors is one output.
  struct Output {
    std::vector<int> values;
    bool list = false;
  };
  std::vector<Output> outputs;
  std::vector<std::string> modules;  // paths from the outermost to the innermost: "", "blocks.3", "blocks.3.fc"
  PythonLine line;
  bool grad = true;      // false inside torch.no_grad()
  bool autocast = true;  // false inside torch.autocast(.., enabled=False)
};

enum class InputKind : std::uint8_t { parameter, buffer, constant, user };
struct Input {
  InputKind kind = InputKind::user;
  int value = 0;
  std::string name;             // the key in the state dict; of a user's input its name
  bool persistent = true;       // buffers: whether the state dict has it
  bool counts_batches = false;  // buffers of a batch norm; its name alone tells. They stand still in evaluation
  bool tensor = true;           // user's inputs: a tensor, else an integer
  DType dtype = DType::f32;
  std::vector<std::int64_t> sizes;  // of a tensor; -1: any size
};

enum class OutputKind : std::uint8_t { user, buffer_update, ignored };
struct Output {
  OutputKind kind = OutputKind::user;
  Value value;       // a Ref, a constant, or a list of these
  std::string name;  // of the buffer
};

// The memory of a tensor in the exporting run: its dtype by the schema's number, its sizes and strides there.
struct Layout {
  std::int64_t dtype = 0;  // 0: unknown
  std::vector<std::int64_t> sizes, strides;
};

struct ModuleClass {
  std::string path;
  std::string python_class;  // "torch.nn.modules.conv.Conv2d"
};

struct Graph {
  std::string torch_version;
  std::int64_t schema_major = 0;
  std::int64_t schema_minor = 0;
  std::vector<std::string> values;  // names
  std::vector<Layout> layouts;      // of each value
  std::vector<Input> inputs;
  std::vector<Node> nodes;
  std::vector<Output> outputs;
  std::vector<ModuleClass> modules;  // in the order of their first call
};

// Reads models/model.json. Errors name the version, the node and what is wrong with it.
Graph parse_graph(const std::string& json);

// The sizes, strides and place of a stored tensor.
struct StoredTensor {
  std::string key;   // in the state dict
  std::string file;  // "weight_0"
  DType dtype = DType::f32;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;  // elements
  bool parameter = false;   // else a buffer or a constant
  bool requires_grad = false;
};
// Reads data/weights/model_weights_config.json and data/constants/model_constants_config.json.
std::vector<StoredTensor> parse_tensor_config(const std::string& json, const std::string& entry);

}  // namespace gradual::pt2
