#include "message_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace gradual {
namespace {

// Levenshtein's edit distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// True if `word` is one of the parts of `name` between hyphens and colons.
bool has_word(std::string_view name, std::string_view word) {
  const auto ends = [&](std::size_t at) { return at == name.size() || name[at] == '-' || name[at] == ':'; };
  for (std::size_t at = name.find(word); at != name.npos && !word.empty(); at = name.find(word, at + 1))
    if ((at == 0 || ends(at - 1)) && ends(at + word.size())) return true;
  return false;
}

// The words of names that `word` is a synonym for; empty if none.
std::span<const std::string_view> meant_by(std::string_view word, std::span<const Synonym> synonyms) {
  for (const Synonym& s : synonyms)
    if (std::find(s.said.begin(), s.said.end(), word) != s.said.end()) return s.names;
  return {};
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

// The `names` that contain one of `words`: "'a', 'b' or 'c'".
std::string all_with(std::span<const std::string_view> words, const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names)
    if (std::any_of(words.begin(), words.end(), [&](std::string_view word) { return has_word(name, word); }))
      all += (all.empty() ? "'" : ", '") + name + "'";
  if (const auto comma = all.rfind(", "); comma != all.npos) all.replace(comma, 2, " or ");
  return all;
}

}  // namespace

std::string nearest(std::string_view text, const std::vector<std::string>& names) {
  const auto found = std::min_element(
      names.begin(), names.end(), [&](const auto& a, const auto& b) { return distance(text, a) < distance(text, b); });
  return found == names.end() ? std::string() : *found;
}

std::string did_you_mean(std::string_view text, const std::vector<std::string>& names,
                         std::span<const Synonym> synonyms) {
  const std::string lower = lower_case(text);
  const std::string_view given[] = {text, lower};
  const std::span<const std::string_view> meant = meant_by(lower, synonyms);
  for (const std::span<const std::string_view> words : {std::span<const std::string_view>(given), meant})
    if (const std::string all = all_with(words, names); !all.empty()) return "; did you mean " + all + "?";
  if (!meant.empty()) return {};  // the synonym stands for a name that is not in this list
  const std::string found = nearest(lower, names);
  if (found.empty() || 2 * distance(lower, found) > std::max(lower.size(), found.size())) return {};
  return "; did you mean '" + found + "'?";
}

std::string join(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

std::string table_of(const std::vector<std::vector<std::string>>& rows, std::size_t numbers) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string gap(widths[i] - row[i].size(), ' ');
      text += (i + numbers < row.size() ? row[i] + gap : gap + row[i]) + "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace gradual
