// Names for observers, which receive only tensors and calls: the names of a model's parameters, found by their storage,
// and of the operands of rewritten ops (amp/rewrite.h).
#pragma once

#include <algorithm>
#include <map>

#include "../amp/quantization.h"
#include "../core/observe/observer.h"
#include "../nn/module.h"

namespace gradual::inspect {

class ParameterNames {
 public:
  ParameterNames() = default;
  explicit ParameterNames(const nn::Module& model) {
    for (const auto& [name, param] : model.named_parameters()) add(param, name);
  }
  void add(const Tensor& t, const std::string& name) { names_[amp::storage_id(t)] = name; }
  // "fc1.weight"; empty for every other tensor, and for an undefined one.
  std::string of(const Tensor& t) const {
    const auto found = t.defined() ? names_.find(amp::storage_id(t)) : names_.end();
    return found == names_.end() ? "" : found->second;
  }

 private:
  std::map<std::uint64_t, std::string> names_;
};

// True for a custom op such as "linear rewritten by quantization"; false for a user's function.
inline bool is_rewritten(const OpCall& call) { return called(call).find(" rewritten by ") != std::string_view::npos; }

// "wgrad_dy": the name, in recipes, of an operand of the running rewritten op.
inline std::string operand_name(int input) {
  const amp::Role role = amp::operand_role(input), other = amp::operand_role(1 - input);
  const bool second = role == amp::Role::error ? other != amp::Role::weight : other == amp::Role::error;
  const auto quantizer = amp::kOperandQuantizers[static_cast<int>(role)][second];
  return std::ranges::find(amp::kQuantizerFields, quantizer, &amp::QuantizerField::quantizer)->name;
}

}  // namespace gradual::inspect
