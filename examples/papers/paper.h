// Shared by the reproductions of papers: the data, a training of a classifier, and means over seeds.
#pragma once

#include <gradual/data/data_loader.h>
#include <gradual/data/digits.h>
#include <gradual/data/idx.h>
#include <gradual/gradual.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../example.h"

namespace paper {

using namespace gradual;

// The digits of the library, 8x8 pixels: 1,437 to train and 360 to test; with --mnist DIR, images in MNIST's files.
inline data::Split images(example::Arguments& arguments) {
  const std::string folder = arguments.text("--mnist", "");
  data::Split s = folder.empty() ? data::split(data::digits(), 1437) : data::mnist(folder);
  std::printf("data: %s, %ld images to train, %ld to test\n", folder.empty() ? "digits, 8x8" : folder.c_str(),
              static_cast<long>(s.train.size()), static_cast<long>(s.test.size()));
  return s;
}

struct Training {
  std::function<std::shared_ptr<nn::Module>()> model;  // from images to logits
  amp::MakeOptimizer optimizer = optim::SGDOptions{.lr = 0.1};
  int epochs = 10;
  long batch = 100;
  // Edits a run before its first step.
  std::function<void(amp::RecipeRun&)> prepare = {};
};

struct Outcome {
  double loss = 0;      // mean of the last epoch
  double accuracy = 0;  // of the test images, in percent
};

// Trains with weights, batches and random rounding of that seed.
inline Outcome train(const Training& t, const data::Split& data, const amp::Recipe& recipe, std::uint64_t seed) {
  default_generator() = Generator(seed);
  const auto model = t.model();
  amp::RecipeRun run(recipe, *model, t.optimizer, {.seed = seed});
  if (t.prepare) t.prepare(run);
  data::DataLoader loader(data.train, {.batch = t.batch, .shuffle = true, .seed = seed, .drop_last = true});
  Outcome out;
  for (int epoch = 0; epoch < t.epochs; ++epoch) {
    out.loss = 0;
    for (const data::Batch& b : loader)
      out.loss += run.step([&] { return cross_entropy((*model)(b.inputs), b.targets); }).loss.item();
    out.loss /= static_cast<double>(loader.size());
  }
  model->eval();
  const Tensor logits = run.evaluate([&] { return (*model)(data.test.inputs); });
  out.accuracy = 100 * eq(argmax(logits, 1), data.test.targets).to(DType::f32).mean().item();
  return out;
}

// The mean over seeds 1 to `seeds`.
inline Outcome mean_of_seeds(const Training& t, const data::Split& data, const amp::Recipe& recipe, long seeds) {
  Outcome sum;
  for (long seed = 1; seed <= seeds; ++seed) {
    const Outcome one = train(t, data, recipe, static_cast<std::uint64_t>(seed));
    sum.loss += one.loss / static_cast<double>(seeds);
    sum.accuracy += one.accuracy / static_cast<double>(seeds);
  }
  return sum;
}

inline void print(const std::string& name, const Outcome& o) {
  std::printf("%-27s %7.3f %9.1f%%\n", name.c_str(), o.loss, o.accuracy);
}

}  // namespace paper
