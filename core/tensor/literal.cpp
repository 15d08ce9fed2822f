#include "literal.h"

#include "../support/throwf.h"

namespace gradual {

void NestedList::append_to(std::vector<double>& values, const Shape& sizes, int dim) const {
  if (is_list_ != (dim < sizes.size()))
    throwf("tensor: a {} in dim {}, where the first entry is a {}", is_list_ ? "list" : "number", dim,
           is_list_ ? "number" : "list");
  if (!is_list_) return values.push_back(value_);
  const auto length = static_cast<std::int64_t>(list_.size());
  if (length != sizes[dim])
    throwf("tensor: a list of {} in dim {}, where the first one has {}; all lists of a dim have one length", length,
           dim, sizes[dim]);
  for (const NestedList& entry : list_) entry.append_to(values, sizes, dim + 1);
}

Tensor tensor(std::initializer_list<NestedList> list, TensorOptions options) {
  const NestedList root(list);
  Shape sizes;
  for (const NestedList* at = &root; at && at->is_list_; at = at->list_.empty() ? nullptr : &at->list_[0])
    sizes.push_back(static_cast<std::int64_t>(at->list_.size()));
  std::vector<double> values;
  root.append_to(values, sizes, 0);
  return from_data(values, sizes, options);
}

}  // namespace gradual
