#include "derived_ops.h"

#include <algorithm>
#include <cmath>

#include "../support/throwf.h"

namespace gradual {

Tensor isnan(const Tensor& x, Loc loc) { return ne({x, loc}, x); }
Tensor isinf(const Tensor& x, Loc l) { return logical_or({eq({x, l}, INFINITY), l}, eq({x, l}, -INFINITY)); }
Tensor isfinite(const Tensor& x, Loc l) { return logical_and({gt({x, l}, -INFINITY), l}, lt({x, l}, INFINITY)); }

Tensor any(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return ne({sum(ne({x, loc}, 0), dims, keepdim, loc), loc}, 0);
}
Tensor all(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return eq({sum(eq({x, loc}, 0), dims, keepdim, loc), loc}, 0);
}
Tensor stddev(const Tensor& x, const Shape& dims, bool keepdim, double correction, Loc loc) {
  return sqrt(var(x, dims, keepdim, correction, loc), loc);
}
bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol) {
  const Tensor near = le(abs(sub(a, b)), add(mul(abs(b), rtol), atol));
  return all(logical_or(logical_and(near, isfinite(b)), eq(a, b))).item() != 0;
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value, Loc loc) {
  return where(mask, {value, loc}, {x, loc});
}
Tensor triu(const Tensor& x, std::int64_t diagonal, Loc loc) {
  if (x.dim() < 2) throwf("triu: a matrix or a batch of matrices is required, not {}", to_string(x.sizes()));
  const Tensor below = tril(ones(x.sizes().last(2), {.dtype = DType::bool_, .device = x.device()}), diagonal - 1, loc);
  return masked_fill(x, below, 0, loc);
}
Tensor flip(const Tensor& x, const Shape& dims, Loc loc) {
  Tensor y = x;
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim(static_cast<int>(dim), x.dim(), "flip");
    const Tensor index =
        arange(static_cast<double>(x.size(d)) - 1, -1, -1, {.dtype = DType::i64, .device = x.device()});
    y = index_select(y, d, index, loc);
  }
  return y;
}
Tensor roll(const Tensor& x, std::int64_t shift, int dim, Loc loc) {
  const int d = wrap_dim(dim, x.dim(), "roll");
  const std::int64_t n = x.size(d);
  const std::int64_t tail = n == 0 ? 0 : ((shift % n) + n) % n;  // elements that come back at the start
  return tail == 0 ? x : cat({narrow(x, d, n - tail, tail, loc), narrow(x, d, 0, n - tail, loc)}, d, loc);
}
Tensor repeat(const Tensor& x, const Shape& times, Loc loc) {
  const int lead = times.size() - x.dim();
  if (lead < 0) throwf("repeat: {} has fewer entries than {} has dims", to_string(times), to_string(x.sizes()));
  Shape sizes = x.sizes();
  for (int i = 0; i < lead; ++i) sizes.insert(0, 1);
  Tensor y = reshape(x, sizes, loc);
  for (int i = 0; i < times.size(); ++i) {
    if (times[i] < 0) throwf("repeat: {} has a negative entry", to_string(times));
    if (times[i] == 0) y = narrow(y, i, 0, 0, loc);
    else if (times[i] > 1) y = cat(std::vector<Tensor>(static_cast<std::size_t>(times[i]), y), i, loc);
  }
  return y;
}
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int dim, Loc loc) {
  if (count < 1) throwf("chunk: count {} is not allowed; it must be at least 1", count);
  return split(x, std::max<std::int64_t>(1, (x.size(dim) + count - 1) / count), dim, loc);
}

Tensor full_like(const Tensor& t, double value) { return empty_like(t).fill_(value); }
Tensor randn_like(const Tensor& t, Generator& g) {
  return randn(t.sizes(), {.dtype = t.dtype(), .device = t.device()}, g);
}
Tensor bernoulli(const Tensor& p, Generator& g) {
  return cast(lt(rand(p.sizes(), {.dtype = DType::f32, .device = p.device()}, g), p), p.dtype());
}

}  // namespace gradual
