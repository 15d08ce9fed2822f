// Recipes as JSON. Reading is strict: what is not known is an Error that names the key and says what is allowed.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "../core/atomic_file.h"
#include "../core/input_file.h"
#include "../core/nearest.h"
#include "recipe.h"

namespace gradual::amp {
namespace {

using Json = nlohmann::ordered_json;
using optim::GradScalerOptions;

const std::vector<std::string> kModes{"full", "autocast", "half", "pure"};
const std::vector<std::string> kMasters{"none", "per-tensor", "flat"};
const std::vector<std::string> kUpdates{"none", "kahan", "stochastic"};
const std::vector<std::string> kDTypes{"f32", "f16", "bf16"};
const std::vector<std::string> kKeys{"name",   "description",     "base",    "mode",  "dtype", "tf32", "masters",
                                     "update", "optimizer_state", "scaling", "policy"};
// Of a scaling: those of a static one come first.
const std::vector<std::string> kScalingKeys{
    "kind", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "hysteresis", "min_scale", "max_scale"};

constexpr optim::LowPrecisionUpdate kUpdateValues[] = {
    optim::LowPrecisionUpdate::none, optim::LowPrecisionUpdate::kahan, optim::LowPrecisionUpdate::stochastic};

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

// Reads one object; `where` names it in messages.
struct Reader {
  const Json& object;
  std::string where;

  [[noreturn]] void bad(const std::string& key, const std::string& allowed) const {
    fail(where + ": \"" + key + "\" is " + shown(object.at(key)) + "; allowed is " + allowed);
  }
  void check_keys(const std::vector<std::string>& allowed) const {
    for (const auto& item : object.items())
      if (std::find(allowed.begin(), allowed.end(), item.key()) == allowed.end())
        fail(where + ": unknown key \"" + item.key() + "\"; allowed are " + join(allowed) +
             did_you_mean(item.key(), allowed));
  }
  bool has(const std::string& key) const { return object.contains(key); }

