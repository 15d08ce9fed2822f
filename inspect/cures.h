// Edits of a recipe: those that cure a finding, and any as JSON.
#pragma once

#include <string>
#include <vector>

#include "../amp/recipe.h"
#include "layer_names.h"

namespace gradual::inspect {

struct Cure {
  amp::Recipe recipe;  // edited
  std::string remedy;  // the edit in words: "dynamic loss scaling"
  // Helps against nearly any cause at this place, as another format for everything does: it comes after cures of the
  // mechanism itself.
  bool generic = false;
  // The place at which --cure trains with it (lab::Finding::cures).
  int turn = 0;
};

namespace cures {

// Each once, without edits that change nothing or that the recipe's mode does not allow.
std::vector<Cure> valid(const amp::Recipe& from, const std::vector<Cure>& all);

Cure masters(amp::Recipe r);                 // FP32 masters for half parameters; weights and state are kept in f32
Cure bf16(amp::Recipe r);                    // instead of f16; with masters if the optimizer computes in f16
Cure dynamic_scale(amp::Recipe r);           // with the usual options
Cure static_scale(amp::Recipe r, int bits);  // a static loss scale times 2^bits; of 2^bits where there is none
Cure state_in_f32(amp::Recipe r);            // the optimizer's state and its arithmetic; weights as they are
Cure kahan_update(amp::Recipe r);            // of half weights without masters
Cure norms_in_f32(amp::Recipe r);            // mode half instead of pure
Cure averages_in_f32(amp::Recipe r);         // moving averages of the weights
Cure ops_in_f32(amp::Recipe r, const std::vector<std::string>& ops);
// Norms too: in a model of half parameters they take no f32 input.
Cure ops_and_norms_in_f32(amp::Recipe r, std::vector<std::string> ops);
Cure f32_sums(amp::Recipe r);
// For quantisers: a scale from the tensor's own amax instead of none or a delayed one; RCEIL instead of FLOOR; high
// precision for all operands of a layer.
Cure scales(amp::Recipe r);
Cure rceil(amp::Recipe r);
Cure wide_scales(amp::Recipe r);  // f32 scales of blocks instead of coded ones
// Blocks of so many elements where they are larger and a multiple of it.
Cure smaller_blocks(amp::Recipe r, int size);
// Of the quantisers of a role: an f32 scale for so many elements instead of one for a tensor or row; stochastic
// rounding; a format with a sign. layer_in_f32: of an operand of attention in blocks, that operand in all layers.
Cure finer_scales(amp::Recipe r, amp::Role role, int block);
Cure stochastic(amp::Recipe r, amp::Role role);
Cure signed_format(amp::Recipe r, amp::Role role);
Cure layer_in_f32(amp::Recipe r, const std::string& layer, const LayerNames& names = {});  // names: for the remedy
// The largest channels of x, this share of them, in f32 from the second step on; the router of a mixture and
// attention's q and k in high precision.
Cure outlier_channels(amp::Recipe r, double share);
Cure router_in_f32(amp::Recipe r, const std::string& router, const LayerNames& names = {});
Cure attention_scores_in_f32(amp::Recipe r);
Cure fp8(amp::Recipe r);  // operands as in fp8-current

}  // namespace cures

// The difference as a JSON merge patch (RFC 7396) for a recipe file with "base": {"masters": "per-tensor"}. Names and
// descriptions are left out.
std::string edit(const amp::Recipe& from, const amp::Recipe& to);
// The inverse: the recipe with such an edit, named "cured-NAME". Error if they do not fit.
amp::Recipe edited(const amp::Recipe& recipe, const std::string& patch);

}  // namespace gradual::inspect
