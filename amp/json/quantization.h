// A quantisation as JSON: quantizers, scalings, formats by name or by fields, accumulators.
#pragma once

#include <utility>

#include "../quantization.h"
#include "../quantized_formats.h"
#include "fields.h"

namespace gradual::amp {

// Reads a value by its name: `read` throws for an unknown one.
template <class F> auto read_name(const JsonReader& r, const char* key, const Json& from, const char* allowed, F read) {
  if (!from.is_string()) r.bad(key, allowed);
  return in_context(r.where + ", " + key, [&] { return read(from.get<std::string>()); });
}

// Lists of numbers, and codes and limits of a table: "none" is no code, or an infinite limit.
template <class T> struct InFile<std::vector<T>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::vector<T>& value) {
    if (!from.is_array() || !std::ranges::all_of(from, &Json::is_number)) r.bad(key, "a list of numbers");
    value = from.get<std::vector<T>>();
  }
  static Json of(const std::vector<T>& value) { return value; }
};
template <class T>
  requires std::is_arithmetic_v<T>
struct InFile<std::optional<T>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<T>& value) {
    if (from.is_number()) value = from.get<T>();
    else if (from != "none") r.bad(key, "\"none\" or a number");
    else if constexpr (std::is_floating_point_v<T>) value = std::string_view(key) == "lowest" ? -HUGE_VAL : HUGE_VAL;
  }
  static Json of(const std::optional<T>& value) {
    return value && std::isfinite(static_cast<double>(*value)) ? Json(*value) : Json("none");
  }
};

template <> struct Fields<ValueTable> {
  template <class F> static void of(ValueTable& t, F field) {
    field("name", t.name);
    field("about", t.about);
    field("values", t.values);
    field("codes", t.codes);
    field("bits", t.bits);
    field("bounds", t.bounds);
    field("nan", t.nan);
    field("inf", t.inf);
    field("negative_inf", t.negative_inf);
    field("lowest", t.lowest);
    field("highest", t.highest);
  }
};
// The format of an object of these fields.
Format table_of(const JsonReader& reader);

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
    if (from.is_object() && from.contains("values")) {
      value = table_of(r.within(key));
      return;
    }
    if (from.is_object()) return r.within(key).read_fields(value);
    value = read_name(r, key, from, "a name such as \"e4m3fn\" or \"e5m10\", or an object of a format's fields",
                      [](const std::string& text) {
                        return text.ends_with(".json") || text.ends_with(".npy") ? load_format(text) : format(text);
                      });
  }
  static Json of(const Format& format) {
    if (format.table && !is_built_in(format)) return json_of_fields(*format.table);
    const std::string text = to_string(format);
    return text.find(' ') == std::string::npos ? Json(text) : json_of_fields(format);
  }
};

template <> struct InFile<Rounding> {
  static void read(const JsonReader& r, const char* key, const Json& from, Rounding& value) {
    value = read_name(r, key, from, "a name such as \"nearest-even\" or \"stochastic:8\"", rounding_from_name);
  }
  static Json of(const Rounding& rounding) { return to_string(rounding); }
};

template <> struct InFile<std::optional<Accumulator>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<Accumulator>& value) {
    if (from == "none") return value.reset();
    value = read_name(r, key, from, "\"none\" or a name such as \"fp16-acc\" or \"hopper-fp8-14bit/promote=128\"",
                      accumulator);
  }
  // Error for a format without a name.
  static Json of(const std::optional<Accumulator>& a) { return a ? to_string(accumulator(to_string(*a))) : "none"; }
};

template <> struct InFile<std::optional<Overflow>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<Overflow>& value) {
    if (from == "none") return value.reset();
    value = read_name(r, key, from, "\"none\" or the name of a policy", overflow_from_name);
  }
  static Json of(const std::optional<Overflow>& value) { return value ? to_string(*value) : "none"; }
};

// The fields that the kind has.
template <> struct Fields<Scaling> {
  template <class F> static void of(Scaling& s, F field) {
    field("kind", s.kind);
    const auto any = [&s](auto... kinds) { return ((s.kind == kinds) || ...); };
    using enum ScalingKind;
    if (any(fixed)) field("value", s.value);
    if (any(tensor, delayed, row, block)) field("margin", s.margin);
    if (any(tensor, row, block)) field("power_of_two", s.power_of_two);
    if (any(tensor, row, block)) field("zero_point", s.zero_point);
    if (any(delayed)) field("history", s.history);
    if (any(delayed)) field("most_recent", s.most_recent);
    if (any(block, nvfp4)) field("block", s.block);
    if (any(block, nvfp4)) field("square", s.square);
    if (any(block)) field("part", s.part);
    if (any(block)) field("inner_part", s.inner_part);
    if (any(block)) field("scale", s.scale);
    if (any(block, nvfp4)) field("scale_format", s.scale_format);
    if (any(block, nvfp4)) field("rule", s.rule);
    if (any(tensor, row, block, nvfp4)) field("oracle", s.oracle);
    if (!any(none)) field("product", s.product);
  }
};
// Another kind than the present one starts from its defaults.
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

// Quantization::modules.
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
    field("overflow", q.overflow);
    field("save_codes", q.save_codes);
    field("requantize", q.requantize);
  }
};

}  // namespace gradual::amp
