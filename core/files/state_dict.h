// The state of anything that can be saved: an ordered map from dotted names ("layers.0.weight") to tensors and
// plain values. Tensors are handles, so a state dict of a live object shares storage with it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "../tensor/tensor.h"

namespace gradual {

// Integers are int64 if they fit. A bool is 0 or 1. A double keeps its bits, including a NaN's payload, in memory and
// in files.
using StateValue = std::variant<Tensor, std::int64_t, std::uint64_t, double, std::string>;

class StateDict {
 public:
  struct Entry {
    std::string name;
    StateValue value;
  };

  // If the name exists, its value is replaced and keeps its position. A name may be empty. Error for an
  // undefined tensor.
  template <class T> void set(const std::string& name, const T& value) {
    if constexpr (std::integral<T>) {
      if (std::is_signed_v<T> || static_cast<std::uint64_t>(value) <= INT64_MAX)
        put_integer(name, static_cast<std::int64_t>(value));
      else put_natural(name, static_cast<std::uint64_t>(value));
    } else if constexpr (std::floating_point<T>) {
      put_real(name, double{value});
    } else {
      put(name, StateValue(value));
    }
  }

  // Error if the name is missing (the message names the nearest one) or the value is of another kind. integer and
  // natural read signed and unsigned values in their range. real also reads integers that a double represents
  // exactly.
  Tensor tensor(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  std::uint64_t natural(const std::string& name) const;
  double real(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  const StateValue& at(const std::string& name) const;

  bool contains(std::string_view name) const;
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

  // Adds all entries of `other` under "prefix.": add("fc", {weight}) adds "fc.weight".
  void add(const std::string& prefix, const StateDict& other);
  // The entries under "prefix.", without the prefix; empty if there are none.
  StateDict sub(const std::string& prefix) const;

  // In the order in which the names were first set.
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

 private:
  void put(const std::string& name, StateValue value);
  void put_integer(const std::string& name, std::int64_t value);
  void put_natural(const std::string& name, std::uint64_t value);
  void put_real(const std::string& name, double value);

  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> places_;
};

// "f32 [2, 3]", "the integer 4", "the text \"sgd\"": for messages.
std::string describe(const StateValue& value);

// A generator's seed and next stream.
StateDict state_dict(const Generator& generator);
void load_state_dict(Generator& generator, const StateDict& state);

}  // namespace gradual
