// Tensors in awkward layouts, and elements read by hand: references must not go through the kernels they check.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "gradual/core/formats/convert.h"
#include "gradual/core/ops/ops.h"
#include "gradual/core/support/threads.h"

namespace gradual::testing {

// The address of the element that is `flat`-th in row-major order.
inline char* address(const Tensor& t, std::int64_t flat) {
  std::int64_t offset = 0;
  for (int d = t.dim() - 1; d >= 0; --d) {
    offset += flat % t.sizes()[d] * t.strides()[d];
    flat /= t.sizes()[d];
  }
  return static_cast<char*>(t.raw()) + offset * static_cast<std::int64_t>(size_of(t.dtype()));
}
inline double at(const Tensor& t, std::int64_t flat) {
  double v = 0;
  fetch_and_cast(t.dtype(), address(t, flat), 1, &v, 1);
  return v;
}
// Element `flat` of `out`'s shape in `t`, which broadcasts to it.
inline double broadcast_at(const Tensor& t, const Shape& sizes, std::int64_t flat) {
  std::int64_t position = 0;
  std::int64_t step = 1;
  for (int d = sizes.size() - 1, e = t.dim() - 1; e >= 0; --d, --e) {
    position += (t.sizes()[e] == 1 ? 0 : flat % sizes[d]) * step;
    flat /= sizes[d];
    step *= t.sizes()[e];
  }
  return at(t, position);
}
inline std::vector<double> values(const Tensor& t) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < t.numel(); ++i) v.push_back(at(t, i));
  return v;
}
// Equal shape, dtype and bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) return false;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    if (std::memcmp(address(a, i), address(b, i), size_of(a.dtype())) != 0) return false;
  return true;
}

// Small values of either sign in every layout that loops tell apart.
inline std::vector<Tensor> layouts(DType dtype) {
  Generator g(7);
  const auto make = [&](const Shape& s) {
    const Tensor t = randint(0, 100, s, {.dtype = DType::i64}, g);
    std::vector<double> v;
    for (std::int64_t i = 0; i < t.numel(); ++i) v.push_back(at(t, i) * 0.0625 - (dtype == DType::u8 ? 0 : 3));
    return from_data(v, s, {.dtype = dtype});
  };
  return {make({}),
          make({0}),
          make({2, 0, 3}),
          make({1}),
          make({7}),
          make({3, 5}),
          make({5, 3}).t(),
          make({40, 50}),
          make({50, 40}).t(),
          make({4, 300}),
          make({300, 4}).t(),
          make({6, 9}).index({Slice{0, {}, 2}, Slice{1, {}, 3}}),
          make({3, 400}).index({Slice{}, Slice{1, {}, 2}}),
          make({1, 6}).expand({5, 6}),
          make({5, 1}).expand({5, 6}),
          make({2, 3, 4, 5}).permute({0, 2, 3, 1}),
          make({2, 4, 5, 3}).permute({0, 3, 1, 2}),
          make({3, 1, 2, 1, 4}).transpose(0, 4),
          make({2, 3}).select(1, 2),
          make({70000}),
          make({300, 250}).t()};
}

// Runs f with 1, 2 and 3 threads and hands each result to check.
template <class F, class G> void for_thread_counts(const F& f, const G& check) {
  for (int n : {1, 2, 3}) {
    const ThreadsScope scope(n);
    check(f());
  }
}

}  // namespace gradual::testing
