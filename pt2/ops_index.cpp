// Lookup and writing by indices and masks.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

// i64 with negative places counted from the end of a dim of size n.
Tensor wrapped(const Tensor& index, std::int64_t n) {
  const Tensor i = as_index(index);
  return where(lt(i, 0), add(i, static_cast<double>(n)), i);
}

// The places of a mask's true elements, a vector for each of its dims. Waits for a GPU.
std::vector<Tensor> true_places(const Tensor& mask) {
  const std::vector<std::int64_t> flags = mask.to_vector<std::int64_t>();
  std::vector<std::vector<std::int64_t>> places(static_cast<std::size_t>(mask.dim()));
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (!flags[i]) continue;
    auto rest = static_cast<std::int64_t>(i);
    for (int d = mask.dim() - 1; d >= 0; --d) {
      places[static_cast<std::size_t>(d)].push_back(rest % mask.size(d));
      rest /= mask.size(d);
    }
  }
  std::vector<Tensor> all;
  for (const auto& p : places)
    all.push_back(from_data(p, {static_cast<std::int64_t>(p.size())}, {.dtype = DType::i64}).to(mask.device()));
  return all;
}

// Advanced indexing, resolved: x with the indexed dims first, and one linear index into them.
struct Indexing {
  Shape order;            // of x's dims: the indexed ones first
  Shape rest;             // sizes of the others
  Shape result;           // sizes of the broadcast index
  std::int64_t rows = 1;  // elements of the indexed dims
  Tensor index;           // i64, flat
  int place = 0;          // where the result's index dims are among the dims
};

bool is_mask(const Tensor& t) { return t.defined() && (t.dtype() == DType::bool_ || t.dtype() == DType::u8); }

// Error unless the mask has the sizes of x's dims from `first` on.
void check_mask(const Tensor& mask, const Tensor& x, std::size_t first) {
  const auto start = static_cast<int>(first);
  bool fits = mask.dim() > 0 && start + mask.dim() <= x.dim();
  for (int d = 0; fits && d < mask.dim(); ++d) fits = mask.size(d) == x.size(start + d);
  if (!fits) throwf("a mask {} for the dims of {} from {} on", to_string(mask.sizes()), to_string(x.sizes()), first);
}

// Error unless each place is one of a dim of n. Waits for a GPU.
void check_places(const Tensor& index, std::int64_t n) {
  for (const std::int64_t i : index.to_vector<std::int64_t>())
    if (i < -n || i >= n) throwf("index {} is out of range; allowed are {} to {}", i, -n, n - 1);
}

Indexing resolve(const Tensor& x, const std::vector<Tensor>& given) {
  std::vector<Tensor> indices;
  for (const Tensor& t : given) {
    if (!is_mask(t)) {
      indices.push_back(t);
      continue;
    }
    check_mask(t, x, indices.size());
    for (const Tensor& places : true_places(t)) indices.push_back(places);
  }
  if (static_cast<int>(indices.size()) > x.dim()) throwf("{} indices for {}", indices.size(), to_string(x.sizes()));
  Indexing out;
  std::vector<int> dims;
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (indices[i].defined()) dims.push_back(static_cast<int>(i));
  if (dims.empty()) throw_error("no index is given");
  const bool together = dims.back() - dims.front() + 1 == static_cast<int>(dims.size());
  out.place = together ? dims.front() : 0;
  for (const int d : dims)
    out.result = broadcast_shapes(out.result, indices[static_cast<std::size_t>(d)].sizes(), "index");
  Tensor linear;
  for (const int d : dims) {
    const std::int64_t n = x.size(d);
    // One index on a GPU is checked as index_select checks it: several would be mixed into one place.
    if (dims.size() > 1 || x.device().is_cpu()) check_places(indices[static_cast<std::size_t>(d)], n);
    const Tensor i = expand(wrapped(indices[static_cast<std::size_t>(d)], n), out.result);
    linear = linear.defined() ? add(mul(linear, static_cast<double>(n)), i) : i;
    out.rows *= n;
    out.order.push_back(d);
  }
  for (int d = 0; d < x.dim(); ++d) {
    if (std::ranges::find(dims, d) != dims.end()) continue;
    out.order.push_back(d);
    out.rest.push_back(x.size(d));
  }
  out.index = reshape(linear, {-1});
  return out;
}

