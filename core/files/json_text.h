// JSON text from outside, checked before and while it is parsed. Not a public header: users need no JSON library.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "../support/throwf.h"

namespace gradual {

// The deepest nesting of arrays and objects in files that the library reads.
inline constexpr int kMostJsonLevels = 64;

// Returns the text. Error if brackets nest deeper than kMostJsonLevels: freeing such a value would overflow the stack.
inline std::string_view bounded_json(std::string_view text) {
  int level = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') ++i;  // the next character is part of the string
    else if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == ']' || c == '}') --level;
    if ((c == '[' || c == '{') && ++level > kMostJsonLevels)
      throwf("JSON nests deeper than {} levels, at byte {}; at most {} are allowed", kMostJsonLevels, i,
             kMostJsonLevels);
  }
  return text;
}

// What the parser says of text that is no JSON, without its own name for the error: "line 2, column 17: ..".
inline std::string json_problem(const std::exception& error) {
  std::string text = error.what();
  if (text.starts_with("[json.exception.")) text.erase(0, text.find(']') + 2);
  constexpr std::string_view kPlace = "parse error at ";
  if (text.starts_with(kPlace)) text.erase(0, kPlace.size());
  return text;
}

// Parses strictly: Error for text that is no JSON, and for an object with one key twice, of which the parser alone
// would silently take the last. on_key(level, key) sees each key; the top object's have level 1.
template <class Json, class OnKey> Json parse_json(std::string_view text, const OnKey& on_key) {
  std::vector<std::set<std::string>> open;
  const auto watch = [&](int, typename Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event != Json::parse_event_t::key) return true;
    const auto& key = value.template get_ref<const std::string&>();
    if (!open.back().insert(key).second) throw_error("the key \"" + key + "\" is given twice in one object");
    on_key(open.size(), key);
    return true;
  };
  try {
    return Json::parse(bounded_json(text), watch);
  } catch (const typename Json::exception& e) { throw_error("not JSON: " + json_problem(e)); }
}

}  // namespace gradual
