// Text without control characters, which a terminal would obey.
#pragma once

#include <string>
#include <string_view>

namespace gradual {

// The text with each byte of a control character as \xXX, except those in `kept`. Control characters are those of
// ASCII, and U+0080 to U+009F in UTF-8.
std::string printable(std::string_view text, std::string_view kept = "\n\t");

// Whether names may be so: printed, they stand in one line and change nothing.
inline bool is_printable_name(std::string_view name) { return printable(name, "") == name; }

}  // namespace gradual
