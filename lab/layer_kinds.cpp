#include "layer_kinds.h"

#include <cctype>
#include <cstddef>
#include <string>

namespace gradual::lab {
namespace {

// Whether a path goes on with this character: "layer 1" is not in "layer 10" nor in "layer 1.fc", but in "layer 1." at
// the end of a sentence.
bool goes_on(const std::string& text, std::size_t at) {
  const auto letter = [&](std::size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_');
  };
  return letter(at) || (at < text.size() && text[at] == '.' && letter(at + 1));
}

}  // namespace

std::string with_kind(const std::string& sentence, const std::string& path, const std::string& kind) {
  if (path.empty() || kind.empty()) return sentence;
  const std::string named = "layer " + path;
  const std::string addition = " (" + kind + ")";
  std::string text = sentence;
  for (std::size_t at = text.find(named); at != std::string::npos; at = text.find(named, at + 1)) {
    const std::size_t end = at + named.size();
    if (!goes_on(text, end) && text.compare(end, addition.size(), addition) != 0) text.insert(end, addition);
  }
  return text;
}

std::string kind_of(const std::vector<CastRow>& casts, const std::string& path) {
  for (const CastRow& c : casts)
    if (c.layer == path) return c.kind;
  return "";
}

void name_kinds(std::vector<Finding>& findings, const std::vector<CastRow>& casts) {
  for (Finding& f : findings) {
    const std::string kind = kind_of(casts, f.site);
    f.sentence = with_kind(f.sentence, f.site, kind);
    f.remedy = with_kind(f.remedy, f.site, kind);
    for (Finding::Cure& c : f.cures) c.remedy = with_kind(c.remedy, f.site, kind);
  }
}

}  // namespace gradual::lab
