// Objects as JSON by lists of their fields. Reading is strict: an unknown key or value is an Error that names the key
// and what is allowed. Not a public header: users need no JSON library.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "../../core/formats/format.h"
#include "../../core/support/message_text.h"
#include "../../core/support/throwf.h"

namespace gradual::amp {

using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

// The values of an enumeration that a file may have: all with kEnumNames, or what a specialisation says.
template <class E> std::vector<E> choices() {
  std::vector<E> all;
  for (std::size_t i = 0; i < std::size(kEnumNames<E>); ++i) all.push_back(static_cast<E>(i));
  return all;
}

// The fields of an object, in order: of(object, field) calls field(key, member) for each. kNeeded, if present, is the
// required key. Specialised for each type.
template <class T> struct Fields;
// Reads and writes a field; the overloads below serve texts, numbers, enumerations and objects that may be "none".
template <class T> struct InFile;

inline std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

// Reads one object; `where` names it in messages.
struct JsonReader {
  const Json& object;
  std::string where;

  [[noreturn]] void bad(const std::string& key, const std::string& allowed) const {
    throwf("{}: \"{}\" is {}; allowed is {}", where, key, shown(object.at(key)), allowed);
  }
  void need(const char* key, const char* more = "") const {
    if (!object.contains(key)) throwf("{}: \"{}\" is missing{}", where, key, more);
  }
  JsonReader within(const char* key) const { return {object.at(key), where + ", " + key}; }
  // Reads all fields that the object has. `allowed`: other keys that it may have.
  template <class T> void read_fields(T& all, Names allowed = {}) const {
    Fields<T>::of(all, [&](const char* key, auto&) { allowed.emplace_back(key); });
    for (const auto& item : object.items())
      if (std::ranges::find(allowed, item.key()) == allowed.end())
        throwf("{}: unknown key \"{}\"; allowed are {}{}", where, item.key(), join(allowed),
               did_you_mean(item.key(), allowed));
    Fields<T>::of(all, *this);
  }
  template <class T> void operator()(const char* key, T& value) const {
    if (object.contains(key)) InFile<T>::read(*this, key, object.at(key), value);
  }
};

template <class T> Json json_of_fields(T value) {
  Json object = Json::object();
  Fields<T>::of(value, [&]<class V>(const char* key, const V& field) { object[key] = InFile<V>::of(field); });
  return object;
}

template <class T> struct InFile {
  static void read(const JsonReader& r, const char* key, const Json& from, T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!from.is_string()) r.bad(key, "a text");
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!from.is_boolean()) r.bad(key, "true or false");
    } else if constexpr (std::is_same_v<T, double>) {
      if (!from.is_number()) r.bad(key, "a number");
    } else {
      using Limits = std::numeric_limits<int>;
      const double real = from.is_number_integer() ? from.get<double>() : HUGE_VAL;
      if (!(real >= Limits::min() && real <= Limits::max()))
        r.bad(key, fmt::format("an integer from {} to {}", Limits::min(), Limits::max()));
    }
    from.get_to(value);
  }
  static Json of(const T& value) { return value; }
};
template <class E>
  requires std::is_enum_v<E>
struct InFile<E> {
  static void read(const JsonReader& r, const char* key, const Json& from, E& value) {
    Names names;
    for (const E e : choices<E>()) {
      if (from == to_string(e)) {
        value = e;
        return;
      }
      names.emplace_back(to_string(e));
    }
    r.bad(key, "one of " + join(names) + (from.is_string() ? did_you_mean(from.get<std::string>(), names) : ""));
  }
  static Json of(E value) { return to_string(value); }
};
// Reads an object onto an existing value: missing keys keep the base's values.
template <class T> struct InFile<std::optional<T>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<T>& value) {
    if (from == "none") return value.reset();
    if (!from.is_object()) {
      Names keys;
      T some{};
      Fields<T>::of(some, [&](const char* field, auto&) { keys.emplace_back(field); });
      std::string allowed = "\"none\" or an object of " + join(keys);
      if constexpr (requires { Fields<T>::kNeeded; })
        if (from.is_string()) allowed += fmt::format(", such as {{\"{}\": {}}}", Fields<T>::kNeeded, shown(from));
      r.bad(key, allowed);
    }
    const JsonReader inner = r.within(key);
    T read = value.value_or(T{});
    inner.read_fields(read);
    if constexpr (requires { Fields<T>::kNeeded; })
      if (!value) inner.need(Fields<T>::kNeeded);
    value = std::move(read);
  }
  static Json of(const std::optional<T>& value) { return value ? json_of_fields(*value) : Json("none"); }
};

}  // namespace gradual::amp
