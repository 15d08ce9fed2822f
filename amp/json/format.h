// Formats as JSON: by name, by fields, as tables.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../../core/formats/format_table.h"
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

}  // namespace gradual::amp
