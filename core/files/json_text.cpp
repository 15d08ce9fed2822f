#include "json_text.h"

#include "../support/throwf.h"

namespace gradual {

std::string_view bounded_json(std::string_view text) {
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

}  // namespace gradual
