// Reductions, sums along a dim, and orders.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

// The tensor in the dtype of argument i, if it is given.
Tensor in_dtype(const Arguments& a, int i) {
  const std::optional<DType> to = a.dtype(i);
  return to ? cast(a.tensor(0), *to) : a.tensor(0);
}

using Reduction4 = Tensor (*)(const Tensor&, const Shape&, bool, Loc);

Value sum_all(const Arguments& a) { return sum(in_dtype(a, 1)); }
Value sum_dims(const Arguments& a) { return sum(in_dtype(a, 3), a.sizes(1), a.flag(2)); }
Value mean_all(const Arguments& a) { return mean(in_dtype(a, 1)); }
Value mean_dims(const Arguments& a) { return mean(in_dtype(a, 3), a.sizes(1), a.flag(2)); }
template <Reduction4 f> Value over_dims(const Arguments& a) {
  return f(a.tensor(0), a.sizes(1), a.flag(2), Loc::current());
}
template <Reduction4 f> Value over_all(const Arguments& a) { return f(a.tensor(0), {}, false, Loc::current()); }

// The correction of the deprecated `unbiased` flag.
double correction_of(bool unbiased) { return unbiased ? 1 : 0; }
Value var_all(const Arguments& a) { return var(a.tensor(0), {}, false, correction_of(a.flag(1))); }
Value var_dims(const Arguments& a) { return var(a.tensor(0), a.sizes(1), a.flag(3), correction_of(a.flag(2))); }
Value var_correction(const Arguments& a) {
  return var(a.tensor(0), a.sizes(1), a.flag(3), a.optional_number(2).value_or(1));
}
Value std_all(const Arguments& a) { return stddev(a.tensor(0), {}, false, correction_of(a.flag(1))); }
Value std_dims(const Arguments& a) { return stddev(a.tensor(0), a.sizes(1), a.flag(3), correction_of(a.flag(2))); }
Value std_correction(const Arguments& a) {
  return stddev(a.tensor(0), a.sizes(1), a.flag(3), a.optional_number(2).value_or(1));
}

// The spread and the mean; `deviation`: the standard deviation, else the variance.
template <bool deviation> Value spread_and_mean(const Tensor& x, const Shape& dims, double correction, bool keep) {
  const Tensor spread = deviation ? stddev(x, dims, keep, correction) : var(x, dims, keep, correction);
  return list_of({spread, mean(x, dims, keep)});
}
template <bool deviation> Value spread_correction(const Arguments& a) {
  return spread_and_mean<deviation>(a.tensor(0), a.sizes(1), a.optional_number(2).value_or(1), a.flag(3));
}
template <bool deviation> Value spread_dims(const Arguments& a) {
  return spread_and_mean<deviation>(a.tensor(0), a.sizes(1), correction_of(a.flag(2)), a.flag(3));
}
template <bool deviation> Value spread_all(const Arguments& a) {
  return spread_and_mean<deviation>(a.tensor(0), {}, correction_of(a.flag(1)), false);
}

Value vector_norm(const Arguments& a) { return norm(in_dtype(a, 4), a.number(1), a.sizes(2), a.flag(3)); }
Value norm_dims(const Arguments& a) {
  return norm(a.tensor(0), a.optional_number(1).value_or(2), a.sizes(2), a.flag(3));
}
Value norm_all(const Arguments& a) { return norm(a.tensor(0), a.optional_number(1).value_or(2)); }

