// Ops that take an index: numbers that are looked up arrive bit for bit, those that meet are summed.
#include "moved.h"

namespace gradual::test {
namespace {

struct Lookup {
  Shape x, index;
  int dim;
  bool large = false;
};
std::vector<Lookup> lookups() {
  return {{{4, 3}, {2, 3}, 0}, {{4, 3}, {4, 5}, 1}, {{2, 3, 4}, {2, 2, 4}, -2}, {{5}, {9}, 0},
          {{}, {}, 0},         {{0, 3}, {0, 3}, 1}, {{3, 4}, {2, 2}, 1},        {{301, 211}, {301, 223}, 1, true}};
}
int wrapped(const Lookup& l) { return l.dim < 0 ? l.dim + l.x.size() : l.dim; }
std::int64_t extent(const Lookup& l) { return l.x.empty() ? 1 : l.x[wrapped(l)]; }

std::vector<Sample> gather_samples(Draw& d) {
  std::vector<Sample> all;
  for (const Lookup& l : lookups()) {
    add(
        all, to_string(l.index) + " of " + to_string(l.x), {d.uniform(l.x, -9, 9), d.index(l.index, extent(l))},
        two([dim = l.dim](const Tensor& x, const Tensor& i) { return gather(x, dim, i); }), always(l.index),
        [dim = wrapped(l)](const Arrays& in, const Index& at) {
          Index own = at;
          if (!own.empty()) own[static_cast<std::size_t>(dim)] = static_cast<std::int64_t>(pick(in[1], at));
          return pick(in[0], own);
        },
        l.large);
  }
  return all;
}

// A sum of terms that arrive at positions of the result.
struct Scatter {
  Array y;
  std::vector<double> count;
  explicit Scatter(const Array& start) : y(start), count(start.v.size(), 1) {
    y.magnitude = start.v;
    for (double& m : y.magnitude) m = std::fabs(m);
  }
  void add(std::int64_t at, double v) {
    y[at] += v;
    y.mag(at) += std::fabs(v);
    y.length = std::max(y.length, ++count[static_cast<std::size_t>(at)]);
  }
};

std::vector<Sample> scatter_add_samples(Draw& d) {
  std::vector<Sample> all;
  for (const Lookup& l : lookups()) {
    all.push_back({to_string(l.index) + " into " + to_string(l.x),
                   {d.uniform(l.x, -2, 2), d.index(l.index, extent(l)), d.uniform(l.index, -2, 2)},
                   [dim = l.dim](const Tensors& t) -> Tensors { return {scatter_add(t[0], dim, t[1], t[2])}; },
                   [dim = wrapped(l)](const Arrays& in) -> Arrays {
                     Scatter s(in[0]);
                     for (std::int64_t i = 0; i < in[1].numel(); ++i) {
                       Index at = unflatten(in[1].sizes, i);
                       const double v = pick(in[2], at);
                       if (!at.empty()) at[static_cast<std::size_t>(dim)] = static_cast<std::int64_t>(in[1][i]);
                       s.add(flat_index(in[0].sizes, at), v);
                     }
                     return {s.y};
                   },
                   l.large});
  }
  return all;
}

struct RowLookup {
  Shape x;
  std::int64_t entries;
  int dim;
  bool large = false;
};
std::vector<RowLookup> row_lookups() {
  return {{{4, 3}, 6, 0},
          {{4, 3}, 2, 1},
          {{2, 5, 3}, 4, -2},
          {{7}, 3, 0},
          {{3, 2}, 0, 0},
          {{301, 211}, 223, 1, true},
          {{211, 301}, 223, 0, true}};
}

std::vector<Sample> index_select_samples(Draw& d) {
  std::vector<Sample> all;
  for (const RowLookup& l : row_lookups()) {
    const int dim = l.dim < 0 ? l.dim + l.x.size() : l.dim;
    Shape to = l.x;
    to[dim] = l.entries;
    add(
        all, to_string(l.x) + " dim " + std::to_string(l.dim), {d.uniform(l.x, -9, 9), d.index({l.entries}, l.x[dim])},
        two([wanted = l.dim](const Tensor& x, const Tensor& i) { return index_select(x, wanted, i); }), always(to),
        [dim](const Arrays& in, const Index& at) {
          Index own = at;
          own[static_cast<std::size_t>(dim)] = static_cast<std::int64_t>(in[1][at[static_cast<std::size_t>(dim)]]);
          return pick(in[0], own);
        },
        l.large);
  }
  return all;
}

std::vector<Sample> index_add_samples(Draw& d) {
  std::vector<Sample> all;
  for (const RowLookup& l : row_lookups()) {
    const int dim = l.dim < 0 ? l.dim + l.x.size() : l.dim;
    const std::int64_t size = std::max<std::int64_t>(1, l.entries);
    all.push_back(
        {to_string(l.x) + " dim " + std::to_string(l.dim),
         {d.uniform(l.x, -2, 2), d.index({l.x[dim]}, size)},
         two([wanted = l.dim, size](const Tensor& x, const Tensor& i) { return index_add(x, wanted, i, size); }),
         [dim, size](const Arrays& in) -> Arrays {
           Shape to = in[0].sizes;
           to[dim] = size;
           Scatter s(make_array(to, in[0].dtype));
           for (std::int64_t i = 0; i < in[0].numel(); ++i) {
             Index at = unflatten(in[0].sizes, i);
             auto& row = at[static_cast<std::size_t>(dim)];
             row = static_cast<std::int64_t>(in[1][row]);
             s.add(flat_index(to, at), in[0][i]);
           }
           return {s.y};
         },
         l.large});
  }
  all.push_back({"empty",
                 {d.uniform({0, 3}, -2, 2), d.index({0}, 1)},
                 two([](const Tensor& x, const Tensor& i) { return index_add(x, 0, i, 2); }),
                 [](const Arrays& in) -> Arrays {
                   return {make_array({2, 3}, in[0].dtype)};
                 }});
  return all;
}

std::vector<Sample> one_hot_samples(Draw& d) {
  std::vector<Sample> all;
  for (const Shape& s : {Shape{5}, Shape{2, 3}, Shape{}, Shape{0, 2}, Shape{301, 30}}) {
    Shape to = s;
    to.push_back(7);
    add(
        all, to_string(s), {d.index(s, 7)}, one([](const Tensor& x) { return one_hot(x, 7); }), always(to),
        [](const Arrays& in, const Index& at) {
          return in[0][flat_index(in[0].sizes, {at.begin(), at.end() - 1})] == static_cast<double>(at.back()) ? 1.0
                                                                                                              : 0.0;
        },
        s == Shape{301, 30});
  }
  return all;
}

}  // namespace

std::vector<Row> indexing_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  const auto index = [](const Shape& s, double v) { return full(s, v, {.dtype = DType::i64}); };
  std::vector<Row> rows;
  rows.push_back({.op = OpId::gather, .policy = "pass", .dtypes = kAll, .samples = gather_samples});
  rows.back().refuses("index", "gather", [=] { gather(f({2, 3}), 0, index({1, 3}, 2)); });
  rows.back().refuses("negative", "gather", [=] { gather(f({2, 3}), 0, index({1, 3}, -1)); });
  rows.back().refuses("dims", "the same number of dims", [=] { gather(f({2, 3}), 0, index({3}, 0)); });
  rows.back().refuses("larger", "larger than x at dim 1", [=] { gather(f({2, 3}), 0, index({1, 4}, 0)); });
  rows.back().refuses("dtype", "index must be i64", [=] { gather(f({2}), 0, f({2})); });
  rows.push_back({.op = OpId::scatter_add, .policy = "promote", .dtypes = kNumbers, .samples = scatter_add_samples});
  rows.back().refuses("index", "scatter_add", [=] { scatter_add(f({2}), 0, index({1}, 2), f({1})); });
  rows.back().refuses("source", "larger than src at dim 0", [=] { scatter_add(f({2}), 0, index({2}, 0), f({1})); });
  rows.back().refuses("dtype", "x and src must have one dtype",
                      [=] { scatter_add(f({2}), 0, index({1}, 0), f({1}).to(DType::f64)); });
  rows.push_back({.op = OpId::index_select,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples = index_select_samples,
                  .no_scalar = "has no dim to index"});
  rows.back().refuses("index", "index_select", [=] { index_select(f({2, 3}), 1, index({1}, 3)); });
  rows.back().refuses("negative", "index_select", [=] { index_select(f({2, 3}), 1, index({1}, -1)); });
  rows.back().refuses("2-d", "input 1 must be 1-d", [=] { index_select(f({2, 3}), 1, index({1, 1}, 0)); });
  rows.back().refuses("0-d", "no dim to index", [=] { index_select(f({}), 0, index({1}, 0)); });
  rows.push_back({.op = OpId::index_add,
                  .policy = "pass",
                  .dtypes = kNumbers,
                  .samples = index_add_samples,
                  .no_scalar = "has no dim to index"});
  rows.back().refuses("index", "index_add", [=] { index_add(f({2, 3}), 0, index({2}, 5), 5); });
  rows.back().refuses("entries", "the index must be [2], given [3]", [=] {
    index_add(f({2, 3}), 0, index({3}, 0), 5);
  });
  rows.push_back({.op = OpId::one_hot,
                  .policy = "pass",
                  .dtypes = {DType::i64},
                  .samples = one_hot_samples,
                  .no_gradient = "the output is an integer"});
  rows.back().refuses("class", "one_hot", [=] { one_hot(index({2}, 3), 3); });
  rows.back().refuses("negative", "one_hot", [=] { one_hot(index({2}, -1), 3); });
  rows.back().refuses("count", "must be at least 1", [=] { one_hot(index({2}, 0), 0); });
  rows.back().refuses("dtype", "index must be i64", [=] { one_hot(f({2}), 3); });
  for (Row& row : rows)
    if (row.op != OpId::scatter_add && row.op != OpId::index_add) row.roundings = 0;
  return rows;
}

}  // namespace gradual::test
