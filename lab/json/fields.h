// Structs as JSON, written and read by one list of their fields. Lenient: keys that a reader does not know are skipped.
// A value that does not fit its field is a FieldError that says where it is.
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
#include "../../core/support/printable.h"
#include "../../inspect/update_meter.h"

namespace gradual::lab {

using Json = nlohmann::ordered_json;

// kLater: files of earlier versions lack the field; it keeps its value then.
enum Presence : bool { kLater, kAlways };

// what(): "is -5; it must be at least 0". path: where that is in the file, "runs[3].steps".
struct FieldError : Error {
  using Error::Error;
  std::string path = {};
  std::string text() const { return path + " " + what(); }
};

// Calls f(), whose errors are of the value behind `step` of the path: ".steps" or "[3]".
template <class F> void at_path(const std::string& step, const F& f) {
  try {
    f();
  } catch (FieldError& e) {
    e.path.insert(0, step);
    throw;
  }
}

[[noreturn]] inline void refuse(const Json& json, const std::string& allowed) {
  constexpr std::size_t kShown = 60;
  std::string value = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (value.size() > kShown) value = value.substr(0, kShown) + "..";
  throw FieldError("is " + value + "; " + allowed);
}

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
    if (!json.is_object()) refuse(json, "an object is expected");
    if (json.contains(name)) at_path(std::string(".") + name, [&] { read(json.at(name), value); });
    else if (presence == kAlways) throw FieldError(std::string("has no field \"") + name + "\"");
  }
};

// The enumerators of an enum count from 0 and have names: to_string(E), and this number of them.
template <class E> inline constexpr int kEnumerators = static_cast<int>(E::count_);

template <> inline constexpr int kEnumerators<Phase> = 3;
template <> inline constexpr int kEnumerators<amp::Role> = amp::kRoles;
template <> inline constexpr int kEnumerators<inspect::UpdatePart> = inspect::kUpdateParts;

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

// The enumerator of the name in `json`; Error listing the names if there is none.
template <class E> E enumerator(const Json& json) {
  std::string names;
  for (int i = 0; i < kEnumerators<E>; ++i) {
    const auto value = static_cast<E>(i);
    if (json.is_string() && json.get_ref<const std::string&>() == to_string(value)) return value;
    const std::string_view one = to_string(value);
    if (!one.empty()) names += (names.empty() ? "" : ", ") + std::string(one);
  }
  refuse(json, "allowed are " + names);
}

template <class T> T whole_number(const Json& json) {
  const std::string range =
      " from " + std::to_string(std::numeric_limits<T>::min()) + " to " + std::to_string(std::numeric_limits<T>::max());
  if (!json.is_number_integer()) refuse(json, "a whole number is expected");
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX)
    refuse(json, "a whole number" + range + " is expected");
  const auto number = json.get<std::int64_t>();
  if (number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max())
    refuse(json, "a whole number" + range + " is expected");
  return static_cast<T>(number);
}

inline std::string printable_text(const Json& json) {
  if (!json.is_string()) refuse(json, "a text is expected");
  auto text = json.get<std::string>();
  if (printable(text) != text) refuse(json, "a text without control characters is expected");
  return text;
}

template <class T> void read(const Json& json, T& value) {
  if constexpr (std::is_same_v<T, double>) {
    if (!json.is_null() && !json.is_number()) refuse(json, "a number or null is expected");
    value = json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) refuse(json, "true or false is expected");
    value = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    value = whole_number<T>(json);
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = printable_text(json);
  } else if constexpr (std::is_enum_v<T>) {
    value = enumerator<T>(json);
  } else if constexpr (std::is_same_v<T, JsonText>) {
    if (!json.is_null() && !json.is_object()) refuse(json, "an object or null is expected");
    value.text = json.is_null() ? "" : json.dump();
  } else if constexpr (std::is_same_v<T, OrNull>) {
    value.number = json.is_null() ? -1 : whole_number<std::int64_t>(json);
    if (!json.is_null() && value.number < 0) refuse(json, "a whole number from 0 or null is expected");
  } else if constexpr (is_optional<T>) {
    typename T::value_type v{};
    value.reset();
    if (json.is_null()) return;
    read(json, v);
    value = std::move(v);
  } else if constexpr (requires { typename T::value_type; }) {
    if (!json.is_array()) refuse(json, "a list is expected");
    value.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      typename T::value_type v{};
      at_path("[" + std::to_string(i) + "]", [&] { read(json[i], v); });
      value.push_back(std::move(v));
    }
  } else {
    FieldReader reader{json};
    fields(reader, value);
  }
}

}  // namespace gradual::lab
