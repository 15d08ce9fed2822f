// Row kernels: softmax, the norms and cross entropy work on one row at a time, in the compute type T.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "../memory.h"
#include "../parallel.h"
#include "loaded.h"
#include "loops.h"

namespace gradual::cpu {

// A row-major tensor seen as rows along one dim (inner > 1 where it is not the last), or along its last dims.
struct Rows {
  std::int64_t count, length, inner = 1;
  std::int64_t offset(std::int64_t row) const { return row / inner * inner * length + row % inner; }
};
inline Rows rows_along(const Shape& sizes, int dim) {
  if (sizes.empty()) return {1, 1, 1};
  Rows rows{1, sizes[dim], 1};
  for (int d = 0; d < sizes.size(); ++d) {
    if (d != dim) rows.count *= sizes[d];
    if (d > dim) rows.inner *= sizes[d];
  }
  return rows;
}
inline Rows rows_of_last(const Shape& sizes, int dims) {
  Rows rows{1, 1, 1};
  for (int d = 0; d < sizes.size(); ++d) (d < sizes.size() - dims ? rows.count : rows.length) *= sizes[d];
  return rows;
}

// Reads rows: as they lie where they are T and side by side, else through the caller's buffer.
template <class T> class RowReader {
 public:
  RowReader(const Tensor& t, const Rows& rows) : rows_(rows), dtype_(t.dtype()), data_(static_cast<char*>(t.raw())) {
    if (t.is_contiguous()) return;
    copy_.emplace(t, Loaded<T>::As::rows);
    dtype_ = dtype_of<T>;
    data_ = reinterpret_cast<const char*>(copy_->data());
  }
  const T* operator()(std::int64_t row, T* buffer) const {
    const char* p = data_ + rows_.offset(row) * static_cast<std::int64_t>(size_of(dtype_));
    if (dtype_ == dtype_of<T> && rows_.inner == 1) return reinterpret_cast<const T*>(p);
    load(dtype_, p, rows_.inner, buffer, rows_.length);
    return buffer;
  }

 private:
  Rows rows_;
  DType dtype_;
  const char* data_;
  std::optional<Loaded<T>> copy_;
};

// Writes rows of a row-major output: target() is where to compute one, store() rounds it into place.
template <class T> class RowWriter {
 public:
  RowWriter(Tensor& t, const Rows& rows) : rows_(rows), dtype_(t.dtype()), data_(static_cast<char*>(t.raw())) {}
  T* target(std::int64_t row, T* buffer) const {
    return dtype_ == dtype_of<T> && rows_.inner == 1 ? reinterpret_cast<T*>(at(row)) : buffer;
  }
  void store(std::int64_t row, const T* values, CastCounts* counts) const {
    if (reinterpret_cast<const char*>(values) != at(row))
      cpu::store(dtype_, values, at(row), rows_.inner, rows_.length, counts);
  }

 private:
  char* at(std::int64_t row) const { return data_ + rows_.offset(row) * static_cast<std::int64_t>(size_of(dtype_)); }
  Rows rows_;
  DType dtype_;
  char* data_;
};

// f(row, buffers, counts) for every row, in parallel; `buffers` are `n` rows of scratch, one after the other.
template <class T, class F> void for_rows(const Rows& rows, int n, DType to, const F& f) {
  if (rows.count == 0) return;
  CastCounts* const total = counts_for(dtype_of<T>, to);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, rows.length));
  parallel_for(rows.count, grain, [&](std::int64_t begin, std::int64_t end) {
    const Scratch scratch(static_cast<std::size_t>(n * rows.length) * sizeof(T) + 1);
    CastCounts mine;
    for (std::int64_t row = begin; row < end; ++row) f(row, scratch.as<T>(), total ? &mine : nullptr);
    if (total) merge_counts(total, mine);
  });
}

// The sum of f(0) .. f(n-1): 16 partial sums, added up pairwise. The order depends on n alone, and the error grows with
// n / 16.
template <class T, class F> T blocked_sum(std::int64_t n, const F& f) {
  constexpr int kParts = 16;
  T part[kParts] = {};
  std::int64_t i = 0;
  for (; i + kParts <= n; i += kParts)
    for (int p = 0; p < kParts; ++p) part[p] += f(i + p);
  for (int p = 0; i < n; ++i, ++p) part[p] += f(i);
  for (int half = kParts / 2; half > 0; half /= 2)
    for (int p = 0; p < half; ++p) part[p] += part[p + half];
  return part[0];
}

}  // namespace gradual::cpu
