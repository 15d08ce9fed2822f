// Edits of a recipe that cure a finding.
#pragma once

#include <string>
#include <vector>

#include "../amp/recipe.h"

namespace gradual::inspect {

struct Cure {
  amp::Recipe recipe;  // edited
  std::string remedy;  // the edit in words: "dynamic loss scaling"
};

namespace cures {

// Without what changes nothing, and what the recipe's mode refuses.
std::vector<Cure> valid(const amp::Recipe& from, const std::vector<Cure>& all);

Cure masters(amp::Recipe r);        // FP32 masters where parameters are half; weights and state are kept in f32
Cure bf16(amp::Recipe r);           // for f16; with masters where the optimizer computes in f16
Cure dynamic_scale(amp::Recipe r);  // with the usual options
Cure norms_in_f32(amp::Recipe r);   // mode half for pure
Cure ops_in_f32(amp::Recipe r, const std::vector<std::string>& ops);
Cure f32_sums(amp::Recipe r);
// Of quantisers: a scale from the tensor's own amax for those that have none or a delayed one, RCEIL for FLOOR, and all
// operands of a layer in high precision.
Cure scales(amp::Recipe r);
Cure rceil(amp::Recipe r);
Cure layer_in_f32(amp::Recipe r, const std::string& layer);
Cure fp8(amp::Recipe r);  // operands as in fp8-current

}  // namespace cures
}  // namespace gradual::inspect
