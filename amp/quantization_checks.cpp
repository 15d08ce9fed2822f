// What is allowed in a Quantization, and what it says about itself.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "bookkeeping.h"
#include "quantization_parts.h"
#include "recipe.h"

namespace gradual::amp {

// Where the gradient of a quantizer flows, and learned scales.
static void check_gradients(const Quantization& q) {
  for (const auto& [field, quantizer] : kQuantizerFields) {
    const std::optional<Quantizer>& one = q.*quantizer;
    if (!one) continue;
    const bool forward = quantizer == &Quantization::forward_x || quantizer == &Quantization::forward_w;
    const bool straight = one->gradient == QuantizerGradient::straight;
    if (!straight && !forward)
      throwf("quantization, {}: the gradient is {}; it is a choice of forward_x and forward_w, whose gradients flow",
             field, to_string(one->gradient));
    if (!forward || (straight && !learned(one))) continue;
    if (changes_numbers(*one))
      throwf("quantization, {}: a {} goes with numbers that are not transformed nor centered", field,
             straight ? std::string("learned scale") : fmt::format("{} gradient", to_string(one->gradient)));
  }
  for (const auto* dy : {&q.dgrad_dy, &q.wgrad_dy})
    if (learned(*dy)) throw_error("quantization: scales of x and W can be learned; those of dy have no gradient");
  if (q.outliers && (learned(q.forward_x) || learned(q.forward_w)))
    throw_error("quantization: outliers go with scales that are not learned");
  for (const auto* forward : {&q.forward_x, &q.forward_w})
    if (q.outliers && *forward && (*forward)->gradient != QuantizerGradient::straight)
      throwf("quantization: outliers go with straight gradients, not with a {} one", to_string((*forward)->gradient));
  if (q.smooth && learned(q.forward_x)) throw_error("quantization: smooth goes with an x whose scale is not learned");
}

bool learns_scales(const Quantization& q) {
  if (learned(q.forward_x) || learned(q.forward_w)) return true;
  return std::ranges::any_of(q.modules, [](const auto& module) {
    const Recipe other = recipe(module.second);
    return other.quantization && learns_scales(*other.quantization);
  });
}

void check_valid(const Quantization& q) {
  for (const auto& [field, quantizer] : kQuantizerFields)
    if (const auto& one = q.*quantizer) in_context(fmt::format("quantization, {}", field), [&] { check_valid(*one); });
  const auto both_or_none = [](const char* product, const std::optional<Quantizer>& a,
                               const std::optional<Quantizer>& b) {
    if ((a ? a->hadamard : HadamardSize()) != (b ? b->hadamard : HadamardSize()))
      throwf("quantization, {}: the Hadamard transform is of both operands, in one size, or of none", product);
    if (a && b && a->signs != b->signs)
      throwf("quantization, {}: the signs of the Hadamard transform are those of both operands", product);
  };
  if (q.requantize && ((q.forward_x && changes_numbers(*q.forward_x)) || (q.forward_w && q.forward_w->hadamard)))
    throw_error("quantization: requantize goes with forward operands that are not transformed nor centered");
  const bool transforms_x = (q.forward_x && q.forward_x->hadamard) || (q.wgrad_x && q.wgrad_x->hadamard);
  if (q.smooth && (q.requantize || transforms_x))
    throw_error("quantization: smooth goes with an x that is not transformed, and without requantize");
  check_gradients(q);
  for (const auto* weight : {&q.forward_w, &q.dgrad_w})
    if (*weight && (*weight)->center) throw_error("quantization: center is for x and dy; weights have no samples");
  both_or_none("forward", q.forward_x, q.forward_w);
  both_or_none("dgrad", q.dgrad_dy, q.dgrad_w);
  both_or_none("wgrad", q.wgrad_x, q.wgrad_dy);
  // x and W are staged only in forward, and one history serves both products of a tensor.
  using Field = std::optional<Quantizer>;
  const auto one_history = [](const char* later, const Field& b, const char* sooner, const Field& a, bool may_lack) {
    if (!delayed(b) && !learned(b)) return;
    if (may_lack && !delayed(a)) return;
    if (!a || a->scaling != b->scaling || a->format != b->format || a->center != b->center ||
        a->hadamard != b->hadamard || a->signs != b->signs)
      throwf("quantization, {}: {}, so {} must have the same format, scaling and transform", later,
             learned(b) ? "a learned scale is one of forward" : "delayed scaling keeps one history", sooner);
  };
  one_history("wgrad_x", q.wgrad_x, "forward_x", q.forward_x, false);
  one_history("dgrad_w", q.dgrad_w, "forward_w", q.forward_w, false);
  one_history("wgrad_dy", q.wgrad_dy, "dgrad_dy", q.dgrad_dy, true);
  const auto one_axis = [](const char* later, const Field& b, const char* sooner) {
    if (delayed(b) && b->hadamard)
      throwf(
          "quantization, {}: delayed scaling keeps one history, from the amaxes of {}, and a Hadamard transform along "
          "another axis has other numbers; {} and {} may have a delayed scale or a transform, not both",
          later, sooner, sooner, later);
  };
  one_axis("wgrad_x", q.wgrad_x, "forward_x");
  one_axis("dgrad_w", q.dgrad_w, "forward_w");
  for (const auto* kept : {&q.weight_gradient, &q.weight, &q.master, &q.moment1, &q.moment2, &q.result})
    if (*kept && beyond_own_scales(**kept))
      throw_error(
          "quantization: gradients, weights, masters, moments and results take scales from their own "
          "values: no delayed nor learned scaling, no transform, no mean subtracted");
  if (q.accumulator) check_valid(*q.accumulator);
  if (q.outliers) in_context("quantization", [&] { check_valid(*q.outliers); });
  if (q.attention) in_context("quantization, attention", [&] { check_valid(*q.attention); });
  for (const auto& module : q.modules)
    in_context("quantization, modules, " + module.first, [&] {
      const Recipe r = recipe(module.second);  // Error where none is
      if (r.quantization && !r.quantization->modules.empty())
        throw_error("recipe '" + module.second + "' has modules of its own, which only a model's recipe has");
      if (r.quantization && r.quantization->result)
        throw_error("recipe '" + module.second + "' rounds all results, which only a model's recipe does");
      if (r.quantization && r.quantization->attention && r.quantization->attention->all_modules)
        throw_error("recipe '" + module.second + "' has attention in all modules, which only a model's recipe has");
    });
}

namespace {

struct KnownOption {
  const char* name;
  bool (*is_in)(const Quantizer& q);
};
constexpr KnownOption kBeyondOwnScales[] = {
    {"a Hadamard transform", [](const Quantizer& q) { return static_cast<bool>(q.hadamard); }},
    {"center", [](const Quantizer& q) { return q.center; }},
    {"delayed scaling", [](const Quantizer& q) { return is_any<DelayedScale>(q.scaling); }},
    {"learned scaling", [](const Quantizer& q) { return is_any<LearnedScale>(q.scaling); }}};

}  // namespace

const char* beyond_own_scales(const Quantizer& q) {
  const auto* const found =
      std::ranges::find_if(kBeyondOwnScales, [&q](const KnownOption& option) { return option.is_in(q); });
  return found == std::end(kBeyondOwnScales) ? nullptr : found->name;
}

bool learned(const std::optional<Quantizer>& q) { return q && is_any<LearnedScale>(q->scaling); }

bool hides_nonfinite(const Quantizer& q) {
  const Bookkeeping unseen;
  const Quantizer plain = untransformed(q);
  for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    const Tensor t = ones({1, 2});
    t.narrow(1, 0, 1).fill_(bad);
    AmaxHistory history;
    if (std::isfinite(absmax(fake_quantize(t, plain, {.history = &history})))) return true;
  }
  return false;
}

