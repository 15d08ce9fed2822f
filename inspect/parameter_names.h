// The names of a model's parameters, by their storage: observers see tensors alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "../amp/rewrite.h"
#include "../nn/module.h"

namespace gradual::inspect {

class ParameterNames {
 public:
  ParameterNames() = default;
  explicit ParameterNames(const nn::Module& model) {
    for (const auto& [name, param] : model.named_parameters()) names_[amp::storage_id(param)] = name;
  }
  // "fc1.weight"; empty for every other tensor, and for an undefined one.
  std::string of(const Tensor& t) const {
    const auto found = t.defined() ? names_.find(amp::storage_id(t)) : names_.end();
    return found == names_.end() ? "" : found->second;
  }

 private:
  std::map<std::uint64_t, std::string> names_;
};

}  // namespace gradual::inspect
