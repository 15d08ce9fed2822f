// A quantisation as JSON: quantizers, accumulators, modules.
#pragma once

#include <utility>

#include "../quantization.h"
#include "../quantized_formats.h"
#include "format.h"
#include "scaling.h"

namespace gradual::amp {

template <> struct InFile<Rounding> {
  static void read(const JsonReader& r, const char* key, const Json& from, Rounding& value) {
    value = read_name(r, key, from, "a name such as \"nearest-even\" or \"stochastic:8\"", rounding_from_name);
  }
  static Json of(const Rounding& rounding) { return to_string(rounding); }
};

template <> struct InFile<HadamardSize> {
  static void read(const JsonReader& r, const char* key, const Json& from, HadamardSize& value) {
    if (from.is_boolean()) {
      value = from.get<bool>();
      return;
    }
    for (const int size : kHadamardSizes)
      if (from == size) {
        value = size;
        return;
      }
    r.bad(key, "true (16), false, 16, 32, 64, 128 or 256");
  }
  static Json of(const HadamardSize& of) {
    if (of && of != HadamardSize(true)) return of.size;
    return static_cast<bool>(of);
  }
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

template <> struct Fields<Quantizer> {
  static constexpr const char* kNeeded = "format";
  template <class F> static void of(Quantizer& q, F field) {
    field("format", q.format);
    field("rounding", q.rounding);
    field("overflow", q.overflow);
    field("scaling", q.scaling);
    field("hadamard", q.hadamard);
    field("signs", q.signs);
    field("center", q.center);
    field("gradient", q.gradient);
  }
};

template <> struct Fields<OutlierChannels> {
  template <class F> static void of(OutlierChannels& o, F field) {
    field("share", o.share);
    field("from", o.from);
    field("window", o.window);
    field("period", o.period);
    field("quantizer", o.quantizer);
  }
};

template <> struct Fields<AttentionPrecision> {
  template <class F> static void of(AttentionPrecision& a, F field) {
    for (const AttentionField& one : kAttentionFields) field(one.name, a.*one.quantizer);
    field("qk_accumulator", a.qk_accumulator);
    field("pv_accumulator", a.pv_accumulator);
    field("block", a.block);
    field("beta", a.beta);
    field("all_modules", a.all_modules);
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
    field("attention", q.attention);
    field("accumulator", q.accumulator);
    field("modules", q.modules);
    field("overflow", q.overflow);
    field("save_codes", q.save_codes);
    field("requantize", q.requantize);
    field("smooth", q.smooth);
    field("outliers", q.outliers);
  }
};

}  // namespace gradual::amp
