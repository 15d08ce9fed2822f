// Formats given as a list of values: NF4, posits, takums, logarithmic numbers, and those of your own.
//
//   const Format f = table_format({.name = "thirds", .values = {-1, -1.0F / 3, 0, 1.0F / 3, 1}});
//   Rounder{f, {}, Overflow::saturate}.round(in, out, n);   // and in quantizers, recipes, what_if
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format.h"

namespace gradual {

// The fields that are left empty follow from the values. Every value is a number of f32 of at least 2^-126 in
// magnitude, or zero.
struct ValueTable {
  std::string name;
  std::string about = {};
  std::vector<float> values = {};         // 2 to 2^16 in ascending order, at least one above zero
  std::vector<std::uint32_t> codes = {};  // of the values; default: 0, 1, 2, ..
  int bits = 0;                           // of a code; default: as many as the codes need
  // bounds[i], from values[i] to values[i + 1]: rounding to nearest goes down below it and up above it. A number on it
  // is a tie: nearest-even takes the even code (or the lower value, if both are even or odd). Default: the midpoints.
  std::vector<double> bounds = {};
  // codes
  std::optional<std::uint32_t> nan = {};
  std::optional<std::uint32_t> inf = {};
  std::optional<std::uint32_t> negative_inf = {};
  // Numbers beyond these overflow under rounding to nearest, numbers twice as far beyond the last value under any
  // rounding. Default: half the last gap beyond the last values. Inf: nothing overflows.
  std::optional<double> lowest = {};
  std::optional<double> highest = {};

  std::vector<float> decoded = {};  // by code, filled by table_format(); NaN for a code without a value
  bool operator==(const ValueTable&) const = default;
};

// The format of a table, which is kept as long as the program runs. Error that names what is wrong, and for the name of
// another format.
Format table_format(ValueTable table);
// Whether format() knows a table in every program.
bool is_built_in(const Format& format);
// The built-in ones, in order, then those of table_format().
const std::vector<NamedFormat>& table_formats();

}  // namespace gradual
