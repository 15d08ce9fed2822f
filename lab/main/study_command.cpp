#include "study_command.h"

#include <fmt/format.h>
#include <gradual/core/support/error.h>

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
  declare_threads(app, threads);
}

void StudyArguments::check(const CLI::App& app) const {
  at_least(0, "--step", options.step);
  at_least_one("--batch", options.batch);
  at_least_one("--epochs", options.epochs);
  if (app.count("--context")) at_least_one("--context", context);
  check_lr(options.lr);
  use_threads(app, threads);
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