Shape joined(const Shape& a, const Shape& b) {
  Shape all = a;
  for (const std::int64_t n : b) all.push_back(n);
  return all;
}

// [index dims, rest] to the order of the result: the index dims at `place`.
Shape result_order(const Indexing& by) {
  const int count = by.result.size();
  Shape order;
  for (int d = 0; d < by.place; ++d) order.push_back(count + d);
  for (int d = 0; d < count; ++d) order.push_back(d);
  for (int d = by.place; d < by.rest.size(); ++d) order.push_back(count + d);
  return order;
}

Shape inverse_of(const Shape& order) {
  Shape back = order;
  for (int d = 0; d < order.size(); ++d) back[static_cast<int>(order[d])] = d;
  return back;
}

Tensor rows_of(const Tensor& x, const Indexing& by) {
  return reshape(permute(x, by.order), joined({by.rows}, by.rest));
}

Value index_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Indexing by = resolve(x, a.tensors(1));
  const Tensor picked = index_select(rows_of(x, by), 0, by.index);
  return permute(reshape(picked, joined(by.result, by.rest)), result_order(by));
}

// x with `values` at the indices; with `accumulate` added to it. Where an index occurs twice without it, the last value
// is taken.
Value index_put(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const std::vector<Tensor> given = a.tensors(1);
  const Tensor values = cast(a.tensor(2), x.dtype());
  if (given.size() == 1 && given[0].defined() && given[0].dtype() == DType::bool_ && values.numel() == 1 &&
      !a.flag(3)) {
    check_mask(given[0], x, 0);
    Shape sizes = given[0].sizes();
    while (sizes.size() < x.dim()) sizes.push_back(1);
    return where(reshape(given[0], sizes), reshape(values, {}), x);
  }
  const Indexing by = resolve(x, given);
  const Tensor rows = rows_of(x, by);
  const Shape order = result_order(by);
  Shape wanted;
  const Shape flat = joined(by.result, by.rest);
  for (const std::int64_t d : order) wanted.push_back(flat[static_cast<int>(d)]);
  const Tensor part = permute(expand(values, wanted), inverse_of(order));
  const Tensor source = reshape(part, joined({by.index.numel()}, by.rest));
  Tensor changed;
  if (a.flag(3)) {
    changed = add(rows, index_add(source, 0, by.index, by.rows));
  } else {
    std::vector<std::int64_t> from(static_cast<std::size_t>(by.rows));
    for (std::int64_t i = 0; i < by.rows; ++i) from[static_cast<std::size_t>(i)] = i;
    const std::vector<std::int64_t> places = by.index.to_vector<std::int64_t>();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i] < 0 || places[i] >= by.rows) throwf("index {} is out of range of {} places", places[i], by.rows);
      from[static_cast<std::size_t>(places[i])] = by.rows + static_cast<std::int64_t>(i);
    }
    const Tensor chosen = from_data(from, {by.rows}, {.dtype = DType::i64}).to(x.device());
    changed = index_select(cat({rows, source}, 0), 0, chosen);
  }
  Shape sizes;
  for (const std::int64_t d : by.order) sizes.push_back(x.size(static_cast<int>(d)));
  return permute(reshape(changed, sizes), inverse_of(by.order));
}

Value gather_row(const Arguments& a) { return gather(a.tensor(0), a.dim(1), as_index(a.tensor(2))); }
Value take_along(const Arguments& a) { return gather(a.tensor(0), a.dim(2), as_index(a.tensor(1))); }
Value index_select_row(const Arguments& a) { return index_select(a.tensor(0), a.dim(1), as_index(a.tensor(2))); }
Value index_add_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor source = a.number(4) == 1 ? a.tensor(3) : mul(a.tensor(3), a.number(4));
  return add(x, index_add(source, a.dim(1), as_index(a.tensor(2)), x.size(a.dim(1))));
}
Value scatter_add_row(const Arguments& a) {
  return scatter_add(a.tensor(0), a.dim(1), as_index(a.tensor(2)), a.tensor(3));
}

