#include "study_command.h"

#include <fmt/format.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/folder.h>

#include <algorithm>
#include <cstdint>

namespace gradual::lab {

void StudyArguments::declare(OptionParser& app) {
  app.add_option("--step", options.step, "the step, from 0").capture_default_str();
  TaskArguments::declare(app);
  app.add_option("--seed", options.seed, "of parameters, batches and rounding").capture_default_str();
  declare_threads(app, threads);
}

void StudyArguments::check(const OptionParser& app) {
  at_least(0, "--step", options.step);
  read(app);
  options.batch = batch;
  options.epochs = epochs;
  options.lr = lr;
  options.optimizer = optimizer;
  options.loss = loss;
  options.training = training;
  options.device = device;
  use_threads(app, threads);
}

MakeModel StudyArguments::make_model(const OptionParser& app) {
  const LabData all = task();
  const data::Dataset train = all.load(options.seed).train;
  const std::int64_t steps = (train.size() + batch - 1) / batch * epochs;
  if (app.count("--step") == 0) options.step = std::clamp<std::int64_t>(steps - 1, 0, options.step);
  return TaskArguments::make_model(train, all.model);
}

FolderRecipes::FolderRecipes(const std::string& folder) : folder_(folder) {
  if (!folder.empty()) results_ = load_results(folder);
}

amp::Recipe FolderRecipes::one(const char* option, const std::string& text) const {
  for (const Result& r : results_)
    if (r.recipe == text && !r.definition.empty()) return amp::recipe_from_json(r.definition);
  return one_recipe(option, text);
}

void FolderRecipes::give(const TaskArguments& task, OptionParser& app) const {
  if (folder_.empty()) return;
  for (const Result& r : results_)
    if (!r.origin.program.empty()) return task.take(app, r.origin);
  throw_error(folder_ +
              " does not say with which options it was trained: lab::compare of a C++ program made it, or an earlier "
              "version. Give the options instead of the folder");
}

amp::Recipe one_recipe(const char* option, const std::string& text) {
  const std::vector<amp::Recipe> recipes = recipes_for(text);
  if (recipes.size() != 1)
    throw_error(fmt::format("{} is '{}', which names {} recipes; it takes one", option, text, recipes.size()));
  return recipes[0];
}

}  // namespace gradual::lab
