// Checks of JSON text from outside, before a parser sees it.
#pragma once

#include <string_view>

namespace gradual {

// The deepest nesting of arrays and objects in files that the library reads.
inline constexpr int kMostJsonLevels = 64;

// Returns the text. Error if brackets nest deeper than kMostJsonLevels: freeing such a value would overflow the stack.
std::string_view bounded_json(std::string_view text);

}  // namespace gradual