// The leading part of t of these sizes.
Tensor narrow_to(const Tensor& t, const Shape& sizes) {
  Tensor part = t;
  for (int d = 0; d < sizes.size(); ++d)
    if (part.size(d) != sizes[d]) part = narrow(part, d, 0, sizes[d]);
  return part;
}

// Where each element of x comes from after a scatter: its own place, or x's count and the place in the source. Of
// places that occur twice the last source is taken; PyTorch leaves open which. Waits for a GPU.
std::vector<std::int64_t> scatter_places(const Tensor& x, int dim, const Tensor& index) {
  std::vector<std::int64_t> from(static_cast<std::size_t>(x.numel()));
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::int64_t>(i);
  const std::vector<std::int64_t> targets = index.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0 || targets[i] >= x.size(dim))
      throwf("scatter: index {} is out of range; allowed are 0 to {}", targets[i], x.size(dim) - 1);
    auto rest = static_cast<std::int64_t>(i);
    std::int64_t place = 0;
    std::int64_t stride = 1;
    for (int d = x.dim() - 1; d >= 0; --d) {
      place += stride * (d == dim ? targets[i] : rest % index.size(d));
      rest /= index.size(d);
      stride *= x.size(d);
    }
    from[static_cast<std::size_t>(place)] = x.numel() + static_cast<std::int64_t>(i);
  }
  return from;
}

// x with `source`, which has the sizes of `index`, at the places of `index` along dim.
Tensor scattered(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  const std::vector<std::int64_t> from = scatter_places(x, dim, index);
  const Tensor chosen = from_data(from, x.numel(), {.dtype = DType::i64}).to(x.device());
  const Tensor all = cat({reshape(x, x.numel()), reshape(source, source.numel())}, 0);
  return reshape(index_select(all, 0, chosen), x.sizes());
}
// Error unless `index` fits into t; along dim `free` it may be longer.
void check_fits(const Tensor& index, const Tensor& t, int free) {
  bool fits = index.dim() == t.dim();
  for (int d = 0; fits && d < t.dim(); ++d) fits = d == free || index.size(d) <= t.size(d);
  if (!fits) throwf("scatter: an index {} does not fit into {}", to_string(index.sizes()), to_string(t.sizes()));
}
Value scatter_source(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = wrap_dim(a.integer(1), x.dim(), "scatter");
  const Tensor index = as_index(a.tensor(2));
  if (index.numel() == 0) return x;
  check_fits(index, x, dim);
  check_fits(index, a.tensor(3), -1);
  return scattered(x, dim, index, narrow_to(cast(a.tensor(3), x.dtype()), index.sizes()));
}
Value scatter_value(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = wrap_dim(a.integer(1), x.dim(), "scatter");
  const Tensor index = as_index(a.tensor(2));
  if (index.numel() == 0) return x;
  check_fits(index, x, dim);
  const TensorOptions real{.dtype = DType::f32, .device = x.device()};
  const Tensor count = scatter_add(zeros(x.sizes(), real), dim, index, ones(index.sizes(), real));
  return where(gt(count, 0), full({}, a.number(3), options_of(x)), x);
}

Value where_rows(const Arguments& a) {
  const Tensor condition = a.tensor(0).dtype() == DType::bool_ ? a.tensor(0) : ne(a.tensor(0), 0);
  const DType to = result_type(a, {1, 2});
  const auto operand = [&](int i, Tensor& storage) -> Operand {
    if (!a.is_tensor(i)) return {a.number(i)};
    storage = cast(a.tensor(i), to);
    return {storage};
  };
  Tensor left;
  Tensor right;
  const Operand x = operand(1, left);
  const Operand y = operand(2, right);
  if (x.is_number() && y.is_number())
    return where(condition, full({}, x.value, TensorOptions{.dtype = to, .device = a.device()}), y);
  return where(condition, x, y);
}
Value where_numbers(const Arguments& a) {
  const DType to = result_type(a, {1, 2});
  const Tensor x = full({}, a.number(1), TensorOptions{.dtype = to, .device = a.device()});
  return where(a.tensor(0), x, Operand(a.number(2)));
}
Value masked_fill_number(const Arguments& a) { return masked_fill(a.tensor(0), a.tensor(1), a.number(2)); }
Value masked_fill_tensor(const Arguments& a) {
  return where(a.tensor(1), cast(a.tensor(2), a.tensor(0).dtype()), a.tensor(0));
}
Value masked_select(const Arguments& a) {
  const Shape sizes = broadcast_shapes(a.tensor(0).sizes(), a.tensor(1).sizes(), "masked_select");
  return contiguous(expand(a.tensor(0), sizes))[contiguous(expand(a.tensor(1), sizes))];
}
Value nonzero(const Arguments& a) {
  const Tensor mask = a.tensor(0).dtype() == DType::bool_ ? a.tensor(0) : ne(a.tensor(0), 0);
  return stack(true_places(mask), 1);
}
Value nonzero_numpy(const Arguments& a) {
  return list_of(true_places(a.tensor(0).dtype() == DType::bool_ ? a.tensor(0) : ne(a.tensor(0), 0)));
}

