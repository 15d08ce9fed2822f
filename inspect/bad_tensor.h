// The first tensor of a model that holds NaN or Inf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../nn/module.h"

namespace gradual::inspect {

enum class ModelTensorKind : std::uint8_t { parameter, running_statistic, other_buffer };

struct BadTensor {
  std::string name;  // "bn.running_var"
  ModelTensorKind kind = ModelTensorKind::parameter;
};

// Parameters come before buffers, each in the order of their registration. None if all of them are finite.
std::optional<BadTensor> first_nonfinite(const nn::Module& model);

}  // namespace gradual::inspect
