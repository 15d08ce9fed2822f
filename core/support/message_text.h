// Text for messages: suggestions for unknown names, tables.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradual {

// The name with the smallest edit distance to `text` (the first of equals); empty if there are no names.
std::string nearest(std::string_view text, const std::vector<std::string>& names);
// A word that users write for some names: "half" for names that contain fp16 or f16.
struct Synonym {
  std::vector<std::string_view> said, names;
};
// "; did you mean 'NEAREST'?", or "" if no name is near (more than half of its letters differ). Lists all names that
// contain `text` as a word ("fp8" in "fp8-delayed"), also in lower case; if there are none, the names of a synonym; if
// there are none, the nearest name.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& names,
                         std::span<const Synonym> synonyms = {});
// The name of an enumerator, from the names of all in order.
template <class E> std::string_view enum_name(E e, std::initializer_list<std::string_view> names) {
  return names.begin()[static_cast<int>(e)];
}
// "a, b, c".
std::string join(const std::vector<std::string>& names);
// One line per row, columns two spaces apart, the last `numbers` columns aligned right.
std::string table_of(const std::vector<std::vector<std::string>>& rows, std::size_t numbers = 0);

}  // namespace gradual
