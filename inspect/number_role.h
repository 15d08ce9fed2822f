// Which numbers carry a failure.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

namespace gradual::inspect {

// activation, weight, error, weight_gradient: operands and results of layers. sum: of a product, a reduction or an
// accumulation. state: of the optimizer, of norms and averages. update: of parameters. data: inputs and targets.
enum class NumberRole : std::uint8_t {
  none,
  activation,
  weight,
  error,
  weight_gradient,
  sum,
  state,
  update,
  data,
  count_
};

inline constexpr std::string_view kNumberRoles[] = {"none", "activation", "weight", "error", "weight gradient",
                                                    "sum",  "state",      "update", "data"};
static_assert(std::size(kNumberRoles) == static_cast<std::size_t>(NumberRole::count_));
constexpr std::string_view to_string(NumberRole role) { return kNumberRoles[static_cast<int>(role)]; }

}  // namespace gradual::inspect