std::vector<OperandGroup> describe(const Quantization& q) {
  std::vector<OperandGroup> groups;
  const auto add = [&](const std::string& field, const std::string& about, std::size_t first) {
    const auto same = std::find_if(groups.begin() + static_cast<std::ptrdiff_t>(first), groups.end(),
                                   [&](const OperandGroup& g) { return g.quantizer == about; });
    if (same != groups.end()) same->operands.push_back(field);
    else groups.push_back({{field}, about});
  };
  for (const auto& [field, quantizer] : kQuantizerFields)
    if (q.*quantizer) add(field, describe(*(q.*quantizer)), 0);
  if (q.smooth) groups.push_back({{"smooth"}, "channels of x scaled by powers of two"});
  if (q.outliers) groups.push_back({{"outliers"}, describe(*q.outliers)});
  if (!q.attention) return groups;
  const AttentionPrecision& a = *q.attention;
  const std::size_t of_products = groups.size();
  for (const auto& [field, quantizer, of_backward] : kAttentionFields)
    if (a.*quantizer) add(fmt::format("attention.{}", field), describe(*(a.*quantizer)), of_products);
  if (a.qk_accumulator) add("attention.qk_accumulator", gradual::to_string(*a.qk_accumulator), of_products);
  if (a.pv_accumulator) add("attention.pv_accumulator", gradual::to_string(*a.pv_accumulator), of_products);
  groups.push_back({{"attention.block"}, fmt::format("{} keys", a.block)});
  if (a.beta != 0) groups.push_back({{"attention.beta"}, fmt::format("{}", a.beta)});
  if (a.all_modules) groups.push_back({{"attention.all_modules"}, "true"});
  return groups;
}

}  // namespace gradual::amp
