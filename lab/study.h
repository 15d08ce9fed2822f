// A training that stops before one of its steps, so that this step can be studied.
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
  std::int64_t step = 50;  // the step to study, from 0
  std::uint64_t seed = 0;
  std::int64_t batch = 64;
  int epochs = 10;  // of the whole training, whose learning rate follows a cosine
  double lr = 2e-3;
};

// Trains with AdamW. With equal options it has the bits of the lab's own run; for a recipe that draws random numbers
// only in the first epoch, because the lab's evaluations draw, too. One study at a time per thread: it holds the
// default generator.
class Study : Pinned {
 public:
  Study(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, const StudyOptions& options = {});

  nn::Module& model() { return *model_; }
  amp::RecipeRun& run() { return *run_; }
  // The loss on the step's batch, of this model or of another one.
  Tensor loss() const { return loss(*model_); }
  Tensor loss(nn::Module& model) const;
  amp::RunStep step();  // runs the studied step

 private:
  Generator generator_;
  GeneratorScope scope_;
  data::Split data_;
  std::shared_ptr<nn::Module> model_;
  std::optional<amp::RecipeRun> run_;
  data::Batch batch_;
};

}  // namespace gradual::lab
