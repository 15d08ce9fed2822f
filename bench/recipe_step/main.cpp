// gradual-recipe-step: the time of a language model's training step under each recipe, relative to the first one.
// Processor time of all threads; the median over the rounds, each of which runs all recipes in turn.
//   gradual-recipe-step [--rounds N] [RECIPE ..]
#include <fmt/format.h>
#include <gradual/amp/recipe.h>
#include <gradual/core/ops/ops.h>
#include <gradual/lab/gpt.h>
#include <gradual/optim/adam.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

using namespace gradual;

namespace {

constexpr std::int64_t kVocabulary = 64;

struct Size {
  std::int64_t batch, tokens, width;
};
constexpr Size kSizes[] = {{32, 32, 64}, {16, 64, 64}, {8, 128, 128}, {4, 256, 256}};

double cpu_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

struct Trained {
  lab::Gpt model;
  amp::RecipeRun run;
  std::vector<double> times = {};
  std::vector<double> ratios = {};

  Trained(const Size& size, const std::string& recipe)
      : model({.vocabulary = kVocabulary, .context = size.tokens, .width = size.width}),
        run(amp::recipe(recipe), model, optim::AdamOptions{.lr = 1e-3}) {}
};

void measure(const Size& size, const std::vector<std::string>& recipes, int rounds) {
  std::vector<std::unique_ptr<Trained>> all;
  for (const std::string& recipe : recipes) all.push_back(std::make_unique<Trained>(size, recipe));
  const Tensor x = randint(0, kVocabulary, {size.batch, size.tokens});
  const Tensor y = randint(0, kVocabulary, {size.batch * size.tokens});
  for (int round = -2; round < rounds; ++round)
    for (const auto& one : all) {
      const double begin = cpu_milliseconds();
      one->run.step([&] { return cross_entropy(one->model(x).reshape({-1, kVocabulary}), y); });
      const double time = cpu_milliseconds() - begin;
      if (round < 0) continue;
      one->times.push_back(time);
      one->ratios.push_back(time / all.front()->times.back());
    }
  for (std::size_t i = 0; i < all.size(); ++i)
    fmt::print("| {} x {}, width {} | {} | {:.2f} ms | {:.2f} |\n", size.batch, size.tokens, size.width, recipes[i],
               median(all[i]->times), median(all[i]->ratios));
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 30;
  std::vector<std::string> recipes;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--rounds" && i + 1 < argc) {
      ++i;
      rounds = std::max(1, std::atoi(argv[i]));
    } else {
      recipes.emplace_back(argv[i]);
    }
  }
  if (recipes.empty()) recipes = {"fp32", "bf16-flash", "bf16-flash-shifted"};
  fmt::print("| sequences x tokens | recipe | CPU time of a step | of the first |\n|---|---|---|---|\n");
  for (const Size& size : kSizes) measure(size, recipes, rounds);
}
