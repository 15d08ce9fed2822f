// Models in half precision, and parts of them under a policy of their own.
#pragma once

#include <optional>

#include "../core/files/state_dict.h"
#include "../nn/module.h"
#include "../optim/optimizer.h"
#include "policy.h"

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

// What is set replaces the surrounding region's choice for the module's calls, children included unless they have an
// override of their own. Outside of any region it does nothing.
struct Override {
  std::optional<bool> enabled = {};
  std::optional<DType> dtype = {};
  std::optional<PolicyTable> table = {};
};
//   amp::set_override(model.head, {.enabled = false});           // in f32
//   amp::set_override(model.encoder, {.dtype = DType::bf16});
// Error for a dtype other than f16 and bf16. Replaces an earlier override; an empty one changes nothing.
void set_override(nn::Module& module, const Override& what);

}  // namespace gradual::amp
