// User-defined optimizers under a recipe: RMSprop, Lion and Muon, each written with ops (own_optimizers.h), train a
// network whose parameters are f16 with FP32 masters and a dynamic loss scale.
#include "own_optimizers.h"

#include <gradual/data/digits.h>
#include <gradual/lab/models.h>

#include "example.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Optimizers written with ops, under any recipe.\n  own_optimizers [--recipe NAME] [--epochs N]\n";

template <class T> amp::MakeOptimizer make(const optim::ParamGroup& rates) {
  return [rates](std::vector<optim::ParamGroup> groups, const optim::UpdateOptions& precision) {
    return std::make_unique<T>(std::move(groups), rates, precision);
  };
}

// Muon for the matrices of the MLP, which has no biases.
struct Mlp : nn::Module {
  nn::Linear& fc1 = register_module("fc1", nn::Linear(64, 128, {.bias = false}));
  nn::Linear& fc2 = register_module("fc2", nn::Linear(128, 10, {.bias = false}));
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(flatten(x, 1)))); }
};

double accuracy_with(const amp::MakeOptimizer& optimizer, const amp::Recipe& recipe, int epochs) {
  manual_seed(0);
  const data::Split digits = data::split(data::digits(), 1437);
  data::DataLoader loader(digits.train, {.batch = 64, .shuffle = true});
  Mlp net;
  net.to(example::device());
  amp::RecipeRun run(recipe, net, optimizer, {.clip_norm = 5});
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (const data::Batch& batch : loader)
      run.step(
          [&] { return cross_entropy(net(batch.inputs.to(example::device())), batch.targets.to(example::device())); });
  const Tensor guess = run.evaluate([&] { return net(digits.test.inputs.to(example::device())); }).argmax(1);
  return (guess.to(Device::cpu()) == digits.test.targets).to(DType::f32).mean().item();
}

void body(example::Arguments& arguments) {
  const amp::Recipe recipe = amp::recipe(arguments.text("--recipe", "fp16-master"));
  const int epochs = static_cast<int>(arguments.number("--epochs", 6));
  arguments.done();
  const std::pair<const char*, amp::MakeOptimizer> all[] = {
      {"RMSprop", make<example::RMSProp>({.lr = 1e-3})},
      {"Lion", make<example::Lion>({.lr = 1e-3, .weight_decay = 0.1})},
      {"Muon", make<example::Muon>({.lr = 0.02})},
      {"AdamW, the fused row", optim::AdamWOptions{.lr = 2e-3}},
  };
  std::printf("test accuracy on the digits under %s\n", recipe.name.c_str());
  for (const auto& [name, optimizer] : all) {
    const double accuracy = accuracy_with(optimizer, recipe, epochs);
    std::printf("  %-22s %.2f%%\n", name, 100 * accuracy);
    example::claim(epochs < 6 || accuracy > 0.9, (std::string(name) + " learns the digits").c_str());
  }
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
