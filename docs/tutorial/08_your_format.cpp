// A format and a recipe of your own: both are data.
#include <gradual/gradual.h>

#include <cmath>
#include <cstdio>

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& hidden = register_module("hidden", nn::Linear(64, 64));
  nn::Linear& last = register_module("last", nn::Linear(64, 10));
  Tensor forward(const Tensor& x) override { return last(relu(hidden(flatten(x, 1)))); }
};

// Trains a small network to read digits. Returns the share of the test images that it reads, to the nearest 5%.
double accuracy(const amp::Recipe& recipe) {
  manual_seed(1);
  Net net;
  amp::RecipeRun run(recipe, net, optim::AdamWOptions{.lr = 2e-3});
  const data::Split digits = data::split(data::digits(), 1437);
  data::DataLoader loader(digits.train, {.batch = 64, .shuffle = true});
  for (int epoch = 0; epoch < 5; ++epoch)
    for (const data::Batch& batch : loader) run.step([&] { return cross_entropy(net(batch.inputs), batch.targets); });
  const Tensor guess = run.evaluate([&] { return net(digits.test.inputs); }).argmax(1);
  return 5 * std::round(20 * (guess == digits.test.targets).mean().item());
}

// Every operand of the three products of a layer: forward x and W, backward dy and W, x and dy.
amp::Recipe recipe_of(const char* name, const Quantizer& q) {
  amp::Recipe recipe{.name = name};
  recipe.quantization = amp::Quantization{q, q, q, q, q, q};
  return recipe;
}

}  // namespace

int main() {
  // Five bits: sign, three for the exponent, one for the mantissa. Every code is a number; none is Inf or NaN.
  const Format mine{.exponent_bits = 3, .mantissa_bits = 1, .bias = 3};
  for (std::uint32_t code = 0; code <= mine.max_code(); ++code) std::printf("%g ", mine.decode(code));
  std::printf("(gap at 1: %g)\n\n", mine.epsilon());

  const Quantizer nearest{.format = mine};
  Quantizer stochastic = nearest, blocks = nearest;
  stochastic.rounding = rounding_from_name("stochastic");
  blocks.scaling = PowerBlocks{.block = 32};
  amp::Recipe spared = recipe_of("e3m1, last layer fp32", nearest);
  spared.quantization->modules = {{"last", "fp32"}};

  for (const amp::Recipe& recipe : {amp::recipe("fp32"), recipe_of("e3m1", nearest), spared,
                                    recipe_of("e3m1, stochastic", stochastic), recipe_of("e3m1, blocks", blocks)})
    std::printf("%-22s %3.0f%%\n", recipe.name.c_str(), accuracy(recipe));
}
