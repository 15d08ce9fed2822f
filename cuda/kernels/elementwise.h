// out[i] = f(in[0][i], in[1][i], ..): the kernels of all elementwise ops, counterpart of core/cpu/elementwise.cpp.
#pragma once

#include "../../core/kernels/functors.h"
#include "../../core/kernels/scalar_operand.h"
#include "kernels.h"
#include "vector_io.h"

namespace gradual::cuda {

// Any strides and dtypes: one element per index.
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
      const ElementOperand& o = g.operand[k + 1];
      x[k] = o.data ? load_element<C>(o.dtype, o.data, at[k + 1]) : scalar;
    }
    const ElementOperand& out = g.operand[0];
    const C value = wrapped(out.dtype, C(call(x, std::make_integer_sequence<int, N>{})));
    store_counted(out.dtype, value, out.data, at[0], counter);
  }
  template <int... K> __device__ C call(const C (&x)[N], std::integer_sequence<int, K...>) const { return f(x[K]...); }
};

// Contiguous elements of one dtype T, 16 bytes at a time.
template <class T> struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T of[kSize];
};
using Sixteen = Pack<std::uint32_t>;

template <class T, class C, int N, class F> struct MapDense {
  std::int64_t n;
  T* out;
  const T* in[N];  // null: scalar
  C scalar;
  F f;

  __device__ void operator()(std::int64_t i) const {
    constexpr int kSize = Pack<T>::kSize;
    const std::int64_t first = i * kSize;
    if (first + kSize <= n) {
      Pack<T> x[N] = {}, y;
      for (int k = 0; k < N; ++k)
        if (in[k]) x[k] = *reinterpret_cast<const Pack<T>*>(in[k] + first);
      for (int j = 0; j < kSize; ++j)
        y.of[j] = value([&](int k) { return x[k].of[j]; }, std::make_integer_sequence<int, N>{});
      *reinterpret_cast<Pack<T>*>(out + first) = y;
    } else {
      for (std::int64_t at = first; at < n; ++at)
        out[at] = value([&](int k) { return in[k][at]; }, std::make_integer_sequence<int, N>{});
    }
  }

 private:
  template <class Read, int... K> __device__ T value(const Read& read, std::integer_sequence<int, K...>) const {
    return cast_element<T>(C(f((in[K] ? cast_element<C>(read(K)) : scalar)...)));
  }
};

// Runs of eight, of f32, f16 and bf16, which may differ.
template <int N, class F> struct MapRuns {
  Geometry<N + 1> g;
  float scalar;
  F f;
  Counter counter;

  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[N + 1];
    g.locate(i * kRun, at);
    float x[N][kRun], y[kRun];
    unrolled<N>([&](auto k) {
      const auto& o = g.operand[k + 1];
      if (o.data && o.strides[g.ndim - 1] != 0) return load_run(o, at[k + 1], x[k]);
      const float all = o.data ? load_stored<float>(o, at[k + 1]) : scalar;
      for (float& number : x[k]) number = all;
    });
    for (int j = 0; j < kRun; ++j) y[j] = call(x, j, std::make_integer_sequence<int, N>{});
    store_run(g.operand[0], at[0], y, counter);
  }
  template <int... K> __device__ float call(const float (&x)[N][kRun], int j, std::integer_sequence<int, K...>) const {
    return f(x[K][j]...);
  }
};

// True if the kernel was started: the innermost dims of the result and of each operand are runs of eight, or one
// number.
template <int N, class F> bool map_runs(const Geometry<N + 1>& g, const F& f, float scalar, const Counter& counter) {
  if (!run_wise(g)) return false;
  for_each(g.numel / kRun, MapRuns<N, F>{g, scalar, f, counter});
  return true;
}

// True if the kernel was started: all tensors have the same memory order, row-major or channels-last.
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
  const DType from = is_floating(out.dtype()) ? dtype_of<C> : out.dtype();  // wrapped integers are not counted
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
  const Geometry<N + 1> g = make_geometry(out.sizes(), all, out.is_contiguous());
  if constexpr (std::is_same_v<C, float>)
    if (map_runs<N>(g, f, scalar, counting.counter())) return;
  for_each(g.numel, MapElements<C, N, F>{g, scalar, f, counting.counter()});
}

// Kernels for the rows of functors.h. Integers divided by 0 are 0 and leave the dividend: the host does not wait.
template <int N, class F> void numbers_kernel(const OpCall& c, Outputs& out) {
  cpu::visit_compute(operand_dtype<N>(c),
                     [&]<class C>(C) { map_elements<C, N>(out[0], c.inputs.data(), F{}, scalar_of<C, N>(c)); });
}
template <int N, class F> void floats_kernel(const OpCall& c, Outputs& out) {
  cpu::visit_floating(operand_dtype<N>(c),
                      [&]<class C>(C) { map_elements<C, N>(out[0], c.inputs.data(), F{}, scalar_of<C, N>(c)); });
}
template <class F> void integers_kernel(const OpCall& c, Outputs& out) {
  map_elements<std::int64_t, 2>(out[0], c.inputs.data(), F{}, scalar_of<std::int64_t, 2>(c));
}
template <class F> void comparison_kernel(const OpCall& c, Outputs& out) {
  using Flag = functors::Flag<F>;
  if (compares_fraction(c)) return map_elements<double, 2>(out[0], c.inputs.data(), Flag{}, c.get<ScalarAttrs>().value);
  numbers_kernel<2, Flag>(c, out);
}
template <int N, class F> void logical_kernel(const OpCall& c, Outputs& out) {
  map_elements<double, N>(out[0], c.inputs.data(), functors::Truth<F>{}, scalar_of<double, N>(c));
}

template <template <class> class F> void number_kernel(const OpCall& c, Outputs& out) {
  cpu::visit_floating(c[0].dtype(),
                      [&]<class C>(C) { map_elements<C, 1>(out[0], c.inputs.data(), F<C>{number<C>(c)}); });
}

struct Cuda {
  template <int N, class F> void numbers(OpId op, F) const { set_kernel(op, numbers_kernel<N, F>); }
  template <int N, class F> void floats(OpId op, F) const { set_kernel(op, floats_kernel<N, F>); }
  template <class F> void integers(OpId op, F) const { set_kernel(op, integers_kernel<F>); }
  template <template <class> class F> void with_number(OpId op) const { set_kernel(op, number_kernel<F>); }
  template <class F> void comparison(OpId op, F) const { set_kernel(op, comparison_kernel<F>); }
  template <int N, class F> void logical(OpId op, F) const { set_kernel(op, logical_kernel<N, F>); }
};

}  // namespace gradual::cuda
