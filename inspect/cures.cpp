#include "cures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "../amp/site_name.h"
#include "../core/quantize/what_if.h"
#include "../core/support/message_text.h"

namespace gradual::inspect {
namespace {

using amp::Recipe;
using Json = nlohmann::ordered_json;

bool keeps_half(const Recipe& r) { return r.mode == amp::Mode::half || r.mode == amp::Mode::pure; }

// Edits each quantiser of the recipe.
template <class F> Recipe requantised(Recipe r, const F& edit) {
  for (const amp::QuantizerField& field : amp::kQuantizerFields)
    if (auto* q = r.quantization ? &(*r.quantization.*field.quantizer) : nullptr; q && *q) edit(**q);
  return r;
}

// Edits the quantisers of a role's operand.
template <class F> Recipe requantised(Recipe r, amp::Role role, const F& edit) {
  if (!r.quantization) return r;
  for (const auto field : amp::kOperandQuantizers[static_cast<int>(role)])
    if (std::optional<Quantizer>& q = *r.quantization.*field) edit(*q);
  return r;
}

// An object with a kind (a scaling) is replaced as a whole, because another kind has other fields.
bool is_whole(const Json& j) { return !j.is_object() || j.contains("kind"); }

// The fields of `to` that differ, including those of nested objects.
Json patch(const Json& from, const Json& to) {
  if (is_whole(from) || is_whole(to)) return to;
  Json changes = Json::object();
  for (const auto& [key, value] : to.items())
    if (!from.contains(key)) changes[key] = value;
    else if (from[key] != value) changes[key] = patch(from[key], value);
  return changes;
}
void merge(Json& to, const Json& patch) {
  if (is_whole(to) || is_whole(patch)) to = patch;
  else
    for (const auto& [key, value] : patch.items()) merge(to[key], value);
}

// The recipe as JSON; none if a rewrite of it is code, which JSON cannot hold.
std::optional<std::string> json_of(const Recipe& r) {
  try {
    return amp::to_json(r);
  } catch (const Error&) { return {}; }
}

bool is_valid(const Recipe& r) try {
  check_valid(r);
  return true;
} catch (const Error&) { return false; }

}  // namespace

namespace cures {

std::vector<Cure> valid(const Recipe& from, const std::vector<Cure>& all) {
  std::vector<Cure> kept;
  std::vector<std::optional<std::string>> known = {json_of(from)};
  if (!known[0]) return {};
  for (const Cure& c : all) {
    const std::optional<std::string> text = json_of(c.recipe);
    if (!text || !is_valid(c.recipe) || std::ranges::find(known, text) != known.end()) continue;
    known.push_back(text);
    kept.push_back(c);
  }
  return kept;
}

Cure masters(Recipe r) {
  const bool half = keeps_half(r);
  if (half) r.masters = amp::Masters::per_tensor;
  r.update = optim::LowPrecisionUpdate::none;
  r.optimizer_state = DType::f32;
  r.gradients.reset();
  if (auto& q = r.quantization) {
    q->weight.reset();
    q->master.reset();
    q->moment1.reset();
    q->moment2.reset();
  }
  return {r, half ? "FP32 masters, the optimizer's arithmetic and state in f32" : "weights and state kept in f32"};
}

Cure state_in_f32(Recipe r) {
  r.optimizer_state = DType::f32;
  if (auto& q = r.quantization) {
    q->moment1.reset();
    q->moment2.reset();
  }
  return {r, "the optimizer's arithmetic and state in f32"};
}

Cure kahan_update(Recipe r) {
  if (keeps_half(r) && r.masters == amp::Masters::none) r.update = optim::LowPrecisionUpdate::kahan;
  return {r, "a Kahan update"};
}

Cure bf16(Recipe r) {
  const bool optimizer = r.optimizer_state == DType::f16;
  if (optimizer) r = masters(r).recipe;
  r.dtype = DType::bf16;
  r.scaling.reset();
  const std::string words = optimizer ? "; the optimizer in f32" : "";
  return {.recipe = r, .remedy = "bf16, which has the range of f32" + words, .generic = true};
}

Cure dynamic_scale(Recipe r) {
  if (keeps_half(r)) r = masters(r).recipe;
  r.scaling = optim::GradScalerOptions{};
  return {r, "dynamic loss scaling"};
}

Cure static_scale(Recipe r, int bits) {
  if (!r.scaling) {
    if (keeps_half(r)) r = masters(r).recipe;
    r.scaling = optim::GradScalerOptions{.init_scale = 1, .dynamic = false};
  }
  r.scaling->init_scale = std::ldexp(r.scaling->init_scale, bits);
  return {r, fmt::format("a loss scale of {}", scale_text(r.scaling->init_scale))};
}

Cure norms_in_f32(Recipe r) {
  r.mode = amp::Mode::half;
  return {r, "norms, their statistics and the loss in f32"};
}

Cure averages_in_f32(Recipe r) {
  r.averages = amp::Averages::f32;
  return {r, "averages in f32"};
}

Cure ops_in_f32(Recipe r, const std::vector<std::string>& ops) {
  for (const std::string& op : ops) r.policy.emplace_back(op_from_name(op), amp::CastPolicy::fp32());
  return {r, join(ops) + " in f32"};
}

Cure ops_and_norms_in_f32(Recipe r, std::vector<std::string> ops) {
  if (r.mode != amp::Mode::pure) return {r, ""};
  for (const char* norm : {"batch_norm", "layer_norm", "rms_norm"})
    if (std::ranges::find(ops, norm) == ops.end()) ops.emplace_back(norm);
  return ops_in_f32(std::move(r), ops);
}

Cure f32_sums(Recipe r) {
  if (r.quantization) r.quantization->accumulator.reset();
  return {r, "sums in f32"};
}

Cure scales(Recipe r) {
  const auto own_amax = [](Quantizer& q) {
    if (is_any<NoScale, FixedScale, DelayedScale, LearnedScale>(q.scaling)) {
      q.scaling = TensorScale{};
      q.overflow = Overflow::saturate;
    }
  };
  return {requantised(std::move(r), own_amax), "one scale per tensor, from its own amax"};
}

Cure rceil(Recipe r) {
  const auto up = [](Quantizer& q) { set_rule(q.scaling, ScaleRule::rceil); };
  return {requantised(std::move(r), up), "scales rounded up (RCEIL)"};
}

Cure wide_scales(Recipe r) {
  const auto widen = [](Quantizer& q) {
    if (const auto* blocks = std::get_if<CodedBlocks>(&q.scaling); blocks && !searches(blocks->rule))
      q.scaling = FloatBlocks{
          .block = blocks->block, .square = blocks->square, .oracle = blocks->oracle, .product = blocks->product};
    else if (const auto* parts = std::get_if<CodedParts>(&q.scaling))
      q.scaling = FloatParts{.block = parts->block,
                             .part = parts->part,
                             .inner_part = parts->inner_part,
                             .oracle = parts->oracle,
                             .product = parts->product};
  };
  return {requantised(std::move(r), widen), "scales of blocks in f32"};
}

Cure smaller_blocks(Recipe r, int size) {
  const auto divide = [size](Quantizer& q) {
    const int block = block_size(q.scaling);
    if (block > size && block % size == 0 && !has_two_levels(q.scaling)) set_block(q.scaling, size);
  };
  return {requantised(std::move(r), divide), fmt::format("blocks of {}", size)};
}

Cure finer_scales(Recipe r, amp::Role role, int block) {
  const auto divide = [block](Quantizer& q) {
    if (is_any<TensorScale, RowScale>(q.scaling)) q.scaling = FloatBlocks{.block = block};
  };
  return {requantised(std::move(r), role, divide), fmt::format("a scale for each block of {}", block)};
}

Cure stochastic(Recipe r, amp::Role role) {
  const auto at_random = [](Quantizer& q) { q.rounding.mode = RoundingMode::stochastic; };
  return {requantised(std::move(r), role, at_random), "stochastic rounding"};
}

Cure signed_format(Recipe r, amp::Role role) {
  constexpr int kMostBits = 8;
  std::string name;
  const auto with_sign = [&name](Quantizer& q) {
    if (q.format.is_signed || q.format.table) return;
    q.format.is_signed = true;
    if (q.format.bits() > kMostBits && q.format.mantissa_bits > 0) --q.format.mantissa_bits;
    name = to_string(q.format);
  };
  r = requantised(std::move(r), role, with_sign);
  return {r, "a format with a sign, " + name};
}

Cure layer_in_f32(Recipe r, const std::string& layer, const LayerNames& names) {
  const std::string path = amp::site_name(layer).layer;
  const std::string name = path.substr(path.rfind('.') + 1);
  // A layer may have the name of an operand of attention.
  if (r.quantization && r.quantization->attention && !names.knows(path))
    for (const auto& [field, quantizer, of_backward] : amp::kAttentionFields)
      if ((*r.quantization->attention).*quantizer && name == field) {
        amp::leave_unrounded(*r.quantization->attention, quantizer);
        return {.recipe = r, .remedy = "attention's " + name + " in high precision", .generic = true};
      }
  if (r.quantization && !path.empty()) r.quantization->modules.emplace_back(path, "fp32");
  return {.recipe = r, .remedy = "layer " + names(path) + " in high precision", .generic = true};
}

Cure outlier_channels(Recipe r, double share) {
  if (r.quantization) r.quantization->outliers = amp::OutlierChannels{.share = share, .window = 1};
  return {r, fmt::format("the largest {:.3g}% of the channels of x in f32", 100 * share)};
}

Cure router_in_f32(Recipe r, const std::string& router, const LayerNames& names) {
  Cure cure = layer_in_f32(std::move(r), router, names);
  cure.generic = false;
  return cure;
}

Cure attention_scores_in_f32(Recipe r) {
  if (r.quantization && r.quantization->attention) {
    amp::leave_unrounded(*r.quantization->attention, &amp::AttentionPrecision::q);
    amp::leave_unrounded(*r.quantization->attention, &amp::AttentionPrecision::k);
  }
  return {r, "attention's q and k in high precision"};
}

Cure fp8(Recipe r) {
  const amp::Quantization wide = amp::recipe("fp8-current").quantization.value();
  for (const auto& field : amp::kQuantizerFields)
    if (r.quantization && wide.*field.quantizer) *r.quantization.*field.quantizer = wide.*field.quantizer;
  return {.recipe = r, .remedy = "operands in e4m3 and e5m2, one scale per tensor", .generic = true};
}

}  // namespace cures

std::string edit(const Recipe& from, const Recipe& to) {
  const auto parsed = [](Recipe r) {
    r.name = "edited";
    r.description.clear();
    return Json::parse(amp::to_json(r));
  };
  return patch(parsed(from), parsed(to)).dump();
}

Recipe edited(const Recipe& recipe, const std::string& patch) {
  Json whole = Json::parse(amp::to_json(recipe));
  merge(whole, Json::parse(patch));
  whole["name"] = "cured-" + recipe.name;
  return amp::recipe_from_json(whole.dump());
}

}  // namespace gradual::inspect
