// Convolutions as matrix products: im2col writes the windows of images as columns of a matrix; col2im is its adjoint.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../ops/attrs.h"
#include "../tensor/shape.h"

namespace gradual::cpu {

// Windows of kernel[0] x kernel[1] taps over images [channels, size[0], size[1]], with out[0] x out[1] windows per
// image.
struct Windows {
  std::int64_t channels;
  std::int64_t size[2], kernel[2], out[2];
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};
  std::int64_t dilation[2] = {1, 1};
  std::int64_t depth() const { return channels * kernel[0] * kernel[1]; }
};

// Walks the matrix [depth, rows * out[1]] that holds `rows` rows of windows, from row `first` among the rows of all
// images. Calls f(position in the matrix, position in the images, begin, end, n) for each tap and n rows; both
// positions are those of window 0 of the first of these rows. For windows [begin, end) of each row the tap is on
// elements of the image, stride[1] * strides[3] apart; for the others it is in the padding. `strides` are those of the
// images [N, C, H, W]. If rows follow each other in the images as in the matrix, one call has all rows that are of one
// image and have the same begin and end; else n is 1.
template <class F>
void for_taps(const Windows& w, const Shape& strides, std::int64_t first, std::int64_t rows, const F& f) {
  const std::int64_t step = w.stride[1];
  const bool adjacent = w.stride[0] == 1 && w.out[1] * step * strides[3] == strides[2];
  std::int64_t to = 0;
  for (std::int64_t tap = 0; tap < w.depth(); ++tap) {
    const std::int64_t channel = tap / (w.kernel[0] * w.kernel[1]);
    const std::int64_t down = tap / w.kernel[1] % w.kernel[0] * w.dilation[0] - w.padding[0];
    const std::int64_t right = tap % w.kernel[1] * w.dilation[1] - w.padding[1];
    const std::int64_t begin = std::clamp<std::int64_t>((step - 1 - right) / step, 0, w.out[1]);
    const std::int64_t end = std::clamp<std::int64_t>((w.size[1] - right + step - 1) / step, begin, w.out[1]);
    const std::int64_t corner = channel * strides[1] + right * strides[3];
    std::int64_t image = first / w.out[0];
    std::int64_t row = first % w.out[0];
    for (std::int64_t i = 0, n = 1; i < rows; i += n, row += n, to += n * w.out[1]) {
      if (row == w.out[0]) {
        row = 0;
        ++image;
      }
      const std::int64_t y = row * w.stride[0] + down;
      const std::int64_t left = std::min(rows - i, w.out[0] - row);
      const bool inside = y >= 0 && y < w.size[0];
      if (adjacent) n = inside ? std::min(left, w.size[0] - y) : y < 0 ? std::min(left, -y) : left;
      f(to, image * strides[0] + corner + y * strides[2], inside ? begin : 0, inside ? end : 0, n);
    }
  }
}

// Writes columns [depth, rows * out[1]]: the elements of each window, and zeros for its padding. read(position, step,
// n, to) copies n elements of the images, `step` apart, from `position` on.
template <class T, class F>
void im2col(const Windows& w, const Shape& strides, std::int64_t first, std::int64_t rows, T* columns, const F& read) {
  const auto unfold = [&](std::int64_t at, std::int64_t from, std::int64_t begin, std::int64_t end, std::int64_t n) {
    const std::int64_t step = w.stride[1] * strides[3];
    T* to = columns + at;
    // Adjacent rows are read at once. What lies between them belongs to the padding, so zeros overwrite it.
    if (begin < end) read(from + begin * step, step, (n - 1) * w.out[1] + end - begin, to + begin);
    const auto clear = [&](std::int64_t i) {
      for (std::int64_t row = 0; row < n; ++row) to[row * w.out[1] + i] = T{0};
    };
    for (std::int64_t i = 0; i < begin; ++i) clear(i);
    for (std::int64_t i = end; i < w.out[1]; ++i) clear(i);
  };
  for_taps(w, strides, first, rows, unfold);
}

// The adjoint of im2col: adds every column to the elements of its window.
template <class T>
void col2im(const Windows& w, const T* columns, const Shape& strides, std::int64_t first, std::int64_t rows,
            T* images) {
  const std::int64_t step = w.stride[1] * strides[3];
  const auto add = [&](std::int64_t at, std::int64_t to, std::int64_t begin, std::int64_t end, std::int64_t n) {
    for (; n > 0; --n, at += w.out[1], to += w.out[1] * step)
      for (std::int64_t i = begin; i < end; ++i) images[to + i * step] += columns[at + i];
  };
  for_taps(w, strides, first, rows, add);
}

}  // namespace gradual::cpu
