// Where a part of an op's error in the shadow of a step comes from.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

#include "../amp/rewrite.h"

namespace gradual::inspect {

// x, w, dy: the rounding of an operand by its quantiser. accumulation, result: the rounding of sums and of the result.
// before, x_before, w_before: errors from ops off the tape that made the operands (a cast of data or of a weight; a
// parameter rounded from its master).
enum class ErrorSource : std::uint8_t { whole, x, w, dy, accumulation, result, before, x_before, w_before, count_ };

struct ErrorSourceInfo {
  ErrorSource source;
  std::string_view name;
  bool before;  // outside the op's local error
};
inline constexpr ErrorSourceInfo kErrorSources[] = {
    {ErrorSource::whole, "", false},
    {ErrorSource::x, "x", false},
    {ErrorSource::w, "w", false},
    {ErrorSource::dy, "dy", false},
    {ErrorSource::accumulation, "accumulation", false},
    {ErrorSource::result, "result", false},
    {ErrorSource::before, "before", true},
    {ErrorSource::x_before, "x before", true},
    {ErrorSource::w_before, "w before", true},
};
static_assert(std::size(kErrorSources) == static_cast<std::size_t>(ErrorSource::count_));
constexpr std::string_view to_string(ErrorSource source) { return kErrorSources[static_cast<int>(source)].name; }
constexpr bool is_before(ErrorSource source) { return kErrorSources[static_cast<int>(source)].before; }

// The rounding of an operand of a contraction.
constexpr ErrorSource rounding_of(amp::Role operand) {
  if (operand == amp::Role::activation) return ErrorSource::x;
  return operand == amp::Role::weight ? ErrorSource::w : ErrorSource::dy;
}

}  // namespace gradual::inspect
