// The named recipes of 8 bits and fewer, and eXmY.
#include "quantized_recipes.h"

#include "../core/support/throwf.h"

namespace gradual::amp {
namespace {

Quantizer to_format(const char* name, const Scaling& scaling, const Rounding& rounding = {}) {
  return {.format = format(name), .rounding = rounding, .overflow = Overflow::saturate, .scaling = scaling};
}

// One quantizer for x, W and dy in all three products.
Quantization products(const Quantizer& x, const Quantizer& w, const Quantizer& dy) {
  return {.forward_x = x, .forward_w = w, .dgrad_dy = dy, .dgrad_w = w, .wgrad_x = x, .wgrad_dy = dy};
}

constexpr Rounding kStochastic{.mode = RoundingMode::stochastic};

// Hybrid: e4m3 forward, e5m2 for errors (Micikevicius et al. 2022).
Quantization fp8(const Scaling& scaling) {
  const Quantizer forward = to_format("e4m3fn", scaling);
  return products(forward, forward, to_format("e5m2", scaling));
}

// DeepSeek-V3's granularity with powers of two as scales, as Transformer Engine has it: max / amax rounded down.
Quantization fp8_blocks() {
  Scaling rows{.kind = ScalingKind::block,
               .block = 128,
               .scale = ScaleFormat::power_of_two,
               .rule = ScaleRule::rceil,
               .oracle = ScaleOracle::transformer_engine};
  Scaling tiles = rows;
  tiles.square = true;
  const Quantizer x = to_format("e4m3fn", rows);
  return products(x, to_format("e4m3fn", tiles), x);
}

// The OCP MX specification's blocks of 32 with its FLOOR scales, one element format everywhere.
Quantization mx(const char* element) {
  const Quantizer q = to_format(element, {.kind = ScalingKind::block,
                                          .block = 32,
                                          .scale = ScaleFormat::e8m0,
                                          .rule = ScaleRule::floor,
                                          .oracle = ScaleOracle::torchao});
  return products(q, q, q);
}

// "Pretraining Large Language Models with NVFP4" (NVIDIA 2025): weights in 16x16 tiles, stochastic errors, and a random
// Hadamard transform of wgrad's operands.
Quantization nvfp4() {
  const Scaling blocks{.kind = ScalingKind::nvfp4, .block = 16};
  Scaling tiles = blocks;
  tiles.square = true;
  const Quantizer x = to_format("e2m1", blocks);
  const Quantizer dy = to_format("e2m1", blocks, kStochastic);
  Quantization q = products(x, to_format("e2m1", tiles), dy);
  q.wgrad_x->hadamard = q.wgrad_dy->hadamard = true;
  return q;
}

// MS-AMP (Peng et al. 2023): scales are powers of two, rounded down.
Quantization ms_amp(bool moments) {
  const Scaling tensor{.kind = ScalingKind::tensor, .power_of_two = true};
  Quantization q = fp8(tensor);
  q.weight_gradient = to_format("e4m3fn", tensor);
  q.weight = to_format("fp16", tensor);
  if (moments) q.moment1 = to_format("e4m3fn", tensor), q.moment2 = to_format("fp16", tensor);
  return q;
}

Recipe full(const char* name, const char* description, Quantization quantization) {
  Recipe r;
  r.name = name;
  r.description = description;
  r.quantization = std::move(quantization);
  return r;
}

}  // namespace

std::vector<Recipe> quantized_recipes() {
  return {
      full("fp8-delayed", "matmul inputs in e4m3, gradients in e5m2; one scale per tensor, from its last 1024 amaxes",
           fp8({.kind = ScalingKind::delayed})),
      full("fp8-current", "matmul inputs in e4m3, gradients in e5m2; one scale per tensor, from its own amax",
           fp8({.kind = ScalingKind::tensor})),
      full("fp8-rowwise", "matmul operands in e4m3; one power-of-two scale per row",
           [] {
             const Quantizer q =
                 to_format("e4m3fn", {.kind = ScalingKind::row, .power_of_two = true, .oracle = ScaleOracle::torchao});
             return products(q, q, q);
           }()),
      full("fp8-block128", "matmul operands in e4m3; powers of two per block of 128 (weights: 128x128)", fp8_blocks()),
      full("mxfp8", "matmul operands in e4m3; blocks of 32 with e8m0 scales (OCP MX, floor)", mx("e4m3fn")),
      full("mxfp6", "matmul operands in e3m2; blocks of 32 with e8m0 scales (OCP MX, floor)", mx("e3m2")),
      full("mxfp4", "matmul operands in e2m1; blocks of 32 with e8m0 scales (OCP MX, floor)", mx("e2m1")),
      full("nvfp4",
           "matmul operands in e2m1; blocks of 16, each with an e4m3 scale, plus one f32 scale per tensor; gradients "
           "rounded stochastically, Hadamard transform in wgrad",
           nvfp4()),
      full("msamp-o1", "matmul operands and weight gradients in FP8, weights in f16; one power-of-two scale per tensor",
           ms_amp(false)),
      full("msamp-o2", "as msamp-o1, with Adam's first moment in e4m3 and its second in f16", ms_amp(true)),
  };
}

std::optional<Recipe> emulated_recipe(const std::string& name) {
  const std::string element = name.substr(0, name.find(':'));
  if (!element.starts_with('e') || element.find('m') == std::string::npos ||
      element.find_first_not_of("em0123456789") != std::string::npos)
    return {};
  const auto colon = name.find(':');
  const Quantizer q{.format = in_context("recipe '" + name + "'", [&] { return format(element); }),
                    .rounding = colon == std::string::npos ? Rounding{} : rounding_from_name(name.substr(colon + 1)),
                    .overflow = Overflow::ieee};
  Recipe r;
  r.name = name;
  r.description = "matmul operands rounded to " + element + " (" + to_string(q.rounding) + "), no scales";
  r.quantization = products(q, q, q);
  check_valid(r);
  return r;
}

void check_quantized(const Recipe& r) {
  const std::string who = "recipe '" + r.name + "'";
  in_context(who, [&] { check_valid(*r.quantization); });
  if (r.quantization->master && r.masters == Masters::none) throw_error(who + ": a quantizer of masters needs masters");
  for (const auto& [op, policy] : r.policy)
    if (op == OpId::matmul || op == OpId::linear || op == OpId::conv2d)
      throwf("{}: the policy of {} is the quantisation's; leave it out of `policy`, or leave modules out by `modules`",
             who, to_string(op));
}

std::optional<Format> format_met(const Quantization& q, Role role) {
  using Q = Quantization;
  static constexpr std::pair<std::optional<Quantizer> Q::*, std::optional<Quantizer> Q::*> kOperands[kRoles] = {
      {&Q::forward_x, &Q::wgrad_x},
      {&Q::forward_w, &Q::dgrad_w},
      {&Q::dgrad_dy, &Q::wgrad_dy},
      {&Q::weight_gradient, &Q::weight_gradient}};
  const auto& [first, second] = kOperands[static_cast<int>(role)];
  std::optional<Format> one;
  for (const auto& operand : {q.*first, q.*second}) {
    if (operand && one && operand->format != *one) return {};
    if (operand) one = operand->format;
  }
  for (const auto& [module, other] : q.modules)
    if (const Recipe r = recipe(other); r.quantization && format_met(*r.quantization, role) != one) return {};
  return one;
}

}  // namespace gradual::amp
