// Elements of tensors in kernels: conversion to and from the compute type, and their positions.
#pragma once

#include "../../core/formats/cast_element.h"
#include "../../core/kernels/loops.h"
#include "../runtime/cast_counts.h"
#include "../runtime/launch.h"

namespace gradual::cuda {

// Element `at` of an array of dtype d as a C (float, double or int64), and back, rounded once as in convert.h.
template <class C> GRADUAL_HD C load_element(DType d, const void* p, std::int64_t at) {
  C value{};
  visit_dtype(d, [&]<class T> { value = cast_element<C>(static_cast<const T*>(p)[at]); });
  return value;
}
template <class C> GRADUAL_HD void store_element(DType d, C value, void* p, std::int64_t at) {
  visit_dtype(d, [&]<class T> { static_cast<T*>(p)[at] = cast_element<T>(value); });
}
// The same, counted if `counter` is set.
template <class C> __device__ void store_counted(DType d, C value, void* p, std::int64_t at, const Counter& counter) {
  store_element(d, value, p, at);
  if (counter.counts) counter.add(static_cast<double>(value), load_element<double>(d, p, at));
}
// Integers wrap if the dtype is too small, as in C.
template <class C> GRADUAL_HD C wrapped(DType d, C value) {
  if constexpr (std::is_same_v<C, std::int64_t>) {
    if (d == DType::u8) return static_cast<std::uint8_t>(value);
    if (d == DType::i32) return static_cast<std::int32_t>(value);
  }
  return value;
}

inline bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// One operand of a loop in a kernel. Strides are in elements.
struct ElementOperand {
  char* data = nullptr;
  DType dtype = DType::f32;
  bool linear = false;  // element i of the loop is data[i]
  std::int64_t strides[kMaxDims] = {};
};

// cpu::Loop as kernels take it: dims merged, the last one innermost.
template <int N> struct Geometry {
  int ndim = 0;
  bool narrow = false;  // positions fit in 32 bits, whose divisions are faster
  std::int64_t numel = 0;
  std::int64_t sizes[kMaxDims] = {};
  ElementOperand operand[N];

  // The offset of element `position` in each operand.
  GRADUAL_HD void locate(std::int64_t position, std::int64_t (&at)[N]) const {
    for (int k = 0; k < N; ++k) at[k] = 0;
    if (narrow) walk(static_cast<std::uint32_t>(position), at);
    else walk(static_cast<std::uint64_t>(position), at);
  }

 private:
  template <class U> GRADUAL_HD void walk(U rest, std::int64_t (&at)[N]) const {
    for (int d = ndim - 1; d > 0; --d) {
      const U size = static_cast<U>(sizes[d]);
      const U quotient = rest / size;
      const auto index = static_cast<std::int64_t>(rest - quotient * size);
      for (int k = 0; k < N; ++k) at[k] += index * operand[k].strides[d];
      rest = quotient;
    }
    for (int k = 0; k < N; ++k) at[k] += static_cast<std::int64_t>(rest) * operand[k].strides[0];
  }
};

template <int N> Geometry<N> geometry_of(const cpu::Loop& loop) {
  Geometry<N> g;
  g.ndim = loop.ndim;
  g.numel = loop.numel;
  g.narrow = loop.numel <= INT32_MAX;
  for (int d = 0; d < loop.ndim; ++d) g.sizes[d] = loop.sizes[d];
  for (int k = 0; k < N; ++k) {
    const cpu::View& v = loop.view[k];
    g.operand[k].data = v.data;
    g.operand[k].dtype = v.dtype;
    g.operand[k].linear = v.linear;
    for (int d = 0; d < loop.ndim; ++d) g.operand[k].strides[d] = v.strides[d];
  }
  return g;
}
// The geometry of `operands`, broadcast to `sizes`: in row-major order, or in that of the first one's memory.
template <int N> Geometry<N> make_geometry(const Shape& sizes, const Tensor* const (&operands)[N], bool row_major) {
  return geometry_of<N>(cpu::make_loop(sizes, operands, row_major));
}

}  // namespace gradual::cuda
