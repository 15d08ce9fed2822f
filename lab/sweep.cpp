#include "sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "../core/files/json_text.h"
#include "../core/support/error.h"
#include "../core/support/message_text.h"
#include "../core/support/printable.h"
#include "../core/support/throwf.h"
#include "objective.h"

namespace gradual::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFewestLevels = 2;

void check_keys(const Json& object, const std::vector<std::string>& allowed, const std::string& where) {
  if (!object.is_object()) throwf("{} is {}; an object is expected", where, object.dump());
  for (const auto& item : object.items())
    if (std::ranges::find(allowed, item.key()) == allowed.end())
      throwf("{}: unknown key \"{}\"{}; allowed are {}", where, item.key(), did_you_mean(item.key(), allowed),
             join(allowed));
}

// A number or text as a word of a command line.
std::string word_of(const Json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  if (value.is_number()) return fmt::format("{}", value.get<double>());
  throwf("{} is {}; a number or a text is expected", where, value.dump());
}

// Sets an option; true stands for one without a value.
void set_option(SweepOptions& options, const std::string& name, const std::string& value) {
  const auto same = std::ranges::find(options, name, &SweepOptions::value_type::first);
  if (same == options.end()) options.emplace_back(name, value);
  else same->second = value;
}

void add_option(SweepOptions& options, const std::string& name, const Json& value, const std::string& where) {
  // These belong to the sweep, which gives them to each part itself.
  static const std::set<std::string> kOfTheSweep = {"recipes", "out", "resume", "overwrite", "jobs", "worker", "until"};
  if (name.starts_with("-")) throwf("{}: options are named without dashes", where);
  if (kOfTheSweep.contains(name)) throwf("{}: a sweep has no option \"{}\" of its trainings", where, name);
  const bool flag = value.is_boolean() && value.get<bool>();
  set_option(options, name, flag ? "" : word_of(value, where));
}

SweepOptions options_of(const Json& object, const std::string& where) {
  if (!object.is_object()) throwf("{} is {}; an object is expected", where, object.dump());
  SweepOptions options;
  for (const auto& item : object.items()) add_option(options, item.key(), item.value(), where + ", " + item.key());
  return options;
}

// What an edit must not do: a merge patch has no order, and these are named by the sweep.
void check_edit(const Json& edit, const std::string& where) {
  for (const char* key : {"base", "name", "description"})
    if (edit.contains(key)) throwf("{}: \"{}\" is not edited; a recipe's name replaces the recipe", where, key);
}

SweepLevel level_of(const std::string& name, const Json& json, const std::string& where) {
  check_keys(json, {"recipe", "options"}, where);
  SweepLevel level{.name = name};
  if (json.contains("options")) level.options = options_of(json["options"], where + ", options");
  if (!json.contains("recipe")) return level;
  const Json& recipe = json["recipe"];
  if (recipe.is_string()) {
    level.recipe = recipe.get<std::string>();
    amp::recipe(level.recipe);  // an Error lists the names
    return level;
  }
  if (!recipe.is_object())
    throwf("{}, recipe is {}; a recipe's name or an object of edits is expected", where, recipe.dump());
  check_edit(recipe, where + ", recipe");
  level.edit = recipe.dump();
  return level;
}

bool same_choice(const SweepLevel& a, const SweepLevel& b) {
  return a.options == b.options && a.recipe == b.recipe && a.edit == b.edit;
}

