#include "slice_sum.h"

#include <algorithm>
#include <utility>

#include "../core/ops/ops.h"

namespace gradual::autograd {

bool sole_owner(const Tensor& t) {
  const Storage& storage = *t.unsafe_impl()->storage;
  return t.unsafe_impl()->refs.load(std::memory_order_relaxed) == 1 &&
         storage.refs.load(std::memory_order_relaxed) == 1 && !storage.deleter;
}

bool SliceSum::write(Tensor* grads, int to, const Node::Input& sliced, const SliceAttrs& a, const Tensor& grad) {
  if (is_f8(grad.dtype()) || grad.dtype() != sliced.dtype || grad.device() != sliced.device) return false;
  Tensor& sum = grads[to];
  const auto place = [&] { return slice(sum, a.dim, {a.start, a.stop, a.step}); };
  if (!sum.defined()) {
    const bool at_end = a.start == 0 || a.stop == a.size;
    if (output >= 0 || a.step != 1 || !at_end || grad.numel() == 0) return false;
    sum = empty(sliced.sizes, {.dtype = grad.dtype(), .device = grad.device()});
    output = to, dim = a.dim, begin = a.start, end = a.stop;
  } else if (output == to && dim == a.dim && a.step == 1 && (a.start == end || a.stop == begin)) {
    begin = std::min(begin, a.start);
    end = std::max(end, a.stop);
  } else {
    complete(grads);
    // an expanded tensor, such as the gradient of a mean, has one number for many elements
    if (!sole_owner(sum) || !sum.is_contiguous()) return false;
    place().add_(grad);
    return true;
  }
  place().copy_(grad);
  if (begin == 0 && end == a.size) output = -1;
  return true;
}

void SliceSum::fill_rest(Tensor* grads) {
  const Tensor& sum = grads[std::exchange(output, -1)];
  const std::int64_t size = sum.size(dim);
  if (begin > 0) slice(sum, dim, {0, begin, 1}).fill_(0);
  if (end < size) slice(sum, dim, {end, size, 1}).fill_(0);
}

}  // namespace gradual::autograd