Value places(const ValuesAndIndices& found) { return list_of({found.values, found.indices}); }
Value max_dim(const Arguments& a) { return places(max_with_indices(a.tensor(0), a.dim(1), a.flag(2))); }
Value min_dim(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor index = argmin(x, a.dim(1), true);
  const Tensor values = gather(x, a.dim(1), index);
  if (a.flag(2)) return list_of({values, index});
  return list_of({squeeze(values, a.dim(1)), squeeze(index, a.dim(1))});
}
template <Tensor (*f)(const Tensor&, OptionalDim, bool, Loc)> Value place(const Arguments& a) {
  const OptionalDim dim = a.none(1) ? OptionalDim() : OptionalDim(a.dim(1));
  return f(a.tensor(0), dim, a.flag(2), Loc::current());
}
Value sort_row(const Arguments& a) { return places(sort(a.tensor(0), a.dim(1), a.flag(2))); }
Value sort_stable(const Arguments& a) { return places(sort(a.tensor(0), a.dim(2), a.flag(3))); }
Value argsort(const Arguments& a) { return sort(a.tensor(0), a.dim(1), a.flag(2)).indices; }
Value topk_row(const Arguments& a) { return places(topk(a.tensor(0), a.integer(1), a.dim(2), a.flag(3))); }

// The tensor in the dtype of argument i; without one, integers and bool become i64.
Tensor accumulated(const Arguments& a, int i) {
  const Tensor x = in_dtype(a, i);
  const bool wide = x.is_floating() || (!a.none(i) && x.dtype() != DType::bool_);
  return wide ? x : cast(x, DType::i64);
}
Value cumsum_row(const Arguments& a) {
  const Tensor x = accumulated(a, 2);
  return x.dim() == 0 ? x : cumsum(x, a.dim(1));
}
Value prod_all(const Arguments& a) { return prod(accumulated(a, 1)); }
Value prod_dim(const Arguments& a) { return prod(accumulated(a, 3), a.dim(1), a.flag(2)); }
Value cumprod_row(const Arguments& a) { return cumprod(accumulated(a, 2), a.dim(1)); }
Value diff(const Arguments& a) {
  Tensor x = a.tensor(0);
  std::vector<Tensor> parts;
  if (!a.none(3)) parts.push_back(a.tensor(3));
  parts.push_back(x);
  if (!a.none(4)) parts.push_back(a.tensor(4));
  if (parts.size() > 1) x = cat(parts, a.dim(2));
  for (std::int64_t i = 0; i < a.integer(1); ++i) {
    const std::int64_t n = x.size(a.dim(2));
    const Tensor right = narrow(x, a.dim(2), 1, n - 1);
    const Tensor left = narrow(x, a.dim(2), 0, n - 1);
    x = x.dtype() == DType::bool_ ? ne(right, left) : sub(right, left);
  }
  return x;
}

Value softmax_row(const Arguments& a) { return softmax(in_dtype(a, 2), a.dim(1)); }
Value log_softmax_row(const Arguments& a) { return log_softmax(in_dtype(a, 2), a.dim(1)); }
Value any_dim(const Arguments& a) { return any(a.tensor(0), a.sizes(1), a.flag(2)); }
Value all_dim(const Arguments& a) { return all(a.tensor(0), a.sizes(1), a.flag(2)); }

// x / max(norm, eps) is written in Python; the similarity of rows is one op.
Value cosine_similarity(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& y = a.tensor(1);
  const Shape dim{a.integer(2)};
  const auto unit = [&](const Tensor& t) { return div(t, clamp(norm(t, 2, dim, true), a.number(3), INFINITY)); };
  return sum(mul(unit(x), unit(y)), dim);
}

// The range of v, computed in the input's dtype as in PyTorch.
template <class T> std::int64_t bin_of(T v, T low, T high, std::int64_t bins) {
  const auto bin = static_cast<std::int64_t>((v - low) * static_cast<T>(bins) / (high - low));
  return std::min(bin, bins - 1);
}

