// An exported model taken apart: its plan, its tensors, its calls of modules, and the kind of every value. The
// translation to C++ and the judgement of recorded steps read it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "plan.h"
#include "weights.h"

namespace gradual::pt2 {

// What a value was in a run on zeros.
struct Fact {
  enum class Kind : std::uint8_t { none, tensor, integer, number, flag, text, list };
  Kind kind = Kind::none;
  DType dtype = DType::f32;  // of a tensor
  int dims = 0;              // of a tensor
};

struct ModuleRun;
// A step, or a call of a module.
struct RunItem {
  int step = -1;
  std::shared_ptr<ModuleRun> run;  // null for a step
};

// One call of a module: the steps from `first` to `last`, which nothing interrupts.
struct ModuleRun {
  std::string path;
  int first = 0;
  int last = -1;
  std::vector<RunItem> items;
  std::vector<int> inputs;   // values that come from outside, in the order of their first use
  std::vector<int> outputs;  // values that are read after the call
};

struct Program {
  std::string name;  // of the file
  std::string path;  // as given
  Graph graph;
  Plan plan;
  std::map<std::string, Weight> weights;
  std::map<std::string, Weight> constants;
  std::vector<Fact> facts;                       // by value
  std::map<int, const Input*> state;             // parameters, buffers and constants, by value
  std::map<std::string, std::string> classes;    // of Python, by path of the module
  std::map<int, std::vector<std::string>> keys;  // of the state, in the state dict: all names of a tied tensor
  std::shared_ptr<ModuleRun> root;

  const Fact& fact(int id) const { return facts[static_cast<std::size_t>(id)]; }
  const Step& step(int i) const { return plan.steps[static_cast<std::size_t>(i)]; }
  const Node& node(int i) const { return graph.nodes[static_cast<std::size_t>(step(i).node)]; }
  const Step* maker(int id) const {
    const int by = plan.made_by[static_cast<std::size_t>(id)];
    return by < 0 ? nullptr : &step(by);
  }
  // The key of a parameter or buffer in this module or below it; empty if it has none there.
  std::string key_below(int id, const std::string& module) const;
  // The stored tensor of an input of the graph.
  const Weight& weight(const Input& in) const;
};

// Error for what load() refuses, and for a module that writes a tensor of another one.
Program read_program(const std::string& path);

// Runs the graph on zeros to fill `facts`; sizes that may be any are any_size. Error where that fails.
void find_facts(Program& program, std::int64_t any_size);

// The values that a step reads (every use counts), and that it gives or changes (each once).
std::vector<int> reads_of(const Program& program, const Step& step);
std::vector<int> writes_of(const Step& step);
// The values in v.
void add_refs(const Value& v, std::vector<int>& ids);

}  // namespace gradual::pt2
