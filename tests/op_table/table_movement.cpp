// Views, slices, joining: every number must arrive bit for bit.
#include "../support/gradients.h"
#include "moved.h"

namespace gradual::test {
namespace {

std::vector<Sample> view_samples(Draw& d) {
  std::vector<Sample> all;
  const auto reshape_to = [&](const Shape& from, const Shape& to, const Shape& given) {
    add(all, to_string(from) + " to " + to_string(given), {d.uniform(from, -9, 9)},
        one([given](const Tensor& x) { return reshape(x, given); }), always(to),
        [to](const Arrays& in, const Index& at) { return in[0][flat_index(to, at)]; });
  };
  reshape_to({3, 4}, {12}, {-1});
  reshape_to({2, 3, 4}, {6, 4}, {6, -1});
  reshape_to({2, 3, 4}, {2, 12}, {2, 12});
  reshape_to({6}, {1, 3, 2}, {1, 3, 2});
  reshape_to({}, {1, 1}, {1, 1});
  reshape_to({1}, {}, {});
  reshape_to({0, 3}, {3, 0, 2}, {3, 0, 2});
  const auto other = [&](const char* label, const Shape& from, const Shape& to, Tensor (*f)(const Tensor&)) {
    add(all, label, {d.uniform(from, -9, 9)}, one(f), always(to),
        [to](const Arrays& in, const Index& at) { return in[0][flat_index(to, at)]; });
  };
  other("squeeze", {3, 1, 2}, {3, 2}, [](const Tensor& x) { return squeeze(x, 1); });
  other("squeeze of no 1", {3, 2}, {3, 2}, [](const Tensor& x) { return squeeze(x, 0); });
  other("unsqueeze", {3, 2}, {3, 1, 2}, [](const Tensor& x) { return unsqueeze(x, 1); });
  other("unsqueeze last", {3, 2}, {3, 2, 1}, [](const Tensor& x) { return unsqueeze(x, -1); });
  other("flatten", {2, 3, 4}, {2, 12}, [](const Tensor& x) { return flatten(x, 1); });
  other("flatten 0-d", {}, {1}, [](const Tensor& x) { return flatten(x); });
  return all;
}

std::vector<Sample> permute_samples(Draw& d) {
  std::vector<Sample> all;
  for (const Shape& dims : {Shape{2, 0, 1}, Shape{0, 2, 1}, Shape{-1, 1, 0}, Shape{0, 1, 2}}) {
    const Shape from{2, 3, 4};
    Shape to;
    Index source;
    for (std::int64_t dim : dims) {
      source.push_back(dim < 0 ? dim + 3 : dim);
      to.push_back(from[static_cast<int>(source.back())]);
    }
    add(all, to_string(dims), {d.uniform(from, -9, 9)}, one([dims](const Tensor& x) { return permute(x, dims); }),
        always(to), [source](const Arrays& in, const Index& at) {
          Index own(3);
          for (std::size_t i = 0; i < 3; ++i) own[static_cast<std::size_t>(source[i])] = at[i];
          return pick(in[0], own);
        });
  }
  add(all, "transpose", {d.uniform({3, 4}, -9, 9)}, one([](const Tensor& x) { return transpose(x, 0, -1); }),
      always({4, 3}), [](const Arrays& in, const Index& at) {
        return pick(in[0], {at[1], at[0]});
      });
  add(all, "empty", {d.uniform({0, 3}, -9, 9)}, one([](const Tensor& x) { return x.t(); }), always({3, 0}),
      [](const Arrays&, const Index&) { return 0; });
  add(all, "0-d", {d.uniform({}, -9, 9)}, one([](const Tensor& x) { return permute(x, {}); }), always({}),
      [](const Arrays& in, const Index&) { return in[0][0]; });
  return all;
}

std::vector<Sample> expand_samples(Draw& d) {
  std::vector<Sample> all;
  const auto grow = [&](const Shape& from, const Shape& to, const Shape& given) {
    add(all, to_string(from) + " to " + to_string(given), {d.uniform(from, -9, 9)},
        one([given](const Tensor& x) { return expand(x, given); }), always(to),
        [](const Arrays& in, const Index& at) { return at_broadcast(in[0], at); });
  };
  grow({3, 1}, {3, 4}, {3, 4});
  grow({3}, {2, 3}, {2, -1});
  grow({1, 3, 1}, {2, 3, 4}, {2, -1, 4});
  grow({}, {2, 2}, {2, 2});
  grow({1, 3}, {0, 3}, {0, 3});
  grow({0, 1}, {0, 4}, {-1, 4});
  return all;
}

std::vector<Sample> slice_samples(Draw& d) {
  std::vector<Sample> all;
  const auto cut = [&](const char* label, const Shape& from, const Shape& to, int dim, std::int64_t start,
                       std::int64_t step, bool drops, const std::function<Tensor(const Tensor&)>& f) {
    add(all, label, {d.uniform(from, -9, 9)}, one(f), always(to), [=](const Arrays& in, const Index& at) {
      Index own = at;
      if (drops) own.insert(own.begin() + dim, 0);
      own[static_cast<std::size_t>(dim)] = start + own[static_cast<std::size_t>(dim)] * step;
      return pick(in[0], own);
    });
  };
  cut("range", {5, 3}, {2, 3}, 0, 1, 1, false, [](const Tensor& x) { return slice(x, 0, {1, 3}); });
  cut("step", {2, 7}, {2, 3}, 1, 1, 2, false, [](const Tensor& x) { return slice(x, -1, {1, 6, 2}); });
  cut("negative", {6, 2}, {2, 2}, 0, 3, 1, false, [](const Tensor& x) { return slice(x, 0, {-3, -1}); });
  cut("clamped", {4, 2}, {3, 2}, 0, 1, 1, false, [](const Tensor& x) { return slice(x, 0, {1, 100}); });
  cut("empty range", {4, 2}, {0, 2}, 0, 3, 1, false, [](const Tensor& x) { return slice(x, 0, {3, 1}); });
  cut("empty", {0, 2}, {0, 1}, 1, 1, 1, false, [](const Tensor& x) { return slice(x, 1, {1, 2}); });
  cut("narrow", {2, 5, 2}, {2, 2, 2}, 1, 2, 1, false, [](const Tensor& x) { return narrow(x, 1, 2, 2); });
  cut("select", {3, 4, 2}, {3, 2}, 1, 2, 1, true, [](const Tensor& x) { return select(x, 1, -2); });
  cut("index", {3, 4, 6}, {2, 3}, 1, 1, 1, true, [](const Tensor& x) {
    return x[1].index({Slice{0, 2}, Slice{0, {}, 2}});
  });
  all.back().reference = [](const Arrays& in) -> Arrays {
    return {tabulate({2, 3}, in[0].dtype, [&](const Index& at) { return pick(in[0], {1, at[0], 2 * at[1]}); })};
  };
  all.push_back({"split",
                 {d.uniform({5, 2}, -9, 9)},
                 [](const Tensors& in) { return split(in[0], 2, 0); },
                 [](const Arrays& in) {
                   Arrays parts;
                   for (const std::int64_t start : {0, 2, 4})
                     parts.push_back(tabulate({start < 4 ? 2 : 1, 2}, in[0].dtype, [&](const Index& at) {
                       return pick(in[0], {start + at[0], at[1]});
                     }));
                   return parts;
                 }});
  return all;
}

std::vector<Sample> slice_backward_samples(Draw& d) {
  std::vector<Sample> all;
  const auto put = [&](const Shape& dy, const SliceAttrs& a, const Shape& to, bool large = false) {
    add(
        all, to_string(dy), {d.uniform(dy, -9, 9)}, one([a](const Tensor& t) { return slice_backward(t, a); }),
        always(to),
        [a](const Arrays& in, const Index& at) {
          Index own = at;
          const std::int64_t i = at[static_cast<std::size_t>(a.dim)] - a.start;
          if (i < 0 || i % a.step != 0 || i / a.step >= in[0].sizes[a.dim]) return 0.0;
          own[static_cast<std::size_t>(a.dim)] = i / a.step;
          return pick(in[0], own);
        },
        large);
  };
  put({2, 3}, {.dim = 0, .start = 1, .stop = 3, .step = 1, .size = 5}, {5, 3});
  put({2, 3}, {.dim = 1, .start = 1, .stop = 6, .step = 2, .size = 7}, {2, 7});
  put({2, 1, 3}, {.dim = 1, .start = 2, .stop = 3, .step = 1, .size = 4}, {2, 4, 3});
  put({0, 3}, {.dim = 0, .start = 2, .stop = 2, .step = 1, .size = 4}, {4, 3});
  put({300, 200}, {.dim = 1, .start = 1, .stop = 401, .step = 2, .size = 411}, {300, 411}, true);
  return all;
}

std::vector<Sample> cat_samples(Draw& d) {
  std::vector<Sample> all;
  const auto join = [&](const std::vector<Shape>& parts, int dim, const Shape& to, bool large = false) {
    Tensors in;
    for (const Shape& s : parts) in.push_back(d.uniform(s, -9, 9));
    const int axis = dim < 0 ? dim + to.size() : dim;
    add(
        all, std::to_string(parts.size()) + " at dim " + std::to_string(dim), in,
        [dim](const Tensors& t) -> Tensors { return {cat(t, dim)}; }, always(to),
        [axis](const Arrays& a, const Index& at) {
          Index own = at;
          std::size_t part = 0;
          while (own[static_cast<std::size_t>(axis)] >= a[part].sizes[axis])
            own[static_cast<std::size_t>(axis)] -= a[part++].sizes[axis];
          return pick(a[part], own);
        },
        large);
  };
  join({{2, 3}, {1, 3}, {3, 3}}, 0, {6, 3});
  join({{2, 3}, {2, 1}}, -1, {2, 4});
  join({{2, 1, 4}, {2, 3, 4}}, 1, {2, 4, 4});
  join({{3}}, 0, {3});
  join({{2, 0}, {2, 3}, {2, 0}}, 1, {2, 3});
  join({{0, 3}, {0, 3}}, 0, {0, 3});
  join({{301, 100}, {301, 211}}, 1, {301, 311}, true);
  add(
      all, "stack", {d.uniform({2, 3}, -9, 9), d.uniform({2, 3}, -9, 9)},
      [](const Tensors& t) -> Tensors { return {stack(t, 1)}; }, always({2, 2, 3}),
      [](const Arrays& a, const Index& at) {
        return pick(a[static_cast<std::size_t>(at[1])], {at[0], at[2]});
      });
  add(
      all, "stack 0-d", {d.uniform({}, -9, 9), d.uniform({}, -9, 9)},
      [](const Tensors& t) -> Tensors { return {stack(t)}; }, always({2}),
      [](const Arrays& a, const Index& at) { return a[static_cast<std::size_t>(at[0])][0]; });
  return all;
}

std::vector<Sample> pad_samples(Draw& d) {
  std::vector<Sample> all;
  const auto frame = [&](const Shape& from, const Shape& before, const Shape& after, double value, bool large = false) {
    Shape to = from;
    for (int i = 0; i < to.size(); ++i) to[i] += before[i] + after[i];
    add(
        all, to_string(before) + " " + to_string(after), {d.uniform(from, -9, 9)},
        one([=](const Tensor& x) { return pad(x, before, after, value); }), always(to),
        [before, value](const Arrays& in, const Index& at) {
          Index own = at;
          for (std::size_t i = 0; i < own.size(); ++i) {
            own[i] -= before[static_cast<int>(i)];
            if (own[i] < 0 || own[i] >= in[0].sizes[static_cast<int>(i)]) return value;
          }
          return pick(in[0], own);
        },
        large);
  };
  frame({3, 4}, {1, 0}, {0, 2}, 0);
  frame({2, 2, 3, 2}, {0, 0, 1, 2}, {0, 1, 1, 0}, 1);
  frame({5}, {2}, {3}, 1);
  frame({3, 2}, {0, 0}, {0, 0}, 0);
  frame({}, {}, {}, 0);
  frame({0, 2}, {1, 1}, {1, 0}, 1);
  frame({300, 200}, {1, 2}, {3, 4}, 0, true);
  return all;
}

std::vector<Sample> tril_samples(Draw& d) {
  std::vector<Sample> all;
  for (const std::int64_t diagonal : {0, 1, -1, 5, -7})
    for (const Shape& s : {Shape{4, 4}, Shape{3, 5}, Shape{2, 5, 3}, Shape{0, 3}, Shape{301, 257}}) {
      if (s == Shape{301, 257} && diagonal != 1) continue;
      add(
          all, "diagonal " + std::to_string(diagonal), {d.uniform(s, 1, 9)},
          one([diagonal](const Tensor& x) { return tril(x, diagonal); }), always(s),
          [diagonal](const Arrays& in, const Index& at) {
            return at[at.size() - 1] - at[at.size() - 2] <= diagonal ? pick(in[0], at) : 0;
          },
          s == Shape{301, 257});
    }
  return all;
}

}  // namespace

std::vector<Row> movement_rows() {
  const auto f = [](const Shape& s) { return ones(s); };
  const std::string moves_nothing = "a view has no loop";
  std::vector<Row> rows;
  rows.push_back({.op = OpId::view,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples = view_samples,
                  .no_kernel = "a view",
                  .no_large = moves_nothing});
  rows.back().refuses("size", "view", [=] { view(f({3, 4}), {5}); });
  rows.back().refuses("two unknown", "only one size can be -1", [=] { view(f({4}), {-1, -1}); });
  rows.back().refuses("strides", "without a copy; use reshape", [=] { view(f({3, 4}).t(), {12}); });
  rows.back().refuses("flatten", "is after end", [=] { flatten(f({2, 3}), 1, 0); });
  rows.push_back({.op = OpId::permute,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples = permute_samples,
                  .no_kernel = "a view",
                  .no_large = moves_nothing});
  rows.back().refuses("twice", "does not list every dim", [=] { permute(f({2, 3}), {0, 0}); });
  rows.back().refuses("missing", "does not list every dim", [=] { permute(f({2, 3}), {0}); });
  rows.back().refuses("dim", "dim 2 is out of range", [=] { transpose(f({2, 3}), 0, 2); });
  rows.push_back({.op = OpId::expand,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples = expand_samples,
                  .no_kernel = "a view",
                  .no_large = moves_nothing});
  rows.back().refuses("size", "expand: [3, 2] does not expand to [3, 4]", [=] { expand(f({3, 2}), {3, 4}); });
  rows.back().refuses("fewer", "expand: [3, 2]", [=] { expand(f({3, 2}), {2}); });
  rows.push_back({.op = OpId::slice,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples = slice_samples,
                  .no_kernel = "a view",
                  .no_scalar = "has no dim to slice",
                  .no_large = moves_nothing});
  rows.back().refuses("step", "step 0 is not allowed", [=] { slice(f({3}), 0, {0, 3, 0}); });
  rows.back().refuses("dim", "dim 1 is out of range", [=] { slice(f({3}), 1, {0, 3}); });
  rows.back().refuses("0-d", "a 0-d tensor has no dim to slice", [=] { slice(f({}), 0, {}); });
  rows.back().refuses("narrow", "narrow: start 2 and length 2 leave dim 0", [=] { narrow(f({3}), 0, 2, 2); });
  rows.back().refuses("select", "index 3 is out of range", [=] { select(f({3}), 0, 3); });
  rows.back().refuses("split", "split: size 0", [=] { split(f({3}), 0); });
  rows.push_back({.op = OpId::slice_backward,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples = slice_backward_samples,
                  .no_scalar = "has no dim to slice"});
  rows.back().refuses("undefined", "slice_backward", [=] { slice_backward(Tensor(), SliceAttrs{.size = 2}); });
  rows.push_back({.op = OpId::cat, .policy = "promote", .dtypes = kAll, .samples = cat_samples});
  rows.back().refuses("nothing", "needs at least one tensor", [=] { cat({}); });
  rows.back().refuses("sizes", "all sizes but those of dim 0 must be equal", [=] { cat({f({2, 3}), f({2, 4})}); });
  rows.back().refuses("0-d", "use stack", [=] { cat({f({}), f({})}); });
  rows.back().refuses("stack", "all shapes must be equal", [=] { stack({f({2}), f({3})}); });
  rows.push_back({.op = OpId::pad, .policy = "pass", .dtypes = kAll, .samples = pad_samples});
  rows.back().refuses("entries", "one entry for each dim of [2, 3]", [=] { pad(f({2, 3}), {1}, {1}); });
  rows.back().refuses("negative", "must not be negative; use narrow", [=] { pad(f({2}), {-1}, {0}); });
  rows.push_back(
      {.op = OpId::tril, .policy = "pass", .dtypes = kAll, .samples = tril_samples, .no_scalar = "needs a matrix"});
  rows.back().refuses("1-d", "needs at least two dims", [=] { tril(f({3})); });
  for (Row& row : rows) row.roundings = 0;
  return rows;
}

}  // namespace gradual::test
