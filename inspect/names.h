// Names for observers, which receive only tensors and calls: of a model's parameters, found by their storage, of the
// operands of rewritten ops (amp/rewrite.h), and of an op with the place of its call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "../amp/quantization.h"
#include "../core/observe/observer.h"
#include "../core/ops/dispatch.h"
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
// "linear".
inline std::string without_rewrite(const std::string& op) { return op.substr(0, op.find(" rewritten by ")); }

// "wgrad_dy": the name, in recipes, of an operand of the running rewritten op.
inline std::string operand_name(int input) {
  const amp::Role role = amp::operand_role(input), other = amp::operand_role(1 - input);
  const bool second = role == amp::Role::error ? other != amp::Role::weight : other == amp::Role::error;
  const auto quantizer = amp::kOperandQuantizers[static_cast<int>(role)][second];
  return std::ranges::find(amp::kQuantizerFields, quantizer, &amp::QuantizerField::quantizer)->name;
}

// What a row of the ledger and a row of the shadow have in common: an op, and where it was called.
struct OpRow {
  std::int64_t number = 0;  // of this row, from 0
  Phase phase = Phase::forward;
  std::string op = {};           // "linear", or the name of a user's function
  std::string parameter = {};    // the parameter that an optimizer updates or the op reads first: "fc2.weight"
  std::string backward_of = {};  // in backward: the op whose gradient this computes
  std::string module = {}, line = {}, cause = {};
  std::string results = {};  // "[32, 512] f32"
  DType to = DType::f32;     // of the first result

  OpRow() = default;
  OpRow(std::size_t index, const Context& c, std::string_view what, const SourceLocation& where) {
    number = static_cast<std::int64_t>(index), phase = c.phase, op = what, backward_of = c.backward_of;
    module = c.module, line = file_line(where), cause = c.cause;
  }

  // "adam_step_ of fc2.weight", "matmul (backward of linear) in layer fc1".
  std::string site() const {
    if (!parameter.empty()) return op + " of " + parameter;
    const std::string what = backward_of.empty() || backward_of == op ? op : op + " (backward of " + backward_of + ")";
    return module.empty() ? what : what + " in layer " + module;
  }
};

}  // namespace gradual::inspect
