// Many tensors in one launch: a table of the parts of a call, passed as a kernel argument. Each part is a few tensors
// of one shape. Blocks or threads take chunks, cut by shape alone.
#pragma once

#include <type_traits>

#include "../../core/formats/cast_element.h"
#include "../../core/tensor/tensor.h"
#include "block.h"

namespace gradual::cuda {

inline constexpr int kFour = 4;                   // elements that a thread takes at a time
inline constexpr std::int64_t kPartChunk = 2048;  // and a block

// At most kMost parts. A P has chunks(), its number of chunks, and a member first_chunk.
template <class P, int kMost> struct Table {
  int count = 0;
  std::int64_t chunks = 0;
  P part[kMost];

  bool full() const { return count == kMost; }
  void add(const P& next) {
    P& p = part[count++];
    p = next;
    p.first_chunk = chunks;
    chunks += p.chunks();
  }
  // The part that a chunk belongs to. Parts without elements have no chunks.
  GRADUAL_HD int find(std::int64_t chunk) const {
    // part[low].first_chunk <= chunk
    int low = 0;
    int high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (part[middle].first_chunk <= chunk ? low : high) = middle;
    }
    return low;
  }
};

// f(table, index of its first part) for parts make(0) .. make(count - 1). A table has as many parts as fit into a
// kernel's arguments: 4 KiB (kFew parts) pass quickly, 32,764 bytes (kMany) are CUDA's limit.
template <int kFew, int kMany, class Make, class F> void in_tables(int count, const Make& make, const F& f) {
  using P = std::invoke_result_t<Make, int>;
  const auto fill = [&]<int kMost>(int begin, Table<P, kMost> table) {
    while (begin + table.count < count && !table.full()) table.add(make(begin + table.count));
    f(table, begin);
    return begin + table.count;
  };
  for (int begin = 0; begin < count;)
    begin = count - begin <= kFew ? fill(begin, Table<P, kFew>{}) : fill(begin, Table<P, kMany>{});
}

// N row-major tensors of the same sizes, of f64, f32, f16 or bf16; null if one is absent.
template <int N> struct Part {
  void* data[N] = {};
  std::int64_t numel = 0;
  std::int64_t first_chunk = 0;  // chunks of the parts before it
  DType dtype[N] = {};
  bool packed = true;  // all are aligned for reads of four elements

  Part() = default;
  explicit Part(const Tensor* const (&tensors)[N]) {
    for (int k = 0; k < N; ++k) {
      const Tensor& t = *tensors[k];
      if (!t.defined()) continue;
      data[k] = t.raw();
      dtype[k] = t.dtype();
      numel = t.numel();
      packed = packed && reinterpret_cast<std::uintptr_t>(data[k]) % (kFour * size_of(t.dtype())) == 0;
    }
  }
  std::int64_t chunks() const { return (numel + kPartChunk - 1) / kPartChunk; }
};

// Calls f with the type of a floating dtype that optimizers know.
template <class F> GRADUAL_HD void visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<Half>();
    default: return f.template operator()<BFloat16>();
  }
}

template <class T> struct alignas(kFour * sizeof(T)) FourOf {
  T of[kFour];
};

// Elements [i, i + n) of a part's tensor k as C; i is a multiple of four, n at most four. Absent tensor: x is
// unchanged.
template <class C, int N> __device__ void load_four(const Part<N>& p, int k, std::int64_t i, int n, C (&x)[kFour]) {
  if (!p.data[k]) return;
  visit_float(p.dtype[k], [&]<class T>() {
    const T* from = static_cast<const T*>(p.data[k]) + i;
    if (p.packed && n == kFour) {
      const FourOf<T> four = *reinterpret_cast<const FourOf<T>*>(from);
      for (int j = 0; j < kFour; ++j) x[j] = cast_element<C>(four.of[j]);
    } else {
      for (int j = 0; j < kFour; ++j)  // unrolled: x stays in registers
        if (j < n) x[j] = cast_element<C>(from[j]);
    }
  });
}
// And back, rounded once.
template <class C, int N>
__device__ void store_four(const Part<N>& p, int k, std::int64_t i, int n, const C (&x)[kFour]) {
  if (!p.data[k]) return;
  visit_float(p.dtype[k], [&]<class T>() {
    T* to = static_cast<T*>(p.data[k]) + i;
    if (p.packed && n == kFour) {
      FourOf<T> four;
      for (int j = 0; j < kFour; ++j) four.of[j] = cast_element<T>(x[j]);
      *reinterpret_cast<FourOf<T>*>(to) = four;
    } else {
      for (int j = 0; j < kFour; ++j)
        if (j < n) to[j] = cast_element<T>(x[j]);
    }
  });
}

}  // namespace gradual::cuda
