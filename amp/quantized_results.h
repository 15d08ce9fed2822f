// The results of ops in a format (Quantization::result).
#pragma once

#include <memory>
#include <optional>

#include "../core/ops/dispatch.h"
#include "quantization.h"

namespace gradual::amp {

// Rounds the result of every op of this thread while it lives: its floating outputs, and what an in-place op writes.
// Views and integers stay. An op computes as usual, in f32, before its result is rounded. Without a quantisation or its
// `result`, results stay as they are.
class ResultScope {
 public:
  explicit ResultScope(const std::optional<Quantization>& quantization);

 private:
  std::unique_ptr<Interceptor> rounding_;
  StageScope stage_;
};

// Stochastic rounding draws a key from the default generator.
QuantizeOptions options_for(const Quantizer& quantizer);

}  // namespace gradual::amp
