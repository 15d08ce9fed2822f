// Views and what arranges elements.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

Value view_as_sizes(const Arguments& a) { return reshape(a.tensor(0), a.sizes(1)); }
Value reshape_like(const Arguments& a) { return reshape(a.tensor(0), a.tensor(1).sizes()); }
Value flatten_dims(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  return x.dim() == 0 ? reshape(x, {1}) : flatten(x, a.dim(1), a.dim(2));
}
Value unflatten(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = wrap_dim(a.integer(1), x.dim(), "unflatten");
  Shape sizes;
  for (int d = 0; d < x.dim(); ++d) {
    if (d != dim) sizes.push_back(x.size(d));
    else
      for (const std::int64_t n : infer_size(a.sizes(2), x.size(d), "unflatten")) sizes.push_back(n);
  }
  return reshape(x, sizes);
}
Tensor as_owner(const Arguments& a, const Tensor& view, int) { return reshape(view, a.tensor(0).sizes()); }

Value transpose_dims(const Arguments& a) {
  return a.tensor(0).dim() == 0 ? a.tensor(0) : transpose(a.tensor(0), a.dim(1), a.dim(2));
}
Tensor transpose_back(const Arguments& a, const Tensor& view, int) {
  return view.dim() == 0 ? view : transpose(view, a.dim(1), a.dim(2));
}
Value transpose_last(const Arguments& a) {
  return a.tensor(0).dim() < 2 ? a.tensor(0) : transpose(a.tensor(0), -2, -1);
}
Tensor last_back(const Arguments&, const Tensor& view, int) { return view.dim() < 2 ? view : transpose(view, -2, -1); }
Value reverse_dims(const Arguments& a) {
  Shape dims;
  for (int d = a.tensor(0).dim(); d > 0; --d) dims.push_back(d - 1);
  return permute(a.tensor(0), dims);
}
Value permute_dims(const Arguments& a) { return permute(a.tensor(0), a.sizes(1)); }
Shape inverse_of(const Shape& dims) {
  Shape back = dims;
  for (int d = 0; d < dims.size(); ++d) back[wrap_dim(dims[d], dims.size(), "permute")] = d;
  return back;
}
Tensor permute_back(const Arguments& a, const Tensor& view, int) { return permute(view, inverse_of(a.sizes(1))); }

// The order of dims after those of argument 1 have moved to the places of argument 2.
Shape moved_dims(const Arguments& a) {
  const int n = a.tensor(0).dim();
  Shape order = Shape::filled(n, -1);
  const Shape from = a.sizes(1);
  const Shape to = a.sizes(2);
  if (from.size() != to.size()) a.fail(2, "as many dims as there are sources");
  std::vector<char> used(static_cast<std::size_t>(n));
  for (int i = 0; i < from.size(); ++i) {
    const int source = wrap_dim(from[i], n, "movedim");
    const int target = wrap_dim(to[i], n, "movedim");
    if (used[static_cast<std::size_t>(source)] || order[target] >= 0)
      a.fail(1, "dims that differ, as the destinations");
    order[target] = source;
    used[static_cast<std::size_t>(source)] = 1;
  }
  int next = 0;
  for (int d = 0; d < n; ++d) {
    if (order[d] >= 0) continue;
    while (used[static_cast<std::size_t>(next)]) ++next;
    order[d] = next++;
  }
  return order;
}
Value move_dims(const Arguments& a) { return permute(a.tensor(0), moved_dims(a)); }
Tensor move_back(const Arguments& a, const Tensor& view, int) { return permute(view, inverse_of(moved_dims(a))); }

Value expand_sizes(const Arguments& a) { return expand(a.tensor(0), a.sizes(1)); }
Value expand_like(const Arguments& a) { return expand(a.tensor(0), a.tensor(1).sizes()); }

Value squeeze_all(const Arguments& a) {
  Shape sizes;
  for (const std::int64_t n : a.tensor(0).sizes())
    if (n != 1) sizes.push_back(n);
  return reshape(a.tensor(0), sizes);
}
Value squeeze_dims(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  std::vector<int> dims;
  for (const std::int64_t d : a.integers(1)) dims.push_back(wrap_dim(d, x.dim(), "squeeze"));
  Shape sizes;
  for (int d = 0; d < x.dim(); ++d)
    if (x.size(d) != 1 || std::ranges::find(dims, d) == dims.end()) sizes.push_back(x.size(d));
  return reshape(x, sizes);
}
Value unsqueeze_dim(const Arguments& a) { return unsqueeze(a.tensor(0), a.dim(1)); }

