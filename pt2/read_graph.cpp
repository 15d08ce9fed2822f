#include "read_graph.h"

#include <algorithm>
#include <vector>

#include "../core/support/throwf.h"

namespace gradual::pt2 {
namespace {

void check_entries(const Archive& archive) {
  if (!archive.contains("models/model.json")) {
    const std::vector<std::string>& entries = archive.entries();
    const bool old = std::ranges::any_of(entries, [](const std::string& e) { return e.ends_with(".json"); });
    throwf("has no models/model.json; {}",
           old ? "it was written by a PyTorch before 2.9. Export it again with 2.9 or newer"
               : "is it a file of torch.export.save?");
  }
  if (archive.contains("byteorder") && archive.text("byteorder") != "little")
    throwf("its numbers are {}-endian; little-endian ones are read", archive.text("byteorder"));
}

void check_nesting(const Graph& graph) {
  for (const ModuleClass& of : graph.modules) check_levels(of.path);
  for (const Node& node : graph.nodes) {
    if (node.modules.size() > kMostLevels + 1) throwf("modules nest deeper than {} levels", kMostLevels);
    for (const std::string& path : node.modules) check_levels(path);
  }
}

}  // namespace

void check_levels(const std::string& path) {
  if (std::ranges::count(path, '.') > kMostLevels) throwf("modules nest deeper than {} levels", kMostLevels);
}

Graph read_graph(const Archive& archive) {
  check_entries(archive);
  Graph graph = parse_graph(archive.text("models/model.json"));
  for (const Input& in : graph.inputs) {
    const bool user = in.kind == InputKind::user;
    if (user && !in.tensor) throwf("input {} is a number of Python; only tensors are supported as inputs", in.name);
    if (!user) check_levels(in.name);
  }
  check_nesting(graph);
  return graph;
}

}  // namespace gradual::pt2
