// A quantisation as JSON: quantizers, scalings, formats by name or by their fields, accumulators.
#pragma once

#include <utility>

#include "../quantization.h"
#include "fields.h"

namespace gradual::amp {

template <> inline std::vector<NanEncoding> choices() { return first_choices(NanEncoding::negative_zero); }
template <> inline std::vector<Overflow> choices() { return first_choices(Overflow::saturate_finite); }
template <> inline std::vector<ScalingKind> choices() { return first_choices(ScalingKind::nvfp4); }
template <> inline std::vector<ScaleFormat> choices() { return first_choices(ScaleFormat::e8m0); }
template <> inline std::vector<ScaleRule> choices() { return first_choices(ScaleRule::even); }
template <> inline std::vector<ScaleOracle> choices() { return first_choices(ScaleOracle::torchao); }

template <> struct Fields<Format> {
  template <class F> static void of(Format& f, F field) {
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
};
template <> struct InFile<Format> {
  static void read(const JsonReader& r, const char* key, const Json& from, Format& value) {
    if (from.is_object()) return r.within(key).read_fields(value);
    if (!from.is_string()) r.bad(key, "a name such as \"e4m3fn\" or \"e5m10\", or an object of a format's fields");
    value = in_context(r.where + ", " + key, [&] { return format(from.get<std::string>()); });
  }
  static Json of(const Format& format) {
    const std::string text = to_string(format);
    return text.find(' ') == std::string::npos ? Json(text) : json_of_fields(format);
  }
};

template <> struct InFile<Rounding> {
  static void read(const JsonReader& r, const char* key, const Json& from, Rounding& value) {
    if (!from.is_string()) r.bad(key, "a name such as \"nearest-even\" or \"stochastic:8\"");
    value = in_context(r.where + ", " + key, [&] { return rounding_from_name(from.get<std::string>()); });
  }
  static Json of(const Rounding& rounding) { return to_string(rounding); }
};

template <> struct InFile<std::optional<Accumulator>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<Accumulator>& value) {
    if (from == "none") return value.reset();
    if (!from.is_string()) r.bad(key, "\"none\" or a name such as \"fp16-acc\" or \"hopper-fp8-14bit/promote=128\"");
    value = in_context(r.where + ", " + key, [&] { return accumulator(from.get<std::string>()); });
  }
  // Error for a format without a name.
  static Json of(const std::optional<Accumulator>& a) { return a ? to_string(accumulator(to_string(*a))) : "none"; }
};

// Those that the kind has.
template <> struct Fields<Scaling> {
  template <class F> static void of(Scaling& s, F field) {
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
};
// Another kind starts from that kind's defaults.
template <> struct InFile<Scaling> {
  static void read(const JsonReader& r, const char* key, const Json& from, Scaling& value) {
    if (!from.is_object()) r.bad(key, "an object such as {\"kind\": \"block\", \"block\": 32}");
    const JsonReader inner = r.within(key);
    Scaling other;
    inner("kind", other.kind);
    if (from.contains("kind") && other.kind != value.kind) value = other;
    inner.read_fields(value);
  }
  static Json of(const Scaling& scaling) { return json_of_fields(scaling); }
};

template <> struct Fields<Quantizer> {
  static constexpr const char* kNeeded = "format";
  template <class F> static void of(Quantizer& q, F field) {
    field("format", q.format);
    field("rounding", q.rounding);
    field("overflow", q.overflow);
    field("scaling", q.scaling);
    field("hadamard", q.hadamard);
  }
};

// The modules that follow other recipes.
template <> struct InFile<std::vector<std::pair<std::string, std::string>>> {
  using Modules = std::vector<std::pair<std::string, std::string>>;
  static void read(const JsonReader& r, const char* key, const Json& from, Modules& value) {
    if (!from.is_object()) r.bad(key, "an object from modules to recipes, such as {\"last\": \"fp32\"}");
    for (const auto& [module, recipe] : from.items()) {
      if (!recipe.is_string())
        throwf("{}, {}: \"{}\" is {}; allowed is a recipe's name", r.where, key, module, shown(recipe));
      value.emplace_back(module, recipe.get<std::string>());
    }
  }
  static Json of(const Modules& modules) {
    Json j = Json::object();
    for (const auto& [module, recipe] : modules) j[module] = recipe;
    return j;
  }
};

template <> struct Fields<Quantization> {
  template <class F> static void of(Quantization& q, F field) {
    for (const auto& [name, quantizer] : kQuantizerFields) field(name, q.*quantizer);
    field("accumulator", q.accumulator);
    field("modules", q.modules);
    field("save_codes", q.save_codes);
  }
};

}  // namespace gradual::amp