// --- parts of a tensor -----------------------------------------------------------------------------------------------

struct Range {
  int dim = 0;
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
};

// The slice that these arguments give; `dim`, `start`, `end` and `step` are their places.
Range slice_range(const Arguments& a, int dim, int start, int end, int step) {
  const Tensor& x = a.tensor(0);
  Range r;
  r.dim = wrap_dim(a.integer(dim), x.dim(), "slice");
  r.step = a.integer(step);
  if (r.step < 1) a.fail(step, "a step of at least 1");
  const std::int64_t n = x.size(r.dim);
  const auto place = [&](int i, std::int64_t otherwise) {
    const std::int64_t at = a.optional_integer(i).value_or(otherwise);
    return std::clamp<std::int64_t>(at < 0 ? at + n : at, 0, n);
  };
  r.start = place(start, 0);
  r.stop = std::max(r.start, place(end, n));
  return r;
}

// x with the slice replaced.
Tensor put_slice(const Tensor& x, const Range& r, const Tensor& part) {
  const std::int64_t n = x.size(r.dim);
  if (part.size(r.dim) == 0) return x;
  if (r.step == 1) {
    std::vector<Tensor> parts;
    if (r.start > 0) parts.push_back(narrow(x, r.dim, 0, r.start));
    parts.push_back(part);
    const std::int64_t end = r.start + part.size(r.dim);
    if (end < n) parts.push_back(narrow(x, r.dim, end, n - end));
    return parts.size() == 1 ? part : cat(parts, r.dim);
  }
  // Row i comes from x, or from the part behind it.
  std::vector<std::int64_t> rows(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) rows[static_cast<std::size_t>(i)] = i;
  for (std::int64_t i = 0; i < part.size(r.dim); ++i) rows[static_cast<std::size_t>(r.start + i * r.step)] = n + i;
  return index_select(cat({x, part}, r.dim), r.dim, from_data(rows, n, {.dtype = DType::i64}).to(x.device()));
}

Value slice_row(const Arguments& a) {
  const Range r = slice_range(a, 1, 2, 3, 4);
  return slice(a.tensor(0), r.dim, {r.start, r.stop, r.step});
}
Tensor slice_back(const Arguments& a, const Tensor& view, int) {
  return put_slice(a.tensor(0), slice_range(a, 1, 2, 3, 4), view);
}
Value slice_scatter(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& source = a.tensor(1);
  const Range r = slice_range(a, 2, 3, 4, 5);
  Shape wanted = x.sizes();
  const std::int64_t length = r.stop - r.start;
  wanted[r.dim] = length / r.step + (length % r.step != 0 ? 1 : 0);
  if (source.sizes() != wanted)
    throwf("slice_scatter: src is {}; the slice of {} is {}", to_string(source.sizes()), to_string(x.sizes()),
           to_string(wanted));
  return put_slice(x, r, cast(source, x.dtype()));
}
Range select_range(const Arguments& a, int dim, int index) {
  const Tensor& x = a.tensor(0);
  Range r;
  r.dim = wrap_dim(a.integer(dim), x.dim(), "select");
  r.start = a.integer(index) < 0 ? a.integer(index) + x.size(r.dim) : a.integer(index);
  r.stop = r.start + 1;
  return r;
}
Value select_row(const Arguments& a) { return select(a.tensor(0), a.dim(1), a.integer(2)); }
Tensor select_back(const Arguments& a, const Tensor& view, int) {
  const Range r = select_range(a, 1, 2);
  return put_slice(a.tensor(0), r, unsqueeze(view, r.dim));
}
Value select_scatter(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Range r = select_range(a, 2, 3);
  if (r.start < 0 || r.start >= x.size(r.dim)) throwf("select_scatter: index {} of {}", a.integer(3), x.size(r.dim));
  Shape wanted = x.sizes();
  wanted[r.dim] = 1;
  const Tensor row = unsqueeze(a.tensor(1), r.dim);
  if (row.sizes() != wanted)
    throwf("select_scatter: src is {}; it does not fit into {}", to_string(a.tensor(1).sizes()), to_string(x.sizes()));
  return put_slice(x, r, cast(row, x.dtype()));
}
Value narrow_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const std::int64_t start = a.integer(2) < 0 ? a.integer(2) + x.size(a.dim(1)) : a.integer(2);
  return narrow(x, a.dim(1), start, a.integer(3));
}
Tensor narrow_back(const Arguments& a, const Tensor& view, int) {
  Range r = select_range(a, 1, 2);
  return put_slice(a.tensor(0), r, view);
}

