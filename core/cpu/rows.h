// Row kernels: softmax, the norms, cross entropy and pooling read and write row-major tensors row by row, as values of
// the compute type T.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "../kernels/contraction_operand.h"
#include "../kernels/formulas.h"
#include "../kernels/loops.h"
#include "../ops/ops.h"
#include "../support/multiversion.h"
#include "../support/parallel.h"
#include "../tensor/memory.h"
#include "kernels.h"

namespace gradual::cpu {

// The tensor itself if it is row-major or undefined, else a row-major copy. Dense needs it.
inline Tensor row_major(const Tensor& t) { return t.defined() ? t.contiguous() : t; }

// A row-major tensor as rows along its last `dims` dims.
struct Rows {
  std::int64_t count = 1;
  std::int64_t length = 1;
  Rows(const Shape& sizes, int dims) {
    for (int d = 0; d < sizes.size(); ++d) (d < sizes.size() - dims ? count : length) *= sizes[d];
  }
};

// Calls f(row, rows, a, b, y) for all rows, in parallel, with up to `most` adjacent rows per call. a and b are the
// input rows (b is null if the second input is undefined), y the rows to write. f runs in vectorized().
template <class T, class F>
void map_neighbours(std::int64_t count, std::int64_t most, const Tensor& a, std::int64_t length_a, const Tensor& b,
                    std::int64_t length_b, Tensor& y, std::int64_t length, const F& f) {
  const Tensor dense_a = row_major(a);
  const Tensor dense_b = row_major(b);
  const Dense<T> in_a(dense_a);
  const Dense<T> in_b(dense_b);
  const Dense<T> write(y);
  const std::int64_t all = (length_a + length_b + length) * most;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>({1, length_a, length}));
  parallel_counted(count, grain, dtype_of<T>, y.dtype(), [&](std::int64_t row, std::int64_t end, CastCounts* counts) {
    const Scratch scratch(static_cast<std::size_t>(all) * sizeof(T) + 1);
    T* buffer = scratch.as<T>();
    for (std::int64_t rows = 0; row < end; row += rows) {
      rows = std::min(most, end - row);
      const T* x = in_a.load(row * length_a, rows * length_a, buffer);
      T* to = write.target(row * length, buffer + (length_a + length_b) * most);
      const T* other = in_b.load(row * length_b, rows * length_b, buffer + length_a * most);
      vectorized([=, &f] { f(row, rows, x, other, to); });
      write.store(to, row * length, rows * length, counts);
    }
  });
}
inline constexpr std::int64_t kTogether = 512;  // elements of short rows that are converted together, at most

// Calls f(row, a, b, y) for each row.
template <class T, class F>
void map_rows(std::int64_t count, const Tensor& a, std::int64_t length_a, const Tensor& b, std::int64_t length_b,
              Tensor& y, std::int64_t length, const F& f) {
  const std::int64_t longest = std::max({length_a, length_b, length});
  map_neighbours<T>(count, kTogether / std::clamp<std::int64_t>(longest, 1, kTogether), a, length_a, b, length_b, y,
                    length, [=, &f](std::int64_t row, std::int64_t rows, const T* x, const T* other, T* to) {
                      for (std::int64_t r = 0; r < rows; ++r)
                        f(row + r, x + r * length_a, other ? other + r * length_b : other, to + r * length);
                    });
}
// The same if input and output rows have one length.
template <class T, class F>
void map_rows(std::int64_t count, std::int64_t length, const Tensor& a, const Tensor& b, Tensor& y, const F& f) {
  map_rows<T>(count, a, length, b, length, y, length, f);
}

// f(row, a, b, y, sums) writes a row of y and adds values to `sums`; total[0 .. width) becomes the sums of all rows.
// Rows are cut into parts by shape alone, and the sums of the parts are added in order.
template <class T, class F>
void map_and_sum_rows(std::int64_t count, std::int64_t length, const Tensor& a, const Tensor& b, Tensor& y,
                      std::int64_t width, T* total, const F& f) {
  const Tensor dense_a = row_major(a);
  const Tensor dense_b = row_major(b);
  const Dense<T> in_a(dense_a);
  const Dense<T> in_b(dense_b);
  const Dense<T> write(y);
  const std::int64_t grain = std::max({std::int64_t{1}, kGrain / std::max<std::int64_t>(1, length), (count + 63) / 64});
  const std::int64_t parts = (count + grain - 1) / grain;
  const Scratch partial(static_cast<std::size_t>(parts * width) * sizeof(T) + 1);
  parallel_counted(count, grain, dtype_of<T>, y.dtype(), [&](std::int64_t row, std::int64_t end, CastCounts* counts) {
    const Scratch scratch(static_cast<std::size_t>(3 * length) * sizeof(T) + 1);
    T* buffer = scratch.as<T>();
    T* sums = partial.as<T>() + row / grain * width;
    std::fill_n(sums, width, T{0});
    for (; row < end; ++row) {
      const T* x = in_a.load(row * length, length, buffer);
      const T* other = in_b.load(row * length, length, buffer + length);
      T* to = write.target(row * length, buffer + 2 * length);
      vectorized([=, &f] { f(row, x, other, to, sums); });
      write.store(to, row * length, length, counts);
    }
  });
  std::fill_n(total, width, T{0});
  for (std::int64_t part = 0; part < parts; ++part)
    for (std::int64_t i = 0; i < width; ++i) total[i] += partial.as<T>()[part * width + i];
}

