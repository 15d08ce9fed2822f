#include "study_command.h"

#include <fmt/format.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/threads.h>

#include <cmath>

#include "command_line.h"

namespace gradual::lab {

void StudyArguments::declare(CLI::App& app) {
  app.add_option("--step", options.step, "the step, from 0")->capture_default_str();
  app.add_option("--model", model, "mlp, cnn or gpt (default: cnn for images, gpt for text)");
  app.add_option("--data", data, "digits, mnist:DIR, text:FILE or addition")->capture_default_str();
  app.add_option("--context", context, "characters in a window of text:FILE (default: 64)");
  app.add_option("--batch", options.batch, "samples per step")->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate of AdamW")->capture_default_str();
  app.add_option("--epochs", options.epochs, "of the whole training, which the learning rate follows")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of parameters, batches and rounding")->capture_default_str();
  app.add_option("--threads", threads, "threads (default: all cores)");
}

void StudyArguments::check(const CLI::App& app) const {
  if (options.step < 0) throw_error(fmt::format("--step is {}; it must be at least 0", options.step));
  at_least_one("--batch", options.batch);
  at_least_one("--epochs", options.epochs);
  if (app.count("--context")) at_least_one("--context", context);
  if (!(std::isfinite(options.lr) && options.lr > 0))
    throw_error(fmt::format("--lr is {}; it must be positive and finite", options.lr));
  if (app.count("--threads") && (threads < 1 || threads > kMostThreads))
    throw_error(fmt::format("--threads is {}; it must be 1 to {}", threads, kMostThreads));
  if (threads) set_num_threads(threads);
}

MakeModel StudyArguments::make_model() const {
  const data::Split sample = task().load(options.seed);
  const bool text = sample.train.inputs.dtype() == DType::i64;
  return model_for(!model.empty() ? model : text ? "gpt" : "cnn", sample.train);
}

amp::Recipe one_recipe(const char* option, const std::string& text) {
  const std::vector<amp::Recipe> recipes = recipes_for(text);
  if (recipes.size() != 1)
    throw_error(fmt::format("{} is '{}', which names {} recipes; it takes one", option, text, recipes.size()));
  return recipes[0];
}

}  // namespace gradual::lab
