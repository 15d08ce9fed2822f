// The rates of a parameter group by name: for defaults, checks and state dicts.
#pragma once

#include <cmath>
#include <optional>

#include "optimizer.h"

namespace gradual::optim {

struct Rate {
  const char* name;
  std::optional<double> ParamGroup::*value;
  double below;  // valid: 0 <= rate < below
};
inline constexpr Rate kRates[] = {
    {"lr", &ParamGroup::lr, INFINITY},      {"weight_decay", &ParamGroup::weight_decay, INFINITY},
    {"momentum", &ParamGroup::momentum, 1}, {"dampening", &ParamGroup::dampening, 1},
    {"beta1", &ParamGroup::beta1, 1},       {"beta2", &ParamGroup::beta2, 1},
    {"eps", &ParamGroup::eps, INFINITY}};

// Error for a rate out of range, or if the numbers of names and parameters differ.
void check_rates(const ParamGroup& group);

}  // namespace gradual::optim
