// Text with tables for a terminal of few columns.
#pragma once

#include <cstddef>
#include <string>

namespace gradual::lab {

inline constexpr std::size_t kColumns = 80;

// The text in lines of at most so many columns, where words allow it. A table, consecutive lines with columns parted by
// spaces, loses spaces that all of its lines have; columns that still do not fit go on in further lines, indented, as
// those of the header do. Other lines are parted between words. Lines that fit stay as they are.
std::string narrowed(const std::string& text, std::size_t columns = kColumns);

}  // namespace gradual::lab
