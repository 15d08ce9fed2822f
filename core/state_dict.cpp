#include "state_dict.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "nearest.h"

namespace gradual {
namespace {

[[noreturn]] void fail_missing(const std::string& name, const std::vector<StateDict::Entry>& entries) {
  std::string message = "state_dict: no entry \"" + name + "\"";
  if (entries.empty()) fail(message + "; the state dict is empty");
  std::vector<std::string> names;
  for (const auto& e : entries) names.push_back(e.name);
  fail(message + " among " + std::to_string(entries.size()) + "; the nearest is \"" + nearest(name, names) + "\"");
}

[[noreturn]] void fail_kind(const std::string& name, const StateValue& found, const char* asked) {
  fail("state_dict: \"" + name + "\" is " + describe(found) + "; " + asked + " was asked for");
}

// The value as a T, where it is an integer that T holds.
template <class T> std::optional<T> as_integer(const StateValue& v) {
  if (const auto* i = std::get_if<std::int64_t>(&v); i && std::in_range<T>(*i)) return static_cast<T>(*i);
  if (const auto* u = std::get_if<std::uint64_t>(&v); u && std::in_range<T>(*u)) return static_cast<T>(*u);
  return std::nullopt;
}

bool fits_double(std::int64_t i) {
  const std::uint64_t magnitude = i < 0 ? 0 - static_cast<std::uint64_t>(i) : static_cast<std::uint64_t>(i);
  return magnitude <= std::uint64_t{1} << 53;
}

}  // namespace

void StateDict::put(const std::string& name, StateValue value) {
  if (name.empty()) fail("state_dict: an entry needs a name; it is empty");
  if (const auto* t = std::get_if<Tensor>(&value); t && !t->defined())
    fail("state_dict: \"" + name + "\" is an undefined tensor; leave the entry out instead");
  const auto [place, is_new] = places_.try_emplace(name, entries_.size());
  if (is_new) {
    entries_.push_back({name, std::move(value)});
  } else {
    entries_[place->second].value = std::move(value);
  }
}

const StateValue& StateDict::at(const std::string& name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) fail_missing(name, entries_);
  return entries_[place->second].value;
}

bool StateDict::contains(std::string_view name) const { return places_.contains(std::string(name)); }

Tensor StateDict::tensor(const std::string& name) const {
  const StateValue& v = at(name);
  if (const auto* t = std::get_if<Tensor>(&v)) return *t;
  fail_kind(name, v, "a tensor");
}

std::int64_t StateDict::integer(const std::string& name) const {
  const StateValue& v = at(name);
  if (const auto i = as_integer<std::int64_t>(v)) return *i;
  fail_kind(name, v, "a signed 64-bit integer");
}

std::uint64_t StateDict::natural(const std::string& name) const {
  const StateValue& v = at(name);
  if (const auto u = as_integer<std::uint64_t>(v)) return *u;
  fail_kind(name, v, "an unsigned 64-bit integer");
}

double StateDict::real(const std::string& name) const {
  const StateValue& v = at(name);
  if (const auto* d = std::get_if<double>(&v)) return *d;
  if (const auto i = as_integer<std::int64_t>(v); i && fits_double(*i)) return static_cast<double>(*i);
  fail_kind(name, v, "a real number");
}

const std::string& StateDict::text(const std::string& name) const {
  const StateValue& v = at(name);
  if (const auto* s = std::get_if<std::string>(&v)) return *s;
  fail_kind(name, v, "a text");
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
    return "a tensor " + std::string(name(t->dtype())) + " " + to_string(t->sizes());
  if (const auto* i = std::get_if<std::int64_t>(&value)) return "the integer " + std::to_string(*i);
  if (const auto* u = std::get_if<std::uint64_t>(&value)) return "the unsigned integer " + std::to_string(*u);
  if (const auto* s = std::get_if<std::string>(&value)) return "the text \"" + *s + "\"";
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "the number %.17g", std::get<double>(value));
  return buffer;
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
