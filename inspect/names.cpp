#include "names.h"

namespace gradual::inspect {

ParameterNames::ParameterNames(const nn::Module& model) {
  for (const auto& [name, param] : model.named_parameters()) add(param, name);
}

void ParameterNames::add(const Tensor& t, const std::string& name) { names_[amp::storage_id(t)] = name; }

std::string ParameterNames::of(const Tensor& t) const {
  const auto found = t.defined() ? names_.find(amp::storage_id(t)) : names_.end();
  return found == names_.end() ? "" : found->second;
}

}  // namespace gradual::inspect
