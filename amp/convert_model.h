// Converts models to half precision, and sets autocast options per module.
#pragma once

#include <optional>

#include "../core/files/state_dict.h"
#include "../nn/module.h"
#include "../optim/optimizer.h"
#include "policy.h"

namespace gradual::amp {

// Converts parameters and buffers to f16 or bf16, except in normalisation layers (nn::Norm), which take half inputs
// with FP32 parameters and statistics. Parameters stay the same tensors. If the optimizer keeps masters, construct it
// first: it copies the values before the conversion. The caller casts the inputs: an f32 input with half weights
// computes in f32 (a RecipeRun, amp/recipe.h, casts them).
void to_half(nn::Module& model, DType dtype = DType::f16);
// Converts all of them, including normalisation layers. Demonstrates what goes wrong.
void to_pure(nn::Module& model, DType dtype = DType::f16);

// The model's state dict in FP32: masters if `optimizer` has them, other half tensors widened, the rest unchanged.
StateDict master_state_dict(const nn::Module& model, optim::Optimizer& optimizer);

// Replaces options of the surrounding region for the module's calls. It includes children without an override of their
// own. No effect outside of any region.
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
