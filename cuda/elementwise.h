// out[i] = f(in[0][i], in[1][i], ..): the kernels of all elementwise rows, twin of core/cpu/elementwise.cpp.
#pragma once

#include "../core/elementwise_rows.h"
#include "../core/number.h"
#include "elements.h"
#include "kernels.h"

namespace gradual::cuda {

// Any strides and dtypes: one element an index.
template <class C, int N, class F> struct MapElements {
  Geometry<N + 1> g;  // of the output, then of the inputs
  C scalar;           // in place of an input that has no data
  F f;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[N + 1];
    g.locate(i, at);
    C x[N];
    for (int k = 0; k < N; ++k) {
      const Operand& o = g.operand[k + 1];
      x[k] = o.data ? load_element<C>(o.dtype, o.data, at[k + 1]) : scalar;
    }
    const Operand& out = g.operand[0];
    const C value = wrapped(out.dtype, C(call(x, std::make_integer_sequence<int, N>{})));
    store_counted(out.dtype, value, out.data, at[0], counter);
  }
  template <int... K> __device__ C call(const C (&x)[N], std::integer_sequence<int, K...>) const { return f(x[K]...); }
};

// Elements of one dtype T that lie side by side, 16 bytes at a time.
template <class T> struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T of[kSize];
};
template <class T, class C, int N, class F> struct MapDense {
  std::int64_t n;
  T* out;
  const T* in[N];  // null: scalar
  C scalar;
  F f;

  __device__ void operator()(std::int64_t i) const {
    constexpr int kSize = Pack<T>::kSize;
    const std::int64_t first = i * kSize;
    Pack<T> x[N];
    for (int k = 0; k < N; ++k)
      if (in[k]) read(in[k], first, x[k]);
    Pack<T> y;
    for (int j = 0; j < kSize; ++j) y.of[j] = cast_element<T>(at(x, j, std::make_integer_sequence<int, N>{}));
    if (first + kSize <= n) {
      *reinterpret_cast<Pack<T>*>(out + first) = y;
    } else {
      for (int j = 0; first + j < n; ++j) out[first + j] = y.of[j];
    }
  }

 private:
  __device__ void read(const T* p, std::int64_t first, Pack<T>& x) const {
    if (first + Pack<T>::kSize <= n) {
      x = *reinterpret_cast<const Pack<T>*>(p + first);
    } else {
      for (int j = 0; j < Pack<T>::kSize; ++j) x.of[j] = first + j < n ? p[first + j] : cast_element<T>(C{1});
    }
  }
  template <int... K> __device__ C at(const Pack<T> (&x)[N], int j, std::integer_sequence<int, K...>) const {
    return f((in[K] ? cast_element<C>(x[K].of[j]) : scalar)...);
  }
};

// True where the tensors allowed it and the kernel was started: all in the same order in memory, channels last too.
template <class T, class C, int N, class F>
bool map_dense(const Tensor& out, const Tensor* const* inputs, C scalar, const F& f) {
  MapDense<T, C, N, F> map{out.numel(), static_cast<T*>(out.raw()), {}, scalar, f};
  bool dense = out.dtype() == dtype_of<T> && is_dense(out.sizes(), out.strides()) && aligned(map.out);
  for (int k = 0; k < N && dense; ++k) {
    const Tensor& x = *inputs[k];
    if (!x.defined()) continue;
    map.in[k] = static_cast<const T*>(x.raw());
    dense = x.dtype() == out.dtype() && x.sizes() == out.sizes() && cpu::same_order(x, out) && aligned(map.in[k]);
  }
  if (dense) for_each((map.n + Pack<T>::kSize - 1) / Pack<T>::kSize, map);
  return dense;
}

// An undefined input is the number `scalar`. Computes in C.
template <class C, int N, class F>
void map_elements(const Tensor& out, const Tensor* const* inputs, const F& f, std::type_identity_t<C> scalar = {}) {
  if (out.numel() == 0) return;
  const DType from = is_floating(out.dtype()) ? dtype_of<C> : out.dtype();  // what integers lose is not counted
  const CountingStores counting(from, out.dtype());
  if (!counting) {
    if constexpr (std::is_same_v<C, float>) {
      if (map_dense<float, float, N>(out, inputs, scalar, f) || map_dense<Half, float, N>(out, inputs, scalar, f) ||
          map_dense<BFloat16, float, N>(out, inputs, scalar, f))
        return;
    } else if (map_dense<C, C, N>(out, inputs, scalar, f)) {
      return;
    }
  }
  const Tensor* operands[N + 1] = {&out};
  for (int k = 0; k < N; ++k) operands[k + 1] = inputs[k];
  const Tensor* const(&all)[N + 1] = operands;
  for_each(out.numel(),
           MapElements<C, N, F>{make_geometry(out.sizes(), all, out.is_contiguous()), scalar, f, counting.counter()});
}

// Kernels for the rows of elementwise_rows.h.
template <int N, class F> void numbers_kernel(const OpCall& c, Outputs& out) {
  cpu::visit_compute(operand_dtype<N>(c),
                     [&]<class C>(C) { map_elements<C, N>(out[0], c.inputs.data(), F{}, scalar_of<C, N>(c)); });
}
template <int N, class F> void floats_kernel(const OpCall& c, Outputs& out) {
  cpu::visit_floating(operand_dtype<N>(c),
                      [&]<class C>(C) { map_elements<C, N>(out[0], c.inputs.data(), F{}, scalar_of<C, N>(c)); });
}
template <class F> void comparison_kernel(const OpCall& c, Outputs& out) {
  using Flag = functors::Flag<F>;
  if (compares_fraction(c)) return map_elements<double, 2>(out[0], c.inputs.data(), Flag{}, c.get<ScalarAttrs>().value);
  numbers_kernel<2, Flag>(c, out);
}
template <int N, class F> void logical_kernel(const OpCall& c, Outputs& out) {
  map_elements<double, N>(out[0], c.inputs.data(), functors::Truth<F>{}, scalar_of<double, N>(c));
}

struct Cuda {
  template <int N, class F> void numbers(OpId op, F) const { set_kernel(op, numbers_kernel<N, F>); }
  template <int N, class F> void floats(OpId op, F) const { set_kernel(op, floats_kernel<N, F>); }
  template <class F> void comparison(OpId op, F) const { set_kernel(op, comparison_kernel<F>); }
  template <int N, class F> void logical(OpId op, F) const { set_kernel(op, logical_kernel<N, F>); }
};

}  // namespace gradual::cuda
