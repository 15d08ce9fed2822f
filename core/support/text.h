// Text for people: messages about names that are not known, tables.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradual {

// The name with the smallest edit distance to `text` (the first of equals); empty where there are no names.
std::string nearest(std::string_view text, const std::vector<std::string>& names);
// Words that people use for some names: "half" for names with the word fp16 or f16.
struct Synonym {
  std::vector<std::string_view> said, names;
};
// "; did you mean 'NEAREST'?", or nothing where no name is near (more than half of its letters differ). Names that hold
// `text` as a word ("fp8" in "fp8-delayed") come first, also in lower case, then the names that a synonym stands for; all
// of them are listed.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& names,
                         std::span<const Synonym> synonyms = {});
// "a, b, c".
std::string join(const std::vector<std::string>& names);
// A line a row, columns two spaces apart, the last `numbers` of them aligned to the right.
std::string table_of(const std::vector<std::vector<std::string>>& rows, std::size_t numbers = 0);

}  // namespace gradual
