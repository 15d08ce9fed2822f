// Names for observers, which receive only tensors and calls: of a model's parameters, found by their storage, of the
// operands of rewritten ops (amp/rewrite.h), and of an op with the place of its call.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "../amp/rewrite.h"
#include "../autograd/function.h"
#include "../core/observe/observer.h"
#include "../core/ops/dispatch.h"
#include "../core/support/message_text.h"
#include "../nn/module.h"
#include "../optim/loss_scaling.h"

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

// The op that a call computes: of a rewritten op the one that it replaced; custom: a user's function.
inline OpId computed_op(const OpCall& call) {
  return call.op == OpId::custom ? call.get<CustomAttrs>().function->replaces() : call.op;
}
// False for a user's function.
inline bool is_rewritten(const OpCall& call) { return computed_op(call) != call.op; }

// The products of a contraction: x with w, and in backward dy with w and with x.
enum class Product : std::uint8_t { forward, dgrad, wgrad };
inline std::string_view to_string(Product product) { return enum_name(product, {"forward", "dgrad", "wgrad"}); }

using Operands = std::array<amp::Role, 2>;
// The roles of the first two operands of the running rewritten op.
inline Operands running_operands() { return {amp::operand_role(0), amp::operand_role(1)}; }
inline Product product_of(const Operands& operands) {
  if (operands[0] != amp::Role::error && operands[1] != amp::Role::error) return Product::forward;
  const amp::Role other = operands[operands[0] == amp::Role::error ? 1 : 0];
  return other == amp::Role::weight ? Product::dgrad : Product::wgrad;
}
// "x", "w" or "dy".
inline std::string operand_symbol(amp::Role role) { return std::string(enum_name(role, {"x", "w", "dy", "dw"})); }
// "wgrad_dy": the name, in recipes, of an operand.
inline std::string operand_name(const Operands& operands, int input) {
  const amp::Role role = operands.at(static_cast<std::size_t>(input));
  return std::string(to_string(product_of(operands))) + "_" + operand_symbol(role);
}

// True for a source file of the library itself: its line says nothing to a program's author.
bool is_own_file(std::string_view path);

// What computes a row: an op of the table, a user's function, a rewritten op, or a quantiser.
enum class Source : std::uint8_t { op, function, rewritten, quantizer };

// What a row of the ledger and a row of the shadow have in common: an op, and where it was called.
struct OpRow {
  std::int64_t number = 0;  // of this row, from 0
  Phase phase = Phase::forward;
  std::string op = {};           // "linear", or the name of a user's function
  std::string parameter = {};    // the parameter that an optimizer updates or the op reads first: "fc2.weight"
  std::string backward_of = {};  // in backward: the op whose gradient this computes
  std::string module = {};
  std::string line = {};
  std::string cause = {};
  std::string results = {};  // "[32, 512] f32"
  DType to = DType::f32;     // of the first result
  Source source = Source::op;
  OpId id = OpId::custom;    // computed_op(); custom for a quantiser
  bool scales_loss = false;  // the product of the loss and its scale
  bool own_line = false;     // `line` is the library's, as that of the lab's loss

  OpRow() = default;
  OpRow(std::size_t index, const OpCall& call, const Context& context)
      : OpRow(index, context, called(call), call.where) {
    id = computed_op(call);
    if (call.op == OpId::custom) source = is_rewritten(call) ? Source::rewritten : Source::function;
  }
  // Of a quantiser that runs now.
  static OpRow of_quantizer(std::size_t index) {
    OpRow row(index, gradual::context(), "quantize", gradual::context().line);
    row.source = Source::quantizer;
    return row;
  }

  // The layer; outside of all layers the program's line, or "the loss" and "the optimizer" for the library's own.
  std::string place() const {
    if (!module.empty()) return module;
    if (!own_line) return line;
    return phase == Phase::optimizer ? "the optimizer" : "the loss";
  }
  // "linear" for a rewritten linear too.
  std::string name() const { return source == Source::rewritten ? std::string(gradual::to_string(id)) : op; }

  // "adam_step_ of fc2.weight", "matmul (backward of linear) in layer fc1".
  std::string site() const {
    if (!parameter.empty()) return op + " of " + parameter;
    const std::string what = backward_of.empty() || backward_of == op ? op : op + " (backward of " + backward_of + ")";
    return module.empty() ? what : what + " in layer " + module;
  }

 private:
  OpRow(std::size_t index, const Context& c, std::string_view what, const SourceLocation& where)
      : number(static_cast<std::int64_t>(index)),
        phase(c.phase),
        op(what),
        backward_of(c.backward_of),
        module(c.module),
        line(file_line(where)),
        cause(c.cause),
        scales_loss(c.cause == static_cast<const char*>(optim::kLossScaling)),
        own_line(is_own_file(where.file_name())) {}
};

}  // namespace gradual::inspect
