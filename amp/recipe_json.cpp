// Recipes as JSON. Reading is strict: what is not known is an Error that names the key and says what is allowed.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "../core/atomic_file.h"
#include "../core/failf.h"
#include "../core/input_file.h"
#include "../core/nearest.h"
#include "recipe.h"

namespace gradual::amp {
namespace {

using Json = nlohmann::ordered_json;
using optim::GradScalerOptions, optim::LowPrecisionUpdate;
using Names = std::vector<std::string>;

// What an enumeration may be in a file.
std::vector<Mode> choices(Mode) { return {Mode::full, Mode::autocast, Mode::half, Mode::pure}; }
std::vector<Masters> choices(Masters) { return {Masters::none, Masters::per_tensor, Masters::flat}; }
std::vector<DType> choices(DType) { return {DType::f32, DType::f16, DType::bf16}; }
std::vector<LowPrecisionUpdate> choices(LowPrecisionUpdate) {
  return {LowPrecisionUpdate::none, LowPrecisionUpdate::kahan, LowPrecisionUpdate::stochastic};
}

// The fields of the objects in a file, in order: handed to what reads, writes or lists them.
template <class F> void fields(GradScalerOptions& o, F field) {
  field("init_scale", o.init_scale);
  if (!o.dynamic) return;
  field("growth_factor", o.growth_factor);
  field("backoff_factor", o.backoff_factor);
  field("growth_interval", o.growth_interval);
  field("hysteresis", o.hysteresis);
  field("min_scale", o.min_scale);
  field("max_scale", o.max_scale);
}
template <class F> void fields(Recipe& r, F field) {
  field("name", r.name);
  field("description", r.description);
  field("mode", r.mode);
  field("dtype", r.dtype);
  field("tf32", r.tf32);
  field("masters", r.masters);
  field("update", r.update);
  field("optimizer_state", r.optimizer_state);
  field("scaling", r.scaling);
  field("policy", r.policy);
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

// Reads one object; `where` names it in messages.
struct Reader {
  const Json& object;
  std::string where;

  [[noreturn]] void bad(const std::string& key, const std::string& allowed) const {
    failf("{}: \"{}\" is {}; allowed is {}", where, key, shown(object.at(key)), allowed);
  }
  // All fields that are there; keys besides those are in `allowed`.
  template <class T> void read_fields(T& all, Names allowed) const {
    fields(all, [&](const char* key, auto&) { allowed.emplace_back(key); });
    for (const auto& item : object.items())
      if (std::ranges::find(allowed, item.key()) == allowed.end())
        failf("{}: unknown key \"{}\"; allowed are {}{}", where, item.key(), join(allowed),
              did_you_mean(item.key(), allowed));
    fields(all, *this);
  }
  template <class T> void operator()(const char* key, T& value) const {
    if (object.contains(key)) read(key, object.at(key), value);
  }

 private:
  template <class T> void read(const char* key, const Json& from, T& value) const {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!from.is_string()) bad(key, "a text");
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!from.is_boolean()) bad(key, "true or false");
    } else if constexpr (std::is_same_v<T, double>) {
      if (!from.is_number()) bad(key, "a number");
    } else {
      const double real = from.is_number_integer() ? from.get<double>() : 0;
      if (!(real >= 1 && real <= std::numeric_limits<int>::max())) bad(key, "a positive integer");
    }
    from.get_to(value);
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(const char* key, const Json& from, E& value) const {
    Names names;
    for (E e : choices(value)) {
      if (from == name(e)) return void(value = e);
      names.emplace_back(name(e));
    }
    bad(key, "one of " + join(names) + (from.is_string() ? did_you_mean(from.get<std::string>(), names) : ""));
  }
  void read(const char* key, const Json& from, std::optional<GradScalerOptions>& value) const {
    value.reset();
    if (from == "none") return;
    GradScalerOptions& o = value.emplace();
    if (from == "dynamic") return;
    if (!from.is_object())
      bad(key, "\"none\", \"dynamic\" or an object such as {\"kind\": \"static\", \"init_scale\": 128}");
    const Reader r{from, where + ", scaling"};
    if (!from.contains("kind")) fail(r.where + ": \"kind\" is missing; allowed is one of static, dynamic");
    if (from["kind"] != "static" && from["kind"] != "dynamic") r.bad("kind", "one of static, dynamic");
    o.dynamic = from["kind"] == "dynamic";
    r.read_fields(o, {"kind"});
  }
  void read(const char* key, const Json& from, std::vector<std::pair<OpId, CastPolicy>>& value) const {
    if (!from.is_object()) bad(key, "an object from ops to policies, such as {\"softmax\": \"lower\"}");
    in_context(where + ", policy", [&] {
      for (const auto& [op, policy] : from.items()) {
        if (!policy.is_string()) failf("\"{}\" is {}; allowed is a text such as \"lower\"", op, shown(policy));
        value.emplace_back(op_from_name(op), CastPolicy::from_name(policy.get<std::string>()));
      }
    });
  }
};

Recipe recipe_from(const Json& value, std::size_t index) {
  const std::string numbered = fmt::format("recipe number {}", index + 1);
  if (!value.is_object()) fail(numbered + ": is " + shown(value) + "; allowed is an object");
  const bool named = value.contains("name") && value["name"].is_string();
  const Reader r{value, named ? "recipe '" + value["name"].get<std::string>() + "'" : numbered};
  std::string base;
  r("base", base);
  Recipe out = base.empty() ? Recipe{} : recipe(base);
  r.read_fields(out, {"base"});
  if (!value.contains("name")) fail(r.where + ": \"name\" is missing");
  check(out);
  return out;
}

template <class T> Json json_of(const T& value) {
  if constexpr (std::is_enum_v<T>) return name(value);
  else return value;
}
Json json_of(const std::optional<GradScalerOptions>& scaling) {
  if (!scaling) return "none";
  Json j{{"kind", scaling->dynamic ? "dynamic" : "static"}};
  GradScalerOptions o = *scaling;
  fields(o, [&](const char* key, const auto& value) { j[key] = value; });
  return j;
}
Json json_of(const std::vector<std::pair<OpId, CastPolicy>>& policies) {
  Json j = Json::object();
  for (const auto& [op, policy] : policies) {
    if (policy.kind == PolicyKind::rewrite)
      failf("{} is rewritten by '{}', which is code and cannot be written to a file", name(op), policy.text);
    j[name(op)] = to_string(policy);
  }
  return j;
}
Json json_of(Recipe r) {
  check(r);
  Json j;
  in_context("recipe '" + r.name + "'",
             [&] { fields(r, [&](const char* key, const auto& value) { j[key] = json_of(value); }); });
  return j;
}

Json parse(const std::string& text) {
  // The parser would take the last of two equal keys without a word.
  std::vector<Names> open;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto key = value.get<std::string>();
      if (std::ranges::find(open.back(), key) != open.back().end())
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
  const std::string text = read_file(path);
  return in_context(path, [&] { return recipes_from_json(text); });
}

void save_recipes(const std::string& path, const std::vector<Recipe>& recipes) {
  write_file_atomically(path, to_json(recipes));
}

}  // namespace gradual::amp
