// What rounding is counted by, and amax histories are kept for: the products of a module with one of its weights, or
// its products of activations.
#pragma once

#include <string>
#include <string_view>

namespace gradual::amp {

struct SiteName {
  static constexpr int kActivations = 0;

  std::string layer = {};  // the module's path; empty: outside of all
  int weight = 1;          // the number of the weight, in order of first use; kActivations: none

  bool operator==(const SiteName&) const = default;
};
std::string to_string(const SiteName& site);  // "fc1", "fc1#2", "fc1#activations"
// The inverse of to_string(). Any other text names a layer.
SiteName site_name(std::string_view text);

}  // namespace gradual::amp
