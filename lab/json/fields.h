// Structs as JSON, written and read by one list of their fields. Lenient: keys that a reader does not know are skipped.
//
//   template <class V> void fields(V& v, Point& p) { v("x", p.x), v("name", p.name, kLater); }
//
// Not a public header: users need no JSON library.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../../amp/rewrite.h"
#include "../../core/support/error.h"
#include "../../inspect/update_meter.h"

namespace gradual::lab {

using Json = nlohmann::ordered_json;

// kLater: files of earlier versions lack the field; it keeps its value then.
enum Presence : bool { kLater, kAlways };

// JSON as text; empty stands for null.
struct JsonText {
  std::string& text;
};

// -1 stands for null.
struct OrNull {
  std::int64_t& number;
};

template <class T> Json json_of(const T& value);
template <class T> void read(const Json& json, T& value);

struct FieldWriter {
  Json json = Json::object();
  template <class T> void operator()(const char* name, const T& value, Presence = kAlways) {
    json[name] = json_of(value);
  }
};
struct FieldReader {
  const Json& json;
  template <class T> void operator()(const char* name, T&& value, Presence presence = kAlways) {
    if (presence == kAlways || json.contains(name)) read(json.at(name), value);
  }
};

// The enumerators of an enum count from 0 and have names: to_string(E), and this number of them.
template <class E> inline constexpr int kEnumerators = static_cast<int>(E::count_);

template <> inline constexpr int kEnumerators<Phase> = 3;
template <> inline constexpr int kEnumerators<amp::Role> = amp::kRoles;
template <> inline constexpr int kEnumerators<inspect::UpdatePart> = inspect::kUpdateParts;

// The enumerator of that name; Error listing the names if there is none.
template <class E> E enumerator(std::string_view name) {
  std::string names;
  for (int i = 0; i < kEnumerators<E>; ++i) {
    const auto value = static_cast<E>(i);
    if (to_string(value) == name) return value;
    names += (i ? ", '" : "'") + std::string(to_string(value)) + "'";
  }
  throw_error("'" + std::string(name) + "' is none of " + names);
}

template <class T> inline constexpr bool is_optional = false;
template <class T> inline constexpr bool is_optional<std::optional<T>> = true;

// JSON has no NaN and no Inf: null stands for both.
template <class T> Json json_of(const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return Json(value);
  } else if constexpr (std::is_enum_v<T>) {
    return Json(std::string(to_string(value)));
  } else if constexpr (std::is_same_v<T, JsonText>) {
    return value.text.empty() ? Json(nullptr) : Json::parse(value.text);
  } else if constexpr (std::is_same_v<T, OrNull>) {
    return value.number < 0 ? Json(nullptr) : Json(value.number);
  } else if constexpr (is_optional<T>) {
    return value ? json_of(*value) : Json(nullptr);
  } else if constexpr (requires { typename T::value_type; }) {
    Json list = Json::array();
    for (const typename T::value_type& v : value) list.push_back(json_of(v));
    return list;
  } else {
    FieldWriter writer;
    fields(writer, const_cast<T&>(value));  // a writer changes nothing
    return std::move(writer.json);
  }
}

template <class T> void read(const Json& json, T& value) {
  if constexpr (std::is_same_v<T, double>) {
    value = json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    // A reference, because a copy would convert a number that is not whole, whatever its size.
    value = static_cast<T>(json.get_ref<const std::int64_t&>());
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    value = json.get<T>();
  } else if constexpr (std::is_enum_v<T>) {
    value = enumerator<T>(json.get_ref<const std::string&>());
  } else if constexpr (std::is_same_v<T, JsonText>) {
    value.text = json.is_null() ? "" : json.dump();
  } else if constexpr (std::is_same_v<T, OrNull>) {
    value.number = -1;
    if (!json.is_null()) read(json, value.number);
  } else if constexpr (is_optional<T>) {
    typename T::value_type v{};
    value.reset();
    if (!json.is_null()) read(json, v), value = std::move(v);
  } else if constexpr (requires { typename T::value_type; }) {
    value.clear();
    for (const Json& j : json) {
      typename T::value_type v{};
      read(j, v);
      value.push_back(std::move(v));
    }
  } else {
    FieldReader reader{json};
    fields(reader, value);
  }
}

}  // namespace gradual::lab