SweepFactor factor_of(const std::string& name, const Json& json, const std::string& where) {
  SweepFactor factor{.name = name};
  if (json.is_array()) {
    for (const Json& value : json) {
      SweepLevel& level = factor.levels.emplace_back(SweepLevel{.name = word_of(value, where)});
      add_option(level.options, name, value, where);
    }
  } else if (json.is_object()) {
    for (const auto& item : json.items())
      factor.levels.push_back(level_of(item.key(), item.value(), where + ", " + item.key()));
  } else {
    throwf("{} is {}; a list of an option's values, or an object of levels, is expected", where, json.dump());
  }
  if (factor.levels.size() < kFewestLevels)
    throwf("{} has {} level{}; at least {} are needed", where, factor.levels.size(),
           factor.levels.size() == 1 ? "" : "s", kFewestLevels);
  std::set<std::string> names;
  for (const SweepLevel& level : factor.levels) {
    if (!is_printable_name(level.name) || level.name.empty()) throwf("{}: the name of a level is not printable", where);
    if (!names.insert(level.name).second) throwf("{} has the level \"{}\" twice", where, level.name);
  }
  for (const SweepLevel& level : factor.levels)
    if (std::ranges::find(level.options, "seeds", &SweepOptions::value_type::first) != level.options.end())
      throwf("{}: seeds are no factor; \"seeds\" in \"options\" gives each combination so many", where);
  for (std::size_t i = 0; i < factor.levels.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (same_choice(factor.levels[i], factor.levels[j]))
        throwf("{}: the levels \"{}\" and \"{}\" are the same", where, factor.levels[j].name, factor.levels[i].name);
  return factor;
}

// A JSON merge patch (RFC 7396), but an object of another "kind" replaces the old one, whose fields it does not have.
void merge(Json& to, const Json& edit) {
  const bool other_kind =
      edit.is_object() && to.is_object() && edit.contains("kind") && edit["kind"] != to.value("kind", Json());
  if (!edit.is_object() || !to.is_object() || other_kind) {
    to = edit;
    return;
  }
  for (const auto& item : edit.items()) {
    if (item.value().is_null()) to.erase(item.key());
    else merge(to[item.key()], item.value());
  }
}

amp::Recipe edited(const amp::Recipe& recipe, const std::string& edit) {
  Json json = Json::parse(amp::to_json(recipe));
  merge(json, Json::parse(edit));
  json["name"] = "edited";
  return amp::recipe_from_json(json.dump());
}

bool changes_recipe(const SweepFactor& factor) {
  return std::ranges::any_of(factor.levels, [](const SweepLevel& l) { return !l.recipe.empty() || !l.edit.empty(); });
}

const SweepLevel& level(const Sweep& sweep, std::size_t factor, const std::vector<int>& levels) {
  return sweep.factors[factor].levels[static_cast<std::size_t>(levels[factor])];
}

void check_factors(const Sweep& sweep, const std::string& file) {
  int replacing = 0;
  for (const SweepFactor& f : sweep.factors)
    if (std::ranges::any_of(f.levels, [](const SweepLevel& l) { return !l.recipe.empty(); })) ++replacing;
  if (replacing > 1) throwf("{}: {} factors name recipes; one may, and the others edit them", file, replacing);
  for (std::size_t c = 0; c < sweep.counts().combinations(); ++c) {
    try {
      recipe_of(sweep, c);
    } catch (const std::exception& e) {
      std::vector<std::string> names;
      const std::vector<int> levels = sweep.counts().levels(c);
      for (std::size_t f = 0; f < levels.size(); ++f) names.push_back(level(sweep, f, levels).name);
      throwf("{}: the combination {} has no recipe: {}", file, join(names), e.what());
    }
  }
}

// The seeds' values of one combination.
std::vector<double> values_of(const std::vector<Result>& results, const std::string& recipe, SweepMeasure measure) {
  std::vector<const Result*> runs;
  for (const Result& r : results)
    if (r.recipe == recipe) runs.push_back(&r);
  std::ranges::sort(runs, {}, [](const Result* r) { return r->seed; });
  std::vector<double> values;
  for (const Result* r : runs) values.push_back(measure == SweepMeasure::metric ? metric_of(*r) : r->test_loss);
  return values;
}

// Replaces what is not finite by the worst finite value.
int replace_not_finite(SweepResult& result) {
  double worst = std::numeric_limits<double>::quiet_NaN();
  int finite = 0;
  for (const std::vector<double>& seeds : result.values)
    for (const double v : seeds) {
      if (!std::isfinite(v)) continue;
      ++finite;
      if (!(result.metric.gain(v - worst) >= 0)) worst = v;
    }
  int replaced = 0;
  for (std::vector<double>& seeds : result.values)
    for (double& v : seeds) {
      if (std::isfinite(v)) continue;
      v = worst;
      ++replaced;
    }
  if (replaced >= finite)
    throwf("{} of {} trainings have no finite {}; more than half are needed", replaced, replaced + finite,
           result.metric.name);
  return replaced;
}

void check_metric(const SweepPart& first, const Result& one, const SweepPart& part, const Result& other) {
  if (one.metric == other.metric) return;
  throwf("{} is measured by {}, {} by {}; the levels of a sweep have one metric", first.name, one.metric.name,
         part.name, other.metric.name);
}

}  // namespace

