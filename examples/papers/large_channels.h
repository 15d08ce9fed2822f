// Shared by the reproductions of papers on outliers: a layer whose input has a few channels that are far larger.
#pragma once

#include "paper.h"

namespace paper {

// Every eighth channel of x is `factor` times as large.
inline Tensor with_large_channels(const Tensor& x, double factor) {
  const Tensor large = x.clone();
  for (std::int64_t c = 0; c < x.size(1); c += 8) large.narrow(1, c, 1).mul_(factor);
  return large;
}

// Squared errors by the squares, in percent: of the layer's output and of the gradient of its weight.
struct LayerErrors {
  double output = 0;
  double gradient = 0;
};

// A linear layer of 128 inputs and 64 outputs, 256 samples, in the step after outlier channels are chosen (if the
// recipe has some).
inline LayerErrors errors_with_large_channels(amp::Recipe recipe, double factor) {
  recipe.name = "one layer";
  recipe.oscillation_reset.reset();
  if (recipe.quantization->outliers) {
    recipe.quantization->outliers->window = 1;
    recipe.quantization->outliers->share = 0.125;
  }
  default_generator() = Generator(11);
  nn::Linear layer(128, 64, {.bias = false});
  const Tensor x = with_large_channels(randn({256, 128}), factor);
  const Tensor dy = randn({256, 64});
  amp::RecipeRun run(recipe, layer, optim::SGDOptions{.lr = 0});
  run.step([&] { return (layer(x) * dy).sum(); });
  Tensor y;
  const Tensor loss = run.forward([&] {
    y = layer(x);
    return (y * dy).sum();
  });
  run.backward(loss);
  const NoGrad off;
  const auto percent = [](const Tensor& got, const Tensor& exact) {
    return 100 * square(got - exact).sum().item() / square(exact).sum().item();
  };
  return {percent(y, matmul(x, layer.weight.t())), percent(layer.weight.grad(), matmul(dy.t(), x))};
}

}  // namespace paper
