// What a run of a quantised recipe does besides its rewritten products (amp/quantization.h): rounding what is kept
// between steps.
#pragma once

#include "../nn/module.h"
#include "../optim/optimizer.h"
#include "quantization.h"

namespace gradual::amp {

// Replaces "first" and "last" in the modules by the paths of the model's first and last layers with a weight to multiply
// by. Error for a path that names no module.
void name_layers(Quantization& quantization, nn::Module& model);

// Rounds the parameters' gradients where they lie, before the optimizer sees them; what is not finite stays, for the
// scaler to find. Stochastic rounding draws a key a gradient, finite or not.
void quantize_gradients(const QuantizationState& state, const nn::Module& model);
// Rounds masters and parameters where they lie, after the optimizer's step.
void quantize_parameters(const QuantizationState& state, const nn::Module& model, optim::Optimizer& optimizer);

}  // namespace gradual::amp