// x with row k of `source` along dim in place of row index[k]; of equal ones the last.
Value index_copy_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = wrap_dim(a.integer(1), x.dim(), "index_copy");
  const Tensor& source = a.tensor(3);
  const std::vector<std::int64_t> places = as_index(a.tensor(2)).to_vector<std::int64_t>();
  const std::int64_t n = x.size(dim);
  if (source.dim() != x.dim() || source.size(dim) != std::ssize(places)) a.fail(3, "a row for each index");
  std::vector<std::int64_t> from(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) from[static_cast<std::size_t>(i)] = i;
  for (std::size_t k = 0; k < places.size(); ++k) {
    if (places[k] < 0 || places[k] >= n) throwf("index {} is out of range; allowed are 0 to {}", places[k], n - 1);
    from[static_cast<std::size_t>(places[k])] = n + static_cast<std::int64_t>(k);
  }
  const Tensor chosen = from_data(from, {n}, {.dtype = DType::i64}).to(x.device());
  return index_select(cat({x, cast(source, x.dtype())}, dim), dim, chosen);
}
// self dim index value
Value index_fill_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = wrap_dim(a.integer(1), x.dim(), "index_fill");
  const Tensor index = wrapped(reshape(a.tensor(2), {-1}), x.size(dim));
  const TensorOptions real{.dtype = DType::f32, .device = x.device()};
  const Tensor count = index_add(ones(index.sizes(), real), 0, index, x.size(dim));
  Shape along = Shape::filled(x.dim(), 1);
  along[dim] = x.size(dim);
  const Tensor chosen = reshape(gt(count, 0), along);
  const Tensor value = a.is_tensor(3) ? cast(a.tensor(3), x.dtype()) : full({}, a.number(3), options_of(x));
  return where(chosen, value, x);
}
// self dim index src reduce include_self
Value scatter_reduce_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = wrap_dim(a.integer(1), x.dim(), "scatter_reduce");
  const Tensor index = as_index(a.tensor(2));
  const std::string& how = a.text(4);
  if (how != "sum" && how != "mean") a.fail(4, "sum or mean");
  check_fits(index, x, dim);
  const Tensor source = narrow_to(cast(a.tensor(3), x.dtype()), index.sizes());
  const Tensor counts = scatter_add(zeros(x.sizes(), options_of(x)), dim, index, ones(index.sizes(), options_of(x)));
  const Tensor base = a.flag(5) ? x : where(gt(counts, 0), 0, x);
  const Tensor total = scatter_add(base, dim, index, source);
  if (how == "sum") return total;
  const Tensor number = a.flag(5) ? add(counts, 1) : where(gt(counts, 0), counts, 1);
  return div(total, number);
}
Value take_row(const Arguments& a) {
  const Tensor index = as_index(a.tensor(1));
  const Tensor flat = reshape(a.tensor(0), {-1});
  return reshape(index_select(flat, 0, reshape(wrapped(index, flat.numel()), {-1})), index.sizes());
}
// The elements of `source` in order, where the mask is true.
Value masked_scatter_row(const Arguments& a) {
  const Shape sizes = broadcast_shapes(a.tensor(0).sizes(), a.tensor(1).sizes(), "masked_scatter");
  const Tensor mask = contiguous(expand(a.tensor(1), sizes));
  const Tensor source = reshape(a.tensor(2), {-1});
  const Tensor flags = reshape(cast(mask, DType::i64), {-1});
  if (sum(flags).item<std::int64_t>() > source.numel()) a.fail(2, "an element for each one of the mask");
  if (source.numel() == 0) return expand(a.tensor(0), sizes);
  const Tensor place = mul(sub(cumsum(flags, 0), 1), flags);
  return where(mask, reshape(index_select(source, 0, place), sizes), expand(a.tensor(0), sizes));
}

