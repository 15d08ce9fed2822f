// Padded images in the compute type: what the loops of conv.cpp read without a test for edges.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../tensor.h"
#include "conv.h"
#include "loaded.h"
#include "loops.h"

namespace gradual::cpu {

// Copies past the end of a row by less than this many elements are allowed, in what is read and what is written.
template <class T> inline constexpr std::int64_t kSlack = 128 / static_cast<std::int64_t>(sizeof(T));

// A window of [channels, rows, cols] of one image, zeros where the axes reach past it. Row 0 is padded row `first`.
struct Window {
  std::int64_t image, channel, channels;
  std::int64_t first, rows, cols;
  std::int64_t pad_rows, pad_cols;
};

template <class T> void load_window(const Tensor& x, const Window& w, T* out) {
  const Shape& stride = x.strides();
  const auto item = static_cast<std::int64_t>(size_of(x.dtype()));
  const auto* base = static_cast<const char*>(x.raw()) + w.image * stride[0] * item;
  const std::int64_t left = std::clamp<std::int64_t>(w.pad_cols, 0, w.cols);
  const std::int64_t right = std::clamp<std::int64_t>(x.sizes()[3] + w.pad_cols, left, w.cols);
  const bool plain = x.dtype() == dtype_of<T> && stride[3] == 1;
  T* to = out;
  for (std::int64_t c = w.channel; c < w.channel + w.channels; ++c) {
    for (std::int64_t r = 0; r < w.rows; ++r, to += w.cols) {
      const std::int64_t y = w.first + r - w.pad_rows;
      if (y < 0 || y >= x.sizes()[2] || left == right) {
        std::fill(to, to + w.cols, T{0});
        continue;
      }
      const char* from = base + (c * stride[1] + y * stride[2] + (left - w.pad_cols) * stride[3]) * item;
      std::fill(to, to + left, T{0});
      if (plain) std::copy_n(reinterpret_cast<const T*>(from), right - left, to + left);
      else load(x.dtype(), from, stride[3], to + left, right - left);
      std::fill(to + right, to + w.cols, T{0});
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    if (rounds_to_tf32(x.dtype())) round_tf32(out, to - out);
  }
}

}  // namespace gradual::cpu