Value chunk_row(const Arguments& a) { return list_of(chunk(a.tensor(0), a.integer(1), a.dim(2))); }
Value split_sizes(const Arguments& a) {
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t n : a.integers(1)) {
    parts.push_back(narrow(a.tensor(0), a.dim(2), start, n));
    start += n;
  }
  return list_of(parts);
}
Value split_row(const Arguments& a) {
  const std::vector<std::int64_t> sizes = a.integers(1);
  return sizes.size() == 1 ? list_of(split(a.tensor(0), sizes[0], a.dim(2))) : split_sizes(a);
}
Value tensor_split(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const std::int64_t n = x.size(a.dim(2));
  const std::int64_t count = a.integer(1);
  if (count < 1) a.fail(1, "at least one section");
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = n / count + (i < n % count ? 1 : 0);
    parts.push_back(narrow(x, a.dim(2), start, length));
    start += length;
  }
  return list_of(parts);
}
Value unbind(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  std::vector<Tensor> parts;
  for (std::int64_t i = 0; i < x.size(a.dim(1)); ++i) parts.push_back(select(x, a.dim(1), i));
  return list_of(parts);
}

// Argument 0 with part `index` of what `row` gives replaced.
template <Value (*row)(const Arguments& a)>
Tensor part_back(const Arguments& a, const Tensor& view, int index, int dim) {
  const Value parts = row(a);
  const Value::List& list = *parts.get<Value::List>();
  Range r;
  r.dim = wrap_dim(a.integer(dim), a.tensor(0).dim(), "split");
  for (int i = 0; i < index; ++i) r.start += list[static_cast<std::size_t>(i)].get<Tensor>()->size(r.dim);
  return put_slice(a.tensor(0), r, view);
}
Tensor chunk_back(const Arguments& a, const Tensor& view, int index) { return part_back<chunk_row>(a, view, index, 2); }
Tensor split_back(const Arguments& a, const Tensor& view, int index) { return part_back<split_row>(a, view, index, 2); }
Tensor split_sizes_back(const Arguments& a, const Tensor& view, int index) {
  return part_back<split_sizes>(a, view, index, 2);
}
Tensor tensor_split_back(const Arguments& a, const Tensor& view, int index) {
  return part_back<tensor_split>(a, view, index, 2);
}
Tensor unbind_back(const Arguments& a, const Tensor& view, int index) {
  Range r;
  r.dim = wrap_dim(a.integer(1), a.tensor(0).dim(), "unbind");
  r.start = index;
  return put_slice(a.tensor(0), r, unsqueeze(view, r.dim));
}

// --- copies and identities -------------------------------------------------------------------------------------------

Value identity(const Arguments& a) { return a.tensor(0); }
Tensor identity_back(const Arguments&, const Tensor& view, int) { return view; }
Value detached(const Arguments& a) { return a.tensor(0).detach(); }
constexpr std::int64_t kChannelsLast = 2;  // of the schema's MemoryFormat
Value contiguous_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const bool images = a.optional_integer(1) == kChannelsLast && x.dim() == 4;
  return images ? channels_last(x) : contiguous(x);
}
Value copied(const Arguments& a) { return a.tensor(0); }
Tensor converted(const Arguments& a, std::optional<DType> to) { return to ? cast(a.tensor(0), *to) : a.tensor(0); }
// `y`, which argument 0 became, in memory of its own if argument `copy` says so.
Tensor with_copy(const Arguments& a, const Tensor& y, int copy) {
  return a.flag(copy) && y.shares_storage(a.tensor(0)) ? clone(y) : y;
}
Value to_copy(const Arguments& a) { return converted(a, a.dtype(1)); }
Value to_dtype(const Arguments& a) { return with_copy(a, converted(a, a.dtype(1)), 3); }
Value to_device_and_dtype(const Arguments& a) { return with_copy(a, converted(a, a.dtype(2)), 4); }
Value to_dtype_layout(const Arguments& a) { return with_copy(a, converted(a, a.dtype(1)), 6); }
Value to_other(const Arguments& a) { return with_copy(a, cast(a.tensor(0), a.tensor(1).dtype()), 3); }
Value type_as(const Arguments& a) { return cast(a.tensor(0), a.tensor(1).dtype()); }
Value copy_into(const Arguments& a) { return expand(cast(a.tensor(1), a.tensor(0).dtype()), a.tensor(0).sizes()); }

