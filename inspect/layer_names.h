// Layers named with their kind, "4 (Conv2d)", in the tables and sentences that people read.
#pragma once

#include <map>
#include <string>

#include "../nn/module.h"

namespace gradual::inspect {

// Made without a model, it leaves names as they are.
class LayerNames {
 public:
  LayerNames() = default;
  explicit LayerNames(std::map<std::string, std::string> kinds);
  explicit LayerNames(nn::Module& model);
  // "4 (Conv2d)" of "4", "4#2 (Conv2d)" of products with the layer's second weight (amp/site_name.h), "4.weight
  // (Conv2d)" of a parameter. Another text as it is.
  std::string operator()(const std::string& name) const;
  // Whether this is the path of a module.
  bool knows(const std::string& path) const;

 private:
  std::map<std::string, std::string> kinds_;
};

}  // namespace gradual::inspect
