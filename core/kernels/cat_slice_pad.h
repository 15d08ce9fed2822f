// Kernels made of a device's copies (copy_elements) and fills: slice_backward and pad for every device, cat for the
// CPU.
#pragma once

#include "../ops/op.h"
#include "copies.h"
#include "loops.h"

namespace gradual::cpu {

using CopyFn = void(const Tensor& out, const Tensor& x);

template <CopyFn copy> void cat(const OpCall& c, Outputs& out) {
  const int dim = c.get<DimAttrs>().dim;
  std::int64_t start = 0;
  for (int i = 0; i < c.inputs.size(); ++i) {
    const std::int64_t n = c[i].sizes()[dim];
    copy(part(out[0], dim, start, n), c[i]);
    start += n;
  }
}

// `clear` sets all elements to 0.
template <CopyFn copy, void clear(const Tensor& t)> void slice_backward(const OpCall& c, Outputs& out) {
  const auto& a = c.get<SliceAttrs>();
  clear(out[0]);
  copy(part(out[0], a.dim, a.start, c[0].sizes()[a.dim], a.step), c[0]);
}

template <CopyFn copy, void fill(const Tensor& t, double value)> void pad(const OpCall& c, Outputs& out) {
  const auto& a = c.get<PadAttrs>();
  fill(out[0], a.value);
  Tensor inside = out[0];
  for (int d = 0; d < inside.dim(); ++d) inside = part(inside, d, a.before[d], c[0].sizes()[d]);
  copy(inside, c[0]);
}

}  // namespace gradual::cpu
