#include "csv_text.h"

#include <nlohmann/json.hpp>
#include <sstream>

namespace gradual::inspect {

static std::string text_of(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string csv_of(const std::string& jsonl) {
  std::string text;
  std::istringstream in(jsonl);
  for (std::string object; std::getline(in, object);) {
    const auto fields = nlohmann::ordered_json::parse(object);
    std::string line;
    for (const auto& [key, value] : fields.items()) {
      line += (line.empty() ? "" : ",") + csv_field(text.empty() ? key : text_of(value));
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace gradual::inspect
