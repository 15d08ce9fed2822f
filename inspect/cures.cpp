#include "cures.h"

#include "../core/support/error.h"

namespace gradual::inspect::cures {
namespace {

using amp::Recipe;

std::vector<Quantizer*> quantizers(Recipe& r) {
  std::vector<Quantizer*> all;
  if (r.quantization)
    for (const amp::QuantizerField& field : amp::kQuantizerFields)
      if (auto& q = *r.quantization.*field.quantizer) all.push_back(&*q);
  return all;
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
  const bool half = r.mode == amp::Mode::half || r.mode == amp::Mode::pure;
  if (half) r.masters = amp::Masters::per_tensor, r.update = optim::LowPrecisionUpdate::none;
  r.optimizer_state = DType::f32;
  if (r.quantization)
    for (auto* kept : {&r.quantization->weight, &r.quantization->moment1, &r.quantization->moment2}) kept->reset();
  return {r, half ? "FP32 masters, the optimizer's arithmetic and state in f32" : "the optimizer's state in f32"};
}

Cure bf16(Recipe r) {
  std::string remedy = "bf16, which has the range of f32";
  if (r.optimizer_state == DType::f16) r = masters(r).recipe, remedy += "; the optimizer in f32";
  r.dtype = DType::bf16;
  r.scaling.reset();
  return {r, remedy};
}

Cure dynamic_scale(Recipe r) {
  if (r.mode == amp::Mode::pure || r.mode == amp::Mode::half) r = masters(r).recipe;
  r.scaling = optim::GradScalerOptions{};
  return {r, "dynamic loss scaling"};
}

Cure norms_in_f32(Recipe r) {
  r.mode = amp::Mode::half;
  return {r, "norms, their statistics and the loss in f32"};
}

Cure op_in_f32(Recipe r, OpId op) {
  r.policy.emplace_back(op, amp::CastPolicy::fp32());
  return {r, std::string(to_string(op)) + " in f32"};
}

Cure f32_sums(Recipe r) {
  if (r.quantization) r.quantization->accumulator.reset();
  return {r, "sums in f32"};
}

Cure scales(Recipe r) {
  for (Quantizer* q : quantizers(r))
    if (const auto kind = q->scaling.kind;
        kind == ScalingKind::none || kind == ScalingKind::fixed || kind == ScalingKind::delayed)
      q->scaling = {.kind = ScalingKind::tensor}, q->overflow = Overflow::saturate;
  return {r, "one scale a tensor, from its own amax"};
}

Cure rceil(Recipe r) {
  for (Quantizer* q : quantizers(r))
    if (Scaling& s = q->scaling; s.kind == ScalingKind::block && s.scale != ScaleFormat::f32) s.rule = ScaleRule::rceil;
  return {r, "scales rounded up (RCEIL)"};
}

Cure layer_in_f32(Recipe r, const std::string& layer) {
  const std::string path = layer.substr(0, layer.find('#'));
  if (r.quantization && !path.empty()) r.quantization->modules.emplace_back(path, "fp32");
  return {r, "layer " + path + " in high precision"};
}

Cure role_in_f32(Recipe r, amp::Role role) {
  if (r.quantization)
    for (const auto field : amp::kOperandQuantizers[static_cast<int>(role)]) (*r.quantization.*field).reset();
  return {r, std::string(to_string(role)) + "s in high precision"};
}

}  // namespace gradual::inspect::cures
