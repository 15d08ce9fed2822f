// Per-module overrides: a part of a model under a policy of its own.
//
//   amp::set_override(model.head, {.enabled = false});           // in f32
//   amp::set_override(model.encoder, {.dtype = DType::bf16});
#pragma once

#include <optional>

#include "../nn/module.h"
#include "policy.h"

namespace gradual::amp {

// What is set replaces the surrounding region's choice for the module's calls, children included unless they have an
// override of their own. Outside of any region it does nothing.
struct Override {
  std::optional<bool> enabled = {};
  std::optional<DType> dtype = {};
  std::optional<PolicyTable> table = {};
};
// Error for a dtype other than f16 and bf16. Replaces an earlier override.
void set_override(nn::Module& module, const Override& what);
void clear_override(nn::Module& module);

}  // namespace gradual::amp