LevelCounts Sweep::counts() const {
  LevelCounts counts;
  for (const SweepFactor& f : factors) counts.counts.push_back(static_cast<int>(f.levels.size()));
  return counts;
}

Sweep sweep_from_json(const std::string& text, const std::string& file) {
  Sweep sweep{.text = text};
  Json json;
  try {
    json = parse_json<Json>(text, [](std::size_t, const auto&) {});
  } catch (const Error& e) { throwf("{}: {}", file, e.what()); }
  check_keys(json, {"recipe", "options", "factors"}, file);
  if (!json.contains("factors")) throwf("{}: \"factors\" is missing", file);
  if (!json["factors"].is_object()) throwf("{}, factors: an object is expected", file);
  const Json recipe = json.value("recipe", Json("fp32"));
  sweep.base = recipe.is_string() ? amp::recipe(recipe.get<std::string>()) : amp::recipe_from_json(recipe.dump());
  if (json.contains("options")) sweep.options = options_of(json["options"], file + ", options");
  for (const auto& item : json["factors"].items())
    sweep.factors.push_back(factor_of(item.key(), item.value(), file + ", factors, " + item.key()));
  if (sweep.factors.empty()) throwf("{}: \"factors\" is empty", file);
  check_factors(sweep, file);
  return sweep;
}

amp::Recipe recipe_of(const Sweep& sweep, std::size_t combination) {
  const std::vector<int> levels = sweep.counts().levels(combination);
  amp::Recipe recipe = sweep.base;
  for (std::size_t f = 0; f < sweep.factors.size(); ++f)
    if (const SweepLevel& l = level(sweep, f, levels); !l.recipe.empty()) recipe = amp::recipe(l.recipe);
  std::string name;
  for (std::size_t f = 0; f < sweep.factors.size(); ++f) {
    const SweepLevel& l = level(sweep, f, levels);
    if (!l.edit.empty()) recipe = edited(recipe, l.edit);
    if (!changes_recipe(sweep.factors[f])) continue;
    name += fmt::format("{}{}={}", name.empty() ? "" : "+", sweep.factors[f].name, l.name);
  }
  if (name.empty()) return recipe;
  recipe.name = name;
  recipe.description = "a combination of a sweep";
  return recipe;
}

std::vector<SweepPart> parts_of(const Sweep& sweep) {
  std::vector<SweepPart> parts;
  for (std::size_t c = 0; c < sweep.counts().combinations(); ++c) {
    const std::vector<int> levels = sweep.counts().levels(c);
    SweepOptions options = sweep.options;
    for (std::size_t f = 0; f < sweep.factors.size(); ++f)
      for (const auto& [name, value] : level(sweep, f, levels).options) set_option(options, name, value);
    auto part = std::ranges::find(parts, options, &SweepPart::options);
    if (part == parts.end()) {
      parts.push_back({.name = fmt::format("part-{}", parts.size() + 1), .options = options});
      part = parts.end() - 1;
    }
    part->recipes.push_back(recipe_of(sweep, c));
    part->combinations.push_back(c);
  }
  return parts;
}

SweepResult sweep_result(const Sweep& sweep, const std::vector<std::vector<Result>>& results, SweepMeasure measure) {
  const std::vector<SweepPart> parts = parts_of(sweep);
  if (results.size() != parts.size())
    throwf("the sweep has {} parts; results of {} are given", parts.size(), results.size());
  SweepResult out{.measure = measure};
  for (const SweepFactor& f : sweep.factors) {
    out.factors.push_back(f.name);
    std::vector<std::string>& names = out.levels.emplace_back();
    for (const SweepLevel& l : f.levels) names.push_back(l.name);
  }
  out.values.resize(sweep.counts().combinations());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (results[p].empty()) throwf("{} has no results", parts[p].name);
    check_metric(parts[0], results[0][0], parts[p], results[p][0]);
    for (const Result& r : results[p]) out.diverged += r.status == Status::diverged ? 1 : 0;
    for (std::size_t i = 0; i < parts[p].combinations.size(); ++i)
      out.values[parts[p].combinations[i]] = values_of(results[p], parts[p].recipes[i].name, measure);
  }
  out.metric = results[0][0].metric;
  if (measure == SweepMeasure::loss) out.metric = {.name = "test loss", .unit = "", .better = Direction::lower};
  out.replaced = replace_not_finite(out);
  out.effects = analyse(sweep.counts(), out.values);
  return out;
}

}  // namespace gradual::lab