  void read(const std::string& key, std::string& value) const {
    if (!has(key)) return;
    if (!object.at(key).is_string()) bad(key, "a text");
    value = object.at(key).get<std::string>();
  }
  void read(const std::string& key, bool& value) const {
    if (!has(key)) return;
    if (!object.at(key).is_boolean()) bad(key, "true or false");
    value = object.at(key).get<bool>();
  }
  void read(const std::string& key, double& value) const {
    if (!has(key)) return;
    if (!object.at(key).is_number()) bad(key, "a number");
    value = object.at(key).get<double>();
  }
  template <class Int> void read_integer(const std::string& key, Int& value) const {
    if (!has(key)) return;
    const Json& v = object.at(key);
    const double real = v.is_number_integer() ? v.get<double>() : 0;
    if (!(real >= 1 && real <= static_cast<double>(std::numeric_limits<int>::max()))) bad(key, "a positive integer");
    value = v.get<Int>();
  }
  // The index among `names`, or `otherwise` where the key is absent.
  std::size_t choice(const std::string& key, const std::vector<std::string>& names, std::size_t otherwise) const {
    if (!has(key)) return otherwise;
    std::string text;
    if (object.at(key).is_string()) text = object.at(key).get<std::string>();
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) bad(key, "one of " + join(names) + did_you_mean(text, names));
    return static_cast<std::size_t>(found - names.begin());
  }
  void read(const std::string& key, DType& value) const {
    const std::size_t i = choice(key, kDTypes, kDTypes.size());
    if (i < kDTypes.size()) value = dtype_from_name(kDTypes[i]);
  }
};

std::optional<GradScalerOptions> scaling_from(const Reader& parent) {
  const Json& value = parent.object.at("scaling");
  if (value == "none") return {};
  if (value == "dynamic") return GradScalerOptions{};
  if (!value.is_object())
    parent.bad("scaling", "\"none\", \"dynamic\" or an object such as {\"kind\": \"static\", \"init_scale\": 128}");
  const Reader r{value, parent.where + ", scaling"};
  GradScalerOptions o;
  if (!r.has("kind")) fail(r.where + ": \"kind\" is missing; allowed is one of static, dynamic");
  o.dynamic = r.choice("kind", {"static", "dynamic"}, 0) == 1;
  if (o.dynamic) {
    r.check_keys(kScalingKeys);
  } else {
    r.check_keys({kScalingKeys[0], kScalingKeys[1]});
  }
  r.read("init_scale", o.init_scale);
  r.read("growth_factor", o.growth_factor);
  r.read("backoff_factor", o.backoff_factor);
  r.read_integer("growth_interval", o.growth_interval);
  r.read_integer("hysteresis", o.hysteresis);
  r.read("min_scale", o.min_scale);
  r.read("max_scale", o.max_scale);
  return o;
}

Recipe recipe_from(const Json& value, std::size_t index) {
  const std::string numbered = "recipe number " + std::to_string(index + 1);
  if (!value.is_object()) fail(numbered + ": is " + shown(value) + "; allowed is an object");
  const bool named = value.contains("name") && value["name"].is_string();
  const Reader r{value, named ? "recipe '" + value["name"].get<std::string>() + "'" : numbered};
  r.check_keys(kKeys);
  if (!value.contains("name")) fail(r.where + ": \"name\" is missing");
  Recipe out;
  std::string base;
  r.read("base", base);
  if (!base.empty()) out = recipe(base);
  r.read("name", out.name);
  r.read("description", out.description);
  out.mode = static_cast<Mode>(r.choice("mode", kModes, static_cast<std::size_t>(out.mode)));
  r.read("dtype", out.dtype);
  r.read("tf32", out.tf32);
  out.masters = static_cast<Masters>(r.choice("masters", kMasters, static_cast<std::size_t>(out.masters)));
  const auto update = std::find(std::begin(kUpdateValues), std::end(kUpdateValues), out.update);
  out.update = kUpdateValues[r.choice("update", kUpdates, static_cast<std::size_t>(update - kUpdateValues))];
  r.read("optimizer_state", out.optimizer_state);
  if (r.has("scaling")) out.scaling = scaling_from(r);
  if (r.has("policy")) {
    if (!value["policy"].is_object())
      r.bad("policy", "an object from ops to policies, such as {\"softmax\": \"lower\"}");
    for (const auto& [op, policy] : value["policy"].items()) {
      try {
        if (!policy.is_string()) fail("\"" + op + "\" is " + shown(policy) + "; allowed is a text such as \"lower\"");
        out.policy.emplace_back(op_from_name(op), CastPolicy::from_name(policy.get<std::string>()));
      } catch (const Error& e) { fail(r.where + ", policy: " + e.what()); }
    }
  }
  check(out);
  return out;
}

Json json_of(const GradScalerOptions& o) {
  if (!o.dynamic) return {{"kind", "static"}, {"init_scale", o.init_scale}};
  return {{"kind", "dynamic"},
          {"init_scale", o.init_scale},
          {"growth_factor", o.growth_factor},
          {"backoff_factor", o.backoff_factor},
          {"growth_interval", o.growth_interval},
          {"hysteresis", o.hysteresis},
          {"min_scale", o.min_scale},
          {"max_scale", o.max_scale}};
}

Json json_of(const Recipe& r) {
  check(r);
  const auto update = std::find(std::begin(kUpdateValues), std::end(kUpdateValues), r.update);
  Json j{{"name", r.name},
         {"description", r.description},
         {"mode", kModes[static_cast<std::size_t>(r.mode)]},
         {"dtype", name(r.dtype)},
         {"tf32", r.tf32},
         {"masters", kMasters[static_cast<std::size_t>(r.masters)]},
         {"update", kUpdates[static_cast<std::size_t>(update - kUpdateValues)]},
         {"optimizer_state", name(r.optimizer_state)}};
  j["scaling"] = r.scaling ? json_of(*r.scaling) : Json("none");
  j["policy"] = Json::object();
  for (const auto& [op, policy] : r.policy) {
    if (policy.kind == PolicyKind::rewrite)
      fail("recipe '" + r.name + "': " + std::string(name(op)) + " is rewritten by '" + policy.text +
           "', which is code and cannot be written to a file");
    j["policy"][std::string(name(op))] = to_string(policy);
  }
  return j;
}

Json parse(const std::string& text) {
  // The parser would take the last of two equal keys without a word.
  std::vector<std::vector<std::string>> open;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto key = value.get<std::string>();
      if (std::find(open.back().begin(), open.back().end(), key) != open.back().end())
        fail("recipes: the key \"" + key + "\" stands twice in one object");
      open.back().push_back(key);
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& e) { fail(std::string("recipes: not JSON: ") + e.what()); }
}

}  // namespace

std::string to_json(const Recipe& r) { return json_of(r).dump(2) + "\n"; }

std::string to_json(const std::vector<Recipe>& recipes) {
  Json list = Json::array();
  for (const Recipe& r : recipes) list.push_back(json_of(r));
  return list.dump(2) + "\n";
}

std::vector<Recipe> recipes_from_json(const std::string& text) {
  const Json value = parse(text);
  std::vector<Recipe> recipes;
  if (!value.is_array()) return {recipe_from(value, 0)};
  for (std::size_t i = 0; i < value.size(); ++i) {
    recipes.push_back(recipe_from(value[i], i));
    for (std::size_t k = 0; k < i; ++k)
      if (recipes[k].name == recipes[i].name) fail("recipes: two recipes have the name '" + recipes[i].name + "'");
  }
  return recipes;
}

Recipe recipe_from_json(const std::string& text) {
  std::vector<Recipe> recipes = recipes_from_json(text);
  if (recipes.size() != 1) fail("recipe_from_json: one recipe is expected, given " + std::to_string(recipes.size()));
  return recipes.front();
}

std::vector<Recipe> load_recipes(const std::string& path) {
  try {
    return recipes_from_json(read_file(path));
  } catch (const Error& e) {
    const std::string message = e.what();
    fail(message.find(path) == std::string::npos ? path + ": " + message : message);
  }
}

void save_recipes(const std::string& path, const std::vector<Recipe>& recipes) {
  write_file_atomically(path, to_json(recipes));
}

}  // namespace gradual::amp
