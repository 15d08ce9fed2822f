// Losses with weights and ignored classes, soft targets, cumprod, nan_to_num, corners of interpolate, padding of
// Embedding: PyTorch's numbers and definitions.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "support/files.h"

using namespace gradual;
using test::contains;
using test::message_of;

namespace {

using Values = std::vector<double>;
Tensor doubles(const Values& v, const Shape& sizes) { return from_data(v, sizes, {.dtype = DType::f64}); }
Tensor classes(const std::vector<std::int64_t>& v, const Shape& sizes) { return from_data(v, sizes); }
void check_near(const Tensor& got, const Values& expected) {
  const Values all = got.to_vector<double>();
  REQUIRE(all.size() == expected.size());
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == doctest::Approx(expected[i]).epsilon(1e-12));
}

}  // namespace

TEST_CASE("nll_loss: ignored classes, weights, dims after the classes") {
  const Tensor log_p = doubles({-1, -2, -3, -4, -5, -6}, {2, 3});
  const Tensor y = classes({1, -100}, {2});
  check_near(nll_loss(log_p, y), {2});
  check_near(nll_loss(log_p, y, Reduction::sum), {2});
  check_near(nll_loss(log_p, y, Reduction::none), {2, 0});
  const Tensor weight = doubles({1, 2, 4}, {3});
  check_near(nll_loss(log_p, classes({1, 2}, {2}), {.weight = weight}), {(2 * 2 + 4 * 6) / 6.0});
  check_near(nll_loss(log_p, classes({1, 2}, {2}), {.reduction = Reduction::none, .weight = weight}), {4, 24});
  check_near(nll_loss(log_p, classes({1, 2}, {2}), {.ignore_index = 2, .weight = weight}), {2});
  CHECK(std::isnan(nll_loss(log_p, classes({-100, -100}, {2})).item()));
  // [N, C, d]: element d of sample n reads column d
  const Tensor deep = doubles({-1, -2, -3, -4, -5, -6, -7, -8}, {2, 2, 2});
  check_near(nll_loss(deep, classes({0, 1, -100, 0}, {2, 2}), Reduction::none), {1, 4, 0, 6});
  check_near(nll_loss(deep, classes({0, 1, -100, 0}, {2, 2})), {11 / 3.0});
  // an ignored element's infinite log-probability does not count, also in backward
  const Tensor x = doubles({-1, -INFINITY}, {2, 1}).set_requires_grad();
  const Tensor loss = nll_loss(x, classes({0, -100}, {2}));
  loss.backward();
  check_near(loss, {1});
  check_near(x.grad(), {-1, 0});
}

TEST_CASE("nll_loss names a class out of range, not the op that it is made of") {
  const Tensor log_p = zeros({2, 3});
  CHECK(message_of([&] {
          nll_loss(log_p, classes({0, 7}, {2}));
        }) == "nll_loss: class 7 of element 1; allowed are 0 to 2 and ignore_index, -100");
  CHECK(contains(message_of([&] { nll_loss(log_p, classes({0, -1}, {2})); }), "class -1 of element 1"));
  CHECK(contains(message_of([&] { nll_loss(log_p, classes({0}, {1})); }), "[2, 3] and classes i64 [1]"));
  CHECK(contains(message_of([&] {
                   nll_loss(log_p, classes({0, 1}, {2}), {.weight = ones({2})});
                 }),
                 "nll_loss: weights f32 [2] for [2, 3]; allowed are floats [C]"));
}

TEST_CASE("weighted and soft cross entropy agree with their definitions") {
  const Tensor logits = doubles({0.5, -1, 2, 0.25, 1, -0.5}, {2, 3});
  const Tensor y = classes({2, 0}, {2});
  const Tensor even = ones({3}, {.dtype = DType::f64});
  for (const double smoothing : {0.0, 0.2})
    for (const Reduction by : {Reduction::none, Reduction::sum, Reduction::mean}) {
      const CrossEntropyOptions o{.reduction = by, .label_smoothing = smoothing};
      const Values expected = cross_entropy(logits, y, o).to_vector<double>();
      check_near(weighted_cross_entropy(logits, y, even, o), expected);
      check_near(soft_cross_entropy(logits, doubles({0, 0, 1, 1, 0, 0}, {2, 3}), o), expected);
    }
  // torch.nn.functional.cross_entropy(.., weight): sum of w -log p over the sum of w
  const Tensor weight = doubles({1, 2, 4}, {3});
  const Values log_p = log_softmax(logits, 1).to_vector<double>();
  check_near(weighted_cross_entropy(logits, y, weight), {-(4 * log_p[2] + log_p[3]) / 5});
  double smooth = 0;
  for (std::size_t i = 0; i < 6; ++i) smooth -= (1 << (i % 3)) * log_p[i];
  check_near(weighted_cross_entropy(logits, y, weight, {.label_smoothing = 0.3}),
             {-0.7 * (4 * log_p[2] + log_p[3]) / 5 + 0.3 / 3 * smooth / 5});
  CHECK(contains(message_of([&] { soft_cross_entropy(logits, even); }), "soft_cross_entropy: logits [2, 3]"));
}

