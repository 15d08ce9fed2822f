#include "loaded.h"

#include <algorithm>
#include <bit>

#include "../compute_mode.h"
#include "../counts.h"
#include "../parallel.h"
#include "loops.h"

namespace gradual {

MatmulPrecision& matmul_precision() {
  thread_local MatmulPrecision current = MatmulPrecision::f32;
  return current;
}

namespace cpu {
namespace {

// Sizes with broadcast dims counted once, and whether the elements then span no more memory than they need: the span
// is converted as it lies and the strides stay.
Shape distinct_sizes(const Tensor& t) {
  Shape sizes = t.sizes();
  for (int d = 0; d < sizes.size(); ++d)
    if (t.strides()[d] == 0) sizes[d] = std::min<std::int64_t>(1, sizes[d]);
  return sizes;
}
bool gapless(const Tensor& t, const Shape& sizes) {
  std::int64_t last = 0;
  for (int d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * t.strides()[d];
  return last + 1 == numel(sizes);
}

// Row-major copy, a row of the last dim at a time.
template <class T> void load_rows(const Tensor& t, const Shape& sizes, T* out) {
  const int last = sizes.size() - 1;
  const std::int64_t length = sizes[last];
  const auto* base = static_cast<const char*>(t.raw());
  const auto item = static_cast<std::int64_t>(size_of(t.dtype()));
  parallel_for(numel(sizes) / length, std::max<std::int64_t>(1, kGrain / length),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   std::int64_t offset = 0;
                   std::int64_t rest = row;
                   for (int d = last - 1; d >= 0; --d) {
                     offset += rest % sizes[d] * t.strides()[d];
                     rest /= sizes[d];
                   }
                   load(t.dtype(), base + offset * item, t.strides()[last], out + row * length, length);
                 }
               });
}

}  // namespace

bool rounds_to_tf32(DType dtype) { return dtype == DType::f32 && matmul_precision() == MatmulPrecision::tf32; }

void round_tf32(float* values, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t rounded = (bits + 0xfff + (bits >> 13 & 1)) & ~std::uint32_t{0x1fff};
    values[i] = std::bit_cast<float>((bits & 0x7f800000) == 0x7f800000 ? bits : rounded);
  }
}

template <class T> Loaded<T>::Loaded(const Tensor& t, As as) : strides_(t.strides()) {
  const bool tf32 = as == As::operand && rounds_to_tf32(t.dtype());
  data_ = static_cast<const T*>(t.raw());
  const bool as_it_lies = as == As::operand || t.is_contiguous();
  if ((t.dtype() == dtype_of<T> && !tf32 && as_it_lies) || t.numel() == 0) return;
  const Shape sizes = as_it_lies ? distinct_sizes(t) : t.sizes();
  const std::int64_t n = numel(sizes);
  T* to = scratch_.emplace(static_cast<std::size_t>(n) * sizeof(T)).template as<T>();
  data_ = to;
  if (as_it_lies && gapless(t, sizes)) {
    const auto* from = static_cast<const char*>(t.raw());
    parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      load(t.dtype(), from + begin * static_cast<std::int64_t>(size_of(t.dtype())), 1, to + begin, end - begin);
    });
  } else {
    load_rows(t, sizes, to);
    strides_ = contiguous_strides(sizes);
    for (int d = 0; d < sizes.size(); ++d)
      if (as_it_lies && t.strides()[d] == 0) strides_[d] = 0;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (tf32)
      parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) { round_tf32(to + begin, end - begin); });
  }
}

template <class T> Result<T>::Result(Tensor& out) : out_(out) {
  data_ = out.dtype() == dtype_of<T>
              ? out.data<T>()
              : scratch_.emplace(static_cast<std::size_t>(out.numel()) * sizeof(T)).template as<T>();
}

template <class T> void Result<T>::store() const {
  if (!scratch_) return;
  const DType dtype = out_.dtype();
  CastCounts* counts = counts_for(dtype_of<T>, dtype);
  parallel_for(out_.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    CastCounts mine;
    auto* to = static_cast<char*>(out_.raw()) + begin * static_cast<std::int64_t>(size_of(dtype));
    cpu::store(dtype, data_ + begin, to, 1, end - begin, counts ? &mine : nullptr);
    if (counts) merge_counts(counts, mine);
  });
}

template class Loaded<float>;
template class Loaded<double>;
template class Result<float>;
template class Result<double>;

}  // namespace cpu
}  // namespace gradual
