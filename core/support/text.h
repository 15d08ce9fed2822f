// Text for people: messages about names that are not known, tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradual {

// The name with the smallest edit distance to `text` (the first of equals); empty where there are no names.
std::string nearest(std::string_view text, const std::vector<std::string>& names);
// "; did you mean 'NEAREST'?", or nothing where no name is near (more than half of its letters differ). Names that have
// `text` as a word ("fp8" of "fp8-delayed") are nearer than any, in lower case too, and next to them those that have what
// others say for it ("half": fp16, "fp8": e4m3fn): all of them are listed.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);
// "a, b, c".
std::string join(const std::vector<std::string>& names);
// A line a row, columns two spaces apart, the last `numbers` of them aligned to the right.
std::string table_of(const std::vector<std::vector<std::string>>& rows, std::size_t numbers = 0);

}  // namespace gradual
