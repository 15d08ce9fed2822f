// Tensors written as nested lists: tensor({{1, 2}, {3, 4}}) is [2, 2].
#pragma once

#include <initializer_list>
#include <vector>

#include "tensor.h"

namespace gradual {

// A number, or a list of numbers or lists.
struct NestedList {
  NestedList(double number) : value(number) {}  // NOLINT(google-explicit-constructor)
  // NOLINTNEXTLINE(google-explicit-constructor)
  NestedList(std::initializer_list<NestedList> entries) : is_list(true), list(entries) {}

  double value = 0;
  bool is_list = false;
  std::vector<NestedList> list;
};

// Row-major, rounded to options.dtype (f32 by default; integers beyond 2^53 need from_data). Error if the lists of one
// dim differ in length, or numbers and lists are mixed.
Tensor tensor(std::initializer_list<NestedList> list, TensorOptions options = {});
template <DTypeOrDevice T> Tensor tensor(std::initializer_list<NestedList> l, T on) {
  return tensor(l, options_of(on));
}

}  // namespace gradual
