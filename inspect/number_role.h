// Which numbers carry a failure.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "cause.h"

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

// Of causes that arise in numbers of one role alone; none: the op or the operand at hand tells.
constexpr std::optional<NumberRole> role_of(Cause cause) {
  struct Row {
    Cause cause;
    NumberRole role;
  };
  constexpr Row kRows[] = {{Cause::adam_eps, NumberRole::state},
                           {Cause::second_moment, NumberRole::state},
                           {Cause::average_vanishes, NumberRole::state},
                           {Cause::rate_lost, NumberRole::state},
                           {Cause::batch_statistics, NumberRole::state},
                           {Cause::update_overflow, NumberRole::update},
                           {Cause::update_vanishes, NumberRole::update},
                           {Cause::decay_vanishes, NumberRole::update},
                           {Cause::learning_rate, NumberRole::update},
                           {Cause::small_rate, NumberRole::update},
                           {Cause::weight_overflow, NumberRole::weight},
                           {Cause::accumulator, NumberRole::sum},
                           {Cause::data, NumberRole::data},
                           {Cause::broken_sample, NumberRole::data},
                           {Cause::labels, NumberRole::data}};
  for (const Row& row : kRows)
    if (row.cause == cause) return row.role;
  return {};
}

}  // namespace gradual::inspect
