#include "layer_names.h"

#include <utility>

#include "../amp/site_name.h"

namespace gradual::inspect {

LayerNames::LayerNames(std::map<std::string, std::string> kinds) : kinds_(std::move(kinds)) {}

LayerNames::LayerNames(nn::Module& model) {
  for (const auto& [path, module] : model.named_modules())
    if (!path.empty()) kinds_[path] = module->kind();
}

std::string LayerNames::operator()(const std::string& name) const {
  auto found = kinds_.find(amp::site_name(name).layer);
  if (found == kinds_.end()) found = kinds_.find(name.substr(0, name.rfind('.')));
  return found == kinds_.end() ? name : name + " (" + found->second + ")";
}

bool LayerNames::knows(const std::string& path) const { return kinds_.contains(path); }

}  // namespace gradual::inspect
