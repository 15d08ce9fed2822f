#include "csv_text.h"

#include <nlohmann/json.hpp>
#include <sstream>

namespace gradual::inspect {

std::string csv_of(const std::string& jsonl) {
  std::string text;
  std::istringstream in(jsonl);
  for (std::string object; std::getline(in, object);) {
    const auto fields = nlohmann::ordered_json::parse(object);
    std::string line;
    for (const auto& [key, value] : fields.items()) {
      const std::string plain = value.is_null() ? "" : value.is_string() ? value.get<std::string>() : value.dump();
      line += (line.empty() ? "" : ",") + csv_field(text.empty() ? key : plain);
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace gradual::inspect
