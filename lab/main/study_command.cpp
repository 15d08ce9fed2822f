#include "study_command.h"

#include <fmt/format.h>
#include <gradual/core/support/error.h>

namespace gradual::lab {

void StudyArguments::declare(OptionParser& app) {
  app.add_option("--step", options.step, "the step, from 0").capture_default_str();
  TaskArguments::declare(app);
  app.add_option("--batch", options.batch, "samples per step").capture_default_str();
  app.add_option("--lr", options.lr, "learning rate (default: 2e-3 for adamw and adam, 0.05 for sgd)");
  app.add_option("--epochs", options.epochs, "of the whole training, which the learning rate follows")
      .capture_default_str();
  app.add_option("--seed", options.seed, "of parameters, batches and rounding").capture_default_str();
  declare_threads(app, threads);
}

void StudyArguments::check(const OptionParser& app) {
  at_least(0, "--step", options.step);
  at_least_one("--batch", options.batch);
  at_least_one("--epochs", options.epochs);
  if (app.count("--context")) at_least_one("--context", context);
  if (app.count("--lr")) check_lr(options.lr);
  else options.lr = 0;
  read(app);
  options.optimizer = optimizer;
  options.loss = loss;
  options.training = training;
  use_threads(app, threads);
}

amp::Recipe one_recipe(const char* option, const std::string& text) {
  const std::vector<amp::Recipe> recipes = recipes_for(text);
  if (recipes.size() != 1)
    throw_error(fmt::format("{} is '{}', which names {} recipes; it takes one", option, text, recipes.size()));
  return recipes[0];
}

}  // namespace gradual::lab
