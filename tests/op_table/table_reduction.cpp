// Reductions.
#include "samples.h"

namespace gradual::test {
namespace {

using Values = std::vector<double>;
// From the elements of one reduced range to its value, the size of its terms and their number.
using RangeFn = std::function<ValueAndSize(const Values&)>;

// Applies `f` to every range that one output element stands for, in row-major order of the reduced dims.
Array reduce_reference(const Array& x, const std::vector<int>& dims, bool keepdim, DType out, bool long_sum,
                       const RangeFn& f) {
  std::vector<bool> gone(static_cast<std::size_t>(x.sizes.size()), dims.empty());
  for (int d : dims) gone[static_cast<std::size_t>(d < 0 ? d + x.sizes.size() : d)] = true;
  Shape kept = x.sizes;
  Shape result;
  for (int d = 0; d < x.sizes.size(); ++d) {
    if (gone[static_cast<std::size_t>(d)]) kept[d] = 1;
    if (!gone[static_cast<std::size_t>(d)] || keepdim) result.push_back(kept[d]);
  }
  std::vector<Values> ranges(static_cast<std::size_t>(numel(kept)));
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::vector<std::int64_t> index = unflatten(x.sizes, i);
    for (std::size_t d = 0; d < index.size(); ++d)
      if (gone[d]) index[d] = 0;
    ranges[static_cast<std::size_t>(flat_index(kept, index))].push_back(x[i]);
  }
  Array y = make_array(result, out);
  y.magnitude.resize(y.v.size());
  for (std::int64_t i = 0; i < y.numel(); ++i) std::tie(y[i], y.mag(i)) = f(ranges[static_cast<std::size_t>(i)]);
  if (long_sum && !ranges.empty()) y.length = static_cast<double>(ranges[0].size());
  return y;
}

ValueAndSize sum_of(const Values& v) {
  Sum s;
  for (double x : v) s.add(x);
  return s;
}
ValueAndSize mean_of(const Values& v) {
  const auto [value, size] = sum_of(v);
  const auto n = static_cast<double>(v.size());
  return {value / n, size / n};
}
// An error dm of the mean enters through 2 |x - m| dm and dm^2, where dm is up to n f32 roundings of the sum.
ValueAndSize var_of(const Values& v, double correction) {
  const auto [m, size] = mean_of(v);
  Sum s;
  const double square = static_cast<double>(v.size()) * 0x1p-23 * size * size;
  for (double x : v) s.add((x - m) * (x - m), (x - m) * (x - m) + 2 * std::fabs(x - m) * size + square);
  const double n = std::max(0.0, static_cast<double>(v.size()) - correction);
  return {s.value / n, s.size / n};
}
double max_of(const Values& v) {
  double m = -INFINITY;
  for (double x : v)
    if (x > m || std::isnan(x)) m = x;
  return m;
}
ValueAndSize logsumexp_of(const Values& v) {
  const double m = v.empty() ? 0 : max_of(v);
  if (v.empty() || std::isinf(m)) return {v.empty() ? -INFINITY : m, 0};
  double s = 0;
  for (double x : v) s += std::exp(x - m);
  double spread = 0;  // the error of x - m shows as relative error of exp
  for (double x : v) spread += std::exp(x - m) * std::fabs(x - m) / s;
  return {m + std::log(s), std::fabs(m) + std::fabs(std::log(s)) + spread + 1};
}
ValueAndSize norm_of(const Values& v, double p) {
  double s = 0;
  double largest = 0;
  for (double x : v) {
    s += std::pow(std::fabs(x), p);
    largest = std::max(largest, std::fabs(x));
  }
  const double y = std::isinf(p) ? largest : std::pow(s, 1 / p);
  return {y, y};
}

using ReduceOp = std::function<Tensor(const Tensor&, const Shape&, bool)>;

struct Reduction {
  ReduceOp op;
  RangeFn f;
  bool long_sum = true;
  bool distinct = false;
  bool positive = false;  // distinct and above 0, so that magnitudes differ too
  bool empty = true;      // a range without elements has a value
  DType (*out)(DType) = [](DType d) { return d; };
};

void reduction_samples(Draw& d, const Reduction& r, const std::string& label, std::vector<Sample>& all) {
  const auto add = [&](const Shape& sizes, const std::vector<int>& dims, bool keepdim, bool large = false) {
    Shape wanted;
    for (int dim : dims) wanted.push_back(dim);
    Tensor x = r.distinct && !large ? d.distinct(sizes) : d.away(sizes, -2, 3, {0});
    if (r.positive && !large) {
      Array shifted = to_array(x);
      for (double& v : shifted.v) v += static_cast<double>(x.numel() / 2 + 1) / 4;
      x = d.values(shifted.v, sizes);
    }
    all.push_back({label + " dims " + to_string(wanted),
                   {x},
                   one([r, wanted, keepdim](const Tensor& t) { return r.op(t, wanted, keepdim); }),
                   [r, dims, keepdim](const Arrays& in) -> Arrays {
                     return {reduce_reference(in[0], dims, keepdim, r.out(in[0].dtype), r.long_sum, r.f)};
                   },
                   large});
  };
  add({3, 4, 5}, {}, false);
  add({3, 4, 5}, {2}, false);
  add({3, 4, 5}, {0}, true);
  add({3, 4, 5}, {-2}, false);
  add({2, 3, 4, 5}, {0, 2}, false);
  add({2, 3, 4, 5}, {1, 3}, true);
  add({2, 3, 4, 5}, {0, 2, 3}, false);
  add({37}, {0}, false);
  add({5}, {}, true);
  add({}, {}, false);
  add({0, 3}, {1}, false);
  if (r.empty) add({2, 0, 3}, {1}, false);
  add({70001}, {}, false, true);
  add({301, 417}, {1}, false, true);
  add({417, 301}, {0}, false, true);
  add({8, 16, 23, 29}, {0, 2, 3}, false, true);
}

std::function<std::vector<Sample>(Draw&)> reduced(Reduction r) {
  return [r](Draw& d) {
    std::vector<Sample> all;
    reduction_samples(d, r, "", all);
    return all;
  };
}

std::vector<Sample> sum_samples(Draw& d) {
  std::vector<Sample> all;
  reduction_samples(d,
                    {.op = [](const Tensor& x, const Shape& dims, bool keep) { return sum(x, dims, keep); },
                     .f = sum_of,
                     .out = [](DType t) { return is_floating(t) ? t : DType::i64; }},
                    "", all);
  return all;
}

std::vector<Sample> var_samples(Draw& d) {
  std::vector<Sample> all;
  for (const double correction : {1.0, 0.0}) {
    std::vector<Sample> some;
    reduction_samples(
        d,
        {[correction](const Tensor& x, const Shape& dims, bool keep) { return var(x, dims, keep, correction); },
         [correction](const Values& v) { return var_of(v, correction); }},
        "correction " + std::to_string(static_cast<int>(correction)), some);
    for (Sample& s : some) {
      // One value has a variance of 0/0 with the correction, and no gradient.
      s.gradient = s.inputs[0].dim() > 0 || correction == 0;
      all.push_back(s);
    }
  }
  return all;
}

std::vector<Sample> norm_samples(Draw& d) {
  std::vector<Sample> all;
  for (const double p : {2.0, 1.0, 3.0})
    reduction_samples(d,
                      {[p](const Tensor& x, const Shape& dims, bool keep) { return norm(x, p, dims, keep); },
                       [p](const Values& v) { return norm_of(v, p); }},
                      "p " + std::to_string(p), all);
  reduction_samples(d,
                    {.op = [](const Tensor& x, const Shape& dims, bool keep) { return norm(x, INFINITY, dims, keep); },
                     .f = [](const Values& v) { return norm_of(v, INFINITY); },
                     .distinct = true,
                     .positive = true},
                    "p inf", all);
  return all;
}

std::vector<Sample> extreme_samples(Draw& d, const ReduceOp& op, const RangeFn& f) {
  std::vector<Sample> all;
  reduction_samples(d, {.op = op, .f = f, .long_sum = false, .distinct = true, .empty = false}, "", all);
  if (is_floating(d.dtype)) {
    all.push_back(
        {"special",
         {d.values({1, NAN, 3, -INFINITY, 2, INFINITY}, {2, 3})},
         one([op](const Tensor& x) { return op(x, {1}, false); }),
         [f](const Arrays& in) -> Arrays { return {reduce_reference(in[0], {1}, false, in[0].dtype, false, f)}; },
         false,
         false});
  }
  return all;
}

// The first of equals; NaN counts as the extreme.
RangeFn argument(bool largest) {
  return [largest](const Values& v) -> ValueAndSize {
    std::size_t best = 0;
    for (std::size_t i = 1; i < v.size(); ++i) {
      const bool better = largest ? v[i] > v[best] : v[i] < v[best];
      if (!std::isnan(v[best]) && (better || std::isnan(v[i]))) best = i;
    }
    return {static_cast<double>(best), 0};
  };
}

std::vector<Sample> argument_samples(Draw& d, bool largest) {
  std::vector<Sample> all;
  const auto add = [&](const std::string& label, const Tensor& x, int dim, bool keepdim, bool large = false) {
    all.push_back({label,
                   {x},
                   one([=](const Tensor& t) { return largest ? argmax(t, dim, keepdim) : argmin(t, dim, keepdim); }),
                   [=](const Arrays& in) -> Arrays {
                     return {reduce_reference(in[0], {dim}, keepdim, DType::i64, false, argument(largest))};
                   },
                   large});
  };
  add("last", d.distinct({4, 7}), -1, false);
  add("first", d.distinct({4, 3, 5}), 0, true);
  add("middle", d.distinct({4, 3, 5}), 1, false);
  add("equals", d.values({1, 5, 5, 1, 0, 1, 0, 0}, {2, 4}), 1, false);
  add("1-d", d.distinct({31}), 0, false);
  add("empty", d.distinct({0, 3}), 1, false);
  add("large", d.uniform({301, 417}, -50, 50), 1, false, true);
  add("large first", d.uniform({417, 301}, -50, 50), 0, false, true);
  if (is_floating(d.dtype)) add("special", d.values({1, NAN, 3, -INFINITY, 2, INFINITY}, {2, 3}), 1, false);
  Sample zero{"0-d",
              {d.values({3}, {})},
              one([largest](const Tensor& t) { return largest ? argmax(t, 0) : argmin(t, 0); }),
              [](const Arrays&) -> Arrays { return {make_array({}, DType::i64)}; }};
  all.push_back(zero);
  return all;
}

std::vector<BadInput> dim_errors(const char* op, const ReduceOp& f) {
  const std::string start = std::string(op) + ": dim ";
  return {{"dim",
           [f] {
             f(ones({2, 3}), {2}, false);
           },
           start + "2 is out of range for a 2-d tensor"},
          {"twice",
           [f] {
             f(ones({2, 3}), {1, -1}, false);
           },
           start + "-1 is listed twice"}};
}

Row reduction(OpId op, const char* policy, const std::vector<DType>& dtypes, double ulps, const Reduction& r) {
  return {.op = op,
          .policy = policy,
          .dtypes = dtypes,
          .samples = reduced(r),
          .ulps = ulps,
          .bad = dim_errors(gradual::to_string(op).data(), r.op)};
}

}  // namespace

