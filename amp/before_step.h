// What a forward and a backward change before the update, to take it back if one of them throws.
#pragma once

#include <cstdint>
#include <vector>

#include "../core/support/generator.h"
#include "../core/support/scoped.h"
#include "../core/tensor/tensor.h"
#include "quantization.h"

namespace gradual::amp {

// Buffers, gradients, staged amaxes, counts of hidden operands and the default generator, as they are at construction.
class BeforeStep : Pinned {
 public:
  // Whether backward adds to the gradients that are there, so that they are copied, or they are dropped before it.
  enum class Gradients : std::uint8_t { added_to, dropped };
  // state: may be null. start: of default_generator().
  BeforeStep(std::vector<Tensor> buffers, std::vector<Tensor> parameters, Gradients gradients, QuantizationState* state,
             RandomKey start);

  const std::vector<Tensor>& buffers() const { return values_; }       // copies
  const std::vector<Tensor>& gradients() const { return gradients_; }  // undefined: the parameter had none

  void restore_buffers() const;
  void restore() const;
  // f(); if it throws, all is restored.
  template <class F> Tensor whole(const F& f) const {
    try {
      return f();
    } catch (...) {
      restore();
      throw;
    }
  }

 private:
  std::vector<Tensor> changed_, parameters_;
  QuantizationState* state_;
  RandomKey start_;
  // counted in earlier micro-batches of this step
  Tensor hidden_;
  NoiseOfGradients noise_;
  std::vector<Tensor> values_, gradients_;
};

}  // namespace gradual::amp
