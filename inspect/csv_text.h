// CSV files.
#pragma once

#include <string>

namespace gradual::inspect {

// `text` as a field (RFC 4180): quoted if it contains a comma, a quote or a line break.
inline std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string(2, c) : std::string(1, c);
  return quoted + '"';
}

// JSON Lines as CSV. All objects must have the same keys: the first one gives the header. null becomes an empty field.
std::string csv_of(const std::string& jsonl);

}  // namespace gradual::inspect
