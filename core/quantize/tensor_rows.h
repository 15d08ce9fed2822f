// What quantizer.cpp reads and writes: a tensor as rows along one axis, in chunks. Internal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../formats/convert.h"
#include "../ops/ops.h"
#include "../support/error.h"
#include "../support/parallel.h"
#include "../support/transpose.h"
#include "../tensor/memory.h"
#include "quantized_tensor.h"

namespace gradual::detail {

inline constexpr std::int64_t kChunk = 4 * 1024;  // elements that a thread takes at a time, about: L1 holds them
inline constexpr std::int64_t kWorthThreads = 64 * 1024;  // fewer stay on one thread
inline constexpr std::int64_t kTogether = 16;             // rows of a transposition: the floats of a cache line

// A tensor as rows along one axis, with any strides.
struct Rows {
  Tensor x;
  int axis = 0;
  std::int64_t rows = 1;
  std::int64_t k = 1;
  std::int64_t stride = 1;
  Shape sizes, strides;          // with the axis last
  bool in_order = true;          // memory has the order [rows, k], without gaps
  Shape row_sizes, row_strides;  // of a row of several dims; else empty

  Rows(const Tensor& t, int wanted, int row_dims = 1) : x(t) {
    if (!t.is_floating()) throw_error("quantize: takes a floating tensor, not " + std::string(to_string(t.dtype())));
    axis = wrap_dim(wanted, row_dims > 1 ? 2 : t.dim(), "quantize");
    if (row_dims > 1) {
      of_several_dims(row_dims);
      return;
    }
    sizes = t.sizes();
    strides = t.strides();
    if (sizes.empty()) return;
    k = sizes[axis];
    stride = strides[axis];
    sizes.erase(axis);
    strides.erase(axis);
    rows = numel(sizes);
    sizes.push_back(k);
    strides.push_back(stride);
    in_order = is_contiguous(sizes, strides);
  }

  // Rows along the last dims of x. Dims whose elements follow each other count as one.
  void of_several_dims(int row_dims) {
    in_order = false;
    const int lead = x.dim() - row_dims;
    for (int d = 0; d < lead; ++d) {
      sizes.push_back(x.size(d));
      strides.push_back(x.strides()[d]);
    }
    rows = numel(sizes);
    for (int d = lead; d < x.dim(); ++d) {
      k *= x.size(d);
      const bool follows = !row_sizes.empty() && row_strides.end()[-1] == x.size(d) * x.strides()[d];
      if (follows) {
        row_sizes[row_sizes.size() - 1] *= x.size(d);
        row_strides[row_sizes.size() - 1] = x.strides()[d];
      } else {
        row_sizes.push_back(x.size(d));
        row_strides.push_back(x.strides()[d]);
      }
    }
  }

  // Elements [first, first + n) of rows of several dims, as load() gives them.
  template <class T> void gather(std::int64_t first, std::int64_t n, T* to) const {
    const std::int64_t length = row_sizes.end()[-1];
    const std::int64_t step = row_strides.end()[-1];
    const bool copies = step == 1 && x.dtype() == dtype_of<T>;
    const auto* const from = static_cast<const char*>(x.raw());
    const auto bytes = static_cast<std::int64_t>(size_of(x.dtype()));
    std::vector<std::int64_t> starts;  // of the runs of a row
    for (std::int64_t run = 0; run < k / length; ++run) starts.push_back(offset_of(run, row_sizes, row_strides, 1));
    std::int64_t row = first / k;
    std::int64_t column = first % k;
    for (const T* const end = to + n; to < end; ++row, column = 0) {
      const std::int64_t base = offset_of(row, sizes, strides, 0);
      while (column < k && to < end) {
        const std::int64_t within = column % length;
        const std::int64_t count = std::min(length - within, end - to);
        const char* const at =
            from + (base + starts[static_cast<std::size_t>(column / length)] + within * step) * bytes;
        if (!copies) gradual::fetch_and_cast(x.dtype(), at, step, to, count);
        else if (count >= kTogether) std::memcpy(to, at, static_cast<std::size_t>(count) * sizeof(T));
        else std::copy_n(reinterpret_cast<const T*>(at), count, to);
        to += count;
        column += count;
      }
    }
  }
  // Of element `number` in all but the last `without` of these dims.
  static std::int64_t offset_of(std::int64_t number, const Shape& sizes, const Shape& strides, int without) {
    std::int64_t at = 0;
    for (int d = sizes.size() - 1 - without; d >= 0; number /= sizes[d--]) at += number % sizes[d] * strides[d];
    return at;
  }

