#include "cures.h"

#include "../core/support/message_text.h"

namespace gradual::inspect::cures {
namespace {

using amp::Recipe;

bool keeps_half(const Recipe& r) { return r.mode == amp::Mode::half || r.mode == amp::Mode::pure; }

// Edits the scaling of each quantiser of the recipe.
template <class F> Recipe rescaled(Recipe r, const F& edit) {
  for (const amp::QuantizerField& field : amp::kQuantizerFields)
    if (r.quantization)
      if (auto& q = *r.quantization.*field.quantizer) edit(q->scaling, *q);
  return r;
}

}  // namespace

std::vector<Cure> valid(const Recipe& from, const std::vector<Cure>& all) {
  std::vector<Cure> kept;
  for (const Cure& c : all) try {
      check_valid(c.recipe);
      if (amp::to_json(c.recipe) != amp::to_json(from)) kept.push_back(c);
    } catch (const Error&) { continue; }
  return kept;
}

Cure masters(Recipe r) {
  const bool half = keeps_half(r);
  if (half) r.masters = amp::Masters::per_tensor, r.update = optim::LowPrecisionUpdate::none;
  r.optimizer_state = DType::f32;
  if (auto& q = r.quantization) q->weight.reset(), q->master.reset(), q->moment1.reset(), q->moment2.reset();
  return {r, half ? "FP32 masters, the optimizer's arithmetic and state in f32" : "weights and state kept in f32"};
}

Cure bf16(Recipe r) {
  const bool optimizer = r.optimizer_state == DType::f16;
  if (optimizer) r = masters(r).recipe;
  r.dtype = DType::bf16, r.scaling.reset();
  return {r, std::string("bf16, which has the range of f32") + (optimizer ? "; the optimizer in f32" : "")};
}

Cure dynamic_scale(Recipe r) {
  if (keeps_half(r)) r = masters(r).recipe;
  r.scaling = optim::GradScalerOptions{};
  return {r, "dynamic loss scaling"};
}

Cure norms_in_f32(Recipe r) {
  r.mode = amp::Mode::half;
  return {r, "norms, their statistics and the loss in f32"};
}

Cure ops_in_f32(Recipe r, const std::vector<std::string>& ops) {
  for (const std::string& op : ops) r.policy.emplace_back(op_from_name(op), amp::CastPolicy::fp32());
  return {r, join(ops) + " in f32"};
}

Cure f32_sums(Recipe r) {
  if (r.quantization) r.quantization->accumulator.reset();
  return {r, "sums in f32"};
}

Cure scales(Recipe r) {
  using enum ScalingKind;
  return {rescaled(std::move(r),
                   [](Scaling& s, Quantizer& q) {
                     if (s.kind == none || s.kind == fixed || s.kind == delayed)
                       s = {.kind = tensor}, q.overflow = Overflow::saturate;
                   }),
          "one scale a tensor, from its own amax"};
}

Cure rceil(Recipe r) {
  return {rescaled(std::move(r),
                   [](Scaling& s, Quantizer&) {
                     if (s.kind == ScalingKind::block && s.scale != ScaleFormat::f32) s.rule = ScaleRule::rceil;
                   }),
          "scales rounded up (RCEIL)"};
}

Cure layer_in_f32(Recipe r, const std::string& layer) {
  const std::string path = layer.substr(0, layer.find('#'));
  if (r.quantization && !path.empty()) r.quantization->modules.emplace_back(path, "fp32");
  return {r, "layer " + path + " in high precision"};
}

Cure fp8(Recipe r) {
  const amp::Quantization wide = amp::recipe("fp8-current").quantization.value();
  for (const auto& field : amp::kQuantizerFields)
    if (r.quantization && wide.*field.quantizer) *r.quantization.*field.quantizer = wide.*field.quantizer;
  return {r, "operands in e4m3 and e5m2, one scale a tensor"};
}

}  // namespace gradual::inspect::cures
