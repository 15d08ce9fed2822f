// The report's section on what each format would lose of a run's numbers (what_if). Internal to compare().
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "../amp/recipe.h"
#include "../autograd/autograd.h"
#include "../core/formats/format.h"
#include "../nn/module.h"

namespace gradual::lab {

// The formats that numbers of a role are rounded to when they are counted, each once.
std::vector<Format> formats_of(const amp::Recipe& recipe, amp::Role role);

// Keeps the gradients of this thread's backward passes while it lives; an evenly spaced sample of large ones.
class GradientSample final : public autograd::GradientObserver {
 public:
  void gradient(const autograd::GradientEvent& event) override;
  // A JSON object for the report: what_if of the model's weights, and of errors and weight gradients divided by
  // loss_scale. also: formats besides the common ones.
  std::string what_if_json(nn::Module& model, double loss_scale, std::int64_t step, const std::vector<Format>& also);

 private:
  std::vector<float> errors_, weight_gradients_;
  std::unordered_set<std::uint64_t> seen_;  // storages: backward passes on the same numbers as views
};

}  // namespace gradual::lab
