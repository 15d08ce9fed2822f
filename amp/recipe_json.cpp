// Recipes as JSON.
#include <algorithm>
#include <string>
#include <vector>

#include "../core/files/atomic_file.h"
#include "../core/files/input_file.h"
#include "../core/files/json_text.h"
#include "json/exchange.h"
#include "recipe.h"

namespace gradual::amp {

using autograd::GradientSums, optim::GradScalerOptions, optim::LowPrecisionUpdate;

template <> std::vector<Mode> choices() { return {Mode::full, Mode::autocast, Mode::half, Mode::pure}; }
template <> std::vector<Averages> choices() { return {Averages::f32, Averages::storage}; }
template <> std::vector<Masters> choices() { return {Masters::none, Masters::per_tensor, Masters::flat}; }
template <> std::vector<DType> choices() { return {DType::f32, DType::f16, DType::bf16}; }
template <> std::vector<LowPrecisionUpdate> choices() {
  return {LowPrecisionUpdate::none, LowPrecisionUpdate::kahan, LowPrecisionUpdate::stochastic, LowPrecisionUpdate::eco};
}

template <> struct Fields<GradScalerOptions> {
  template <class F> static void of(GradScalerOptions& o, F field) {
    field("init_scale", o.init_scale);
    if (!o.dynamic) return;
    field("growth_factor", o.growth_factor);
    field("backoff_factor", o.backoff_factor);
    field("growth_interval", o.growth_interval);
    field("hysteresis", o.hysteresis);
    field("min_scale", o.min_scale);
    field("max_scale", o.max_scale);
  }
};
template <> struct InFile<std::optional<GradScalerOptions>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<GradScalerOptions>& value) {
    value.reset();
    if (from == "none") return;
    GradScalerOptions& o = value.emplace();
    if (from == "dynamic") return;
    if (!from.is_object())
      r.bad(key, "\"none\", \"dynamic\" or an object such as {\"kind\": \"static\", \"init_scale\": 128}");
    const JsonReader inner = r.within(key);
    inner.need("kind", "; allowed is one of static, dynamic");
    if (from["kind"] != "static" && from["kind"] != "dynamic") inner.bad("kind", "one of static, dynamic");
    o.dynamic = from["kind"] == "dynamic";
    inner.read_fields(o, {"kind"});
  }
  static Json of(const std::optional<GradScalerOptions>& scaling) {
    if (!scaling) return "none";
    Json j{{"kind", scaling->dynamic ? "dynamic" : "static"}};
    j.update(json_of_fields(*scaling));
    return j;
  }
};

template <> std::vector<GradientSums> choices() {
  return {GradientSums::storage, GradientSums::f32, GradientSums::stochastic};
}
// A choice that follows from other fields if it is unset.
template <class Choice> struct OptionalChoice {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<Choice>& value) {
    InFile<Choice>::read(r, key, from, value.emplace());
  }
  static Json of(const std::optional<Choice>& value) { return value ? Json(to_string(*value)) : Json(); }
};
template <> struct InFile<std::optional<GradientSums>> : OptionalChoice<GradientSums> {};
template <> struct InFile<std::optional<Averages>> : OptionalChoice<Averages> {};

using Policies = std::vector<std::pair<OpId, CastPolicy>>;
template <> struct InFile<Policies> {
  static void read(const JsonReader& r, const char* key, const Json& from, Policies& value) {
    if (!from.is_object()) r.bad(key, "an object from ops to policies, such as {\"softmax\": \"lower\"}");
    in_context(r.where + ", policy", [&] {
      for (const auto& [op, policy] : from.items()) {
        if (!policy.is_string()) throwf("\"{}\" is {}; allowed is a text such as \"lower\"", op, shown(policy));
        value.emplace_back(op_from_name(op), CastPolicy::from_name(policy.get<std::string>()));
      }
    });
  }
  static Json of(const Policies& policies) {
    Json j = Json::object();
    for (const auto& [op, policy] : policies) {
      if (policy.kind == PolicyKind::rewrite)
        throwf("{} is rewritten by '{}', which is code and cannot be written to a file", to_string(op), policy.text);
      j[to_string(op)] = to_string(policy);
    }
    return j;
  }
};

