// Failures of operands in 8 bits and fewer, of scales, of blocks, and of accumulators.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kinds.h"

namespace gradual::precision_bench {
namespace {

using enum Family;
using inspect::Cause;

const std::vector<Family> kPlain = {mlp, cnn, recurrent};
const std::vector<Family> kEach = {mlp, mlp_norm, cnn, cnn_norm, transformer, recurrent};

Quantizer unscaled(const std::string& name) { return {.format = format(name)}; }
Quantizer scaled(const std::string& name, const Scaling& scaling) {
  return {.format = format(name), .scaling = scaling};
}

// The quantizer of one operand in both of its products.
void quantise(amp::Recipe& r, Role role, const Quantizer& q) {
  if (!r.quantization) r.quantization.emplace();
  const auto set = [&](amp::Role operand) {
    for (const auto field : amp::kOperandQuantizers[static_cast<int>(operand)]) *r.quantization.*field = q;
  };
  if (role == Role::activation) set(amp::Role::activation);
  if (role == Role::weight) set(amp::Role::weight);
  if (role == Role::error) set(amp::Role::error);
}
amp::Recipe with(amp::Recipe r, Role role, const Quantizer& q) {
  quantise(r, role, q);
  return r;
}
const char* fields_of(Role role, int product) {
  if (role == Role::activation) return product == 0 ? "forward_x" : "wgrad_x";
  if (role == Role::weight) return product == 0 ? "forward_w" : "dgrad_w";
  return product == 0 ? "dgrad_dy" : "wgrad_dy";
}

// A failure of one operand: its truth, with the quantizer that cures it. what: the fields of a quantizer that matter.
void of_operand(Instance& i, Cause cause, Role role, const Quantizer& cured, const std::vector<std::string>& what) {
  i.truth.causes = {cause};
  i.truth.roles = {role};
  i.truth.phases = {role == Role::error ? Phase::backward : Phase::forward};
  i.truth.cured = with(i.recipe, role, cured);
  for (const std::string& field : what)
    for (const int product : {0, 1})
      i.truth.specific.push_back(std::string("/quantization/") + fields_of(role, product) + "/" + field);
}
// Only this block's layer is quantised.
void only(Instance& i, const std::string& path) {
  for (const std::string& other : block_paths(i.model))
    if (other != path) i.recipe.quantization->modules.emplace_back(other, "fp32");
  i.truth.sites = {path};
}
std::string drawn_block(const Instance& i, Draw& draw) {
  return "b" + std::to_string(draw.integer(0, i.model.depth - 1));
}

// Activations beyond the largest number of an 8-bit format without scales.
void activations_clipped(Instance& i, Draw& draw) {
  draw_range(i, draw, 3e4, 3e6);
  const std::string name = draw.one_of<std::string>({"e4m3fn", "e4m3fn", "e3m4"});
  quantise(i.recipe, Role::activation, unscaled(name));
  of_operand(i, Cause::clipping, Role::activation, scaled(name, TensorScale{}), {"scaling"});
  i.truth.sites = {ranged_path(i)};
  i.truth.cure = "a scale from the tensor's own amax";
  i.truth.does_not_help = "rounding, weights in high precision";
}
void activations_underflow(Instance& i, Draw& draw) {
  draw_range(i, draw, 1e-7, 1e-5);
  const std::string name = draw.one_of<std::string>({"e4m3fn", "e5m2", "e3m4"});
  quantise(i.recipe, Role::activation, unscaled(name));
  of_operand(i, Cause::format_range, Role::activation, scaled(name, TensorScale{}), {"scaling"});
  i.truth.sites = {ranged_path(i)};
  i.truth.cure = "a scale from the tensor's own amax";
  i.truth.does_not_help = "rounding, weights in high precision";
}
void fixed_point(Instance& i, Draw& draw) {
  draw_range(i, draw, 60, 600);
  const std::string name = draw.one_of<std::string>({"q1.6", "q2.5", "q0.7"});
  quantise(i.recipe, Role::activation, unscaled(name));
  of_operand(i, Cause::clipping, Role::activation, scaled(name, TensorScale{}), {"scaling"});
  i.truth.sites = {ranged_path(i)};
  i.truth.cure = "a scale from the tensor's own amax";
}
void no_subnormals(Instance& i, Draw& draw) {
  draw_range(i, draw, 4e-4, 9e-4);
  Quantizer q = unscaled("e4m3fn");
  q.format.subnormals = false;
  quantise(i.recipe, Role::activation, q);
  Quantizer cured = q;
  cured.scaling = TensorScale{};
  of_operand(i, Cause::format_range, Role::activation, cured, {"scaling", "format"});
  i.truth.sites = {ranged_path(i)};
  i.truth.cure = "a scale from the tensor's own amax, or a format with subnormals";
}
void unsigned_format(Instance& i, Draw& draw) {
  i.model.tanh = true;
  const std::string name = draw.one_of<std::string>({"ue4m3", "ue5m3", "ue4m2"});
  quantise(i.recipe, Role::activation, scaled(name, TensorScale{}));
  of_operand(i, Cause::clipping, Role::activation, scaled("e4m3fn", TensorScale{}), {"format"});
  i.truth.causes.push_back(Cause::format_range);
  i.truth.sites = {};
  i.truth.cure = "a signed format, or a zero point";
}

// Weights of one layer below the smallest number of their format.
void weights_vanish(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"e2m1", "e2m0", "q3.0"});
  quantise(i.recipe, Role::weight, unscaled(name));
  only(i, drawn_block(i, draw));
  of_operand(i, Cause::format_range, Role::weight, scaled(name, TensorScale{}), {"scaling"});
  i.truth.cure = "a scale from the tensor's own amax";
}
// A format that ends below the weights.
void weights_clipped(Instance& i, Draw& draw) {
  Quantizer q = unscaled(draw.one_of<std::string>({"e3m2", "e4m3", "e4m2"}));
  const int largest = static_cast<int>(draw.integer(-10, -8));  // its exponent
  q.format.bias += q.format.max_exponent() - largest;
  quantise(i.recipe, Role::weight, q);
  Quantizer cured = q;
  cured.scaling = TensorScale{};
  of_operand(i, Cause::clipping, Role::weight, cured, {"scaling"});
  i.truth.cure = "a scale from the tensor's own amax";
  i.truth.does_not_help = "a finer format of the same range";
}

