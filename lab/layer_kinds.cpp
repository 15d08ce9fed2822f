#include "layer_kinds.h"

#include <map>
#include <string>
#include <utility>

#include "../pt2/module.h"

namespace gradual::lab {

inspect::LayerNames layer_names(nn::Module& model) {
  std::map<std::string, std::string> kinds;
  for (const auto& [path, module] : model.named_modules())
    if (!path.empty()) kinds[path] = pt2::kind_of(*module);
  return inspect::LayerNames(std::move(kinds));
}

}  // namespace gradual::lab