template <> struct Fields<PhaseCondition> {
  static constexpr const char* kNeeded = "quantity";
  template <class F> static void of(PhaseCondition& c, F field) {
    field("quantity", c.quantity);
    field("below", c.below);
    field("steps", c.steps);
  }
};
template <> struct Fields<OscillationReset> {
  template <class F> static void of(OscillationReset& o, F field) {
    field("from", o.from);
    field("period", o.period);
    field("window", o.window);
    field("ratio", o.ratio);
  }
};

template <> struct Fields<Phase> {
  static constexpr const char* kNeeded = "recipe";
  template <class F> static void of(Phase& p, F field) {
    field("from", p.from);
    field("last", p.last);
    field("recipe", p.recipe);
    field("modules", p.modules);
    field("when", p.when);
  }
};
template <> struct InFile<std::vector<std::string>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::vector<std::string>& value) {
    if (!from.is_array() || !std::ranges::all_of(from, [](const Json& one) { return one.is_string(); }))
      r.bad(key, "a list of texts, such as [\"fc1\"]");
    value = from.get<std::vector<std::string>>();
  }
  static Json of(const std::vector<std::string>& value) { return value; }
};
// An object has one of "from", "last" and "when".
template <> struct InFile<std::vector<Phase>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::vector<Phase>& value) {
    if (!from.is_array()) r.bad(key, "a list such as [{\"from\": 500, \"recipe\": \"fp32\"}]");
    value.clear();
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (!from[i].is_object()) r.bad(key, "a list of objects such as {\"from\": 500, \"recipe\": \"fp32\"}");
      const JsonReader inner{from[i], fmt::format("{}, {}, number {}", r.where, key, i + 1)};
      inner.need("recipe");
      const auto has = [&](const char* begins) { return from[i].contains(begins) ? 1 : 0; };
      if (has("from") + has("last") + has("when") != 1)
        throwf("{}: it has one of \"from\", \"last\" and \"when\"", inner.where);
      inner.read_fields(value.emplace_back());
      if (from[i].contains("last") && !(value.back().last > 0)) inner.bad("last", "above 0 and at most 1");
      if (has("when") && !value.back().when)
        inner.bad("when", "an object such as {\"quantity\": \"gradient_to_noise\", \"below\": 1.73}");
    }
  }
  static Json of(const std::vector<Phase>& value) {
    Json list = Json::array();
    for (const Phase& p : value) {
      Json& one = list.emplace_back(json_of_fields(p));
      if (p.last > 0 || p.when) one.erase("from");
      if (p.last == 0) one.erase("last");
      if (!p.when) one.erase("when");
      if (p.modules.empty()) one.erase("modules");
    }
    return list;
  }
};

template <> struct Fields<Recipe> {
  template <class F> static void of(Recipe& r, F field) {
    field("name", r.name);
    field("description", r.description);
    field("mode", r.mode);
    field("dtype", r.dtype);
    field("tf32", r.tf32);
    field("masters", r.masters);
    field("update", r.update);
    field("optimizer_state", r.optimizer_state);
    field("gradients", r.gradients);
    field("averages", r.averages);
    field("scaling", r.scaling);
    field("policy", r.policy);
    field("quantization", r.quantization);
    field("exchange", r.exchange);
    field("schedule", r.schedule);
    field("oscillation_reset", r.oscillation_reset);
  }
};

