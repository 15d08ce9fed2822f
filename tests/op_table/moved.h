// Samples of ops that move numbers: each number of the result is one of the inputs, or a given one.
#pragma once

#include "samples.h"

namespace gradual::test {

using Index = std::vector<std::int64_t>;
using Moved = std::function<double(const Arrays& in, const Index& at)>;

// Adds a sample whose result has the given sizes and at each position the number that `from` says.
inline void add(std::vector<Sample>& all, const std::string& label, const Tensors& in, Call call,
                const std::function<Shape(const Arrays&)>& sizes, const Moved& from, bool large = false) {
  all.push_back({label, in, std::move(call),
                 [sizes, from](const Arrays& a) -> Arrays {
                   return {tabulate(sizes(a), a[0].dtype, [&](const Index& at) { return from(a, at); })};
                 },
                 large});
}
inline std::function<Shape(const Arrays&)> always(const Shape& s) {
  return [s](const Arrays&) { return s; };
}
inline double pick(const Array& a, const Index& at) { return a[flat_index(a.sizes, at)]; }

}  // namespace gradual::test
