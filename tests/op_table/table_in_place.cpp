// In-place rows, and the rows whose tests stand elsewhere.
#include "samples.h"

namespace gradual::test {
namespace {

using Apply = void (*)(const Tensor& x, const Tensor& y);

std::vector<Sample> written(Draw& d, Apply apply, double (*reference)(double, double), bool other_dtypes) {
  std::vector<Sample> all;
  const Call call = [apply](const Tensors& in) -> Tensors {
    apply(in[0], in[1]);
    return {in[0]};
  };
  const Reference ref = [reference](const Arrays& in) -> Arrays {
    return {tabulate(in[0].sizes, in[0].dtype, [&](const std::vector<std::int64_t>& at) {
      return reference(at_broadcast(in[0], at), at_broadcast(in[1], at));
    })};
  };
  const auto add = [&](const char* label, const Shape& x, const Shape& y, bool large = false) {
    all.push_back({label, {d.uniform(x, -2, 3), d.uniform(y, -2, 3)}, call, ref, large});
  };
  add("same", {3, 4, 5}, {3, 4, 5});
  add("row", {4, 5}, {5});
  add("column", {4, 5}, {4, 1});
  add("0-d", {}, {});
  add("0-d operand", {7}, {});
  add("empty", {0, 3}, {3});
  add("large", {301, 257}, {301, 257}, true);
  add("large row", {301, 257}, {257}, true);
  if (!other_dtypes) return all;
  for (DType from : kAll) {
    if (from == d.dtype) continue;
    // whole numbers of few bits: every dtype holds them
    Draw whole = d.with(DType::u8);
    const Array v = to_array(whole.uniform({3, 4}, d.dtype == DType::bool_ || from == DType::bool_ ? 0 : 1,
                                           d.dtype == DType::bool_ || from == DType::bool_ ? 1 : 7));
    all.push_back({"from " + std::string(to_string(from)),
                   {d.uniform({3, 4}, -2, 3), d.with(from).values(v.v, {3, 4})},
                   call,
                   ref});
  }
  return all;
}

std::vector<Sample> with_number(Draw& d, void (*apply)(const Tensor& x), double (*reference)(double)) {
  std::vector<Sample> all;
  for (const Shape& s : {Shape{3, 4, 5}, Shape{}, Shape{0, 3}, Shape{301, 257}})
    all.push_back({"number",
                   {d.uniform(s, -2, 3)},
                   [apply](const Tensors& in) -> Tensors {
                     apply(in[0]);
                     return {in[0]};
                   },
                   [reference](const Arrays& in) -> Arrays {
                     Array y = in[0];
                     for (double& v : y.v) v = reference(v);
                     return {y};
                   },
                   s == Shape{301, 257}});
  return all;
}

std::vector<Sample> joined(std::vector<Sample> a, const std::vector<Sample>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// running mean, running var, how many batches; mean and invstd of a batch, in dtype `statistics`.
std::vector<Sample> running_samples(Draw& d) {
  constexpr double kEps = 1e-3;
  std::vector<Sample> all;
  const auto add = [&](const char* label, std::int64_t channels, DType statistics, double momentum,
                       std::int64_t count) {
    Draw of_batch = d.with(statistics);
    Tensor invstd = of_batch.uniform({channels}, 0.5, 2);
    if (channels == 5) invstd = of_batch.values({0.7, 1 / std::sqrt(kEps), 2 / std::sqrt(kEps), 1, 1.3}, {5});
    const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
    all.push_back(
        {label,
         {d.uniform({channels}, -2, 3), d.uniform({channels}, 0.1, 3), d.with(DType::i64).values({41}, {}),
          of_batch.uniform({channels}, -2, 3), invstd},
         [=](const Tensors& in) -> Tensors {
           batch_norm_update_(in[0], in[1], in[2], in[3], in[4], {momentum, kEps, count});
           return {in[0], in[1], in[2]};
         },
         [=](const Arrays& in) -> Arrays {
           const auto moved = [=](const Array& running, const Array& batch, double rate, auto value) {
             return tabulate_sums(running.sizes, running.dtype, 2, [=](const auto& at) -> ValueAndSize {
               const double old = at_broadcast(running, at);
               const double now = at_broadcast(batch, at);
               const auto [v, size] = value(now);
               return {(1 - momentum) * old + rate * v, std::fabs((1 - momentum) * old) + std::fabs(rate) * size};
             });
           };
           const auto itself = [](double x) -> ValueAndSize { return {x, std::fabs(x)}; };
           const auto var = [=](double r) -> ValueAndSize {
             return {std::max(0.0, 1 / (r * r) - kEps), 1 / (r * r) + kEps};
           };
           Array batches = in[2];
           batches[0] += 1;
           return {moved(in[0], in[3], momentum, itself), moved(in[1], in[4], momentum * unbiased, var), batches};
         },
         channels > 2000});
  };
  const DType own = statistics_of(d.dtype);
  add("channels", 7, own, 0.1, 24);
  add("var at and below 0", 5, own, 0.25, 2);
  add("replaced", 3, own, 1, 9);
  add("of a batch in f64", 6, DType::f64, 0.1, 30);
  add("empty", 0, own, 0.1, 4);
  add("large", 40001, own, 0.1, 1000);
  return all;
}

std::vector<BadInput> running_errors() {
  const auto update = [](const Tensor& mean, const Tensor& var, const Tensor& batches, const Tensor& of_batch,
                         const Tensor& invstd, std::int64_t count = 8) {
    batch_norm_update_(mean, var, batches, of_batch, invstd, {.count = count});
  };
  const auto batches = [] { return zeros({}, {.dtype = DType::i64}); };
  const auto half = [](const Shape& sizes) { return ones(sizes, {.dtype = DType::f16}); };
  return {
      {"dims",
       [=] {
         update(ones({3, 1}), ones({3}), batches(), ones({3}), ones({3}));
       },
       "input 0 must be 1-d"},
      {"sizes", [=] { update(ones({3}), ones({4}), batches(), ones({3}), ones({3})); }, "a running var must be [3]"},
      {"batch", [=] { update(ones({3}), ones({3}), batches(), ones({3}), ones({2})); }, "invstd must be [3]"},
      {"dtypes", [=] { update(ones({3}), half({3}), batches(), ones({3}), ones({3})); }, "a running var must be f32"},
      {"halves", [=] { update(ones({3}), ones({3}), batches(), half({3}), half({3})); }, "are f32 or f64, given f16"},
      {"no count", [=] { update(ones({3}), ones({3}), Tensor(), ones({3}), ones({3})); }, "needs a count of batches"},
      {"a float count", [=] { update(ones({3}), ones({3}), zeros({}), ones({3}), ones({3})); }, "must be i64"},
      {"counts", [=] { update(ones({3}), ones({3}), expand(batches(), {2}), ones({3}), ones({3})); }, "one number"},
      {"one value", [=] { update(ones({3}), ones({3}), batches(), ones({3}), ones({3}), 1); }, "more than one value"},
      {"expanded", [=] { update(ones({3}), expand(ones({1}), {3}), batches(), ones({3}), ones({3})); },
       "an expanded tensor cannot be written"},
      {"gradients", [=] { update(ones({3}), ones({3}), batches(), ones({3}, {.requires_grad = true}), ones({3})); },
       "outside the graph"}};
}

std::vector<BadInput> written_errors(Apply apply) {
  return {{"larger",
           [apply] {
             apply(ones({3}), ones({2, 3}));
           },
           "the operand is larger than the tensor written"},
          {"shapes", [apply] { apply(ones({3}), ones({2})); }, "do not broadcast"},
          {"expanded", [apply] { apply(expand(ones({1}), {3}), ones({3})); }, "an expanded tensor cannot be written"},
          {"undefined", [apply] { apply(ones({3}), Tensor()); }, "undefined"}};
}

}  // namespace

std::vector<Row> in_place_rows() {
  std::vector<Row> rows;
  const Apply add = [](const Tensor& x, const Tensor& y) { x.add_(y); };
  rows.push_back({.op = OpId::add_,
                  .policy = "pass",
                  .dtypes = kNumbers,
                  .samples =
                      [add](Draw& d) {
                        std::vector<Sample> all = written(
                            d, add, [](double x, double y) { return x + y; }, false);
                        all = joined(all, with_number(
                                              d, [](const Tensor& x) { x.add_(2); }, [](double x) { return x + 2; }));
                        if (!is_floating(d.dtype)) return all;
                        return joined(all, written(
                                               d, [](const Tensor& x, const Tensor& y) { x.add_(y, 0.5); },
                                               [](double x, double y) { return x + 0.5 * y; }, false));
                      },
                  .ulps = 1,
                  .bad = written_errors(add)});
  const Apply mul = [](const Tensor& x, const Tensor& y) { x.mul_(y); };
  rows.push_back({.op = OpId::mul_,
                  .policy = "pass",
                  .dtypes = kNumbers,
                  .samples =
                      [mul](Draw& d) {
                        return joined(written(
                                          d, mul, [](double x, double y) { return x * y; }, false),
                                      with_number(
                                          d, [](const Tensor& x) { x.mul_(3); }, [](double x) { return x * 3; }));
                      },
                  .bad = written_errors(mul)});
  const Apply copy = [](const Tensor& x, const Tensor& y) { x.copy_(y); };
  rows.push_back({.op = OpId::copy_,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples =
                      [copy](Draw& d) {
                        return written(
                            d, copy, [](double, double y) { return y; }, true);
                      },
                  .roundings = 0,
                  .bad = written_errors(copy)});
  rows.push_back({.op = OpId::fill_,
                  .policy = "pass",
                  .dtypes = kAll,
                  .samples =
                      [](Draw& d) {
                        return with_number(
                            d, [](const Tensor& x) { x.fill_(1); }, [](double) { return 1.0; });
                      },
                  .roundings = 0,
                  .bad = {{"expanded", [] { expand(ones({1}), {3}).fill_(1); }, "an expanded tensor cannot be written"},
                          {"undefined", [] { Tensor().fill_(1); }, "needs a tensor"}}});
  rows.push_back({.op = OpId::batch_norm_update_,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = running_samples,
                  .roundings = 2,
                  .ulps = 6,
                  .constant_inputs = {0, 1, 2, 3, 4},
                  .written = 3,
                  .bad = running_errors(),
                  .no_gradient = "outside the graph"});
  // The optimizers own what these rows take; their tests hold the fused updates against scalar loops.
  for (OpId op : {OpId::unscale_, OpId::sgd_step_, OpId::adam_step_})
    rows.push_back({.op = op,
                    .policy = "pass",
                    .dtypes = {},
                    .samples = nullptr,
                    .no_samples = "tests of the optimizers hold the update against a scalar loop",
                    .no_gradient = "outside the graph"});
  rows.push_back({.op = OpId::leaf,
                  .policy = "pass",
                  .dtypes = {},
                  .samples = nullptr,
                  .no_samples = "the tape's entry of a leaf: nothing calls it",
                  .no_kernel = "the tape's entry of a leaf: nothing calls it",
                  .no_gradient = "a leaf gathers its gradient"});
  rows.push_back({.op = OpId::custom,
                  .policy = "pass",
                  .dtypes = {},
                  .samples = nullptr,
                  .no_samples = "a user's function: tests of autograd define some"});
  return rows;
}

}  // namespace gradual::test
