// A training that stops before one of its steps, so that this step can be studied.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "../amp/recipe.h"
#include "../core/tensor/device.h"
#include "../data/data_loader.h"
#include "../optim/schedule.h"
#include "models.h"
#include "objective.h"
#include "tasks.h"
#include "training.h"

namespace gradual::lab {

struct StudyOptions {
  std::int64_t step = 50;  // the step to study, from 0
  std::uint64_t seed = 0;
  std::int64_t batch = 64;
  int epochs = 10;   // of the whole training, whose learning rate follows a cosine
  double lr = 2e-3;  // 0: the optimizer's own
  std::string optimizer = "adamw";
  Loss loss = {};  // by default that of the data
  Training training = {};
  Device device = Device::cpu();
};

// With equal options it has the bits of the lab's own run. Where the recipe rounds at random or the model draws, it
// evaluates after each epoch as the run does, since that draws too. One study at a time per thread: it holds the
// default generator.
class Study : Pinned {
 public:
  Study(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, const StudyOptions& options = {});

  nn::Module& model() { return *model_; }
  amp::RecipeRun& run() { return *run_; }
  // The loss on the step's batch, of this model or of another one.
  Tensor loss() const { return loss(*model_); }
  Tensor loss(nn::Module& model) const;
  Tensor loss_on(const data::Batch& batch) const { return loss_on(batch, *model_); }
  amp::RunStep step();                           // runs the studied step
  std::int64_t steps() const { return steps_; }  // of the whole training

 private:
  Tensor loss_on(const data::Batch& batch, nn::Module& model) const;
  void evaluate();

  Generator generator_;
  GeneratorScope scope_;
  data::Split data_;
  Objective objective_;
  Device device_;
  int accumulate_;
  std::int64_t steps_ = 0;
  std::shared_ptr<nn::Module> model_;
  std::optional<amp::RecipeRun> run_;
  data::Batch batch_;
};

}  // namespace gradual::lab
