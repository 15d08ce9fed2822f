#include "shape.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "../support/throwf.h"

namespace gradual {

Shape::Shape(const std::int64_t* begin, const std::int64_t* end) {
  for (const std::int64_t* d = begin; d != end; ++d) push_back(*d);
}
Shape Shape::filled(int n, std::int64_t value) {
  Shape s;
  for (int i = 0; i < n; ++i) s.push_back(value);
  return s;
}
void Shape::push_back(std::int64_t value) {
  if (n_ == kMaxDims) throwf("a tensor has at most {} dimensions", kMaxDims);
  d_[n_++] = value;
}
void Shape::insert(int at, std::int64_t value) {
  push_back(value);
  std::rotate(begin() + at, end() - 1, end());
}
void Shape::erase(int at) {
  std::copy(begin() + at + 1, end(), begin() + at);
  --n_;
}

[[noreturn, gnu::noinline]] static void fail_numel(const Shape& sizes, bool negative) {
  throw_error((negative ? "a size cannot be negative: " : "too many elements: ") + to_string(sizes));
}

std::int64_t numel(const Shape& sizes) {
  std::int64_t n = 1;  // of the sizes that are not 0: strides are such products, and must fit too
  bool none = false;
  for (std::int64_t d : sizes) {
    if (d < 0 || __builtin_mul_overflow(n, d == 0 ? 1 : d, &n)) fail_numel(sizes, d < 0);
    none = none || d == 0;
  }
  return none ? 0 : n;
}

Shape contiguous_strides(const Shape& sizes) {
  Shape strides = sizes;
  std::int64_t step = 1;
  for (int i = sizes.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= sizes[i] > 0 ? sizes[i] : 1;
  }
  return strides;
}

bool is_contiguous(const Shape& sizes, const Shape& strides) {
  std::int64_t step = 1;
  for (int i = sizes.size() - 1; i >= 0; --i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

bool is_dense(const Shape& sizes, const Shape& strides) {
  std::int64_t step = 1;  // how many elements the dims found so far cover
  for (bool found = true; found && step > 0;) {
    found = false;
    for (int i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 1 || strides[i] != step) continue;
      step *= sizes[i];
      found = true;
    }
  }
  return step == numel(sizes);
}

bool is_channels_last(const Shape& sizes, const Shape& strides) {
  if (sizes.size() != 4 || is_contiguous(sizes, strides)) return false;
  return is_contiguous({sizes[0], sizes[2], sizes[3], sizes[1]}, {strides[0], strides[2], strides[3], strides[1]});
}

int wrap_dim(std::int64_t dim, int ndim, const char* op) {
  const int n = ndim == 0 ? 1 : ndim;
  if (dim < -n || dim >= n)
    throwf("{}: dim {} is out of range for a {}-d tensor; allowed are {} to {}", op, dim, ndim, -n, n - 1);
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  if (a == b) return a;
  const int n = std::max(a.size(), b.size());
  Shape out = Shape::filled(n, 1);
  for (int i = 1; i <= n; ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1)
      throwf("{}: {} and {} do not broadcast: sizes {} and {} at dim {} differ and neither is 1", op, to_string(a),
             to_string(b), x, y, n - i);
    out[n - i] = x == 1 ? y : x;
  }
  return out;
}

bool view_strides(const Shape& sizes, const Shape& strides, const Shape& new_sizes, Shape& new_strides) {
  new_strides = contiguous_strides(new_sizes);
  if (numel(sizes) == 0 || is_contiguous(sizes, strides)) return true;
  // Walk both shapes from the back; each run of old dims that is contiguous in itself must cover whole new dims.
  int view_dim = new_sizes.size() - 1;
  std::int64_t base = strides.empty() ? 1 : strides.back();
  std::int64_t run = 1;
  std::int64_t view_run = 1;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    run *= sizes[d];
    const bool ends = d == 0 || (sizes[d - 1] != 1 && strides[d - 1] != run * base);
    if (!ends) continue;
    while (view_dim >= 0 && (view_run < run || new_sizes[view_dim] == 1)) {
      new_strides[view_dim] = view_run * base;
      view_run *= new_sizes[view_dim];
      --view_dim;
    }
    if (view_run != run) return false;
    if (d > 0) {
      base = strides[d - 1];
      run = 1;
      view_run = 1;
    }
  }
  return view_dim == -1;
}

Shape infer_size(const Shape& new_sizes, std::int64_t numel_in, const char* op) {
  if (std::count(new_sizes.begin(), new_sizes.end(), -1) > 1)
    throwf("{}: only one size can be -1, given {}", op, to_string(new_sizes));
  Shape out = new_sizes;
  std::int64_t* unknown = std::find(out.begin(), out.end(), -1);
  if (unknown != out.end()) *unknown = 1;
  if (std::any_of(out.begin(), out.end(), [](std::int64_t d) { return d < 0; }))
    throwf("{}: a size cannot be negative: {}", op, to_string(new_sizes));
  const std::int64_t known = numel(out);
  if (unknown != out.end() && known != 0) *unknown = numel_in / known;
  if ((unknown != out.end() && known == 0) || numel(out) != numel_in)
    throwf("{}: {} elements do not fit {}", op, numel_in, to_string(new_sizes));
  return out;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace gradual
