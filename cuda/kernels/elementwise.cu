// Ops of one operand, ops whose functor holds a number, and dropout.
#include <cmath>

#include "../../core/support/philox.h"
#include "../runtime/random.h"
#include "elementwise.h"

namespace gradual::cuda {
namespace {

void clamp(const OpCall& c, Outputs& out) {
  const auto& a = c.get<ScalarAttrs>();
  cpu::visit_compute(c[0].dtype(), [&]<class C>(C) {
    const functors::Clamp<C> f{bound<C>(std::ceil(a.value), a.value), bound<C>(std::floor(a.high), a.high)};
    map_elements<C, 1>(out[0], c.inputs.data(), f);
  });
}

// The mask is a function of the key and of the element's row-major index, as on the CPU: element i is kept if the upper
// 24 bits of word i are at least the threshold. A thread takes the four elements of one block of random words.
template <class C> struct DropElements {
  Geometry<2> g;  // in row-major order
  DeviceKey call_key;
  std::uint32_t threshold;
  C scale;
  Counter counter;

  __device__ void operator()(std::int64_t block) const {
    const RandomKey key = call_key.get();
    const auto words = philox_block(key.seed, key.stream, static_cast<std::uint64_t>(block));
    const ElementOperand& out = g.operand[0];
    const ElementOperand& x = g.operand[1];
    for (int k = 0; k < 4 && 4 * block + k < g.numel; ++k) {
      std::int64_t at[2];
      g.locate(4 * block + k, at);
      const C scaled = load_element<C>(x.dtype, x.data, at[1]) * scale;
      const C value = words[static_cast<std::size_t>(k)] >> 8 >= threshold ? scaled : C{0};
      store_counted(out.dtype, value, out.data, at[0], counter);
    }
  }
};

// Adjacent elements of one dtype, 16 bytes at a time.
template <class T, class C> struct DropDense {
  std::int64_t n;
  T* out;
  const T* x;
  DeviceKey call_key;
  std::uint32_t threshold;
  C scale;

  __device__ void operator()(std::int64_t i) const {
    constexpr int kSize = Pack<T>::kSize;
    const std::int64_t first = i * kSize;
    const RandomKey key = call_key.get();
    Pack<T> pack;
    if (first + kSize <= n) {
      pack = *reinterpret_cast<const Pack<T>*>(x + first);
      drop(key, first, pack);
      *reinterpret_cast<Pack<T>*>(out + first) = pack;
    } else {
      for (int j = 0; j < kSize; ++j) pack.of[j] = x[first + j < n ? first + j : first];
      drop(key, first, pack);
      for (int j = 0; j < kSize; ++j)  // unrolled: pack stays in registers
        if (first + j < n) out[first + j] = pack.of[j];
    }
  }

 private:
  __device__ void drop(const RandomKey& key, std::int64_t first, Pack<T>& pack) const {
    for (int b = 0; b < Pack<T>::kSize / 4; ++b) {
      const auto words = philox_block(key.seed, key.stream, static_cast<std::uint64_t>(first / 4 + b));
      for (int k = 0; k < 4; ++k) {
        T& element = pack.of[4 * b + k];
        const C scaled = cast_element<C>(element) * scale;
        element = cast_element<T>(words[static_cast<std::size_t>(k)] >> 8 >= threshold ? scaled : C{0});
      }
    }
  }
};
template <class T>
bool drop_dense(const Tensor& out, const Tensor& x, const DropoutAttrs& a, std::uint32_t threshold, float scale) {
  if (x.dtype() != dtype_of<T> || !x.is_contiguous() || !out.is_contiguous() || !aligned(x.raw()) ||
      !aligned(out.raw()))
    return false;
  for_each((x.numel() + Pack<T>::kSize - 1) / Pack<T>::kSize,
           DropDense<T, float>{x.numel(), static_cast<T*>(out.raw()), static_cast<const T*>(x.raw()), device_key(a.key),
                               threshold, scale});
  return true;
}

void dropout(const OpCall& c, Outputs& out) {
  const auto& a = c.get<DropoutAttrs>();
  const auto threshold = static_cast<std::uint32_t>(std::ceil(a.p * 0x1p24));
  const double scale = a.p < 1 ? 1 / (1 - a.p) : 0;
  cpu::visit_floating(c[0].dtype(), [&]<class C>(C) {
    const CountingStores counting(dtype_of<C>, out[0].dtype());
    const auto narrow = static_cast<float>(scale);
    if (!counting && (drop_dense<float>(out[0], c[0], a, threshold, narrow) ||
                      drop_dense<Half>(out[0], c[0], a, threshold, narrow) ||
                      drop_dense<BFloat16>(out[0], c[0], a, threshold, narrow)))
      return;
    const Tensor* const operands[] = {&out[0], &c[0]};
    const Geometry<2> g = make_geometry(out[0].sizes(), operands, true);
    for_each((g.numel + 3) / 4,
             DropElements<C>{g, device_key(a.key), threshold, static_cast<C>(scale), counting.counter()});
  });
}

// The same, plus the residual: both stores round, and count, as those of the two ops. X is the compute type of x, C
// that of the sum.
template <class X, class C> struct DropAdd {
  Geometry<3> g;  // in row-major order
  bool linear;
  DeviceKey call_key;
  std::uint32_t threshold;
  X scale;
  Counter narrowing, storing;

  __device__ void operator()(std::int64_t block) const {
    const RandomKey key = call_key.get();
    const auto words = philox_block(key.seed, key.stream, static_cast<std::uint64_t>(block));
    const ElementOperand& out = g.operand[0];
    const ElementOperand& x = g.operand[1];
    const ElementOperand& residual = g.operand[2];
    for (int k = 0; k < 4 && 4 * block + k < g.numel; ++k) {
      const std::int64_t i = 4 * block + k;
      std::int64_t at[3] = {i, i, i};
      if (!linear) g.locate(i, at);
      const X scaled = load_element<X>(x.dtype, x.data, at[1]) * scale;
      X value = words[static_cast<std::size_t>(k)] >> 8 >= threshold ? scaled : X{0};
      if (is_half(x.dtype)) {
        std::uint16_t half;
        store_counted(x.dtype, value, &half, 0, narrowing);
        value = load_element<X>(x.dtype, &half, 0);
      }
      const C sum = load_element<C>(residual.dtype, residual.data, at[2]) + static_cast<C>(value);
      store_counted(out.dtype, sum, out.data, at[0], storing);
    }
  }
};

void dropout_add(const OpCall& c, Outputs& out) {
  const auto& a = c.get<DropoutAttrs>();
  const auto threshold = static_cast<std::uint32_t>(std::ceil(a.p * 0x1p24));
  const double scale = a.p < 1 ? 1 / (1 - a.p) : 0;
  const Tensor* const operands[] = {&out[0], &c[0], &c[1]};
  const Geometry<3> g = make_geometry(out[0].sizes(), operands, true);
  bool linear = true;
  for (const ElementOperand& o : g.operand) linear = linear && o.linear;
  const auto of_types = [&]<class X, class C>(X, C) {
    const CountingStores narrowing(dtype_of<X>, c[0].dtype()), storing(dtype_of<C>, out[0].dtype());
    for_each((g.numel + 3) / 4, DropAdd<X, C>{g, linear, device_key(a.key), threshold, static_cast<X>(scale),
                                              narrowing.counter(), storing.counter()});
  };
  if (c[0].dtype() == DType::f64) of_types(double{}, double{});
  else if (out[0].dtype() == DType::f64) of_types(float{}, double{});
  else of_types(float{}, float{});
}

// Runs the kernel of the exact form of gelu or of its tanh form.
template <int N, class Exact, class Tanh> void gelu_form(const OpCall& c, Outputs& out) {
  (c.get<Gelu>() == Gelu::tanh ? floats_kernel<N, Tanh> : floats_kernel<N, Exact>)(c, out);
}

}  // namespace

void register_elementwise() {
  using namespace functors;
  unary_rows(Cuda{});
  set_kernel(OpId::clamp, clamp);
  set_kernel(OpId::dropout, dropout);
  set_kernel(OpId::dropout_add, dropout_add);
  set_kernel(OpId::gelu, gelu_form<1, GeluExact, GeluTanh>);
  set_kernel(OpId::gelu_backward, gelu_form<2, GeluExactBackward, GeluTanhBackward>);
}

}  // namespace gradual::cuda
