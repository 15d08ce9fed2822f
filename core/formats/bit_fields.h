// The bits of formats as a drawing: which are sign, exponent and mantissa.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradual {

// A line for each format: its name, its bits as s (sign), e (exponent) and m (mantissa) in three groups, and their
// numbers. The groups of all lines stand below each other. Error for names that format() does not take and for a format
// that is a list of values, which has no such bits.
std::string bit_fields(const std::vector<std::string_view>& names);

// The same as an SVG image, in colours that light and dark pages show: a square for each bit.
std::string bit_fields_svg(const std::vector<std::string_view>& names);

}  // namespace gradual
