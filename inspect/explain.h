// Why a training loop of one's own fails: it is run again under fp32, observed, and put to trials.
//
//   const auto why = inspect::explain(amp::recipe("fp16-pure"), [&](inspect::Collector& c) {
//     Net model;                                                              // as before
//     amp::RecipeRun run(c.recipe(), model, optim::AdamOptions{.lr = 1e-3});  // with c.recipe()
//     for (const auto& b : batches) c.step(run, [&] { return loss_of(model(b.x), b.y); });  // instead of run.step()
//   });
//   std::puts(to_string(why).c_str());
//
// The loop is called several times, each time from the same state of default_generator(). It must begin anew each time
// (its own model, optimizer and order of batches) and do the same for the same recipe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../amp/recipe.h"
#include "diagnosis.h"
#include "gradient_check.h"

namespace gradual::inspect {

struct ExplainOptions {
  std::int64_t sample_every = 8;  // rounding and updates are counted in every n-th step
  int trials = 6;                 // runs of the loop with one thing exact or a cure, at most
};

// One run of the loop. The loop tells it each step.
class Collector : Pinned {
 public:
  // Under which the loop trains.
  const amp::Recipe& recipe() const;
  // run.step(loss), observed. False if no more steps are needed: then it runs nothing, and the loop may end.
  // The collector must see the first step of the loop: that is where passes are compared, and where gradients are
  // checked.
  bool step(amp::RecipeRun& run, const std::function<Tensor()>& loss);

  struct Impl;  // of explain()
  explicit Collector(Impl& impl) : impl_(impl) {}

 private:
  Impl& impl_;
};

struct Explained {
  std::string recipe = {};
  bool fails = false;       // loss not finite, half of the steps skipped, or a loss that is clearly above fp32's
  bool fp32_fails = false;  // fp32 diverges, or its loss falls by less than 5%
  std::int64_t step = -1;   // the first whose loss, and all after it, is not finite; -1: none
  std::vector<double> losses = {};
  std::vector<double> fp32_losses = {};
  std::int64_t skipped = 0;            // steps, by the loss scaler
  std::vector<Finding> findings = {};  // the likeliest first; empty if nothing fails. Finding::undone is of a trial
  int runs = 0;                        // of the loop
};

// Runs the loop with the recipe, with fp32, once more to the steps in question, and up to options.trials times to weigh
// the findings. Error if the loop makes no step, if it starts with other parameters or buffers than before, or if a
// replay has other losses.
Explained explain(const amp::Recipe& recipe, const std::function<void(Collector&)>& loop, ExplainOptions options = {});

std::string to_string(const Explained& explained);

// The finding that a wrong gradient is; none if all are right.
std::optional<Finding> finding_of(const GradientCheck& check);

}  // namespace gradual::inspect