// How many of the sorted boundaries are below x, with `right` at most x.
Tensor places_in(const Tensor& boundaries, const Tensor& x, bool right) {
  const Tensor edges = boundaries.dim() == 1 ? boundaries : unsqueeze(boundaries, -2);
  const Tensor value = unsqueeze(x, -1);
  const Tensor passed = right ? logical_not(gt(edges, value)) : logical_not(ge(edges, value));
  return sum(cast(passed, DType::i64), {-1});
}
Value bucketize_row(const Arguments& a) {
  const Tensor places = places_in(a.tensor(1), a.tensor(0), a.flag(3));
  return a.flag(2) ? cast(places, DType::i32) : places;
}
// sorted_sequence self out_int32 right side sorter
Value search_sorted(const Arguments& a) {
  if (!a.none(5)) a.fail(5, "none; a sorter is not supported");
  const bool right = a.flag(3) || (!a.none(4) && a.text(4) == "right");
  const Tensor x = a.is_tensor(1)
                       ? a.tensor(1)
                       : full({}, a.number(1), TensorOptions{.dtype = a.tensor(0).dtype(), .device = a.device()});
  const Tensor places = places_in(a.tensor(0), x, right);
  return a.flag(2) ? cast(places, DType::i32) : places;
}

constexpr std::int64_t kMostRows = 1'000'000'000;
// self repeats dim output_size: row i repeats[i] times.
Value repeat_rows(const Arguments& a) {
  const Tensor x = a.none(2) ? reshape(a.tensor(0), {-1}) : a.tensor(0);
  const int dim = a.none(2) ? 0 : wrap_dim(a.integer(2), x.dim(), "repeat_interleave");
  const std::vector<std::int64_t> times = as_index(a.tensor(1)).to_vector<std::int64_t>();
  if (std::ssize(times) != x.size(dim) && times.size() != 1) a.fail(1, "a count for each row");
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < x.size(dim); ++i) {
    const std::int64_t count = times[times.size() == 1 ? 0 : static_cast<std::size_t>(i)];
    if (count < 0 || count > kMostRows - std::ssize(rows)) a.fail(1, "counts of at least 0, a billion rows in all");
    rows.insert(rows.end(), static_cast<std::size_t>(count), i);
  }
  return index_select(x, dim, from_data(rows, {std::ssize(rows)}, {.dtype = DType::i64}).to(x.device()));
}

