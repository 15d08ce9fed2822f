// Shorthands the parts of the table share.
#pragma once

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "op_table.h"

namespace gradual::test {

// One output of dtype `dtype` whose element at `index` is f(index).
template <class F> Array tabulate(const Shape& sizes, DType dtype, F f) {
  Array out = make_array(sizes, dtype);
  for (std::int64_t i = 0; i < out.numel(); ++i) out[i] = f(unflatten(sizes, i));
  return out;
}
// The same where f gives {value, magnitude}.
template <class F> Array tabulate_sums(const Shape& sizes, DType dtype, double length, F f) {
  Array out = make_array(sizes, dtype);
  out.magnitude.resize(out.v.size());
  out.length = length;
  for (std::int64_t i = 0; i < out.numel(); ++i) std::tie(out[i], out.mag(i)) = f(unflatten(sizes, i));
  return out;
}
using ValueAndSize = std::pair<double, double>;

// A sum that remembers the size of its terms.
struct Sum {
  double value = 0;
  double size = 0;
  void add(double term) { add(term, std::fabs(term)); }
  void add(double term, double magnitude) {
    value += term;
    size += magnitude;
  }
  operator ValueAndSize() const { return {value, size}; }  // NOLINT(google-explicit-constructor)
};

inline DType float_of(DType d) { return is_floating(d) ? d : DType::f32; }
inline DType statistics_of(DType d) { return d == DType::f64 ? DType::f64 : DType::f32; }
inline DType contracted(DType d) { return is_f8(d) ? DType::f32 : d; }
// A call of one tensor as a Call.
template <class F> Call one(F f) {
  return [f](const Tensors& in) -> Tensors { return {f(in[0])}; };
}
template <class F> Call two(F f) {
  return [f](const Tensors& in) -> Tensors { return {f(in[0], in[1])}; };
}

}  // namespace gradual::test