// A kernel that calls f.operator()<T>(call, out) with the compute type T of output 0.
template <class F> KernelFn floating(F) {
  return [](const OpCall& call, Outputs& out) {
    visit_floating(out[0].dtype(), [&]<class T>(T) { F{}.template operator()<T>(call, out); });
  };
}

// A weight, bias or statistic as values of T. As a bool it is false if the tensor is undefined.
template <class T> struct Parameter : Loaded<T> {
  explicit Parameter(const Tensor& t) : Loaded<T>(t, Loaded<T>::As::rows) {}
  explicit operator bool() const { return this->data() != nullptr; }
  T operator[](std::int64_t i) const { return this->data()[i]; }
};

template <class T> void store_parameter(Tensor& out, const T* values) {
  cast_and_store(out.dtype(), values, out.raw(), 1, out.numel(), counts_for(dtype_of<T>, out.dtype()));
}

// Calls run(to) with `out` if that is row-major, else with a row-major tensor, which is then copied to `out`.
template <class F> void write_row_major(const Tensor& out, const F& run) {
  Tensor to = out.is_contiguous() ? out : empty(out.sizes(), {.dtype = out.dtype()});
  run(to);
  if (!out.is_contiguous()) out.copy_(to);
}

// Combines x[0 .. 16) by f as a tree: x[i] with x[i + 8], result i with result i + 4, and so on.
template <class T, class F> T pairwise(const T* x, const F& f) {
  T eight[8], four[4];
  for (int i = 0; i < 8; ++i) eight[i] = f(x[i], x[i + 8]);
  for (int i = 0; i < 4; ++i) four[i] = f(eight[i], eight[i + 4]);
  return f(f(four[0], four[2]), f(four[1], four[3]));
}

template <class T> class Lanes;
template <class T, class F> struct Summand {
  Lanes<T>& sum;
  F f;
};

// 64 independent partial sums hide the latency of additions; they are combined pairwise. The order of additions depends
// only on the lengths that are added.
template <class T> class Lanes {
 public:
  template <class F> Summand<T, F> of(const F& f) { return {*this, f}; }
  // Adds f(0) .. f(n-1) of each summand to its sum, in one pass.
  template <class... F> static void add(std::int64_t n, const Summand<T, F>&... s) {
    std::int64_t i = 0;
    for (; i + 4 * kParts <= n; i += 4 * kParts) {
#pragma omp simd
      for (int p = 0; p < kParts; ++p) (s.sum.add_four(p, i + p, s.f), ...);
    }
    for (; i + kParts <= n; i += kParts) {
#pragma omp simd
      for (int p = 0; p < kParts; ++p) ((s.sum.a_[p] += s.f(i + p)), ...);
    }
    if (i < n) {
#pragma omp simd
      for (int p = 0; p < kParts; ++p) ((s.sum.a_[p] = i + p < n ? s.sum.a_[p] + s.f(i + p) : s.sum.a_[p]), ...);
    }
  }
  T sum() const {
    T part[kParts];
#pragma omp simd
    for (int p = 0; p < kParts; ++p) part[p] = (a_[p] + b_[p]) + (c_[p] + d_[p]);
    return pairwise(part, [](T x, T y) { return x + y; });
  }

 private:
  static constexpr int kParts = 16;
  template <class F> void add_four(int p, std::int64_t i, const F& f) {
    a_[p] += f(i);
    b_[p] += f(i + kParts);
    c_[p] += f(i + 2 * kParts);
    d_[p] += f(i + 3 * kParts);
  }
  T a_[kParts] = {};
  T b_[kParts] = {};
  T c_[kParts] = {};
  T d_[kParts] = {};
};
// The sum of f(0) .. f(n-1).
template <class T, class F> T blocked_sum(std::int64_t n, const F& f) {
  Lanes<T> lanes;
  Lanes<T>::add(n, lanes.of(f));
  return lanes.sum();
}

inline constexpr int kLanes = 16;  // elements handled together; the last group of a row is padded with -Inf

// Calls f(position, kLanes elements, how many of them belong to the row) for each group.
template <class T, class F> void for_lanes(const T* x, std::int64_t n, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, x + i, kLanes);
  if (i == n) return;
  T lanes[kLanes];
  for (int p = 0; p < kLanes; ++p) lanes[p] = i + p < n ? x[i + p] : -std::numeric_limits<T>::infinity();
  f(i, static_cast<const T*>(lanes), static_cast<int>(n - i));
}

// The largest element that is not NaN; -Inf if there is none.
template <class T> T row_max(const T* x, std::int64_t n) {
  const auto larger = [](T a, T b) { return b > a ? b : a; };
  T most[kLanes];
  std::fill_n(most, kLanes, -std::numeric_limits<T>::infinity());
  for_lanes(x, n, [&](std::int64_t, const T* lanes, int) {
    for (int p = 0; p < kLanes; ++p) most[p] = larger(most[p], lanes[p]);
  });
  return pairwise(most, larger);
}

// y = exp(x - max) / sum(exp(x - max)); y may be x. Returns log(sum(exp(x))).
template <class T> T softmax_row(const T* x, T* y, std::int64_t n) {
  const T largest = row_max(x, n);
  const T sum = blocked_sum<T>(n, [=](std::int64_t i) { return y[i] = math::exp(x[i] - largest); });
  const T scale = 1 / sum;
  for (std::int64_t i = 0; i < n; ++i) y[i] *= scale;
  return largest + math::log(sum);
}

}  // namespace gradual::cpu