// --- arrangements ----------------------------------------------------------------------------------------------------

Value cat_row(const Arguments& a) {
  if (a.tensors(0).empty()) a.fail(0, "at least one tensor");
  std::vector<Tensor> parts;
  for (const Tensor& t : a.tensors(0))
    if (t.dim() != 1 || t.numel() > 0) parts.push_back(t);  // PyTorch skips empty vectors
  return parts.empty() ? a.tensors(0).front() : cat(parts, a.dim(1));
}
Value stack_row(const Arguments& a) { return stack(a.tensors(0), a.dim(1)); }
Value hstack(const Arguments& a) {
  const std::vector<Tensor> parts = a.tensors(0);
  if (parts.empty()) a.fail(0, "at least one tensor");
  return cat(parts, parts.front().dim() == 1 ? 0 : 1);
}
// Tensors of at least `dims` dims, joined along dim: a vector is a row, a matrix one image.
Value joined_along(const Arguments& a, int dims, int dim) {
  std::vector<Tensor> parts;
  for (Tensor t : a.tensors(0)) {
    if (t.dim() == 0) t = reshape(t, {1});
    if (t.dim() == 1) t = unsqueeze(t, 0);
    if (t.dim() == 2 && dims == 3) t = unsqueeze(t, -1);
    parts.push_back(t);
  }
  if (parts.empty()) a.fail(0, "at least one tensor");
  return cat(parts, dim);
}
Value column_stack(const Arguments& a) {
  std::vector<Tensor> parts;
  for (const Tensor& t : a.tensors(0)) parts.push_back(t.dim() <= 1 ? reshape(t, {t.numel(), 1}) : t);
  if (parts.empty()) a.fail(0, "at least one tensor");
  return cat(parts, 1);
}
Value block_diagonal(const Arguments& a) {
  std::vector<Tensor> blocks;
  std::int64_t width = 0;
  for (const Tensor& t : a.tensors(0)) {
    blocks.push_back(t.dim() == 2 ? t : reshape(t, {1, t.numel()}));
    width += blocks.back().size(1);
  }
  if (blocks.empty()) a.fail(0, "at least one tensor");
  std::vector<Tensor> rows;
  std::int64_t before = 0;
  for (const Tensor& t : blocks) {
    rows.push_back(pad(t, {0, before}, {0, width - before - t.size(1)}));
    before += t.size(1);
  }
  return cat(rows, 0);
}
Value broadcast_all(const Arguments& a) {
  std::vector<Tensor> parts = a.tensors(0);
  Shape sizes;
  for (const Tensor& t : parts) sizes = broadcast_shapes(sizes, t.sizes(), "broadcast_tensors");
  for (Tensor& t : parts) t = expand(t, sizes);
  return list_of(parts);
}
// tensors indexing
Value meshgrid(const Arguments& a) {
  std::vector<Tensor> parts = a.tensors(0);
  const bool swapped = a.size() > 1 && a.text(1) == "xy" && parts.size() > 1;
  if (swapped) std::swap(parts[0], parts[1]);
  Shape sizes;
  for (const Tensor& t : parts) sizes.push_back(t.numel());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Shape along = Shape::filled(sizes.size(), 1);
    along[static_cast<int>(i)] = sizes[static_cast<int>(i)];
    parts[i] = expand(reshape(parts[i], along), sizes);
    if (swapped) parts[i] = transpose(parts[i], 0, 1);
  }
  if (swapped) std::swap(parts[0], parts[1]);
  return list_of(parts);
}
// k quarter turns from dim 0 of `dims` to dim 1.
Value rot90(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Shape dims = a.none(2) ? Shape{0, 1} : a.sizes(2);
  if (dims.size() != 2) a.fail(2, "two dims");
  const int from = wrap_dim(dims[0], x.dim(), "rot90");
  const int to = wrap_dim(dims[1], x.dim(), "rot90");
  const std::int64_t turns = ((a.integer(1) % 4) + 4) % 4;
  if (turns == 0) return x;
  if (turns == 2) return flip(x, {from, to});
  return turns == 1 ? transpose(flip(x, {to}), from, to) : flip(transpose(x, from, to), {to});
}