namespace {

// A name such as "fp32" means the built-in recipe; a file may repeat a built-in recipe with another description.
void refuse_taken_name(const Recipe& r) {
  if (!is_recipe(r.name)) return;
  Recipe known = recipe(r.name);
  known.name = r.name;  // which may be an alias
  known.description = r.description;
  if (json_of_fields(known) != json_of_fields(r))
    throwf("recipe '{0}': there is a recipe '{0}' already, and this is another; it needs a name of its own", r.name);
}

Recipe recipe_from(const Json& value, std::size_t index) {
  const std::string numbered = fmt::format("recipe number {}", index + 1);
  if (!value.is_object()) throw_error(numbered + ": is " + shown(value) + "; allowed is an object");
  const bool named = value.contains("name") && value["name"].is_string();
  const JsonReader r{value, named ? "recipe '" + value["name"].get<std::string>() + "'" : numbered};
  std::string base;
  r("base", base);
  Recipe out = base.empty() ? Recipe{} : in_context(r.where + ", base", [&] { return recipe(base); });
  if (!base.empty()) out.description = "made from " + base;  // the base's description may no longer be true
  r.read_fields(out, {"base"});
  r.need("name");
  check_valid(out);
  refuse_taken_name(out);
  return out;
}

// Erases a key of all quantizers in the file that has this value: files of earlier versions lack it.
void erase_value(Json& json, const char* key, const Json& value) {
  if (!json.is_object()) return;
  if (json.contains(key) && json[key] == value) json.erase(key);
  for (auto& [name, inner] : json.items()) erase_value(inner, key, value);
}

Json json_of(const Recipe& r) {
  check_valid(r);
  Json json = in_context("recipe '" + r.name + "'", [&] { return json_of_fields(r); });
  erase_value(json, "center", false);
  erase_value(json, "all_modules", false);
  erase_value(json, "gradient", to_string(QuantizerGradient::straight));
  erase_value(json, "signs", to_string(HadamardSigns::fixed));
  if (!r.exchange) json.erase("exchange");    // as in files of earlier versions
  if (!r.gradients) json.erase("gradients");  // what follows from the masters
  if (!r.averages) json.erase("averages");
  if (r.schedule.empty()) json.erase("schedule");
  if (!r.oscillation_reset) json.erase("oscillation_reset");
  if (r.quantization && !r.quantization->attention) json["quantization"].erase("attention");
  if (r.quantization && !r.quantization->smooth) json["quantization"].erase("smooth");
  if (r.quantization && !r.quantization->outliers) json["quantization"].erase("outliers");
  return json;
}

}  // namespace

std::string to_json(const Recipe& r) { return json_of(r).dump(2) + "\n"; }

std::string to_json(const std::vector<Recipe>& recipes) {
  Json list = Json::array();
  for (const Recipe& r : recipes) list.push_back(json_of(r));
  return list.dump(2) + "\n";
}

std::vector<Recipe> recipes_from_json(const std::string& text) {
  const auto value = in_context("recipes", [&] { return parse_json<Json>(text, [](std::size_t, const auto&) {}); });
  std::vector<Recipe> recipes;
  if (!value.is_array()) return {recipe_from(value, 0)};
  for (std::size_t i = 0; i < value.size(); ++i) {
    recipes.push_back(recipe_from(value[i], i));
    for (std::size_t k = 0; k < i; ++k)
      if (recipes[k].name == recipes[i].name) throwf("recipes: two recipes have the name '{}'", recipes[i].name);
  }
  return recipes;
}

Recipe recipe_from_json(const std::string& text) {
  std::vector<Recipe> recipes = recipes_from_json(text);
  if (recipes.size() != 1) throwf("recipe_from_json: one recipe is expected, given {}", recipes.size());
  return recipes.front();
}

std::vector<Recipe> load_recipes(const std::string& path) {
  const std::string text = read_file(path);
  return in_context(path, [&] { return recipes_from_json(text); });
}

void save_recipes(const std::string& path, const std::vector<Recipe>& recipes) {
  write_file_atomically(path, to_json(recipes));
}

}  // namespace gradual::amp
