// Recipes as JSON. Reading is strict: what is not known is an Error that names the key and says what is allowed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
template <class E> std::vector<E> first_choices(E last) {
  std::vector<E> all;
  for (int i = 0; i <= static_cast<int>(last); ++i) all.push_back(static_cast<E>(i));
  return all;
}
std::vector<Mode> choices(Mode) { return first_choices(Mode::pure); }
std::vector<Masters> choices(Masters) { return first_choices(Masters::flat); }
std::vector<NanEncoding> choices(NanEncoding) { return first_choices(NanEncoding::negative_zero); }
std::vector<Overflow> choices(Overflow) { return first_choices(Overflow::saturate_finite); }
std::vector<ScalingKind> choices(ScalingKind) { return first_choices(ScalingKind::nvfp4); }
std::vector<ScaleFormat> choices(ScaleFormat) { return first_choices(ScaleFormat::e8m0); }
std::vector<ScaleRule> choices(ScaleRule) { return first_choices(ScaleRule::even); }
std::vector<ScaleOracle> choices(ScaleOracle) { return first_choices(ScaleOracle::torchao); }
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
template <class F> void fields(Format& f, F field) {
  field("signed", f.is_signed);
  field("exponent_bits", f.exponent_bits);
  field("mantissa_bits", f.mantissa_bits);
  field("bias", f.bias);
  field("inf", f.has_inf);
  field("nan", f.nan);
  field("negative_zero", f.has_negative_zero);
  field("subnormals", f.subnormals);
  field("zero", f.has_zero);
}
// Those that the kind has.
template <class F> void fields(Scaling& s, F field) {
  field("kind", s.kind);
  const ScalingKind kind = s.kind;
  const auto any = [kind](auto... kinds) { return ((kind == kinds) || ...); };
  using enum ScalingKind;
  if (any(fixed)) field("value", s.value);
  if (any(tensor, delayed, row, block)) field("margin", s.margin);
  if (any(tensor, row, block)) field("power_of_two", s.power_of_two);
  if (any(delayed)) field("history", s.history);
  if (any(delayed)) field("most_recent", s.most_recent);
  if (any(block, nvfp4)) field("block", s.block);
  if (any(block, nvfp4)) field("square", s.square);
  if (any(block)) field("scale", s.scale);
  if (any(block)) field("rule", s.rule);
  if (any(tensor, row, block)) field("oracle", s.oracle);
}
template <class F> void fields(Quantizer& q, F field) {
  field("format", q.format);
  field("rounding", q.rounding);
  field("overflow", q.overflow);
  field("scaling", q.scaling);
  field("hadamard", q.hadamard);
}
template <class F> void fields(Quantization& q, F field) {
  for (const auto& [name, quantizer] : kQuantizerFields) field(name, q.*quantizer);
  field("accumulator", q.accumulator);
  field("modules", q.modules);
  field("save_codes", q.save_codes);
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
  field("quantization", r.quantization);
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
      using Limits = std::numeric_limits<int>;
      const double real = from.is_number_integer() ? from.get<double>() : HUGE_VAL;
      if (!(real >= Limits::min() && real <= Limits::max()))
        bad(key, fmt::format("an integer from {} to {}", Limits::min(), Limits::max()));
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
  void read(const char* key, const Json& from, std::optional<Accumulator>& value) const {
    if (from == "none") return value.reset();
    if (!from.is_string()) bad(key, "\"none\" or a name such as \"fp16-acc\" or \"hopper-fp8-14bit/promote=128\"");
    value = in_context(where + ", " + key, [&] { return accumulator(from.get<std::string>()); });
  }
  // An object goes over the value that is there: keys that it leaves out stay as the base has them.
  template <class T> void read(const char* key, const Json& from, std::optional<T>& value) const {
    if (from == "none") return value.reset();
    if (!from.is_object()) bad(key, "\"none\" or an object");
    const Reader r{from, where + ", " + key};
    if (std::is_same_v<T, Quantizer> && !value && !from.contains("format")) fail(r.where + ": \"format\" is missing");
    if (!value) value.emplace();
    r.read_fields(*value, {});
  }
  void read(const char* key, const Json& from, Format& value) const {
    if (from.is_object()) return Reader{from, where + ", " + key}.read_fields(value, {});
    if (!from.is_string()) bad(key, "a name such as \"e4m3fn\" or \"e5m10\", or an object of a format's fields");
    value = in_context(where + ", " + key, [&] { return format(from.get<std::string>()); });
  }
  void read(const char* key, const Json& from, Rounding& value) const {
    if (!from.is_string()) bad(key, "a name such as \"nearest-even\" or \"stochastic:8\"");
    value = in_context(where + ", " + key, [&] { return rounding_from_name(from.get<std::string>()); });
  }
  void read(const char* key, const Json& from, Scaling& value) const {
    if (!from.is_object()) bad(key, "an object such as {\"kind\": \"block\", \"block\": 32}");
    const Reader r{from, where + ", " + key};
    Scaling other;
    r("kind", other.kind);
    if (from.contains("kind") && other.kind != value.kind) value = other;
    r.read_fields(value, {});
  }
  void read(const char* key, const Json& from, std::vector<std::pair<std::string, std::string>>& value) const {
    if (!from.is_object()) bad(key, "an object from modules to recipes, such as {\"last\": \"fp32\"}");
    for (const auto& [module, recipe] : from.items()) {
      if (!recipe.is_string())
        failf("{}, {}: \"{}\" is {}; allowed is a recipe's name", where, key, module, shown(recipe));
      value.emplace_back(module, recipe.get<std::string>());
    }
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

// Writes one object.
struct Writer {
  Json object = Json::object();
  void operator()(const char* key, const auto& value) { object[key] = of(value); }

  template <class T> static Json of_fields(T value) {
    Writer w;
    fields(value, [&](const char* key, const auto& field) { w(key, field); });
    return w.object;
  }
  template <class T> static Json of(const T& value) {
    if constexpr (std::is_enum_v<T>) return name(value);
    else if constexpr (requires { Json(value); }) return value;
    else return of_fields(value);
  }
  template <class T> static Json of(const std::optional<T>& value) { return value ? of(*value) : Json("none"); }
  static Json of(const std::optional<GradScalerOptions>& scaling) {
    if (!scaling) return "none";
    Json j{{"kind", scaling->dynamic ? "dynamic" : "static"}};
    j.update(of_fields(*scaling));
    return j;
  }
  // Error for a format without a name.
  static Json of(const std::optional<Accumulator>& a) { return a ? name(accumulator(name(*a))) : "none"; }
  static Json of(const Rounding& rounding) { return name(rounding); }
  static Json of(const Format& format) {
    const std::string text = name(format);
    return text.find(' ') == std::string::npos ? Json(text) : of_fields(format);
  }
  static Json of(const std::vector<std::pair<std::string, std::string>>& modules) {
    Json j = Json::object();
    for (const auto& [module, recipe] : modules) j[module] = recipe;
    return j;
  }
  static Json of(const std::vector<std::pair<OpId, CastPolicy>>& policies) {
    Json j = Json::object();
    for (const auto& [op, policy] : policies) {
      if (policy.kind == PolicyKind::rewrite)
        failf("{} is rewritten by '{}', which is code and cannot be written to a file", name(op), policy.text);
      j[name(op)] = to_string(policy);
    }
    return j;
  }
};
Json json_of(const Recipe& r) {
  check(r);
  return in_context("recipe '" + r.name + "'", [&] { return Writer::of_fields(r); });
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