Value roll_row(const Arguments& a) {
  Tensor x = a.tensor(0);
  const std::vector<std::int64_t> shifts = a.integers(1);
  const std::vector<std::int64_t> dims = a.integers(2);
  if (shifts.size() != std::max<std::size_t>(1, dims.size())) a.fail(1, "a shift for each dim");
  if (dims.empty()) return reshape(roll(reshape(x, {x.numel()}), shifts[0], 0), x.sizes());
  for (std::size_t i = 0; i < dims.size(); ++i) x = roll(x, shifts[i], wrap_dim(dims[i], x.dim(), "roll"));
  return x;
}
Value flip_row(const Arguments& a) { return flip(a.tensor(0), a.sizes(1)); }
Value repeat_row(const Arguments& a) { return repeat(a.tensor(0), a.sizes(1)); }
Value tile(const Arguments& a) {
  Shape times = a.sizes(1);
  while (times.size() < a.tensor(0).dim()) times.insert(0, 1);
  return repeat(a.tensor(0), times);
}
Value repeat_interleave(const Arguments& a) {
  if (a.integer(1) < 0) a.fail(1, "at least 0");
  const Tensor x = a.none(2) ? reshape(a.tensor(0), {-1}) : a.tensor(0);
  const int dim = a.none(2) ? 0 : wrap_dim(a.integer(2), x.dim(), "repeat_interleave");
  Shape wide = x.sizes();
  wide.insert(dim + 1, a.integer(1));
  Shape sizes = x.sizes();
  sizes[dim] *= a.integer(1);
  return reshape(expand(unsqueeze(x, dim + 1), wide), sizes);
}
Value tril_row(const Arguments& a) { return tril(a.tensor(0), a.integer(1)); }
Value triu_row(const Arguments& a) { return triu(a.tensor(0), a.integer(1)); }
// Windows of `size` along `dim`, `step` apart, as a new last dim.
Value unfold_dim(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = wrap_dim(a.integer(1), x.dim(), "unfold");
  const std::int64_t size = a.integer(2);
  const std::int64_t step = a.integer(3);
  if (x.dim() == 0) a.fail(0, "a tensor with dims");
  if (size < 0 || size > x.size(dim)) a.fail(2, "a size of at least 0 and at most that of the dim");
  if (step < 1) a.fail(3, "a step of at least 1");
  std::vector<Tensor> windows;
  for (std::int64_t at = 0; at <= x.size(dim) - size; at += std::min(step, x.size(dim) + 1))
    windows.push_back(transpose(unsqueeze(narrow(x, dim, at, size), -1), dim, -1));
  return cat(windows, dim);
}
Tensor diagonal_of(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  const int d1 = wrap_dim(dim1, x.dim(), "diagonal");
  const int d2 = wrap_dim(dim2, x.dim(), "diagonal");
  Shape order;
  for (int d = 0; d < x.dim(); ++d)
    if (d != d1 && d != d2) order.push_back(d);
  order.push_back(d1);
  order.push_back(d2);
  const Tensor m = permute(x, order);
  const std::int64_t rows = m.size(-2);
  const std::int64_t columns = m.size(-1);
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < rows; ++i)
    if (offset >= -i && offset < columns - i) places.push_back(i * columns + i + offset);
  const auto count = static_cast<std::int64_t>(places.size());
  return index_select(flatten(m, -2, -1), -1, from_data(places, count, {.dtype = DType::i64}).to(x.device()));
}
Value diagonal(const Arguments& a) { return diagonal_of(a.tensor(0), a.integer(1), a.integer(2), a.integer(3)); }

