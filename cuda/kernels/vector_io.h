// Loads and stores of eight elements, for the kernels of reductions, softmax and norms.
#pragma once

#include "elements.h"

namespace gradual::cuda {

inline constexpr int kRun = 8;

// Calls f(0) .. f(n - 1) with constant arguments, so that arrays indexed by them stay in registers.
template <int n, class F> __device__ void unrolled(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, n>{});
}

// Part of a run of n elements of type T that one instruction moves.
template <class T, int n = kRun> struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) RunPart {
  static constexpr int kSize = sizeof(T) * n < 16 ? n : 16 / sizeof(T);
  T of[kSize];
};

// visit.operator()<T>() for the type T of dtype d, which has compute type C and is not f8.
template <class C, class F> __device__ void visit_stored(DType d, F&& visit) {
  if constexpr (std::is_same_v<C, double>) {
    visit.template operator()<double>();
  } else if constexpr (std::is_same_v<C, float>) {
    if (d == DType::f16) visit.template operator()<Half>();
    else if (d == DType::bf16) visit.template operator()<BFloat16>();
    else visit.template operator()<float>();
  } else {
    if (d == DType::i32) visit.template operator()<std::int32_t>();
    else if (d == DType::u8) visit.template operator()<std::uint8_t>();
    else if (d == DType::bool_) visit.template operator()<BoolByte>();
    else visit.template operator()<std::int64_t>();
  }
}

// x = elements [at, at + n), laid out as wide() requires for runs of n.
template <class C, int n> __device__ void load_run(const ElementOperand& o, std::int64_t at, C (&x)[n]) {
  visit_stored<C>(o.dtype, [&]<class T> {
    using Part = RunPart<T, n>;
    const auto* parts = reinterpret_cast<const Part*>(reinterpret_cast<const T*>(o.data) + at);
    for (int i = 0; i < n; i += Part::kSize) {
      const Part part = parts[i / Part::kSize];
      for (int j = 0; j < Part::kSize; ++j) x[i + j] = cast_element<C>(part.of[j]);
    }
  });
}
// x[j] = element at[j].
template <class C>
__device__ void load_scattered(const ElementOperand& o, const std::int64_t (&at)[kRun], C (&x)[kRun]) {
  visit_stored<C>(o.dtype, [&]<class T> {
    const T* data = reinterpret_cast<const T*>(o.data);
    for (int j = 0; j < kRun; ++j) x[j] = cast_element<C>(data[at[j]]);
  });
}

// Element `at`.
template <class C> __device__ C load_stored(const ElementOperand& o, std::int64_t at) {
  C x{};
  visit_stored<C>(o.dtype, [&]<class T> { x = cast_element<C>(reinterpret_cast<const T*>(o.data)[at]); });
  return x;
}

// The same for stores. Scattered stores write the first n.
template <class C>
__device__ void store_run(const ElementOperand& o, std::int64_t at, const C (&x)[kRun], const Counter& counter) {
  visit_stored<C>(o.dtype, [&]<class T> {
    auto* parts = reinterpret_cast<RunPart<T>*>(reinterpret_cast<T*>(o.data) + at);
    for (int i = 0; i < kRun; i += RunPart<T>::kSize) {
      RunPart<T> part;
      for (int j = 0; j < RunPart<T>::kSize; ++j) {
        part.of[j] = cast_element<T>(x[i + j]);
        if (counter.counts) counter.add(static_cast<double>(x[i + j]), cast_element<double>(part.of[j]));
      }
      parts[i / RunPart<T>::kSize] = part;
    }
  });
}
template <class C>
__device__ void store_scattered(const ElementOperand& o, const std::int64_t (&at)[kRun], int n, const C (&x)[kRun],
                                const Counter& counter) {
  visit_stored<C>(o.dtype, [&]<class T> {
    T* data = reinterpret_cast<T*>(o.data);
    for (int j = 0; j < kRun; ++j) {
      if (j >= n) continue;
      const T y = cast_element<T>(x[j]);
      data[at[j]] = y;
      if (counter.counts) counter.add(static_cast<double>(x[j]), cast_element<double>(y));
    }
  });
}

// A result: number i rounded to the dtype. Null data: the result is not needed.
template <class C> struct Stored {
  void* data = nullptr;
  DType dtype = dtype_of<C>;
  Counter counter = {};
  Stored() = default;
  explicit Stored(C* numbers) : data(numbers) {}
  Stored(const Tensor& t, const CountingStores& counting)
      : data(t.raw()), dtype(t.dtype()), counter(counting.counter()) {}
  __device__ void operator()(C value, std::int64_t i) const { store_counted(dtype, value, data, i, counter); }
};

// True if elements [n i, n i + n) of `inner` are contiguous in each of its first operands and aligned for wide loads:
// to 16 bytes, or to their size if that is less. `outer`: further offsets of an operand. n: 8 or 4.
template <int N, int M>
bool wide(const Geometry<N>& inner, const Geometry<M>& outer, int operands = N, std::int64_t n = kRun) {
  static_assert(M >= N);
  const int last = inner.ndim - 1;
  if (inner.sizes[last] % n != 0) return false;
  const auto fits = [=](const auto& g, int d, int k) { return g.sizes[d] == 1 || g.operand[k].strides[d] % n == 0; };
  for (int k = 0; k < operands; ++k) {
    if (inner.operand[k].strides[last] != 1 || !aligned(inner.operand[k].data)) return false;
    for (int d = 0; d < last; ++d)
      if (!fits(inner, d, k)) return false;
    for (int d = 0; d < outer.ndim; ++d)
      if (!fits(outer, d, k)) return false;
  }
  return true;
}

// True if a loop over elements can use runs of eight: the first operand is laid out as above; each other one is too, or
// is one number along the last dim, or has no data; all are f32, f16 or bf16.
template <int N> bool run_wise(const Geometry<N>& g) {
  const int last = g.ndim - 1;
  if (g.sizes[last] % kRun != 0) return false;
  for (int k = 0; k < N; ++k) {
    const ElementOperand& o = g.operand[k];
    if (!o.data) continue;
    if (o.dtype != DType::f32 && o.dtype != DType::f16 && o.dtype != DType::bf16) return false;
    if (k > 0 && o.strides[last] == 0) continue;
    if (o.strides[last] != 1 || !aligned(o.data)) return false;
    for (int d = 0; d < last; ++d)
      if (g.sizes[d] != 1 && o.strides[d] % kRun != 0) return false;
  }
  return true;
}

}  // namespace gradual::cuda
