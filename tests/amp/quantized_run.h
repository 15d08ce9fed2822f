// A recipe and an optimizer for tests of quantised training.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "../../amp/quantization.h"
#include "../../amp/recipe.h"
#include "../../optim/adam.h"

namespace gradual {

inline std::unique_ptr<optim::Optimizer> adamw(std::vector<optim::ParamGroup> groups,
                                               const optim::UpdateOptions& precision) {
  return std::make_unique<optim::AdamW>(std::move(groups), optim::AdamWOptions{.lr = 2e-3, .precision = precision});
}

inline amp::Recipe with(const amp::Quantization& q) {
  amp::Recipe r{.name = "test"};
  r.quantization = q;
  return r;
}

}  // namespace gradual