// The matrix whose diagonal `offset` is the last dim of x.
Tensor with_diagonal(const Tensor& x, std::int64_t offset) {
  const std::int64_t n = x.size(-1) + std::abs(offset);
  const Tensor square = mul(unsqueeze(x, -1), eye(x.size(-1), options_of(x)));
  Shape before = Shape::filled(square.dim(), 0);
  Shape after = before;
  before[square.dim() - 1] = std::max<std::int64_t>(0, offset);
  after[square.dim() - 1] = n - x.size(-1) - before[square.dim() - 1];
  before[square.dim() - 2] = std::max<std::int64_t>(0, -offset);
  after[square.dim() - 2] = n - x.size(-1) - before[square.dim() - 2];
  return pad(where(eye(x.size(-1), {.dtype = DType::bool_, .device = x.device()}), square, 0), before, after);
}
constexpr std::int64_t kMostOffset = 1'000'000;
std::int64_t offset_of(const Arguments& a, int i) {
  const std::int64_t offset = a.integer(i);
  if (std::abs(offset) > kMostOffset) a.fail(i, "an offset of at most a million");
  return offset;
}
// self offset dim1 dim2
Value diagonal_embedding(const Arguments& a) {
  const Tensor y = with_diagonal(a.tensor(0), offset_of(a, 1));
  const int d1 = wrap_dim(a.integer(2), y.dim(), "diag_embed");
  const int d2 = wrap_dim(a.integer(3), y.dim(), "diag_embed");
  if (d1 == y.dim() - 2 && d2 == y.dim() - 1) return y;
  if (d1 == d2) a.fail(3, "another dim than dim1");
  Shape order;
  int next = 0;
  for (int d = 0; d < y.dim(); ++d) order.push_back(d == d1 ? y.dim() - 2 : d == d2 ? y.dim() - 1 : next++);
  return permute(y, order);
}