// Gradients below the smallest number of an 8-bit format without scales.
void errors_vanish(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"e4m3fn", "e5m2", "e4m3"});
  i.loss_weight = name == "e5m2" ? draw.scale(1e-6, 1e-5) : draw.scale(1e-4, 3e-3);
  i.options.training.rates.eps = 1e-16;
  quantise(i.recipe, Role::error, unscaled(name));
  of_operand(i, Cause::gradient_underflow, Role::error, scaled(name, TensorScale{}), {"scaling"});
  i.truth.specific.emplace_back("/scaling");
  i.truth.cure = "a scale from the tensor's own amax, or a loss scale";
}
void errors_clipped(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"e4m3fn", "e3m2"});
  i.loss_weight = draw.scale(1e7, 1e9);
  quantise(i.recipe, Role::error, unscaled(name));
  of_operand(i, Cause::clipping, Role::error, scaled(name, TensorScale{}), {"scaling"});
  i.truth.causes.push_back(Cause::gradient_overflow);
  i.truth.cure = "a scale from the tensor's own amax";
}
// One scale for gradients of very different sizes, in 4 bits and rounded to nearest: most are 0 in every step.
void fp4_errors(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"e2m1", "int4", "e2m0"});
  const Scaling scaling = draw.one_of<Scaling>({TensorScale{}, PowerBlocks{.block = 64, .rule = ScaleRule::rceil}});
  quantise(i.recipe, Role::error, scaled(name, scaling));
  i.options.epochs = 4;
  Quantizer cured = scaled(name, scaling);
  cured.rounding.mode = RoundingMode::stochastic;
  cured.scaling = FloatBlocks{.block = 8};
  of_operand(i, Cause::gradient_underflow, Role::error, cured, {"rounding", "scaling"});
  i.truth.cure = "stochastic rounding, smaller blocks";
}
// Gradients between parameters and optimizer in 8 bits without scales.
void weight_gradients_vanish(Instance& i, Draw& draw) {
  const Quantizer q = unscaled(draw.one_of<std::string>({"e4m3fn", "e5m2", "e3m4"}));
  i.loss_weight = draw.scale(1e-6, 1e-5);
  i.options.training.rates.eps = 1e-16;
  i.recipe.quantization.emplace().weight_gradient = q;
  i.truth.causes = {Cause::gradient_underflow};
  i.truth.roles = {Role::weight_gradient};
  i.truth.phases = {Phase::backward};
  i.truth.cured = i.recipe;
  i.truth.cured.quantization->weight_gradient->scaling = TensorScale{};
  i.truth.specific = {"/quantization/weight_gradient/scaling", "/scaling"};
  i.truth.cure = "a scale from the tensor's own amax, or a loss scale";
}

