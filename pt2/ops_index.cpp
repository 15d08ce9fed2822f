// Lookup and writing by indices and masks.
#include <algorithm>

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
  const DType to = result_type(a, 1, 2);
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
  const DType to = result_type(a, 1, 2);
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

constexpr OpRow kRows[] = {
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
    {"aten.one_hot.default", "self num_classes=-1", one_hot_row},
};

}  // namespace

std::span<const OpRow> index_rows() { return kRows; }

}  // namespace gradual::pt2
