// A training that stops before one of its steps, so that the step can be studied.
#pragma once

#include <memory>
#include <optional>

#include "../amp/recipe.h"
#include "../data/data_loader.h"
#include "../optim/schedule.h"
#include "models.h"
#include "tasks.h"

namespace gradual::lab {

struct StudyOptions {
  std::int64_t step = 50;  // the one that is studied, from 0
  std::uint64_t seed = 0;
  std::int64_t batch = 64;
  int epochs = 10;  // of the whole training: the learning rate follows a cosine
  double lr = 2e-3;
};

// With AdamW and, for equal options, the bits of the lab's own run; of a recipe that draws random numbers in its first
// epoch only, for the lab's evaluations draw as well. One at a time on a thread: a study holds the default generator.
class Study : Pinned {
 public:
  Study(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, const StudyOptions& options = {});

  nn::Module& model() { return *model_; }
  amp::RecipeRun& run() { return *run_; }
  // Of the step's batch; the second with another model.
  Tensor loss() const { return loss(*model_); }
  Tensor loss(nn::Module& model) const;
  amp::RunStep step();  // runs the step

 private:
  Generator generator_;
  GeneratorScope scope_;
  data::Split data_;
  std::shared_ptr<nn::Module> model_;
  std::optional<amp::RecipeRun> run_;
  data::Batch batch_;
};

}  // namespace gradual::lab
