#include "printable.h"

#include <fmt/format.h>

namespace gradual {

std::string printable(std::string_view text, std::string_view kept) {
  constexpr unsigned char kDelete = 0x7f;
  constexpr unsigned char kLeadOfC1 = 0xc2;  // UTF-8's first byte of U+0080 to U+009F
  std::string out;
  bool in_c1 = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool leads_c1 = c == kLeadOfC1 && next >= 0x80 && next <= 0x9f;
    const bool control = c < ' ' || c == kDelete || leads_c1 || in_c1;
    const bool shown = !control || kept.find(text[i]) != std::string_view::npos;
    out += shown ? std::string(1, text[i]) : fmt::format("\\x{:02x}", c);
    in_c1 = leads_c1;
  }
  return out;
}

}  // namespace gradual