TEST_CASE("cumprod and its gradient at zeros") {
  const Tensor x = doubles({2, 0, 3, -1}, {4}).set_requires_grad();
  const Tensor y = cumprod(x, 0);
  check_near(y, {2, 0, 0, 0});
  y.sum().backward();
  check_near(x.grad(), {1, 2 + 6 - 6, 0, 0});
  check_near(cumprod(doubles({1, 2, 3, 4, 5, 6}, {2, 3}), 1), {1, 2, 6, 4, 20, 120});
  check_near(cumprod(doubles({1, 2, 3, 4, 5, 6}, {2, 3}), 0), {1, 2, 3, 4, 10, 18});
}

TEST_CASE("nan_to_num") {
  const Tensor x = doubles({1, NAN, INFINITY, -INFINITY}, {4}).set_requires_grad();
  const double most = std::numeric_limits<double>::max();
  CHECK(nan_to_num(x).to_vector<double>() == Values{1, 0, most, -most});
  const Tensor y = nan_to_num(x, 5, 6, 7);
  CHECK(y.to_vector<double>() == Values{1, 5, 6, 7});
  y.sum().backward();
  CHECK(x.grad().to_vector<double>() == Values{1, 0, 0, 0});
  CHECK(nan_to_num(full({1}, INFINITY, {.dtype = DType::f16})).item() == 65504);
}

TEST_CASE("interpolate with corners that stay") {
  const Tensor x = doubles({0, 1, 2, 3}, {1, 1, 2, 2});
  check_near(interpolate(x, 3, 3, Interpolation::bilinear_corners), {0, 0.5, 1, 1, 1.5, 2, 2, 2.5, 3});
  check_near(interpolate(x, 1, 1, Interpolation::bilinear_corners), {0});
  const Tensor row = doubles({0, 3, 6, 9}, {1, 1, 1, 4});
  check_near(interpolate(row, 1, 3, Interpolation::bilinear_corners), {0, 4.5, 9});
}

TEST_CASE("Embedding: the padded entry is zero and gets no gradient") {
  nn::Embedding table(4, 2, {.padding_idx = 1});
  CHECK(table.weight.detach().select(0, 1).to_vector<double>() == Values{0, 0});
  table(classes({0, 1, 1, 3}, {2, 2})).sum().backward();
  CHECK(table.weight.grad().to_vector<double>() == Values{1, 1, 0, 0, 0, 0, 1, 1});
  CHECK(contains(message_of([] { nn::Embedding(4, 2, {.padding_idx = 4}); }), "padding_idx is 4; allowed are 0 to 3"));
}

TEST_CASE("state dicts: tied weights under one key, batch norms without a count of batches") {
  struct Tied : nn::Module {
    std::shared_ptr<nn::Linear> shared = std::make_shared<nn::Linear>(2, 2);
    Tied() {
      register_module("encoder", shared);
      register_module("decoder", shared);
    }
  };
  Tied tied;
  StateDict one;
  one.set("encoder.weight", full({2, 2}, 3));
  one.set("encoder.bias", full({2}, 4));
  CHECK(tied.load_state_dict(one).missing.empty());
  CHECK(tied.shared->weight.detach().to_vector<double>() == Values{3, 3, 3, 3});
  StateDict none;
  none.set("encoder.weight", full({2, 2}, 3));
  CHECK(contains(message_of([&] { tied.load_state_dict(none); }), "encoder.bias"));

  nn::Sequential net(nn::BatchNorm1d(2));
  StateDict old = net.state_dict();
  StateDict without;
  for (const auto& [name, value] : old)
    if (name != "0.num_batches_tracked") without.set(name, std::get<Tensor>(value));
  CHECK(net.load_state_dict(without).missing.empty());
}

TEST_CASE("batch norm without running statistics says why evaluation needs several values") {
  nn::BatchNorm1d norm(3, {.track_running_stats = false});
  norm.eval();
  CHECK(contains(message_of([&] { norm(ones({1, 3})); }), "it keeps no running statistics, so evaluation needs"));
}
