#include "literal.h"

#include "../support/throwf.h"

namespace gradual {

static void append(std::vector<double>& values, const NestedList& from, const Shape& sizes, int dim) {
  if (from.is_list != (dim < sizes.size()))
    throwf("tensor: a {} in dim {}, where the first entry is a {}", from.is_list ? "list" : "number", dim,
           from.is_list ? "number" : "list");
  if (!from.is_list) return values.push_back(from.value);
  const auto length = static_cast<std::int64_t>(from.list.size());
  if (length != sizes[dim])
    throwf("tensor: a list of {} in dim {}, where the first one has {}; all lists of a dim have one length", length,
           dim, sizes[dim]);
  for (const NestedList& entry : from.list) append(values, entry, sizes, dim + 1);
}

Tensor tensor(std::initializer_list<NestedList> list, TensorOptions options) {
  const NestedList root(list);
  Shape sizes;
  for (const NestedList* at = &root; at && at->is_list; at = at->list.empty() ? nullptr : &at->list[0])
    sizes.push_back(static_cast<std::int64_t>(at->list.size()));
  std::vector<double> values;
  append(values, root, sizes, 0);
  return from_data(values, sizes, options);
}

}  // namespace gradual
