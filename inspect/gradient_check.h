// Whether gradients are those of the loss: the slope along each gradient, measured by differences of the loss. It finds
// a backward with a wrong sign, a wrong factor or of another function, and names the user's Function that has it.
//
//   const auto check = inspect::check_gradients(model, [&] { return loss_of(model(x), y); });
//   if (check.any_wrong()) std::puts(to_string(check).c_str());
//
// Differences of f64 numbers tell most: a model that was converted with to(DType::f64), on inputs in f64. In f32 only
// large slopes are judged.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../nn/module.h"

namespace gradual::inspect {

// judged: the slope is large enough to be measured, two differences agree on it, and the loss is not constant along the
// gradient (a straight-through estimator has a gradient where its function has none).
enum class SlopeJudgement : std::uint8_t { unknown, right, wrong };

struct GradientSlope {
  std::string name = {};  // a parameter, or the name of a user's function
  std::string site = {};  // of a function: the layer, or the line of its call
  double predicted = 0;   // the size of the gradient g: the slope of the loss along it
  // (loss(w + h g / |g|) - loss(w - h g / |g|)) / 2h, with a random direction in place of a g of zeros; of a function
  // <u, f(x)> with random u.
  double measured = 0;
  SlopeJudgement judgement = SlopeJudgement::unknown;
};

struct GradientCheck {
  std::vector<GradientSlope> parameters = {};  // in the order of the model
  std::vector<GradientSlope> functions = {};   // the user's, in the order of forward; only if a parameter's is wrong
  bool any_wrong() const;
  const GradientSlope* wrong_function() const;   // null: none
  const GradientSlope* wrong_parameter() const;  // the last one in the order of the model: the fault lies after it
};

// Runs a forward and a backward, and five more forwards for each parameter (up to 14 if its gradient is 0): for those
// of these names, or without names for 32 evenly spaced ones at most.
// A parameter's gradient is wrong if its slope differs by more than a factor of 2 or in sign; a function's, if by more
// than 10%. A gradient of zeros is wrong if the loss has a slope in a random direction, the same to both sides in
// several directions: at a kink zeros may be right. A parameter without a gradient is not judged. Parameters,
// gradients, buffers and the default generator are restored.
GradientCheck check_gradients(nn::Module& model, const std::function<Tensor()>& loss,
                              const std::vector<std::string>& names = {});

std::string to_string(const GradientCheck& check);

}  // namespace gradual::inspect