// A sample with huge inputs keeps a delayed scale large for long.
void delayed_outlier(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"e4m3fn", "e5m2"});
  i.model.tanh = true;
  i.data.outlier_rows = 1.0 / static_cast<double>(i.data.train);  // one sample
  i.data.outlier_factor = name == "e5m2" ? draw.scale(2e10, 1e11) : draw.scale(3e6, 3e7);
  const DelayedScale delayed{.history = static_cast<int>(draw.integer(64, 1024))};
  quantise(i.recipe, Role::activation, scaled(name, delayed));
  of_operand(i, Cause::delayed_scale, Role::activation, scaled(name, TensorScale{}), {"scaling"});
  i.truth.sites = {"b0.layer"};
  i.truth.cure = "a scale from the tensor's own amax, or a short history";
  i.truth.does_not_help = "another format of weights or gradients";
}
// The largest number of the format is a power of two, so FLOOR clips the whole upper octave of a block: there the
// signal is.
void floor_clipping(Instance& i, Draw& draw) {
  Quantizer floor = unscaled(draw.one_of<std::string>({"e4m1", "e5m1", "e3m1"}));
  floor.format.has_inf = false;
  floor.format.nan = NanEncoding::all_ones;
  const double power = std::exp2(draw.integer(-4, 4));
  i.data.bipolar = true;
  i.data.low = draw.real(1, 1.05) * power;
  i.data.high = draw.real(1.95, 1.99) * power;
  floor.scaling = PowerBlocks{.block = draw.one_of<int>({16, 32})};
  Quantizer up = floor;
  set_rule(up.scaling, ScaleRule::rceil);
  quantise(i.recipe, Role::activation, floor);
  only(i, block_paths(i.model).front());
  of_operand(i, Cause::floor_clipping, Role::activation, up, {"scaling/rule"});
  i.truth.cure = "scales rounded up (RCEIL)";
  i.truth.does_not_help = "smaller blocks";
}
// One constant channel makes its neighbours in the block 0.
void outlier_channel(Instance& i, Draw& draw, int block, double low, double high) {
  const std::string name = draw.one_of<std::string>({"e2m1", "e2m1", "e2m3"});
  draw_outlier(i, draw);
  i.model.outlier_size = draw.scale(low, high) * (name == "e2m3" ? 4 : 1);
  const PowerBlocks large{.block = block, .rule = ScaleRule::rceil};
  PowerBlocks small = large;
  small.block = 4;
  quantise(i.recipe, Role::activation, scaled(name, large));
  of_operand(i, Cause::format_range, Role::activation, scaled(name, small), {"scaling/block"});
  i.truth.causes.push_back(Cause::outlier_channels);
  i.truth.specific.emplace_back("/quantization/outliers");
  i.truth.sites = {outlier_path(i)};
  i.truth.cure = "smaller blocks, or the channel in high precision";
  i.truth.does_not_help = "RCEIL instead of FLOOR";
}
void outlier_in_block(Instance& i, Draw& draw) {
  i.model.width = 32;
  outlier_channel(i, draw, 32, 100, 300);
}
void blocks_too_large(Instance& i, Draw& draw) {
  i.model.width = 64;
  outlier_channel(i, draw, static_cast<int>(draw.one_of<std::int64_t>({64, 128})), 100, 300);
}
// The same with one scale for the whole tensor.
void outlier_in_tensor(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"int4", "e2m1", "int8"});
  i.model.width = std::max<std::int64_t>(i.model.width, 32);
  draw_outlier(i, draw);
  i.model.outlier_size = draw.scale(100, 300) * (name == "int8" ? 10 : 1);
  quantise(i.recipe, Role::activation, scaled(name, TensorScale{}));
  const FloatBlocks small{.block = 4};
  of_operand(i, Cause::format_range, Role::activation, scaled(name, small), {"scaling"});
  i.truth.causes.push_back(Cause::outlier_channels);
  i.truth.specific.emplace_back("/quantization/outliers");
  i.truth.sites = {outlier_path(i)};
  i.truth.cure = "scales of blocks, or the channel in high precision";
  i.truth.does_not_help = "the tensor's own amax, which it has";
}
// Every fourth channel, so that each small block has a large number too.
void outlier_channels(Instance& i, Draw& draw) {
  i.model.width = draw.one_of<std::int64_t>({32, 64});
  const std::string name = draw.one_of<std::string>({"e2m1", "int4", "e2m3"});
  draw_outlier(i, draw);
  i.model.outlier_every = 4;
  i.model.outlier_size = draw.scale(30, 100) * (name == "e2m3" ? 4 : 1);
  quantise(i.recipe, Role::activation, scaled(name, PowerBlocks{.block = 32, .rule = ScaleRule::rceil}));
  of_operand(i, Cause::outlier_channels, Role::activation, *i.recipe.quantization->forward_x, {});
  i.truth.cured.quantization->outliers = amp::OutlierChannels{.share = 0.25, .window = 1};
  i.truth.specific.emplace_back("/quantization/outliers");
  i.truth.sites = {outlier_path(i)};
  i.truth.cure = "the largest channels in high precision";
  i.truth.does_not_help = "smaller blocks, RCEIL instead of FLOOR";
}
// Scales of blocks in a format that ends too early.
void coded_scales(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"e2m1", "e4m3fn", "e2m3"});
  CodedBlocks coded{.block = static_cast<int>(draw.one_of<std::int64_t>({16, 24, 32}))};
  coded.scale_format = format(draw.one_of<std::string>({"e4m3fn", "ue4m3", "e3m2"}));
  const bool large = draw.integer(0, 1) == 1;
  draw_range(i, draw, large ? 1e6 : 1e-8, large ? 1e7 : 1e-7);
  quantise(i.recipe, Role::activation, scaled(name, coded));
  const FloatBlocks wide{.block = coded.block};
  of_operand(i, Cause::scale_range, Role::activation, scaled(name, wide), {"scaling"});
  i.truth.sites = {ranged_path(i)};
  i.truth.cure = "scales of blocks in a wider format";
  i.truth.does_not_help = "RCEIL, smaller blocks";
}
// A first or last layer in too few bits.
void last_layer(Instance& i, Draw& draw) {
  const std::string name = draw.one_of<std::string>({"e2m0", "q1.0", "e1m1"});
  const bool first = draw.integer(0, 1) == 1;
  quantise(i.recipe, Role::weight, unscaled(name));
  only(i, first ? block_paths(i.model).front() : "head");
  of_operand(i, Cause::format_range, Role::weight, scaled(name, RowScale{}), {"scaling"});
  i.truth.specific.emplace_back("/quantization/modules");
  i.truth.cured = i.recipe;
  i.truth.cured.quantization->modules.emplace_back(i.truth.sites.front(), "fp32");
  i.truth.cure = "the first or last layer in high precision, or a scale";
}

