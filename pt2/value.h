// What flows along the edges of an exported graph, and what stands as a constant in it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "../core/tensor/tensor.h"

namespace gradual::pt2 {

// The place of a value that an earlier node or an input of the graph gives: an index into Graph::values.
struct Ref {
  int id = 0;
};

// Sizes are integers; a list of optional tensors holds empty values where PyTorch has None. Devices, layouts and
// memory formats are read as none: they change no number.
struct Value {
  using List = std::vector<Value>;
  std::variant<std::monostate, Ref, Tensor, bool, std::int64_t, double, std::string, DType, List> of;

  Value() = default;
  template <class T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, Value>)
  Value(T&& v) : of(std::forward<T>(v)) {}  // NOLINT(google-explicit-constructor)

  template <class T> const T* get() const { return std::get_if<T>(&of); }
  template <class T> T* get() { return std::get_if<T>(&of); }
  bool none() const { return std::holds_alternative<std::monostate>(of); }
};

Value list_of(const std::vector<Tensor>& tensors);
// "a tensor [2, 3] f32", "the integer 4", "none": for messages.
std::string describe(const Value& value);

}  // namespace gradual::pt2
