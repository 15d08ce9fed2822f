// The gradients of several slices of one tensor share a buffer (Engine::Pending).
#include <algorithm>

#include "../core/ops/ops.h"
#include "engine.h"

namespace gradual::autograd {

bool sole_owner(const Tensor& t) {
  const Storage& storage = *t.unsafe_impl()->storage;
  return t.unsafe_impl()->refs.load(std::memory_order_relaxed) == 1 &&
         storage.refs.load(std::memory_order_relaxed) == 1 && !storage.borrowed();
}

// Copies adjacent slices, adds others. Returns false and does nothing if the buffer has another handle, or if the first
// slice neither starts nor ends the dim.
bool Engine::Pending::write_slice(const Node::Input& input, const SliceAttrs& a, const Tensor& grad,
                                  GradientSums sums) {
  const auto to = static_cast<int>(input.edge.output);
  if (is_f8(grad.dtype()) || grad.dtype() != input.dtype || grad.device() != input.device) return false;
  Tensor& sum = grads[to];
  const auto place = [&] { return slice(sum, a.dim, {a.start, a.stop, a.step}); };
  if (!sum.defined()) {
    const bool at_end = a.start == 0 || a.stop == a.size;
    if (sliced >= 0 || a.step != 1 || !at_end || grad.numel() == 0) return false;
    sum = empty(input.sizes, options_of(grad));
    sliced = to;
    dim = a.dim;
    begin = a.start;
    end = a.stop;
  } else if (sliced == to && dim == a.dim && a.step == 1 && (a.start == end || a.stop == begin)) {
    begin = std::min(begin, a.start);
    end = std::max(end, a.stop);
  } else {
    complete();
    // an expanded tensor, such as the gradient of a mean, has one number for many elements
    if (!sole_owner(sum) || !sum.is_contiguous()) return false;
    if (sums == GradientSums::f32) widen(input.edge.output);
    if (sums == GradientSums::stochastic && is_half(sum.dtype())) place().copy_(add_gradient(place(), grad, sums));
    else place().add_(cast(grad, sum.dtype()));
    return true;
  }
  place().copy_(grad);
  if (begin == 0 && end == a.size) sliced = -1;
  return true;
}

// Sets the elements that no slice covers to zero.
void Engine::Pending::fill_rest() {
  const Tensor& sum = grads[std::exchange(sliced, -1)];
  const std::int64_t size = sum.size(dim);
  if (begin > 0) slice(sum, dim, {0, begin, 1}).fill_(0);
  if (end < size) slice(sum, dim, {end, size, 1}).fill_(0);
}

}  // namespace gradual::autograd