// --- accumulators ---

void of_accumulator(Instance& i, const std::string& name) {
  i.recipe.quantization.emplace().accumulator = accumulator(name);
  i.truth.causes = {Cause::accumulator};
  i.truth.roles = {Role::sum};
  i.truth.cured = i.recipe;
  i.truth.cured.quantization->accumulator.reset();
  i.truth.specific = {"/quantization/accumulator"};
  i.truth.cure = "sums in f32, or in chunks";
  i.truth.does_not_help = "other formats of operands";
}
// Positive inputs of one layer that add up until they are no longer noticed.
void long_sum(Instance& i, Draw& draw) {
  i.data.bipolar = true;
  i.data.low = draw.real(0.3, 0.8);
  i.data.high = i.data.low + 2;
  of_accumulator(i, draw.one_of<std::string>({"e5m3", "e8m3", "e5m2"}));
  i.truth.cure = "sums in f32";
}
void sum_overflows(Instance& i, Draw& draw) {
  draw_range(i, draw, 3e5, 3e6);
  of_accumulator(i, draw.one_of<std::string>({"fp16-acc", "e5m10"}));
  i.truth.sites = {ranged_path(i)};
}
void sum_truncated(Instance& i, Draw& draw) {
  of_accumulator(i, draw.one_of<std::string>({"e8m2:toward-zero", "e8m3:toward-zero", "e6m2:toward-zero"}));
}