std::vector<Row> reduction_rows() {
  std::vector<DType> summed = kNumbers;
  summed.push_back(DType::bool_);
  const ReduceOp sum_op = [](const Tensor& x, const Shape& dims, bool keep) { return sum(x, dims, keep); };
  const ReduceOp mean_op = [](const Tensor& x, const Shape& dims, bool keep) { return mean(x, dims, keep); };
  const ReduceOp var_op = [](const Tensor& x, const Shape& dims, bool keep) { return var(x, dims, keep); };
  const ReduceOp max_op = [](const Tensor& x, const Shape& dims, bool keep) { return max(x, dims, keep); };
  const ReduceOp min_op = [](const Tensor& x, const Shape& dims, bool keep) { return min(x, dims, keep); };
  const ReduceOp lse_op = [](const Tensor& x, const Shape& dims, bool keep) { return logsumexp(x, dims, keep); };
  const ReduceOp norm_op = [](const Tensor& x, const Shape& dims, bool keep) { return norm(x, 2, dims, keep); };
  const RangeFn max_fn = [](const Values& v) { return ValueAndSize{max_of(v), 0}; };
  const RangeFn min_fn = [](const Values& v) {
    Values negated = v;
    for (double& x : negated) x = -x;
    return ValueAndSize{-max_of(negated), 0};
  };
  std::vector<Row> rows;
  rows.push_back(reduction(OpId::sum, "fp32", summed, 1, {sum_op, sum_of}));
  rows.back().samples = sum_samples;
  rows.push_back(reduction(OpId::mean, "pass", kAllButF8, 2, {.op = mean_op, .f = mean_of, .out = [](DType d) {
                                                                return is_floating(d) ? d : DType::f32;
                                                              }}));
  rows.push_back(reduction(OpId::var, "pass", kFloats, 4, {var_op, nullptr}));
  rows.back().samples = var_samples;
  rows.push_back(reduction(OpId::max, "pass", kNumbers, 0, {max_op, max_fn}));
  rows.back().samples = [=](Draw& d) { return extreme_samples(d, max_op, max_fn); };
  rows.push_back(reduction(OpId::min, "pass", kNumbers, 0, {min_op, min_fn}));
  rows.back().samples = [=](Draw& d) { return extreme_samples(d, min_op, min_fn); };
  for (Row* row : {&rows[3], &rows[4]}) {
    row->roundings = 0;
    const ReduceOp op = row->op == OpId::max ? max_op : min_op;
    row->bad.push_back({"empty", [op] { op(zeros({0, 3}), {0}, false); }, "an empty range has no"});
    row->bad.push_back({"empty, all", [op] { op(zeros({0}), {}, false); }, "an empty range has no"});
  }
  rows.push_back(reduction(OpId::logsumexp, "fp32", kFloats, 8, {lse_op, logsumexp_of}));
  // The pth root of a sum of pth powers: pow is allowed 8 ulps, and p-fold before the root.
  rows.push_back(reduction(OpId::norm, "fp32", kFloats, 16, {norm_op, nullptr}));
  rows.back().samples = norm_samples;
  for (const bool largest : {true, false}) {
    const OpId op = largest ? OpId::argmax : OpId::argmin;
    const auto call = [largest](const Tensor& x, int dim) { return largest ? argmax(x, dim) : argmin(x, dim); };
    rows.push_back({.op = op,
                    .policy = "pass",
                    .dtypes = kNumbers,
                    .samples = [largest](Draw& d) { return argument_samples(d, largest); },
                    .bad = {{"dim",
                             [=] {
                               call(ones({2, 3}), 2);
                             },
                             "dim 2 is out of range"},
                            {"empty",
                             [=] {
                               call(zeros({0, 3}), 0);
                             },
                             "an empty range has no extreme"},
                            {"bool", [=] { call(ones({2}, {.dtype = DType::bool_}), 0); }, "takes numbers"}},
                    .no_gradient = "the output is an index"});
  }
  return rows;
}

}  // namespace gradual::test
