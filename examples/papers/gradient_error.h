// Shared by the reproductions of papers on unbiased rounding: how far the gradient of one layer's weight is off.
#pragma once

#include <cstdint>

#include "paper.h"

namespace paper {

// The error of one gradient, and that of the mean of many, as parts of the exact gradient's size.
struct GradientErrors {
  double one = 0;
  double mean = 0;
};

// A linear layer of 64 inputs and 32 outputs, 128 samples. x and dy are normal numbers, of which one sample in 64 is
// `outlier` times as large. Each draw rounds with random numbers of its own. size: of a tensor, its norm or the square.
inline GradientErrors gradient_errors(const amp::Recipe& recipe, double outlier, long draws,
                                      double (*size)(const Tensor&)) {
  constexpr std::int64_t kSamples = 128;
  constexpr std::int64_t kInputs = 64;
  constexpr std::int64_t kOutputs = 32;
  default_generator() = Generator(1);
  nn::Linear layer(kInputs, kOutputs, {.bias = false});
  const Tensor factor = ones({kSamples, 1});
  for (std::int64_t i = 0; i < kSamples; i += 64) factor.narrow(0, i, 1).fill_(outlier);
  const Tensor x = randn({kSamples, kInputs}) * factor;
  const Tensor dy = randn({kSamples, kOutputs}) * factor;
  const Tensor exact = matmul(dy.t(), x);
  Tensor mean = zeros_like(exact);
  GradientErrors found;
  for (long k = 0; k < draws; ++k) {
    default_generator() = Generator(static_cast<std::uint64_t>(k + 2));
    {
      const amp::RecipeScope scope(recipe);
      (layer(x) * dy).sum().backward();
    }
    const Tensor gradient = layer.weight.grad();
    found.one += size(gradient - exact) / size(exact) / static_cast<double>(draws);
    mean += gradient / static_cast<double>(draws);
    layer.weight.zero_grad();
  }
  found.mean = size(mean - exact) / size(exact);
  return found;
}

}  // namespace paper
