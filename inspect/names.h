// Names for observers: of a model's parameters, found by their storage, and of the operands of products.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "../amp/rewrite.h"
#include "../core/support/message_text.h"
#include "../nn/module.h"

namespace gradual::inspect {

class ParameterNames {
 public:
  ParameterNames() = default;
  explicit ParameterNames(const nn::Module& model);
  void add(const Tensor& t, const std::string& name);
  // "fc1.weight"; empty for every other tensor, and for an undefined one.
  std::string of(const Tensor& t) const;

 private:
  std::map<std::uint64_t, std::string> names_;
};

// The products of a contraction: x with w, and in backward dy with w and with x.
enum class Product : std::uint8_t { forward, dgrad, wgrad, count_ };
inline std::string_view to_string(Product product) { return enum_name(product, {"forward", "dgrad", "wgrad"}); }

inline Product product_of(const Replaced& r) {
  const bool first = r.operands[0] == amp::Role::error;
  if (!first && r.operands[1] != amp::Role::error) return Product::forward;
  return r.operands[first ? 1 : 0] == amp::Role::weight ? Product::dgrad : Product::wgrad;
}
// "x", "w" or "dy".
inline std::string operand_symbol(amp::Role role) { return std::string(enum_name(role, {"x", "w", "dy", "dw"})); }
// "wgrad_dy": the name, in recipes, of an operand.
inline std::string operand_name(const Replaced& r, int input) {
  return std::string(to_string(product_of(r))) + "_" + operand_symbol(r.operands[input]);
}

}  // namespace gradual::inspect
