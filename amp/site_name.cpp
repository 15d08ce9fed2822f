#include "site_name.h"

#include <charconv>
#include <system_error>

namespace gradual::amp {

static constexpr char kSeparator = '#';
static constexpr std::string_view kOfActivations = "activations";

std::string to_string(const SiteName& site) {
  if (site.weight == 1) return site.layer;
  const std::string part =
      site.weight == SiteName::kActivations ? std::string(kOfActivations) : std::to_string(site.weight);
  return site.layer + kSeparator + part;
}

SiteName site_name(std::string_view text) {
  const std::size_t at = text.rfind(kSeparator);
  SiteName name{.layer = std::string(text)};
  if (at == std::string_view::npos) return name;
  const std::string_view part = text.substr(at + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  const bool numbered = error == std::errc() && end == part.data() + part.size() && number > 1;
  if (numbered) name.weight = number;
  else if (part == kOfActivations) name.weight = SiteName::kActivations;
  else return name;
  name.layer.resize(at);
  return name;
}

}  // namespace gradual::amp
