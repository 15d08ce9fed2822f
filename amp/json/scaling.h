// A scaling as JSON: an object with the kind's name and the keys that the kind lists (core/quantize/scale_kinds.h).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "../../core/quantize/scaling.h"
#include "format.h"

namespace gradual::amp {

// Writes the keys of a kind.
struct ScalingWriter {
  Json& object;

  template <class V> void operator()(const char* key, const V& value) { object[key] = InFile<V>::of(value); }
  void always(const char* key, std::string_view value) { object[key] = std::string(value); }
  template <class V> void always(const char* key, const V& value) { (*this)(key, value); }
  template <class V> void ignored(const char* key, const V& value) { (*this)(key, value); }
};

// Collects a kind's keys and, of texts, the values that the kind has.
struct ScalingKeys {
  Names keys = {"kind"};
  Names tags = {};  // keys whose text tells kinds of one name apart
  std::map<std::string, Names> texts = {};

  template <class V> void operator()(const char* key, const V&) {
    add(key);
    if constexpr (std::is_enum_v<V>)
      for (const V value : choices<V>()) add_text(key, to_string(value));
  }
  void always(const char* key, std::string_view value) {
    add(key);
    add_text(key, value);
    tags.emplace_back(key);
  }
  template <class V> void always(const char* key, const V& value) { (*this)(key, value); }
  template <class V> void ignored(const char* key, const V& value) { (*this)(key, value); }

 private:
  void add(const char* key) {
    if (std::ranges::find(keys, key) == keys.end()) keys.emplace_back(key);
  }
  void add_text(const char* key, std::string_view value) {
    Names& known = texts[key];
    if (std::ranges::find(known, value) == known.end()) known.emplace_back(value);
  }
};

// Finds the keys whose values a kind does not have. Wrong types are Errors.
struct ScalingMatch {
  const JsonReader& reader;
  const Names& tags;
  int distance = 0;  // the number of these keys; a tag counts for more than all others
  Names wrong = {};  // "\"part\" is 8; allowed is 0"

  template <class V> void operator()(const char* key, const V&) {
    if constexpr (std::is_enum_v<V>) {
      Names names;
      for (const V value : choices<V>()) names.emplace_back(to_string(value));
      const Json& from = reader.object.at(key);
      if (std::ranges::none_of(names, [&](const std::string& name) { return from == name; }))
        note(key, "one of " + join(names));
    }
  }
  void always(const char* key, std::string_view value) {
    if (reader.object.at(key) != value) note(key, shown(Json(std::string(value))));
  }
  template <class V> void always(const char* key, const V& value) {
    if constexpr (std::is_enum_v<V>) return always(key, to_string(value));
    V read = value;
    reader(key, read);
    if (read != value) note(key, shown(InFile<V>::of(value)));
  }
  template <class V> void ignored(const char*, const V&) {}

 private:
  void note(const char* key, const std::string& allowed) {
    constexpr int kTag = 100;
    distance += std::ranges::find(tags, key) == tags.end() ? 1 : kTag;
    wrong.push_back(fmt::format("\"{}\" is {}; allowed is {}", key, shown(reader.object.at(key)), allowed));
  }
};

// Reads a kind that matches.
struct ScalingReader {
  const JsonReader& reader;

  template <class V> void operator()(const char* key, V& value) { reader(key, value); }
  template <class V> void always(const char*, const V&) {}
  template <class V> void ignored(const char* key, const V& value) {
    V unused = value;
    reader(key, unused);
  }
};

// Calls f(kind) with a default object of each kind, in order.
template <class F> void for_each_kind(const F& f) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (f(std::variant_alternative_t<I, Scaling>()), ...);
  }(std::make_index_sequence<std::variant_size_v<Scaling>>());
}

inline Json json_of(const Scaling& scaling) {
  Json object = {{"kind", std::string(kind_name(scaling))}};
  std::visit(
      [&](const auto& kind) {
        ScalingWriter writer{object};
        kind.keys(kind, writer);
      },
      scaling);
  return object;
}

// Keys that the object lacks keep their present values; another kind's name than the present one starts from its
// defaults.
template <> struct InFile<Scaling> {
  static void read(const JsonReader& r, const char* key, const Json& from, Scaling& value) {
    if (!from.is_object()) r.bad(key, "an object such as {\"kind\": \"block\", \"block\": 32}");
    const JsonReader given = r.within(key);
    const std::string name = name_in(given, std::string(kind_name(value)));
    Json whole = json_of(name == kind_name(value) ? value : first_named(name));
    check_keys(given, name);
    whole.update(from);
    value = kind_of(JsonReader{whole, given.where}, name);
  }
  static Json of(const Scaling& scaling) { return json_of(scaling); }

 private:
  static std::string name_in(const JsonReader& given, const std::string& present) {
    if (!given.object.contains("kind")) return present;
    const Json& name = given.object.at("kind");
    Names names;
    for_each_kind([&](const auto& kind) {
      if (std::ranges::find(names, kind.kKind) == names.end()) names.emplace_back(kind.kKind);
    });
    if (std::ranges::any_of(names, [&](const std::string& one) { return name == one; })) return name.get<std::string>();
    given.bad("kind", "one of " + join(names) + (name.is_string() ? did_you_mean(name.get<std::string>(), names) : ""));
  }

  static Scaling first_named(const std::string& name) {
    Scaling first;
    bool found = false;
    for_each_kind([&](const auto& kind) {
      if (!found && kind.kKind == name) first = kind;
      found = found || kind.kKind == name;
    });
    return first;
  }

  // The keys and texts of all kinds with the name.
  static void check_keys(const JsonReader& given, const std::string& name) {
    ScalingKeys all;
    for_each_kind([&](const auto& kind) {
      if (kind.kKind == name) kind.keys(kind, all);
    });
    for (const auto& [key, value] : given.object.items()) {
      if (std::ranges::find(all.keys, key) == all.keys.end())
        throwf("{}: unknown key \"{}\"; allowed are {}{}", given.where, key, join(all.keys),
               did_you_mean(key, all.keys));
      const auto texts = all.texts.find(key);
      if (texts == all.texts.end()) continue;
      const Names& names = texts->second;
      if (std::ranges::any_of(names, [&v = value](const std::string& one) { return v == one; })) continue;
      given.bad(key,
                "one of " + join(names) + (value.is_string() ? did_you_mean(value.get<std::string>(), names) : ""));
    }
  }

  // The first kind with the name that has all values. Error that names the wrong values for the kind with the fewest.
  static Scaling kind_of(const JsonReader& whole, const std::string& name) {
    std::optional<Scaling> found;
    ScalingKeys all;
    for_each_kind([&](const auto& kind) {
      if (kind.kKind == name) kind.keys(kind, all);
    });
    std::optional<ScalingMatch> nearest;
    for_each_kind([&](auto kind) {
      if (found || kind.kKind != name) return;
      ScalingMatch match{whole, all.tags};
      kind.keys(kind, match);
      if (!nearest || match.distance < nearest->distance) nearest.emplace(match);
      if (!match.wrong.empty()) return;
      ScalingReader reader{whole};
      kind.keys(kind, reader);
      found = kind;
    });
    if (!found) throwf("{}: with the other keys {}", whole.where, join(nearest->wrong));
    return *found;
  }
};

}  // namespace gradual::amp