// The number of elements in each of `bins` equal ranges from min to max; their own range if both are 0.
Value histc(const Arguments& a) {
  const std::int64_t bins = a.integer(1);
  if (bins < 1) a.fail(1, "at least one bin");
  const std::vector<double> x = a.tensor(0).to_vector<double>();
  double low = a.number(2);
  double high = a.number(3);
  if (low == 0 && high == 0 && !x.empty()) {
    low = *std::min_element(x.begin(), x.end());
    high = *std::max_element(x.begin(), x.end());
  }
  const bool wide = a.tensor(0).dtype() == DType::f64;
  if (!wide) low = static_cast<float>(low);
  if (!wide) high = static_cast<float>(high);
  if (!std::isfinite(low) || !std::isfinite(high)) a.fail(2, "finite bounds, of finite numbers");
  if (low == high) {
    low -= 1;
    high += 1;
  }
  std::vector<double> counts(static_cast<std::size_t>(bins));
  for (const double v : x) {
    if (!(v >= low && v <= high)) continue;
    const std::int64_t bin =
        wide ? bin_of<double>(v, low, high, bins)
             : bin_of<float>(static_cast<float>(v), static_cast<float>(low), static_cast<float>(high), bins);
    ++counts[static_cast<std::size_t>(bin)];
  }
  return from_data(counts, {bins}, {.dtype = a.tensor(0).dtype()}).to(a.tensor(0).device());
}
Value bincount(const Arguments& a) {
  if (a.integer(2) < 0) a.fail(2, "at least 0");
  std::vector<std::int64_t> counts(static_cast<std::size_t>(a.integer(2)));
  if (!a.none(1)) a.fail(1, "none; weights are not supported");
  for (const std::int64_t n : a.tensor(0).to_vector<std::int64_t>()) {
    if (n < 0) a.fail(0, "integers of at least 0");
    if (n >= std::ssize(counts)) counts.resize(static_cast<std::size_t>(n) + 1);
    ++counts[static_cast<std::size_t>(n)];
  }
  return from_data(counts, {std::ssize(counts)}).to(a.tensor(0).device());
}

Value count_nonzero(const Arguments& a) { return sum(cast(ne(a.tensor(0), 0), DType::i64), a.sizes(1)); }

// The element of this rank along dim, of equals the first.
Value ranked(const Tensor& x, std::int64_t rank, int dim, bool keep) {
  const ValuesAndIndices sorted = sort(x, dim);
  const Tensor values = narrow(sorted.values, dim, rank, 1);
  const Tensor indices = narrow(sorted.indices, dim, rank, 1);
  if (keep) return list_of({values, indices});
  return list_of({squeeze(values, dim), squeeze(indices, dim)});
}

// The lower middle element along dim; NaN if any element is, at the first of them.
Value median_dim(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const int dim = a.dim(1);
  const bool keep = a.flag(2);
  const std::int64_t rank = (x.size(dim) - 1) / 2;
  if (!x.is_floating()) return ranked(x, rank, dim, keep);
  const Tensor nan = isnan(x);
  const Tensor middle = narrow(sort(x.detach(), dim).indices, dim, rank, 1);
  const Tensor first_nan = argmax(cast(nan, x.dtype()), dim, true);
  const Tensor place = where(any(nan, {dim}, true), first_nan, middle);
  const Tensor value = gather(x, dim, place);
  if (keep) return list_of({value, place});
  return list_of({squeeze(value, dim), squeeze(place, dim)});
}
// The lower middle of all elements; NaN if any is. Equal elements share the gradient.
Value median_all(const Arguments& a) {
  const Tensor all = reshape(a.tensor(0), {-1});
  const Tensor middle = select(sort(all.detach(), 0).values, 0, (all.numel() - 1) / 2);
  if (!all.is_floating()) return middle;
  return max(where(logical_or(eq(all, middle), isnan(all)), all, -std::numeric_limits<double>::infinity()));
}

// The largest (smallest) element so far, of equals the last. The host finds the places.
Value running(const Arguments& a, bool largest) {
  const Tensor& x = a.tensor(0);
  if (x.dim() == 0) return list_of({x, zeros({}, TensorOptions{.dtype = DType::i64, .device = x.device()})});
  const int dim = wrap_dim(a.integer(1), x.dim(), "cummax");
  const Tensor rows = transpose(x, dim, -1);
  const std::int64_t n = rows.size(-1);
  const std::vector<double> values = rows.detach().to_vector<double>();
  std::vector<std::int64_t> places(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i) % n;
    places[i] = at;
    if (at == 0) continue;
    const double best = values[i - static_cast<std::size_t>(at - places[i - 1])];
    const bool better = std::isnan(values[i]) || (largest ? values[i] >= best : values[i] <= best);
    if (!better) places[i] = places[i - 1];
  }
  const Tensor found = from_data(places, rows.sizes(), {.dtype = DType::i64}).to(x.device());
  const Tensor index = contiguous(transpose(found, dim, -1));
  return list_of({gather(x, dim, index), index});
}

