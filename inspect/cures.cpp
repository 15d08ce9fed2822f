#include "cures.h"

#include "../core/support/error.h"

namespace gradual::inspect::cures {
namespace {

using amp::Recipe;

// Edits each quantiser that there is.
template <class F> Recipe each(Recipe r, const F& change) {
  if (r.quantization)
    for (const amp::QuantizerField& field : amp::kQuantizerFields)
      if (auto& q = *r.quantization.*field.quantizer) change(*q);
  return r;
}
bool keeps_half(const Recipe& r) { return r.mode == amp::Mode::half || r.mode == amp::Mode::pure; }

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
  std::string remedy = "bf16, which has the range of f32";
  if (r.optimizer_state == DType::f16) r = masters(r).recipe, remedy += "; the optimizer in f32";
  r.dtype = DType::bf16;
  r.scaling.reset();
  return {r, remedy};
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

Cure autocast(Recipe r) {
  if (keeps_half(r)) r.mode = amp::Mode::autocast, r.masters = amp::Masters::none, r.optimizer_state = DType::f32;
  if (r.dtype == DType::f16 && !r.scaling) r.scaling.emplace();
  r.update = optim::LowPrecisionUpdate::none;
  return {r, "f32 parameters, ops cast by the policy table"};
}

Cure ops_in_f32(Recipe r, const std::vector<OpId>& ops) {
  std::string names;
  for (const OpId op : ops) {
    r.policy.emplace_back(op, amp::CastPolicy::fp32());
    names += (names.empty() ? "" : ", ") + std::string(to_string(op));
  }
  return {r, names + " in f32"};
}

Cure f32_sums(Recipe r) {
  if (r.quantization) r.quantization->accumulator.reset();
  return {r, "sums in f32"};
}

Cure scales(Recipe r) {
  const auto scale = [](Quantizer& q) {
    using enum ScalingKind;
    if (q.scaling.kind == none || q.scaling.kind == fixed || q.scaling.kind == delayed)
      q.scaling = {.kind = tensor}, q.overflow = Overflow::saturate;
  };
  return {each(std::move(r), scale), "one scale a tensor, from its own amax"};
}

Cure rceil(Recipe r) {
  const auto round_up = [](Quantizer& q) {
    if (q.scaling.kind == ScalingKind::block && q.scaling.scale != ScaleFormat::f32) q.scaling.rule = ScaleRule::rceil;
  };
  return {each(std::move(r), round_up), "scales rounded up (RCEIL)"};
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
