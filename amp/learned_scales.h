// The parameters of learned scales (core/quantize/learned_scale.h): of a weight `weight` they are `weight_step` and, of
// the x that it multiplies, `weight_input_step`, f32 [], in the same module. So the optimizer updates them, checkpoints
// hold them, and data-parallel training sums their gradients.
#pragma once

#include "../nn/module.h"
#include "quantization.h"

namespace gradual::amp {

// Registers the parameters of all weights whose module learns scales: parameters of at least two dims, but not those of
// an Embedding. Ones that are there already keep their values. New ones are 0, which means: the first step in training
// finds the value. Weights that no product reads keep it.
void register_steps(const QuantizationState& state, nn::Module& model);
// Tells the state which parameters they are.
void give_steps(QuantizationState& state, nn::Module& model);
// A model's state without the steps that `model` lacks: for a model that another recipe trains or runs. A step is a
// number whose name follows from a tensor's.
StateDict without_foreign_steps(const StateDict& state, const nn::Module& model);

}  // namespace gradual::amp