// log(sum exp) of the elements so far, one after the other.
Value log_cumulated(const Arguments& a) {
  const Tensor x = floating(a, a.tensor(0));
  if (x.dim() == 0) return x;
  const int dim = a.dim(1);
  std::vector<Tensor> sums;
  for (std::int64_t i = 0; i < x.size(dim); ++i) {
    const Tensor next = select(x, dim, i);
    sums.push_back(i == 0 ? next : logsumexp(stack({sums.back(), next}, 0), {0}));
  }
  return sums.empty() ? x : stack(sums, dim);
}

// Between the rows of x1 [.., P, M] and x2 [.., R, M].
Value distances(const Arguments& a) {
  const Tensor difference = sub(unsqueeze(a.tensor(0), -2), unsqueeze(a.tensor(1), -3));
  return norm(difference, a.number(2), {-1});
}

constexpr OpRow kReductionRows[] = {
    {"aten.sum.default", "self dtype=None", sum_all},
    {"aten.sum.dim_IntList", "self dim keepdim=False dtype=None", sum_dims},
    {"aten.mean.default", "self dtype=None", mean_all},
    {"aten.mean.dim", "self dim keepdim=False dtype=None", mean_dims},
    {"aten.var.default", "self unbiased=True", var_all},
    {"aten.var.dim", "self dim unbiased=True keepdim=False", var_dims},
    {"aten.var.correction", "self dim=None correction=None keepdim=False", var_correction},
    {"aten.std.default", "self unbiased=True", std_all},
    {"aten.std.dim", "self dim unbiased=True keepdim=False", std_dims},
    {"aten.std.correction", "self dim=None correction=None keepdim=False", std_correction},
    {"aten.var_mean.correction", "self dim=None correction=None keepdim=False", spread_correction<false>},
    {"aten.var_mean.dim", "self dim unbiased=True keepdim=False", spread_dims<false>},
    {"aten.var_mean.default", "self unbiased=True", spread_all<false>},
    {"aten.std_mean.correction", "self dim=None correction=None keepdim=False", spread_correction<true>},
    {"aten.std_mean.dim", "self dim unbiased=True keepdim=False", spread_dims<true>},
    {"aten.std_mean.default", "self unbiased=True", spread_all<true>},
    {"aten.nansum.default", "self dim=None keepdim=False dtype=None",
     [](const Arguments& a) -> Value {
       const Tensor x = in_dtype(a, 3);
       return sum(where(isnan(x), 0, x), a.sizes(1), a.flag(2));
     }},
    {"aten.nanmean.default", "self dim=None keepdim=False dtype=None",
     [](const Arguments& a) -> Value {
       const Tensor x = in_dtype(a, 3);
       const Tensor count = sum(cast(logical_not(isnan(x)), x.dtype()), a.sizes(1), a.flag(2));
       return div(sum(where(isnan(x), 0, x), a.sizes(1), a.flag(2)), count);
     }},
    {"aten.count_nonzero.default", "self dim=None", count_nonzero},
    {"aten.count_nonzero.dim_IntList", "self dim", count_nonzero},
    {"aten.aminmax.default", "self dim=None keepdim=False",
     [](const Arguments& a) -> Value {
       return list_of({min(a.tensor(0), a.sizes(1), a.flag(2)), max(a.tensor(0), a.sizes(1), a.flag(2))});
     }},
    {"aten.cummax.default", "self dim", [](const Arguments& a) { return running(a, true); }},
    {"aten.cummin.default", "self dim", [](const Arguments& a) { return running(a, false); }},
    {"aten.logcumsumexp.default", "self dim", log_cumulated},
    {"aten.median.dim", "self dim keepdim=False", median_dim},
    {"aten.median.default", "self", median_all},
    {"aten.kthvalue.default", "self k dim=-1 keepdim=False",
     [](const Arguments& a) -> Value {
       const std::int64_t k = a.integer(1);
       if (k < 1 || k > a.tensor(0).size(a.dim(2))) a.fail(1, "1 to the size of the dim");
       return ranked(a.tensor(0), k - 1, a.dim(2), a.flag(3));
     }},
    {"aten.dist.default", "self other p=2",
     [](const Arguments& a) -> Value { return norm(sub(a.tensor(0), a.tensor(1)), a.number(2)); }},
    {"aten.cdist.default", "x1 x2 p=2 compute_mode=None", distances},
    {"aten.frobenius_norm.dim", "self dim keepdim=False",
     [](const Arguments& a) -> Value { return norm(a.tensor(0), 2, a.sizes(1), a.flag(2)); }},
    {"aten.linalg_vector_norm.default", "self ord=2 dim=None keepdim=False dtype=None", vector_norm},
    {"aten.norm.ScalarOpt_dim", "self p dim keepdim=False", norm_dims},
    {"aten.norm.Scalar", "self p=2", norm_all},
    {"aten.logsumexp.default", "self dim keepdim=False", over_dims<logsumexp>},
    {"aten.amax.default", "self dim=[] keepdim=False", over_dims<amax>},
    {"aten.amin.default", "self dim=[] keepdim=False", over_dims<min>},
    {"aten.max.default", "self", over_all<max>},
    {"aten.min.default", "self", over_all<min>},
    {"aten.max.dim", "self dim keepdim=False", max_dim},
    {"aten.min.dim", "self dim keepdim=False", min_dim},
    {"aten.argmax.default", "self dim=None keepdim=False", place<argmax>},
    {"aten.argmin.default", "self dim=None keepdim=False", place<argmin>},
    {"aten.sort.default", "self dim=-1 descending=False", sort_row},
    {"aten.sort.stable", "self stable dim=-1 descending=False", sort_stable},
    {"aten.argsort.default", "self dim=-1 descending=False", argsort},
    {"aten.topk.default", "self k dim=-1 largest=True sorted=True", topk_row},
    {"aten.cumsum.default", "self dim dtype=None", cumsum_row},
    {"aten.cumprod.default", "self dim dtype=None", cumprod_row},
    {"aten.prod.default", "self dtype=None", prod_all},
    {"aten.prod.dim_int", "self dim keepdim=False dtype=None", prod_dim},
    {"aten.diff.default", "self n=1 dim=-1 prepend=None append=None", diff},
    {"aten.softmax.int", "self dim dtype=None", softmax_row},
    {"aten._softmax.default", "self dim half_to_float=False",
     [](const Arguments& a) -> Value { return softmax(a.tensor(0), a.dim(1)); }},
    {"aten.log_softmax.int", "self dim dtype=None", log_softmax_row},
    {"aten._log_softmax.default", "self dim half_to_float=False",
     [](const Arguments& a) -> Value { return log_softmax(a.tensor(0), a.dim(1)); }},
    {"aten.any.default", "self", over_all<any>},
    {"aten.any.dim", "self dim keepdim=False", any_dim},
    {"aten.any.dims", "self dim=None keepdim=False", any_dim},
    {"aten.all.default", "self", over_all<all>},
    {"aten.all.dim", "self dim keepdim=False", all_dim},
    {"aten.cosine_similarity.default", "x1 x2 dim=1 eps=1e-8", cosine_similarity},
    {"aten.histc.default", "self bins=100 min=0 max=0", histc},
    {"aten.bincount.default", "self weights=None minlength=0", bincount},
};

}  // namespace

std::span<const OpRow> reduction_rows() { return kReductionRows; }

}  // namespace gradual::pt2
