#include "contraction_operand.h"

#include <algorithm>

#include "../ops/compute_mode.h"
#include "../support/multiversion.h"
#include "copies.h"
#include "loops.h"

namespace gradual::cpu {

// Sizes with broadcast dims counted once. If these elements have no gaps in memory (gapless), the whole span is
// converted and the strides stay.
static Shape distinct_sizes(const Tensor& t) {
  Shape sizes = t.sizes();
  for (int d = 0; d < sizes.size(); ++d)
    if (t.strides()[d] == 0) sizes[d] = std::min<std::int64_t>(1, sizes[d]);
  return sizes;
}
static bool gapless(const Tensor& t, const Shape& sizes) {
  std::int64_t last = 0;
  for (int d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * t.strides()[d];
  return last + 1 == numel(sizes);
}

bool rounds_to_tf32(DType dtype) { return dtype == DType::f32 && matmul_precision() == MatmulPrecision::tf32; }

void round_tf32(float* values, std::int64_t n) {
  vectorized([=] {
    for (std::int64_t i = 0; i < n; ++i) values[i] = gradual::round_tf32(values[i]);
  });
}

template <class T> Loaded<T>::Loaded(const Tensor& t, As as) : tensor_(t) {
  if (!t.defined()) return;
  strides_ = t.strides();
  const bool tf32 = as == As::operand && rounds_to_tf32(t.dtype());
  const bool as_it_lies = as == As::operand || t.is_contiguous();
  data_ = static_cast<const T*>(t.raw());
  if ((t.dtype() == dtype_of<T> && !tf32 && as_it_lies) || t.numel() == 0) return;
  const Shape sizes = as_it_lies ? distinct_sizes(t) : t.sizes();
  if (as_it_lies && gapless(t, sizes)) {
    tensor_ = copied(as_strided(t, {numel(sizes)}, {1}, t.offset()), dtype_of<T>);
  } else {
    tensor_ = copied(as_strided(t, sizes, t.strides(), t.offset()), dtype_of<T>);
    strides_ = tensor_.strides();
    for (int d = 0; d < sizes.size(); ++d)
      if (as_it_lies && t.strides()[d] == 0) strides_[d] = 0;
  }
  data_ = tensor_.template data<T>();
  if constexpr (std::is_same_v<T, float>)
    if (tf32) round_tf32(tensor_.template data<float>(), tensor_.numel());
}

template <class T> Result<T>::Result(Tensor& out) : out_(out) {
  data_ = out.dtype() == dtype_of<T>
              ? out.data<T>()
              : scratch_.emplace(static_cast<std::size_t>(out.numel()) * sizeof(T)).template as<T>();
}

template <class T> void Result<T>::store() const {
  if (!scratch_) return;
  const DType dtype = out_.dtype();
  parallel_counted(out_.numel(), kGrain, dtype_of<T>, dtype, [&](auto begin, auto end, CastCounts* counts) {
    auto* to = static_cast<char*>(out_.raw()) + begin * static_cast<std::int64_t>(size_of(dtype));
    gradual::cast_and_store(dtype, data_ + begin, to, 1, end - begin, counts);
  });
}

template class Loaded<float>;
template class Loaded<double>;
template class Result<float>;
template class Result<double>;
template class Result<std::int64_t>;

}  // namespace gradual::cpu
