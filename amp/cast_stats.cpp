#include "cast_stats.h"

#include <algorithm>

namespace gradual::amp {

static double percent(std::uint64_t part, std::uint64_t whole) {
  return whole ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

double CastTally::underflow_percent() const { return percent(counts.underflow, counts.elements); }
double CastTally::overflow_percent() const { return percent(counts.overflow, counts.elements); }

void add(CastStatsTable& to, const CastStatsTable& from) {
  for (const auto& [key, tally] : from) to[key] += tally;
}

CastTally total(const CastStatsTable& table, std::initializer_list<Role> roles) {
  CastTally sum;
  for (const auto& [key, tally] : table)
    if (std::find(roles.begin(), roles.end(), key.first) != roles.end()) sum += tally;
  return sum;
}

CastTally* cast_tally(Role role, const std::string& layer) {
  CastStatsTable* table = cast_stats();
  return table ? &(*table)[{role, layer}] : nullptr;
}
CastTally* cast_tally(Role role, const SiteName& site) {
  return cast_stats() ? cast_tally(role, to_string(site)) : nullptr;
}

}  // namespace gradual::amp
