// Tensors written as nested lists: tensor({{1, 2}, {3, 4}}) is [2, 2].
#pragma once

#include <initializer_list>
#include <vector>

#include "tensor.h"

namespace gradual {

// A number, or a list of numbers or lists.
class NestedList {
 public:
  NestedList(double value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  NestedList(std::initializer_list<NestedList> list)
      : is_list_(true), list_(list) {}  // NOLINT(google-explicit-constructor)

 private:
  friend Tensor tensor(std::initializer_list<NestedList> list, TensorOptions options);
  void append_to(std::vector<double>& values, const Shape& sizes, int dim) const;

  double value_ = 0;
  bool is_list_ = false;
  std::vector<NestedList> list_;
};

// Row-major, rounded to options.dtype (f32 by default; integers beyond 2^53 need from_data). Error if the lists of one
// dim differ in length, or numbers and lists are mixed.
Tensor tensor(std::initializer_list<NestedList> list, TensorOptions options = {});
template <DTypeOrDevice T> Tensor tensor(std::initializer_list<NestedList> l, T on) {
  return tensor(l, options_of(on));
}

}  // namespace gradual