constexpr Group f = Group::failure;

const std::vector<Kind> kKinds = {
    {"activation-clipped", f, "activations exceed an 8-bit format without scales", kFp8, kEach, 1, activations_clipped},
    {"activation-vanishes", f, "activations are below an 8-bit format without scales", kFp8, kEach, 1,
     activations_underflow},
    {"fixed-point", f, "activations exceed a fixed-point format", kFp8, kPlain, 1, fixed_point},
    {"no-subnormals",
     f,
     "a format without subnormals makes small activations 0",
     kFp8,
     {mlp, cnn, transformer},
     1,
     no_subnormals},
    {"unsigned-format",
     f,
     "an unsigned format makes negative activations 0",
     kFp8,
     {mlp, cnn, recurrent},
     1,
     unsigned_format},
    {"weights-vanish",
     f,
     "the weights of one layer are 0 in their format",
     kLayers,
     {mlp, mlp_norm, cnn, transformer},
     1,
     weights_vanish},
    {"weights-clipped",
     f,
     "weights exceed the largest number of their format",
     kFp8,
     {mlp, cnn, transformer},
     1,
     weights_clipped},
    {"errors-vanish", f, "gradients are below an 8-bit format without scales", kFp8, kEach, 1, errors_vanish},
    {"errors-clipped",
     f,
     "gradients exceed an 8-bit format without scales",
     kFp8,
     {mlp, cnn, transformer},
     1,
     errors_clipped},
    {"fp4-errors",
     f,
     "gradients in 4 bits are rounded to nearest under one scale",
     kFp4,
     {mlp, mlp_norm, cnn, recurrent},
     1,
     fp4_errors},
    {"weight-gradients-vanish",
     f,
     "weight gradients are below an 8-bit format without scales",
     kFp8,
     {mlp, cnn_norm, recurrent},
     1,
     weight_gradients_vanish},
    {"delayed-outlier", f, "outliers keep a delayed scale too large", kFp8, {mlp, cnn, recurrent}, 1, delayed_outlier},
    {"floor-clipping",
     f,
     "scales of blocks are rounded down, and the largest numbers hold the signal",
     kBlocks,
     {mlp, cnn, recurrent},
     1,
     floor_clipping},
    {"outlier-in-block",
     f,
     "one channel makes the others of its block 0",
     kBlocks,
     {mlp, mlp_norm, transformer},
     1,
     outlier_in_block},
    {"blocks-too-large",
     f,
     "a block spans a whole row with one large channel",
     kBlocks,
     {mlp, mlp_norm},
     1,
     blocks_too_large},
    {"outlier-in-tensor",
     f,
     "one channel sets the scale of a whole tensor",
     kBlocks,
     {mlp, cnn, transformer},
     1,
     outlier_in_tensor},
    {"outlier-channels",
     f,
     "every fourth channel is large, so that no block is without one",
     kFp4,
     {mlp, mlp_norm, transformer},
     2,
     outlier_channels},
    {"coded-scales",
     f,
     "the format of the scales of blocks ends too early",
     kBlocks,
     {mlp, cnn, transformer, recurrent},
     1,
     coded_scales},
    {"sensitive-layer", f, "the first or last layer has too few bits", kFp4, {mlp, mlp_norm, recurrent}, 1, last_layer},
    {"long-sum",
     f,
     "sums of positive numbers stop growing in a narrow accumulator",
     kSums,
     {mlp, mlp_norm, cnn},
     1,
     long_sum},
    {"sum-overflow", f, "sums exceed the range of the accumulator", kSums, {mlp, cnn, recurrent}, 1, sum_overflows},
    {"sum-truncated", f, "an accumulator of few bits cuts off", kSums, {mlp, cnn_norm, transformer}, 1, sum_truncated},
};

}  // namespace

std::vector<Kind> kinds_of_formats() { return kKinds; }

}  // namespace gradual::precision_bench