constexpr OpRow kViewRows[] = {
    {"aten.view.default", "self size", view_as_sizes, Aliasing::view, as_owner},
    {"aten._unsafe_view.default", "self size", view_as_sizes, Aliasing::view, as_owner},
    {"aten.view_as.default", "self other", reshape_like, Aliasing::view, as_owner},
    {"aten.reshape.default", "self shape", view_as_sizes, Aliasing::may_view, as_owner},
    {"aten.reshape_as.default", "self other", reshape_like, Aliasing::may_view, as_owner},
    {"aten.flatten.using_ints", "self start_dim=0 end_dim=-1", flatten_dims, Aliasing::may_view, as_owner},
    {"aten.ravel.default", "self start_dim=0 end_dim=-1", flatten_dims, Aliasing::may_view, as_owner},
    {"aten.unflatten.int", "self dim sizes", unflatten, Aliasing::view, as_owner},
    {"aten.transpose.int", "self dim0 dim1", transpose_dims, Aliasing::view, transpose_back},
    {"aten.swapaxes.default", "self axis0 axis1", transpose_dims, Aliasing::view, transpose_back},
    {"aten.swapdims.default", "self dim0 dim1", transpose_dims, Aliasing::view, transpose_back},
    {"aten.t.default", "self", transpose_last, Aliasing::view, last_back},
    {"aten.numpy_T.default", "self", reverse_dims, Aliasing::view},
    {"aten.mT.default", "self", transpose_last, Aliasing::view, last_back},
    {"aten.adjoint.default", "self", transpose_last, Aliasing::view, last_back},
    {"aten.permute.default", "self dims", permute_dims, Aliasing::view, permute_back},
    {"aten.movedim.int", "self source destination", move_dims, Aliasing::view, move_back},
    {"aten.movedim.intlist", "self source destination", move_dims, Aliasing::view, move_back},
    {"aten.moveaxis.int", "self source destination", move_dims, Aliasing::view, move_back},
    {"aten.expand.default", "self size implicit=False", expand_sizes, Aliasing::view},
    {"aten.expand_as.default", "self other", expand_like, Aliasing::view},
    {"aten.broadcast_to.default", "self size", expand_sizes, Aliasing::view},
    {"aten.squeeze.default", "self", squeeze_all, Aliasing::view, as_owner},
    {"aten.squeeze.dim", "self dim", squeeze_dims, Aliasing::view, as_owner},
    {"aten.squeeze.dims", "self dim", squeeze_dims, Aliasing::view, as_owner},
    {"aten.unsqueeze.default", "self dim", unsqueeze_dim, Aliasing::view, as_owner},
    {"aten.slice.Tensor", "self dim=0 start=None end=None step=1", slice_row, Aliasing::view, slice_back},
    {"aten.slice_scatter.default", "self src dim=0 start=None end=None step=1", slice_scatter},
    {"aten.select.int", "self dim index", select_row, Aliasing::view, select_back},
    {"aten.select_scatter.default", "self src dim index", select_scatter},
    {"aten.narrow.default", "self dim start length", narrow_row, Aliasing::view, narrow_back},
    {"aten.chunk.default", "self chunks dim=0", chunk_row, Aliasing::view, chunk_back},
    {"aten.split.Tensor", "self split_size dim=0", split_row, Aliasing::view, split_back},
    {"aten.split.sizes", "self split_size dim=0", split_sizes, Aliasing::view, split_sizes_back},
    {"aten.split_with_sizes.default", "self split_sizes dim=0", split_sizes, Aliasing::view, split_sizes_back},
    {"aten.tensor_split.sections", "self sections dim=0", tensor_split, Aliasing::view, tensor_split_back},
    {"aten.unbind.int", "self dim=0", unbind, Aliasing::view, unbind_back},
    {"aten.diagonal.default", "self offset=0 dim1=0 dim2=1", diagonal, Aliasing::view},
    {"aten.unfold.default", "self dimension size step", unfold_dim, Aliasing::view},
    {"aten.alias.default", "self", identity, Aliasing::view, identity_back},
    {"aten.detach.default", "self", detached, Aliasing::view},
    {"aten.detach_.default", "self", detached, Aliasing::view},
    {"aten.contiguous.default", "self memory_format=None", contiguous_row, Aliasing::may_view, identity_back},
    {"aten.clone.default", "self memory_format=None", copied},
    {"aten.lift_fresh_copy.default", "self", copied},
    {"aten.lift_fresh.default", "self", copied},
    {"aten.to.dtype", "self dtype non_blocking=False copy=False memory_format=None", to_dtype, Aliasing::may_view,
     identity_back},
    {"aten.to.device", "self device dtype non_blocking=False copy=False memory_format=None", to_device_and_dtype,
     Aliasing::may_view, identity_back},
    {"aten.to.dtype_layout",
     "self dtype=None layout=None device=None pin_memory=None non_blocking=False copy=False memory_format=None",
     to_dtype_layout, Aliasing::may_view, identity_back},
    {"aten._to_copy.default",
     "self dtype=None layout=None device=None pin_memory=None non_blocking=False memory_format=None", to_copy},
    {"aten.to.other", "self other non_blocking=False copy=False memory_format=None", to_other, Aliasing::may_view,
     identity_back},
    {"aten.type_as.default", "self other", type_as, Aliasing::may_view, identity_back},
    {"aten.copy.default", "self src non_blocking=False", copy_into},
    {"aten.cat.default", "tensors dim=0", cat_row},
    {"aten.concat.default", "tensors dim=0", cat_row},
    {"aten.stack.default", "tensors dim=0", stack_row},
    {"aten.hstack.default", "tensors", hstack},
    {"aten.vstack.default", "tensors", [](const Arguments& a) { return joined_along(a, 2, 0); }},
    {"aten.dstack.default", "tensors", [](const Arguments& a) { return joined_along(a, 3, 2); }},
    {"aten.column_stack.default", "tensors", column_stack},
    {"aten.block_diag.default", "tensors", block_diagonal},
    {"aten.broadcast_tensors.default", "tensors", broadcast_all},
    {"aten.meshgrid.default", "tensors", meshgrid},
    {"aten.meshgrid.indexing", "tensors indexing", meshgrid},
    {"aten.rot90.default", "self k=1 dims=None", rot90},
    {"aten.fliplr.default", "self", [](const Arguments& a) -> Value { return flip(a.tensor(0), {1}); }},
    {"aten.flipud.default", "self", [](const Arguments& a) -> Value { return flip(a.tensor(0), {0}); }},
    {"aten.diag_embed.default", "self offset=0 dim1=-2 dim2=-1", diagonal_embedding},
    {"aten.diag.default", "self diagonal=0",
     [](const Arguments& a) -> Value {
       return a.tensor(0).dim() == 1 ? Value(with_diagonal(a.tensor(0), offset_of(a, 1)))
                                     : Value(diagonal_of(a.tensor(0), offset_of(a, 1), 0, 1));
     }},
    {"aten.trace.default", "self", [](const Arguments& a) -> Value { return sum(diagonal_of(a.tensor(0), 0, 0, 1)); }},
    {"aten.roll.default", "self shifts dims=[]", roll_row},
    {"aten.flip.default", "self dims", flip_row},
    {"aten.repeat.default", "self repeats", repeat_row},
    {"aten.tile.default", "self dims", tile},
    {"aten.repeat_interleave.self_int", "self repeats dim=None output_size=None", repeat_interleave},
    {"aten.tril.default", "self diagonal=0", tril_row},
    {"aten.triu.default", "self diagonal=0", triu_row},
};

}  // namespace

std::span<const OpRow> view_rows() { return kViewRows; }

}  // namespace gradual::pt2
