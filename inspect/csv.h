// CSV files.
#pragma once

#include <string>

namespace gradual::inspect {

// `text` as a field (RFC 4180): quoted where it holds a comma, a quote or a line's end.
inline std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string(2, c) : std::string(1, c);
  return quoted + '"';
}

// JSON Lines as CSV, for objects with the same keys: the first object gives the header, the others the lines. null is
// an empty field.
std::string csv_of(const std::string& jsonl);

}  // namespace gradual::inspect
