#include "diagnosis.h"

#include <nlohmann/json.hpp>

#include "findings.h"

namespace gradual::inspect {
namespace {

using Json = nlohmann::ordered_json;

// An object with a kind (a scaling) is replaced as a whole, because another kind has other fields.
bool is_whole(const Json& j) { return !j.is_object() || j.contains("kind"); }

// The fields of `to` that differ, including those of nested objects.
Json patch(const Json& from, const Json& to) {
  if (is_whole(from) || is_whole(to)) return to;
  Json changes = Json::object();
  for (const auto& [key, value] : to.items())
    if (!from.contains(key)) changes[key] = value;
    else if (from[key] != value) changes[key] = patch(from[key], value);
  return changes;
}
void merge(Json& to, const Json& patch) {
  if (is_whole(to) || is_whole(patch)) to = patch;
  else
    for (const auto& [key, value] : patch.items()) merge(to[key], value);
}

}  // namespace

std::vector<Finding> diagnose(const Evidence& e) {
  std::vector<Finding> all;
  const auto add = [&all](rules::Found found) {
    if (found) all.push_back(std::move(*found));
  };
  add(rules::of_zeros(e));
  add(rules::of_moments(e));
  // Non-finite numbers and skipped steps explain all later findings.
  if (e.bad) add(rules::of_nonfinite(*e.bad, e));
  else add(rules::of_skips(e));
  if (all.empty() || !e.bad) {
    add(rules::of_overflow(e));
    add(rules::of_sums(e));
    add(rules::of_rate(e));
    for (const auto& found : {rules::of_updates(e), rules::of_casts(e)})
      all.insert(all.end(), found.begin(), found.end());
  }
  std::ranges::stable_sort(all, std::greater(), &Finding::severity);
  for (Finding& f : all) f.cures = f.precision ? cures::valid(*e.recipe, f.cures) : std::vector<Cure>{};
  return all;
}

std::string edit(const amp::Recipe& from, const amp::Recipe& to) {
  const auto parsed = [](amp::Recipe r) {
    r.name = "edited", r.description.clear();
    return Json::parse(amp::to_json(r));
  };
  return patch(parsed(from), parsed(to)).dump();
}

amp::Recipe edited(const amp::Recipe& recipe, const std::string& patch) {
  Json whole = Json::parse(amp::to_json(recipe));
  merge(whole, Json::parse(patch));
  whole["name"] = "cured-" + recipe.name;
  return amp::recipe_from_json(whole.dump());
}

}  // namespace gradual::inspect
