#include "what_if_section.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "../amp/precision_observer.h"
#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/quantize/what_if.h"

namespace gradual::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostElements = 1 << 18;  // sampled elements of one tensor, at most

void append(const Tensor& t, std::vector<float>& to) {
  const Scoped<Chain> bare(chain(), {});  // not a part of training
  const std::vector<float> values = t.to_vector<float>();
  const auto step = static_cast<std::size_t>((t.numel() + kMostElements - 1) / kMostElements);
  for (std::size_t i = 0; i < values.size(); i += step) to.push_back(values[i]);
}

Json loss_json(const ScaleLoss& l) {
  return {{"scale", scale_text(l.scale)},
          {"underflow", l.underflow},
          {"subnormal", l.subnormal},
          {"overflow", l.overflow},
          {"sqnr_db", std::isfinite(l.sqnr_db) ? Json(l.sqnr_db) : Json(nullptr)}};
}

// Divides the values in place by the loss scale first.
Json role_json(const char* role, std::vector<float>& values, double loss_scale, const std::vector<Format>& also) {
  for (float& v : values) v = static_cast<float>(v / loss_scale);
  // from_blob: the peaks of the run do not count this memory
  const WhatIf w = what_if(from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, DType::f32),
                           {.also = also, .blocks = {}});
  Json formats = Json::array();
  for (const FormatLoss& f : w.formats)
    formats.push_back({{"format", f.name},
                       {"unscaled", loss_json(f.unscaled)},
                       {"best", loss_json(f.best)},
                       {"amax", loss_json(f.amax)}});
  return {
      {"role", role},      {"elements", w.elements}, {"zeros", w.zeros},       {"not_finite", w.nan + w.inf},
      {"amin", w.amin},    {"amax", w.amax},         {"headroom", w.headroom}, {"loss_scale", scale_text(w.loss_scale)},
      {"formats", formats}};
}

}  // namespace

std::vector<Format> formats_of(const amp::Recipe& recipe, amp::Role role) {
  if (!recipe.quantization) return {*amp::counted_format(recipe, role)};
  std::vector<Format> all;
  const auto add = [&](const Format& f) {
    if (std::ranges::find(all, f) == all.end()) all.push_back(f);
  };
  for (const auto field : amp::kOperandQuantizers[static_cast<int>(role)])
    if (const auto& operand = (*recipe.quantization).*field) add(operand->format);
  for (const auto& [module, other] : recipe.quantization->modules)
    if (const amp::Recipe r = amp::recipe(other); r.quantization) std::ranges::for_each(formats_of(r, role), add);
  return all;
}

void GradientSample::gradient(const autograd::GradientEvent& event) {
  const Tensor& g = event.grad;
  if (!g.defined() || !g.is_floating() || g.dim() == 0) return;  // 0-d: the loss and its scaling
  const bool gathered = event.input < 0;
  // Takes a leaf's gradient once it is accumulated, not its parts.
  if (!gathered && (leaf_of(event) || !seen_.insert(g.unsafe_impl()->storage->id).second)) return;
  append(g, gathered ? weight_gradients_ : errors_);
}

std::string GradientSample::what_if_json(nn::Module& model, double loss_scale, std::int64_t step,
                                         const std::vector<Format>& also) {
  std::vector<float> weights;
  for (const Tensor& p : model.parameters()) append(p, weights);
  const Json roles =
      Json::array({role_json("weights", weights, 1, also), role_json("errors", errors_, loss_scale, also),
                   role_json("weight gradients", weight_gradients_, loss_scale, also)});
  return Json{{"step", step}, {"roles", roles}}.dump();
}

}  // namespace gradual::lab