// weight indices offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset padding_idx
Value embedding_bag_row(const Arguments& a) {
  if (a.flag(3)) a.fail(3, "false; gradients scaled by frequency are not supported");
  const std::int64_t mode = a.integer(4);
  if (mode != 0 && mode != 1) a.fail(4, "0 (sum) or 1 (mean)");
  const Tensor index = as_index(a.tensor(1));
  std::vector<std::int64_t> offsets = as_index(a.tensor(2)).to_vector<std::int64_t>();
  if (a.flag(7) && !offsets.empty()) offsets.pop_back();
  std::vector<std::int64_t> bags(static_cast<std::size_t>(index.numel()));
  for (std::size_t b = 0; b < offsets.size(); ++b) {
    const std::int64_t end = b + 1 < offsets.size() ? offsets[b + 1] : index.numel();
    if (offsets[b] < 0 || offsets[b] > end || end > index.numel()) a.fail(2, "starts that do not fall");
    for (std::int64_t i = offsets[b]; i < end; ++i) bags[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(b);
  }
  const Tensor bag = from_data(bags, {index.numel()}, {.dtype = DType::i64}).to(index.device());
  Tensor rows = embedding(a.tensor(0), index);
  Tensor used = ones(index.sizes(), options_of(rows));
  const std::int64_t padding = a.optional_integer(8).value_or(-1);
  if (padding >= 0) used = cast(ne(index, static_cast<double>(padding)), rows.dtype());
  if (padding >= 0) rows = mul(rows, unsqueeze(used, -1));
  if (!a.none(6)) rows = mul(rows, unsqueeze(a.tensor(6), -1));
  Tensor y = index_add(rows, 0, bag, std::ssize(offsets));
  const Tensor counts = index_add(used, 0, bag, std::ssize(offsets));
  if (mode == 1) y = div(y, unsqueeze(where(gt(counts, 0), counts, 1), -1));
  return list_of({y, bag, cast(counts, DType::i64), zeros({0}, {.dtype = DType::i64})});
}

// The padding entry gets no gradient.
Value embedding_row(const Arguments& a) {
  if (a.flag(3)) a.fail(3, "false; gradients scaled by frequency are not supported");
  const Tensor index = as_index(a.tensor(1));
  const Tensor found = embedding(a.tensor(0), index);
  std::int64_t padding = a.integer(2);
  if (padding == -1 || !a.tensor(0).requires_grad()) return found;
  if (padding < 0) padding += a.tensor(0).size(0);
  return where(unsqueeze(eq(index, static_cast<double>(padding)), -1), found.detach(), found);
}
Value one_hot_row(const Arguments& a) {
  const Tensor index = as_index(a.tensor(0));
  const std::int64_t given = a.integer(1);
  return one_hot(index, given >= 0 ? given : static_cast<std::int64_t>(max(index).item()) + 1);
}

constexpr OpRow kIndexRows[] = {
    {"aten.index.Tensor", "self indices", index_row},
    {"aten.index_put.default", "self indices values accumulate=False", index_put},
    {"aten.gather.default", "self dim index sparse_grad=False", gather_row},
    {"aten.take_along_dim.default", "self indices dim=None", take_along},
    {"aten.index_select.default", "self dim index", index_select_row},
    {"aten.index_add.default", "self dim index source alpha=1", index_add_row},
    {"aten.scatter_add.default", "self dim index src", scatter_add_row},
    {"aten.scatter.src", "self dim index src", scatter_source},
    {"aten.scatter.value", "self dim index value", scatter_value},
    {"aten.where.self", "condition self other", where_rows},
    {"aten.where.ScalarSelf", "condition self other", where_rows},
    {"aten.where.ScalarOther", "condition self other", where_rows},
    {"aten.where.Scalar", "condition self other", where_numbers},
    {"aten.masked_fill.Scalar", "self mask value", masked_fill_number},
    {"aten.masked_fill.Tensor", "self mask value", masked_fill_tensor},
    {"aten.masked_select.default", "self mask", masked_select},
    {"aten.nonzero.default", "self", nonzero},
    {"aten.nonzero_numpy.default", "self", nonzero_numpy},
    {"aten.embedding.default", "weight indices padding_idx=-1 scale_grad_by_freq=False sparse=False", embedding_row},
    {"aten.index_copy.default", "self dim index source", index_copy_row},
    {"aten.index_fill.int_Scalar", "self dim index value", index_fill_row},
    {"aten.index_fill.int_Tensor", "self dim index value", index_fill_row},
    {"aten.scatter_reduce.two", "self dim index src reduce include_self=True", scatter_reduce_row},
    {"aten.take.default", "self index", take_row},
    {"aten.masked_scatter.default", "self mask source", masked_scatter_row},
    {"aten.bucketize.Tensor", "self boundaries out_int32=False right=False", bucketize_row},
    {"aten.searchsorted.Tensor", "sorted_sequence self out_int32=False right=False side=None sorter=None",
     search_sorted},
    {"aten.searchsorted.Scalar", "sorted_sequence self out_int32=False right=False side=None sorter=None",
     search_sorted},
    {"aten.repeat_interleave.self_Tensor", "self repeats dim=None output_size=None", repeat_rows},
    {"aten.embedding_bag.padding_idx",
     "weight indices offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset padding_idx",
     embedding_bag_row},
    {"aten.embedding_bag.default",
     "weight indices offsets scale_grad_by_freq=False mode=0 sparse=False per_sample_weights=None "
     "include_last_offset=False padding_idx=-1",
     embedding_bag_row},
    {"aten.argwhere.default", "self", nonzero},
    {"aten.one_hot.default", "self num_classes=-1", one_hot_row},
};

}  // namespace

std::span<const OpRow> index_rows() { return kIndexRows; }

}  // namespace gradual::pt2
