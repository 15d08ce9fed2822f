// The part of a quantised run besides its rewritten products (amp/quantization.h): rounds the tensors that are kept
// between steps.
#pragma once

#include "../nn/module.h"
#include "../optim/optimizer.h"
#include "quantization.h"

namespace gradual::amp {

// Replaces "first" and "last" in the modules by the paths of the model's first and last layers that multiply by a
// weight. Error for a path that names no module.
void name_layers(Quantization& quantization, nn::Module& model);

// Rounds the parameters' gradients in place, before the optimizer reads them. Gradients with Inf or NaN stay, so that
// the scaler finds them. Stochastic rounding draws one key per gradient, finite or not.
void quantize_gradients(const QuantizationState& state, const nn::Module& model);
// Rounds masters and parameters in place, after the optimizer's step.
void quantize_parameters(const QuantizationState& state, const nn::Module& model, optim::Optimizer& optimizer);

}  // namespace gradual::amp
