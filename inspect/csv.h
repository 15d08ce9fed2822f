// Fields of CSV files.
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

}  // namespace gradual::inspect