  // Whether x's elements fill a range of memory, in any order.
  bool is_dense() const { return gradual::is_dense(x.sizes(), x.strides()); }
  // The rows, one after the other, whose elements of one column are adjacent.
  std::int64_t adjacent_rows() const { return sizes.size() > 1 && strides.end()[-2] == 1 ? sizes.end()[-2] : 1; }

  // Elements [first, first + n) in the order [rows, k] as T (float or double): in place if they are T in that order,
  // else in `scratch`, which is allocated on demand.
  template <class T> const T* load(std::int64_t first, std::int64_t n, std::optional<Scratch>& scratch) const {
    if (in_order && x.dtype() == dtype_of<T>) return static_cast<const T*>(x.raw()) + first;
    T* buffer = scratch.emplace(static_cast<std::size_t>(n) * sizeof(T)).template as<T>();
    if (!row_sizes.empty()) {
      gather(first, n, buffer);
      return buffer;
    }
    const auto copy = [&](std::int64_t at, std::int64_t step, std::int64_t to, std::int64_t count) {
      const auto* const from = static_cast<const char*>(x.raw()) + at * static_cast<std::int64_t>(size_of(x.dtype()));
      gradual::fetch_and_cast(x.dtype(), from, step, buffer + to, count);
    };
    if (in_order) copy(first, 1, 0, n);
    const std::int64_t adjacent = adjacent_rows();
    for (std::int64_t done = 0; done < n && !in_order;) {
      const std::int64_t column = (first + done) % k;
      const std::int64_t row = (first + done) / k;
      const std::int64_t count = std::min(n - done, k - column);
      const std::int64_t at = offset_of(row, sizes, strides, 1) + column * stride;
      // Whole rows whose elements are adjacent share cache lines.
      const bool alone = count < k || stride == 1;
      const std::int64_t whole = alone ? 1 : std::min({kTogether, (n - done) / k, adjacent - row % adjacent});
      if (x.dtype() != dtype_of<T>)
        for (std::int64_t r = 0; r < whole; ++r) copy(at + r, stride, done + r * k, count);
      else if (stride == 1) std::copy_n(static_cast<const T*>(x.raw()) + at, count, buffer + done);
      else if constexpr (std::is_same_v<T, float>)
        transpose(static_cast<const float*>(x.raw()) + at, stride, buffer + done, k, whole, count);
      else
        for (std::int64_t j = 0; j < count; ++j)
          for (std::int64_t r = 0; r < whole; ++r)
            buffer[done + r * k + j] = static_cast<const T*>(x.raw())[at + j * stride + r];
      done += whole * count;
    }
    return buffer;
  }

  // Writes elements [first, first + n), whole rows, to `to`, memory of x's layout.
  void store(const float* values, std::int64_t first, std::int64_t n, float* to) const {
    const std::int64_t adjacent = adjacent_rows();
    for (std::int64_t row = first / k; n > 0;) {
      const std::int64_t at = offset_of(row, sizes, strides, 1);
      const std::int64_t together = std::min({n / k, adjacent - row % adjacent, kTogether});
      transpose(values, k, to + at, stride, k, together);
      values += together * k;
      row += together;
      n -= together * k;
    }
  }

  // Calls f(first, n) for chunks that are whole multiples of `unit` elements, and of 4, so that codes of any width fill
  // whole bytes. Large tensors are shared by threads.
  template <class F> void chunks(std::int64_t unit, const F& f) const {
    const std::int64_t all = rows * k;
    if (all == 0) return;
    unit *= unit % 4 == 0 ? 1 : unit % 2 == 0 ? 2 : 4;
    const std::int64_t per = unit >= kChunk ? unit : kChunk / unit * unit;
    const std::int64_t parts = (all + per - 1) / per;
    parallel_for(parts, all < kWorthThreads ? parts : 1, [&](std::int64_t part, std::int64_t end) {
      for (; part < end; ++part) f(part * per, std::min(per, all - part * per));
    });
  }

  // x's sizes; of rows of several dims those of a matrix.
  Shape result_sizes() const {
    if (row_sizes.empty()) return x.sizes();
    return axis == 0 ? Shape{k, rows} : Shape{rows, k};
  }

  // A tensor of result_sizes() whose memory is `matrix` [rows, k].
  Tensor shaped_like(const Tensor& matrix) const { return with_axis_last(matrix, result_sizes(), axis); }
};

}  // namespace gradual::detail
