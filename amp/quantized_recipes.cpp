// The named recipes of 8 bits and fewer, and eXmY.
#include "quantized_recipes.h"

#include <algorithm>
#include <iterator>

#include "../core/formats/format_table.h"
#include "../core/support/throwf.h"

namespace gradual::amp {
namespace {

Quantizer to_format(const char* name, const Scaling& scaling, const Rounding& rounding = {}) {
  return {.format = format(name), .rounding = rounding, .overflow = Overflow::saturate, .scaling = scaling};
}

// The same with tiles for blocks.
Quantizer squared(Quantizer q) {
  set_tiles(q.scaling, true);
  return q;
}

// One quantizer for x, W and dy in all three products.
Quantization products(const Quantizer& x, const Quantizer& w, const Quantizer& dy) {
  return {.forward_x = x, .forward_w = w, .dgrad_dy = dy, .dgrad_w = w, .wgrad_x = x, .wgrad_dy = dy};
}
Quantization products(const Quantizer& all) { return products(all, all, all); }

// One quantizer for both operands of forward, another for those of dgrad and wgrad.
Quantization forward_and_backward(const Quantizer& forward, const Quantizer& backward) {
  return {.forward_x = forward,
          .forward_w = forward,
          .dgrad_dy = backward,
          .dgrad_w = backward,
          .wgrad_x = backward,
          .wgrad_dy = backward};
}

// Hybrid: e4m3 forward, e5m2 for errors (Micikevicius et al. 2022).
Quantization fp8(const Scaling& scaling) {
  return products(to_format("e4m3fn", scaling), to_format("e4m3fn", scaling), to_format("e5m2", scaling));
}

// DeepSeek-V3's granularity with powers of two as scales, as Transformer Engine has it: max / amax rounded down.
Quantization fp8_blocks() {
  const PowerBlocks s{.block = 128, .scale = ScaleFormat::power_of_two, .rule = ScaleRule::rceil};
  const Quantizer x = to_format("e4m3fn", s);
  return products(x, squared(x), x);
}

// The OCP MX specification's FLOOR scales, one element format everywhere. MSFP (Rouhani et al. 2020) is the same with
// blocks of 16; shared microexponents (Rouhani et al. 2023) double the scale of pairs.
Scaling mx_scales(int block, int part = 0) {
  if (part == 0) return PowerBlocks{.block = block, .oracle = ScaleOracle::torchao};
  return PowerParts{.block = block, .part = part, .oracle = ScaleOracle::torchao};
}
Quantization mx(const char* element, int block = 32, int part = 0) {
  return products(to_format(element, mx_scales(block, part)));
}

// Weights and activations quantised in forward and where gradients need them again; errors in high precision.
Quantization qat(const Quantizer& x, const Quantizer& w) {
  return {.forward_x = x, .forward_w = w, .dgrad_w = w, .wgrad_x = x};
}
// One scale per tensor.
Quantizer whole(const char* element, bool zero_point = false) {
  return to_format(element, zero_point ? Scaling(TensorRange{}) : TensorScale{});
}
// One f32 scale for each tile of a weight: the same values in forward and dgrad.
Quantizer in_tiles(const char* element, int block, bool zero_point = false) {
  if (zero_point) return to_format(element, RangeBlocks{.block = block, .square = true});
  return to_format(element, FloatBlocks{.block = block, .square = true});
}

// "Pretraining Large Language Models with NVFP4" (NVIDIA 2025): weights in 16x16 tiles, stochastic errors, and a random
// Hadamard transform of wgrad's operands.
Quantization nvfp4(CodedRule rule = CodedRule::nearest) {
  const Nvfp4Blocks blocks{.block = 16, .rule = rule};
  const Quantizer x = to_format("e2m1", blocks);
  const Quantizer dy = to_format("e2m1", blocks, {.mode = RoundingMode::stochastic});
  Quantization q = products(x, squared(x), dy);
  q.wgrad_x->hadamard = true;
  q.wgrad_dy->hadamard = true;
  return q;
}

// MS-AMP (Peng et al. 2023): scales are powers of two, rounded down.
Quantization ms_amp(bool moments) {
  const TensorScale tensor{.power_of_two = true};
  Quantization q = fp8(tensor);
  q.weight_gradient = q.forward_x;
  q.weight = to_format("fp16", tensor);
  if (moments) {
    q.moment1 = q.forward_x;
    q.moment2 = q.weight;
  }
  return q;
}

// Adam's moments in the dynamic maps of bitsandbytes (8 bits, blocks of 256) and torchao (4 bits, blocks of 128).
// Blocks lie along the last dim; theirs run on through all elements of a tensor.
Quantization dynamic_moments(int bits, int block) {
  const auto in_blocks = [&](const char* sign) {
    return to_format(fmt::format("{}dynamic{}", sign, bits).c_str(), FloatBlocks{.block = block});
  };
  return {.moment1 = in_blocks(""), .moment2 = in_blocks("u")};
}

// "Effective Quantization of Muon Optimizer States" (Gupta et al. 2025): momentum in linear codes, blocks of 2048.
Quantization linear_momentum() { return {.moment1 = to_format("int8", FloatBlocks{.block = 2048})}; }

// "Training LLMs with MXFP4" (Tseng et al. 2025): both products of backward in MXFP4, rounded at random after a random
// Hadamard transform. Without clipping the rounding has no bias; theirs scales by 3/4 instead of rceil.
Quantization mxfp4_backward() {
  const PowerBlocks blocks{.rule = ScaleRule::rceil, .oracle = ScaleOracle::torchao};
  Quantizer q = to_format("e2m1", blocks, {.mode = RoundingMode::stochastic});
  q.hadamard = 64;
  return {.dgrad_dy = q, .dgrad_w = q, .wgrad_x = q, .wgrad_dy = q};
}

// "The Curse and Blessing of Mean Bias in FP4-Quantized LLM Training" (Cao et al. 2026): the mean over tokens is
// subtracted from x before it is rounded.
Quantization centered(Quantization q) {
  q.forward_x->center = true;
  q.wgrad_x->center = true;
  return q;
}

// Quartet II (Panferov et al. 2026): forward to nearest with 4 or 6, backward by MS-EDEN after a random rotation of
// 128. Theirs rounds x and W again from forward's codes, and takes the amaxes of blocks to 6.07 instead of 6.
Quantization quartet2() {
  const Quantizer forward = to_format("e2m1", Nvfp4Blocks{.block = 16, .rule = CodedRule::four_over_six});
  Quantizer backward = to_format("e2m1", EdenBlocks{});
  backward.hadamard = 128;
  backward.signs = HadamardSigns::drawn;
  return forward_and_backward(forward, backward);
}

// TetraJet-v2 (Chen et al. 2025): forward to nearest, backward at random after a random rotation of 16; a tenth of the
// channels of x in MXFP8. Theirs rounds x and W again from forward's codes (`requantize`), which convolutions that
// round windows lack, and gathers the channels by size, so that blocks have others.
Quantization tetrajet_v2() {
  const Quantizer forward = to_format("e2m1", DoubleBlocks{});
  Quantizer backward = to_format("e2m1", DoubleBlocks{}, {.mode = RoundingMode::stochastic});
  backward.hadamard = true;
  backward.signs = HadamardSigns::drawn;
  Quantization q = forward_and_backward(forward, backward);
  q.outliers.emplace().quantizer = to_format("e4m3fn", mx_scales(32));
  return q;
}

// "Scaling FP8 training to trillion-token LLMs" (Fishman et al. 2024): theirs scales the input of the layer after a
// SwiGLU alone.
Quantization smoothed(Quantization q) {
  q.smooth = true;
  return q;
}

// Attention as a bf16 FlashAttention has it. Sums between blocks are bf16 too, as in the code of "Why Low-Precision
// Transformer Training Fails" (Qiu and Yao 2025); its cure moves a maximum that occurs more than once.
Quantization bf16_flash(double beta) {
  const Quantizer bf16 = to_format("bf16", NoScale{});
  AttentionPrecision inside{.beta = beta};
  for (const AttentionField& f : kAttentionFields)
    if (f.quantizer != &AttentionPrecision::softmax) inside.*f.quantizer = bf16;
  return {.attention = inside};
}

// "Towards Fully FP8 GEMM LLM Training at Scale" (Hernandez-Cano et al. 2025): attention's products in FP8 too. Each
// operand of a block of keys has one scale from its own amax; theirs are delayed, and the head is not in FP8.
Quantization fp8_attention(const Scaling& scaling = TensorScale{}) {
  Quantization q = fp8(DelayedScale{});
  AttentionPrecision inside;
  for (const auto operand :
       {&AttentionPrecision::q, &AttentionPrecision::k, &AttentionPrecision::v, &AttentionPrecision::p})
    inside.*operand = to_format("e4m3fn", scaling);
  for (const auto gradient : {&AttentionPrecision::d_o, &AttentionPrecision::d_p, &AttentionPrecision::d_s})
    inside.*gradient = to_format("e5m2", scaling);
  q.attention = inside;
  return q;
}

// Transformer Engine's recipe DelayedScaling with fp8_dpa, as its API documentation has it; O is in FP8 too.
Quantization fp8_attention_delayed() {
  Quantization q = fp8_attention(DelayedScale{});
  q.attention->o = to_format("e4m3fn", DelayedScale{});
  return q;
}

// "FlashAttention-3" (Shah et al. 2024) rotates Q and K for FP8; here they are in MXFP4, as all operands, and V and dO
// are rotated too. P and dS are not: their products contract keys, which masks hide, and queries.
Quantization mxfp4_attention_hadamard() {
  Quantization q = mx("e2m1");
  AttentionPrecision inside;
  for (const auto operand :
       {&AttentionPrecision::q, &AttentionPrecision::k, &AttentionPrecision::v, &AttentionPrecision::d_o}) {
    inside.*operand = q.forward_x;
    (inside.*operand)->hadamard = true;
  }
  inside.p = q.forward_x;
  inside.d_s = q.forward_x;
  q.attention = inside;
  return q;
}

// "Learned Step Size Quantization" (Esser et al. 2020): theirs has unsigned activations after a ReLU, and 8 bits in the
// first and the last layer.
Quantization learned_steps() {
  Quantizer q = to_format("int4", LearnedScale{});
  Quantization all = qat(q, q);
  q.gradient = QuantizerGradient::clipped;
  all.forward_x = q;
  all.forward_w = q;
  return all;
}

// Where floor's scales clip a weight, it has no gradient; PACT (Choi et al. 2018) has that for activations. Not x: a
// convolution rounds windows of it where blocks do not divide the channels.
Quantization clipped_weights(Quantization q) {
  q.forward_w->gradient = QuantizerGradient::clipped;
  return q;
}

// "Optimizing Large Language Model Training Using FP4 Quantization" (Wang et al. 2025): rows of x and of W have one
// scale each. Theirs also clamps outliers of x and adds them back.
Quantization differentiable_weights() {
  const Quantizer rows = to_format("e2m1", RowScale{});
  Quantization q{.forward_x = rows, .forward_w = rows};
  q.forward_w->gradient = QuantizerGradient::differentiable;
  return q;
}

Recipe full(const std::string& name, const std::string& description, Quantization quantization) {
  return {.name = name, .description = description, .quantization = std::move(quantization)};
}

Recipe with_oscillation_reset() {
  Recipe r =
      full("tetrajet-v2",
           "matmul operands in e2m1; blocks of 16 with e4m3 scales under f32 scales of 128; in backward rounded at "
           "random after a Hadamard transform with drawn signs; a tenth of the channels of x in MXFP8; weights that "
           "oscillate are set to the centre of their bin (TetraJet-v2, arXiv 2510.27527)",
           tetrajet_v2());
  r.oscillation_reset.emplace();
  return r;
}

// ECO (Nikdan et al. 2026).
Recipe without_masters() {
  Recipe r =
      full("eco-fp8",
           "weights kept in e4m3, one power of two per row, without masters; what rounding them loses goes into the "
           "momentum (ECO, arXiv 2601.22101); all else in f32",
           {.weight = to_format("e4m3fn", RowScale{.power_of_two = true})});
  r.update = optim::LowPrecisionUpdate::eco;
  return r;
}

// Scales of tensors, rows and blocks for operands in FP8, blocks for those in 4 and 6 bits, and MS-AMP.
std::vector<Recipe> floating_point_recipes() {
  const RowScale fp8_rows{.power_of_two = true, .oracle = ScaleOracle::torchao};
  return {
      full("fp8-delayed", "matmul inputs in e4m3, gradients in e5m2; one scale per tensor, from its last 1024 amaxes",
           fp8(DelayedScale{})),
      full("fp8-current", "matmul inputs in e4m3, gradients in e5m2; one scale per tensor, from its own amax",
           fp8(TensorScale{})),
      full("fp8-rowwise", "matmul operands in e4m3; one power-of-two scale per row",
           products(to_format("e4m3fn", fp8_rows))),
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
      full("nvfp4-4over6", "as nvfp4; of each block the amax becomes 6 or 4, whichever errs less (arXiv 2512.02010)",
           nvfp4(CodedRule::four_over_six)),
  };
}

// Fixed-point operands under exponents that blocks share.
std::vector<Recipe> shared_exponent_recipes() {
  const CodedParts hif4{.block = 64, .part = 8, .inner_part = 4, .scale_format = format("ue6m2")};
  return {
      full("mxint8", "matmul operands in 8-bit fixed point; blocks of 32 with e8m0 scales (OCP MX)", mx("mxint8")),
      full("msfp12", "matmul operands with 3 bits under an exponent shared by 16 (MSFP)", mx("msfp12", 16)),
      full("msfp16", "matmul operands with 7 bits under an exponent shared by 16 (MSFP)", mx("mxint8", 16)),
      full("mx9", "as msfp16; pairs double their scale (shared microexponents)", mx("mxint8", 16, 2)),
      full("mx6", "matmul operands with 4 bits under an exponent shared by 16 and doubled by pairs", mx("q1.3", 16, 2)),
      full("mx4", "matmul operands with 2 bits under an exponent shared by 16 and doubled by pairs", mx("q1.1", 16, 2)),
      full("hif4", "matmul operands with 3 bits under a scale shared by 64 and doubled by 8 and 4 (HiFloat4)",
           products(to_format("msfp12", hif4))),
  };
}

// Integers, and NormalFloat4.
std::vector<Recipe> integer_recipes() {
  const Quantizer rows = to_format("int8", RowScale{});
  return {
      full("int8", "weights and activations in int8, one scale per tensor; errors in f32 (QAT)",
           qat(whole("int8"), whole("int8"))),
      full("int4", "weights in int4, a scale per 16x16; activations in int8, one scale per tensor; errors in f32 (QAT)",
           qat(whole("int8"), in_tiles("int4", 16))),
      full("int8-asym", "activations in uint8, weights in int8tc, one scale and zero point per tensor; errors in f32",
           qat(whole("uint8", true), whole("int8tc", true))),
      full("int4-asym", "weights in int4tc, a scale and a zero point per 16x16; activations as in int8-asym",
           qat(whole("uint8", true), in_tiles("int4tc", 16, true))),
      full("nf4", "weights in NormalFloat4, a scale per 8x8; all else in f32",
           {.forward_w = in_tiles("nf4", 8), .dgrad_w = in_tiles("nf4", 8)}),
      full("int8-rowwise", "matmul operands in int8, one scale per row in all three products", products(rows)),
      full("switchback",
           "forward and dgrad in int8, rows of x and dy, tensors of W; wgrad in f32 (Wortsman et al. 2023)",
           {.forward_x = rows, .forward_w = whole("int8"), .dgrad_dy = rows, .dgrad_w = whole("int8")}),
  };
}

// Against a bias or against outliers.
std::vector<Recipe> corrected_recipes() {
  return {
      full("mxfp4-backward",
           "backward's operands in e2m1, rounded at random after a Hadamard transform; blocks of 32 with e8m0 scales "
           "that clip nothing; forward in f32 (arXiv 2502.20586)",
           mxfp4_backward()),
      full("mxfp4-centered",
           "as mxfp4, without the mean of x over the samples, which is added in f32 (arXiv 2603.10444)",
           centered(mx("e2m1"))),
      full("quartet2",
           "forward as nvfp4-4over6, without tiles; backward in e2m1 to nearest after a random rotation of 128, with "
           "random scales against the bias (MS-EDEN, arXiv 2601.22813)",
           quartet2()),
      full("int4-lsq",
           "weights and activations in int4, scales learned with them; no gradient where they clip; errors in f32 "
           "(LSQ, arXiv 1902.08153)",
           learned_steps()),
      full("mxfp4-clipped",
           "as mxfp4; weights that its scales clip have no gradient, as PACT's activations (arXiv 1805.06085)",
           clipped_weights(mx("e2m1"))),
      full("e2m1-dge",
           "forward in e2m1, one scale per row; the gradient of W is that of a smooth step (arXiv 2501.17116); "
           "backward's operands in f32",
           differentiable_weights()),
      full("fp8-smooth",
           "as fp8-delayed; each channel of x times a power of two before it is rounded, and back (arXiv 2409.12517)",
           smoothed(fp8(DelayedScale{}))),
      full("fp8-attention",
           "as fp8-delayed, and attention in blocks of 64 keys: q, k, v and probabilities in e4m3, gradients in e5m2, "
           "one scale per tensor, of keys and probabilities per block, from its own amax (arXiv 2505.20524)",
           fp8_attention()),
      full("fp8-attention-delayed",
           "as fp8-attention, with scales from the last 1024 amaxes, and the output of attention in e4m3 (Transformer "
           "Engine, fp8_dpa)",
           fp8_attention_delayed()),
      full("mxfp4-attention-hadamard",
           "as mxfp4, and attention in blocks of 64 keys whose operands are in e2m1; q, k, v and the gradient of the "
           "output after a Hadamard transform along the head size, a multiple of 16 (arXiv 2407.08608)",
           mxfp4_attention_hadamard()),
  };
}

// Formats inside of attention, of moments, of masters, and without scales.
std::vector<Recipe> other_recipes() {
  return {
      full("bf16-flash", "attention in blocks of 64 keys, its operands and its output in bf16; all else in f32",
           bf16_flash(0)),
      full("bf16-flash-shifted",
           "as bf16-flash; a row's maximum that occurs more than once grows by 0.5 to 16, so that its P is not 1 "
           "(arXiv 2510.04212)",
           bf16_flash(2)),
      full("adam8", "f32, with Adam's moments in dynamic maps of 8 bits, an f32 scale per 256 (bitsandbytes)",
           dynamic_moments(8, 256)),
      full("adam4", "f32, with Adam's moments in dynamic maps of 4 bits, an f32 scale per 128 (torchao)",
           dynamic_moments(4, 128)),
      without_masters(),
      full("unscaled-fp8", "matmul inputs in e4m3, gradients in e5m2, without scales: for unit-scaled models (u-muP)",
           fp8(NoScale{})),
      full("muon8", "f32, with the momentum in int8, an f32 scale per 2048: for Muon (arXiv 2509.23106)",
           linear_momentum()),
      with_oscillation_reset(),
  };
}

}  // namespace

std::vector<Recipe> quantized_recipes() {
  std::vector<Recipe> all;
  for (const auto group :
       {floating_point_recipes, shared_exponent_recipes, integer_recipes, corrected_recipes, other_recipes})
    std::ranges::move(group(), std::back_inserter(all));
  return all;
}

std::optional<Recipe> emulated_recipe(const std::string& name) {
  const std::string head = name.substr(0, name.find(':'));
  const bool pure = name.starts_with("pure:");
  const bool blocks = head.starts_with("mx") && head.size() < std::min<std::size_t>(name.size(), 8) &&
                      head.find_first_not_of("0123456789", 2) == std::string::npos && !head.starts_with("mx0");
  const std::string what = name.substr(pure || blocks ? head.size() + 1 : 0);
  const std::string element = what.substr(0, what.find(':'));
  const bool widths = element.starts_with('e') && element.find('m') != std::string::npos &&
                      element.find_first_not_of("em0123456789") == std::string::npos;
  const bool fixed = (element.starts_with('q') || element.starts_with("uq")) && element.find('.') != std::string::npos;
  const bool named = element.starts_with("binary8") || std::ranges::count(table_formats(), element, &NamedFormat::name);
  if (!pure && !blocks && (element == "nf4" || !(widths || fixed || named))) return {};
  Quantizer q{.format = in_context("recipe '" + name + "'", [&] { return format(element); }),
              .rounding = element == what ? Rounding{} : rounding_from_name(what.substr(element.size() + 1)),
              .overflow = blocks ? Overflow::saturate : Overflow::ieee};
  if (blocks) q.scaling = mx_scales(head == "mx" ? 32 : std::stoi(head.substr(2)));
  // torchao divides by no scale below 2^-126, which is too large for these formats.
  if (blocks && q.format.max_exponent() > 63) set_oracle(q.scaling, ScaleOracle::transformer_engine);
  const std::string scales = blocks ? fmt::format("blocks of {} with e8m0 scales", block_size(q.scaling)) : "no scales";
  const char* const of = pure ? "parameters, the result of every op and matmul operands" : "matmul operands";
  Recipe r = full(name, fmt::format("{} rounded to {} ({}), {}", of, element, gradual::to_string(q.rounding), scales),
                  products(q));
  if (pure) r.quantization->result = q;
  check_valid(r);
  return r;
}

// Of the model, or of one of its modules.
static bool rounds_attention(const Quantization& q) {
  return q.attention || std::ranges::any_of(q.modules, [](const auto& module) {
           const Recipe other = recipe(module.second);
           return other.quantization && other.quantization->attention;
         });
}

void check_quantized(const Recipe& r) {
  const std::string who = "recipe '" + r.name + "'";
  in_context(who, [&] { check_valid(*r.quantization); });
  if (const auto& result = r.quantization->result; r.scaling && result && hides_nonfinite(*result))
    throwf(
        "{}: a loss scale skips steps whose gradients hold Inf or NaN, and `result` ({}) makes these finite in every "
        "op; "
        "leave scaling out, or let results keep them: a format with Inf and NaN and the overflow ieee",
        who, describe(*result));
  if (r.quantization->master && r.masters == Masters::none) throw_error(who + ": a quantizer of masters needs masters");
  if (learns_scales(*r.quantization) && (r.mode == Mode::half || r.mode == Mode::pure))
    throw_error(who + ": learned scales are f32 parameters (modes full and autocast); this mode keeps half ones");
  const bool attention = rounds_attention(*r.quantization);
  for (const auto& [op, policy] : r.policy)
    if (std::ranges::count(kQuantisedOps, op) || (attention && op == OpId::scaled_dot_product_attention))
      throwf("{}: the policy of {} is the quantisation's; leave it out of `policy`, or leave modules out by `modules`",
             who, to_string(op));
}

std::optional<Format> format_met(const Quantization& q, Role role) {
  std::optional<Format> one;
  for (const auto field : kOperandQuantizers[static_cast<int>(role)]) {
    const auto& operand = q.*field;
    if (operand && one && operand->format != *one) return {};
    if (operand) one = operand->format;
  }
  for (const auto& [module, other] : q.modules)
    if (const Recipe r = recipe(other); r.quantization && format_met(*r.quantization, role) != one) return {};
  return one;
}

}  // namespace gradual::amp
