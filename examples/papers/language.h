// A language of words that follow contexts, and the training of a small network on it.
#pragma once

#include "paper.h"

namespace paper {

// The next word after a context x of normal numbers, drawn from a linear model in which words have the frequencies of a
// language (Zipf). Nobody knows the draws: the loss of the language itself is a floor.
struct Language {
  std::int64_t words;
  std::int64_t inputs;
  Tensor weight = randn({words, inputs}) * (1.5 / std::sqrt(inputs));
  Tensor bias = -log(arange(1, static_cast<double>(words + 1), 1));

  Tensor logits(const Tensor& x) const { return matmul(x, weight.t()) + bias; }
  Tensor draw(const Tensor& x, Generator& generator = default_generator()) const {
    const Tensor gumbel = -log(-log(rand({x.size(0), words}, {}, generator) + 1e-20));
    return argmax(logits(x) + gumbel, 1);
  }
};

struct LanguageTraining {
  std::int64_t batch = 128;
  std::uint64_t seed = 1;  // of the weights and of random rounding
  long steps = 1000;
  // The words after a batch of contexts. `contexts` is the generator that these come from.
  std::function<Tensor(const Tensor& x, Generator& contexts)> draw;
  // What is averaged over the last quarter of the steps.
  std::function<double(double loss, const Tensor& x, const Tensor& y)> measure;
};

// Trains two hidden layers of 128 with Adam. The rate falls tenfold in the last quarter of the steps.
inline double train(const Language& language, const amp::Recipe& recipe, const LanguageTraining& t) {
  nn::Sequential model{nn::Linear(language.inputs, 128), nn::ReLU(), nn::Linear(128, 128), nn::ReLU(),
                       nn::Linear(128, language.words)};
  amp::RecipeRun run(recipe, model, optim::AdamOptions{.lr = 3e-3}, {.seed = t.seed});
  Generator contexts(t.seed + 1000);
  const long slow = t.steps / 4;
  double sum = 0;
  for (long step = 0; step < t.steps; ++step) {
    if (step == t.steps - slow) run.optimizer().param_groups()[0].lr = 3e-4;
    const Tensor x = randn({t.batch, language.inputs}, {}, contexts);
    const Tensor y = t.draw(x, contexts);
    const double loss = run.step([&] { return cross_entropy(model(x), y); }).loss.item();
    if (step >= t.steps - slow) sum += t.measure(loss, x, y);
  }
  return sum / static_cast<double>(slow);
}

}  // namespace paper
