// The modules of an exported model as a tree, and what C++ calls them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "translate_layers.h"

namespace gradual::pt2 {

// A parameter, a buffer, or a constant of a module.
struct StateSlot {
  std::string name;  // in its module
  std::string key;
  const Weight* weight = nullptr;
  bool registered = true;  // the state dict has it
  bool statistic = false;  // a running statistic of a batch norm
};

struct ModuleNode {
  std::string path;
  std::string name;  // in its parent
  std::string python_class;
  std::vector<std::string> children;  // paths
  std::vector<StateSlot> slots;
  std::vector<const ModuleRun*> runs;
  // What constructs it, once it is known. Lists have elements that are reached by [i]; a chain runs its children one
  // after the other and gives no access to them.
  enum class Form : std::uint8_t { structure, layer, list, chain };
  Form form = Form::structure;
  Construction construction;
  std::map<const ModuleRun*, std::string> functions;  // of a structure: "" is the call of the module itself
};

class ModuleTree {
 public:
  explicit ModuleTree(const Program& program);

  ModuleNode& node(const std::string& path) { return nodes_.at(path); }
  const ModuleNode& node(const std::string& path) const { return nodes_.at(path); }
  // How code in the module `from` names the module or tensor at `to`, which lies below it: "h[0].fc.weight".
  std::string access(const std::string& from, const std::string& to) const;
  // Whether code outside of the module reads a tensor of it or of one below.
  bool is_reached(const std::string& path) const;
  // Keys of one tensor: the first has it, the second shall.
  const std::vector<std::pair<std::string, std::string>>& ties() const { return ties_; }

 private:
  ModuleNode& add(const std::string& path);
  void add_state();
  void add_runs(const ModuleRun& run);
  void find_ties();
  void find_reached(const ModuleRun& run);
  void reach(const std::string& key);

  const Program& program_;
  std::map<std::string, ModuleNode> nodes_;
  std::vector<std::pair<std::string, std::string>> ties_;
  std::set<std::string> reached_;
};

// A name that C++ and the library allow for a member: "0" becomes "m0", "default" becomes "default_".
std::string member_name(const std::string& name);
// Names that no local variable may have.
bool is_reserved(const std::string& name);

// The parts of a dotted path.
std::vector<std::string> parts_of(const std::string& path);

}  // namespace gradual::pt2
