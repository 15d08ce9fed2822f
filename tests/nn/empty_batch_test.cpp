// Every layer and every function of images on a batch of no samples: an empty result, and backward runs.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <functional>
#include <string>
#include <vector>

using namespace gradual;

namespace {

struct Case {
  std::string name;
  Shape input, output;
  std::function<Tensor(const Tensor&)> run;
};

// A module's call, which keeps it alive.
template <class M> std::function<Tensor(const Tensor&)> layer(M module) {
  return [shared = std::make_shared<M>(std::move(module))](const Tensor& x) { return (*shared)(x); };
}

std::vector<Case> cases() {
  const Shape image{0, 4, 6, 6};
  const Shape row{0, 4};
  const Shape sequence{0, 3, 4};
  return {
      {"Linear", row, {0, 5}, layer(nn::Linear(4, 5))},
      {"Conv1d", {0, 4, 6}, {0, 2, 4}, layer(nn::Conv1d(4, 2, 3))},
      {"Conv2d", image, {0, 2, 4, 4}, layer(nn::Conv2d(4, 2, 3))},
      {"ConvTranspose2d", image, {0, 2, 8, 8}, layer(nn::ConvTranspose2d(4, 2, 3))},
      {"BatchNorm1d", row, row, layer(nn::BatchNorm1d(4))},
      {"BatchNorm2d", image, image, layer(nn::BatchNorm2d(4))},
      {"LayerNorm", sequence, sequence, layer(nn::LayerNorm(4))},
      {"RMSNorm", sequence, sequence, layer(nn::RMSNorm(4))},
      {"GroupNorm", image, image, layer(nn::GroupNorm(2, 4))},
      {"GroupNorm of rows", row, row, layer(nn::GroupNorm(2, 4))},
      {"MaxPool2d", image, {0, 4, 3, 3}, layer(nn::MaxPool2d(2))},
      {"AvgPool2d", image, {0, 4, 3, 3}, layer(nn::AvgPool2d(2))},
      {"Flatten", image, {0, 144}, layer(nn::Flatten())},
      {"ReLU", image, image, layer(nn::ReLU())},
      {"GELU", image, image, layer(nn::GELU())},
      {"Dropout", image, image, layer(nn::Dropout(0.5))},
      {"TransformerBlock", sequence, sequence, layer(nn::TransformerBlock(4, 2))},
      {"interpolate", image, {0, 4, 3, 9}, [](const Tensor& x) { return interpolate(x, 3, 9); }},
      {"bilinear", image, {0, 4, 3, 9}, [](const Tensor& x) { return interpolate(x, 3, 9, Interpolation::bilinear); }},
      {"adaptive_max_pool2d", image, {0, 4, 2, 2}, [](const Tensor& x) { return adaptive_max_pool2d(x, 2, 2); }},
      {"adaptive_avg_pool2d", image, {0, 4, 2, 2}, [](const Tensor& x) { return adaptive_avg_pool2d(x, 2, 2); }},
      {"softmax", row, row, [](const Tensor& x) { return softmax(x, 1); }},
      {"log_softmax", row, row, [](const Tensor& x) { return log_softmax(x, 1); }},
      {"cumsum", row, row, [](const Tensor& x) { return cumsum(x, 1); }},
      {"cumprod", row, row, [](const Tensor& x) { return cumprod(x, 1); }},
      {"prod", row, {0}, [](const Tensor& x) { return prod(x, 1); }},
      {"prod of all", row, {}, [](const Tensor& x) { return prod(x); }},
      {"flip", row, row,
       [](const Tensor& x) {
         return flip(x, {0, 1});
       }},
      {"roll", row, row, [](const Tensor& x) { return roll(x, 1, 0); }},
      {"repeat",
       row,
       {0, 8},
       [](const Tensor& x) {
         return repeat(x, {2, 2});
       }},
      {"sort", row, row, [](const Tensor& x) { return sort(x).values; }},
      {"topk", row, {0, 2}, [](const Tensor& x) { return topk(x, 2).values; }},
      {"max_with_indices", row, {0}, [](const Tensor& x) { return max_with_indices(x, 1).values; }},
      {"stddev", row, {0}, [](const Tensor& x) { return stddev(x, {1}); }},
      {"nan_to_num", row, row, [](const Tensor& x) { return nan_to_num(x); }},
      {"einsum",
       row,
       {0, 4},
       [](const Tensor& x) {
         return einsum("ni,ij->nj", {x, ones({4, 4})});
       }},
      {"huber_loss", row, row, [](const Tensor& x) { return huber_loss(x, x * 2, Reduction::none); }},
      {"nll_loss",
       row,
       {0},
       [](const Tensor& x) { return nll_loss(x, zeros({0}, {.dtype = DType::i64}), Reduction::none); }},
      {"cross_entropy",
       row,
       {},
       [](const Tensor& x) {
         return cross_entropy(x, zeros({0}, {.dtype = DType::i64}), {.reduction = Reduction::sum});
       }},
  };
}

}  // namespace

TEST_CASE("a batch of no samples gives an empty result, forward and backward") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const Tensor x = zeros(c.input).set_requires_grad();
    Tensor y;
    CHECK_NOTHROW(y = c.run(x));
    if (!y.defined()) continue;
    CHECK(y.sizes() == c.output);
    CHECK_NOTHROW(y.sum().backward());
    REQUIRE(x.grad().defined());
    CHECK(x.grad().sizes() == c.input);
  }
}
