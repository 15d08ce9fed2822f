// CSV files.
#pragma once

#include <iomanip>
#include <sstream>
#include <string>

namespace gradual::inspect {

// `text` as a field (RFC 4180): quoted if it contains a comma, a quote or a line break.
inline std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return (std::ostringstream() << std::quoted(text, '"', '"')).str();
}

// JSON Lines as CSV. All objects must have the same keys: the first one gives the header. null becomes an empty field.
std::string csv_of(const std::string& jsonl);

}  // namespace gradual::inspect
