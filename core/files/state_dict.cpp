#include "state_dict.h"

#include "../support/message_text.h"
#include "../support/throwf.h"

namespace gradual {

// The value as a T, or null; an integer also as the other kind of integer, if it fits.
template <class T> static std::optional<T> as(const StateValue& value) {
  if (const auto* t = std::get_if<T>(&value)) return *t;
  if constexpr (std::integral<T>) {
    if (const auto* i = std::get_if<std::int64_t>(&value); i && std::in_range<T>(*i)) return static_cast<T>(*i);
    if (const auto* u = std::get_if<std::uint64_t>(&value); u && std::in_range<T>(*u)) return static_cast<T>(*u);
  }
  return std::nullopt;
}

template <class T> T get(const StateDict& state, const std::string& name, const char* asked) {
  const StateValue& value = state.at(name);
  if (const auto found = as<T>(value)) return *found;
  throwf("state_dict: \"{}\" is {}; {} was asked for", name, describe(value), asked);
}

void StateDict::put(const std::string& name, StateValue value) {
  if (const auto* t = std::get_if<Tensor>(&value); t && !t->defined())
    throw_error("state_dict: \"" + name + "\" is an undefined tensor; leave the entry out instead");
  const auto [place, is_new] = places_.try_emplace(name, entries_.size());
  if (is_new) entries_.push_back({name, std::move(value)});
  else entries_[place->second].value = std::move(value);
}

void StateDict::put_integer(const std::string& name, std::int64_t value) { put(name, value); }
void StateDict::put_natural(const std::string& name, std::uint64_t value) { put(name, value); }
void StateDict::put_real(const std::string& name, double value) { put(name, value); }

bool StateDict::contains(std::string_view name) const { return places_.contains(std::string(name)); }

const StateValue& StateDict::at(const std::string& name) const {
  if (const auto place = places_.find(name); place != places_.end()) return entries_[place->second].value;
  if (entries_.empty()) throw_error("state_dict: no entry \"" + name + "\"; the state dict is empty");
  std::vector<std::string> names;
  for (const Entry& e : entries_) names.push_back(e.name);
  throwf("state_dict: no entry \"{}\" among {}; the nearest is \"{}\"", name, names.size(), nearest(name, names));
}

Tensor StateDict::tensor(const std::string& name) const { return get<Tensor>(*this, name, "a tensor"); }

std::int64_t StateDict::integer(const std::string& name) const {
  return get<std::int64_t>(*this, name, "a signed 64-bit integer");
}

std::uint64_t StateDict::natural(const std::string& name) const {
  return get<std::uint64_t>(*this, name, "an unsigned 64-bit integer");
}

double StateDict::real(const std::string& name) const {
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  if (const auto i = as<std::int64_t>(at(name)); i && *i >= -kExact && *i <= kExact) return static_cast<double>(*i);
  return get<double>(*this, name, "a real number");
}

const std::string& StateDict::text(const std::string& name) const {
  static_cast<void>(get<std::string>(*this, name, "a text"));
  return std::get<std::string>(at(name));
}

void StateDict::add(const std::string& prefix, const StateDict& other) {
  const std::string start = prefix.empty() ? "" : prefix + ".";
  for (const Entry& e : std::vector<Entry>(other.entries_)) put(start + e.name, e.value);
}

StateDict StateDict::sub(const std::string& prefix) const {
  if (prefix.empty()) return *this;
  const std::string start = prefix + ".";
  StateDict out;
  for (const Entry& e : entries_) {
    if (e.name.size() > start.size() && e.name.starts_with(start)) out.put(e.name.substr(start.size()), e.value);
  }
  return out;
}

std::string describe(const StateValue& value) {
  if (const auto* t = std::get_if<Tensor>(&value))
    return fmt::format("a tensor {} {}", to_string(t->dtype()), to_string(t->sizes()));
  if (const auto* i = std::get_if<std::int64_t>(&value)) return fmt::format("the integer {}", *i);
  if (const auto* u = std::get_if<std::uint64_t>(&value)) return fmt::format("the unsigned integer {}", *u);
  if (const auto* s = std::get_if<std::string>(&value)) return "the text \"" + *s + "\"";
  return fmt::format("the number {}", std::get<double>(value));
}

StateDict state_dict(const Generator& generator) {
  StateDict out;
  out.set("seed", generator.seed());
  out.set("stream", generator.stream());
  return out;
}

void load_state_dict(Generator& generator, const StateDict& state) {
  generator.set_state({.seed = state.natural("seed"), .stream = state.natural("stream")});
}

}  // namespace gradual
