#include "study_command.h"

#include <fmt/format.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/folder.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace gradual::lab {

void StudyArguments::declare(OptionParser& app) {
  if (last_step) app.add_option("--step", options.step, "the step, from 0 (default: the last)");
  else app.add_option("--step", options.step, "the step, from 0").capture_default_str();
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
  const std::int64_t last = std::max<std::int64_t>(0, steps - 1);
  if (app.count("--step") == 0) options.step = last_step ? last : std::min(last, options.step);
  return TaskArguments::make_model(train, all.model);
}

void SplitArguments::declare(OptionParser& app) {
  app.add_option("--split", split_,
                 "emulate N parts: columns=N (output features of linear layers, output channels), rows=N (input ones), "
                 "heads=N (of attention), sequence=N (tokens) or samples=N (of the batch)");
  app.add_option("--split-scales", scales_,
                 "the scale of a tensor: agreed (from the amax of all parts) or own (from the part's)")
      .capture_default_str();
  app.add_option("--exchange", exchange_,
                 "what partial sums are rounded to before they are added up: f32, bf16/ring ..")
      .capture_default_str();
  app.add_option("--split-except", except_, "modules that every part has whole: head,blocks.0");
}

std::optional<Split> SplitArguments::read(const OptionParser& app) const {
  if (split_.empty()) {
    for (const char* option : {"--split-scales", "--exchange", "--split-except"})
      if (app.count(option) > 0) throw_error(fmt::format("{} goes with --split", option));
    return std::nullopt;
  }
  Split split = split_from_name(split_);
  split.scales = split_scales_from_name(scales_);
  split.exchange = amp::exchange_from_name(exchange_);
  if (!except_.empty()) split.except = split_names(except_);
  return split;
}

FolderRecipes::FolderRecipes(const std::string& folder) : folder_(folder) {
  if (!folder.empty()) results_ = load_results(folder);
}

amp::Recipe FolderRecipes::one(const char* option, const std::string& text) const {
  for (const Result& r : results_)
    if (r.recipe == text && !r.definition.empty()) return amp::recipe_from_json(r.definition);
  return one_recipe(option, text);
}

std::vector<const Result*> FolderRecipes::begun(const std::vector<std::string>& recipes) const {
  std::vector<const Result*> runs;
  for (const Result& r : results_)
    if (!r.origin.program.empty() && std::ranges::find(recipes, r.recipe) != recipes.end()) runs.push_back(&r);
  return runs;
}

void FolderRecipes::give(const TaskArguments& task, OptionParser& app, const std::vector<std::string>& recipes) const {
  if (folder_.empty()) return;
  std::vector<const Result*> runs = begun(recipes);
  if (runs.empty()) {
    std::vector<std::string> all;
    for (const Result& r : results_) all.push_back(r.recipe);
    runs = begun(all);
  }
  if (runs.empty())
    throw_error(folder_ +
                " does not say with which options it was trained: lab::compare of a C++ program made it, or an earlier "
                "version. Give the options instead of the folder");
  const Result& first = *runs.front();
  for (const Result* r : runs)
    if (r->origin.options != first.origin.options)
      throw_error(
          fmt::format("{} has runs with different options, as of '{}' and '{}'; name recipes whose options are "
                      "the same, or give the options instead of the folder",
                      folder_, first.recipe, r->recipe));
  task.take(app, first.origin);
}

amp::Recipe one_recipe(const char* option, const std::string& text) {
  const std::vector<amp::Recipe> recipes = recipes_for(text);
  if (recipes.size() != 1)
    throw_error(fmt::format("{} is '{}', which names {} recipes; it takes one", option, text, recipes.size()));
  return recipes[0];
}

}  // namespace gradual::lab
