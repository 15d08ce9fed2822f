// Models in half precision.
#pragma once

#include "../core/state_dict.h"
#include "../nn/module.h"
#include "../optim/optimizer.h"

namespace gradual::amp {

// Converts parameters and buffers to f16 or bf16, all but those of normalisation layers (nn::Norm), which take half
// inputs with FP32 parameters and statistics. Parameters stay the same tensors. Make the optimizer first where it shall
// keep masters: they are the values from before. Inputs are the caller's to cast: an f32 input beside half weights
// computes in f32 (a RecipeRun, amp/recipe.h, sees to that).
void to_half(nn::Module& model, DType dtype = DType::f16);
// Converts all of them, normalisation layers too: shows what goes wrong.
void to_pure(nn::Module& model, DType dtype = DType::f16);

// The model's state dict in FP32: masters where `optimizer` has them, other half tensors widened, the rest as it is.
StateDict master_state_dict(const nn::Module& model, optim::Optimizer& optimizer);

}  // namespace gradual::amp
