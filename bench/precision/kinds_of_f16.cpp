// Failures of half dtypes: range, cancellation, sums, and the loss scale.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "flaws.h"
#include "kinds.h"

namespace gradual::precision_bench {
namespace {

using enum Family;
using inspect::Cause;

const std::vector<Family> kPlain = {mlp, cnn, recurrent};
const std::vector<Family> kNormed = {mlp_norm, cnn_norm, transformer};
const std::vector<Family> kEach = {mlp, mlp_norm, cnn, cnn_norm, transformer, recurrent};

amp::Recipe half(DType dtype) { return amp::recipe(dtype == DType::f16 ? "fp16-master" : "bf16-master"); }
// Half parameters and FP32 masters, without a loss scale.
amp::Recipe unscaled() {
  amp::Recipe r = amp::recipe("fp16-master");
  r.scaling.reset();
  return r;
}
amp::Recipe with_f32(amp::Recipe r, const std::vector<OpId>& ops) {
  for (const OpId op : ops) r.policy.emplace_back(op, amp::CastPolicy::fp32());
  return r;
}
std::string flaw_path(const Instance& i) { return "b" + std::to_string(i.model.flaw_at) + ".flaw"; }

// A flaw in the code after a block, whose ops in f32 cure it.
void plant_flaw(Instance& i, Flaw flaw, double strength, std::vector<Cause> causes, Role role,
                const std::vector<OpId>& ops) {
  i.model.flaw = flaw;
  i.model.strength = strength;
  i.truth.causes = std::move(causes);
  i.truth.sites = {flaw_path(i)};
  i.truth.roles = {role};
  i.truth.phases = {Phase::forward};
  i.truth.cured = with_f32(i.recipe, ops);
  i.truth.specific = {"/policy"};
  i.truth.cure = "these ops in f32, or the code that the mended flaw has";
  i.truth.does_not_help = "a loss scale, masters, other layers in f32";
}

void variance(Instance& i, Draw& draw) {
  i.recipe = half(DType::bf16);
  plant_flaw(i, Flaw::variance, draw.real(6, 12), {Cause::cancellation}, Role::activation,
             {OpId::square, OpId::mean, OpId::sub});
}
void raw_exponential(Instance& i, Draw& draw) {
  i.recipe = half(DType::f16);
  plant_flaw(i, Flaw::raw_exponential, draw.real(16, 60), {Cause::reduction_overflow}, Role::activation,
             {OpId::exp, OpId::sum});
}
void large_square(Instance& i, Draw& draw) {
  i.recipe = draw.one_of<amp::Recipe>({half(DType::f16), amp::recipe("amp-fp16")});
  plant_flaw(i, Flaw::large_square, draw.scale(800, 4000), {Cause::reduction_overflow}, Role::activation,
             {OpId::square, OpId::mean});
}
void small_square(Instance& i, Draw& draw) {
  i.recipe = unscaled();
  plant_flaw(i, Flaw::small_square, draw.scale(3e-5, 7e-5), {Cause::reduction_underflow}, Role::activation,
             {OpId::square, OpId::mean, OpId::sqrt});
}
void small_divisor(Instance& i, Draw& draw) {
  i.recipe = half(DType::f16);
  plant_flaw(i, Flaw::small_divisor, draw.scale(1e-10, 4e-9), {Cause::activation_underflow}, Role::activation,
             {OpId::mul});
}
void gain(Instance& i, Draw& draw) {
  i.recipe = draw.one_of<amp::Recipe>({half(DType::f16), amp::recipe("amp-fp16")});
  plant_flaw(i, Flaw::gain, draw.scale(2e5, 2e6), {Cause::activation_overflow}, Role::activation, {OpId::mul});
}
void product_of_gates(Instance& i, Draw& draw) {
  i.recipe = half(DType::f16);
  i.model.width = std::max<std::int64_t>(i.model.width, 32);
  plant_flaw(i, Flaw::product_of_gates, draw.real(30, 60), {Cause::activation_underflow}, Role::activation,
             {OpId::mul});
}
void running_sum(Instance& i, Draw& draw) {
  i.recipe = half(DType::bf16);
  plant_flaw(i, Flaw::running_sum, draw.scale(512, 8192), {Cause::accumulator}, Role::sum, {OpId::add});
}
void root_of_distance(Instance& i, Draw& draw) {
  i.recipe = unscaled();
  plant_flaw(i, Flaw::root_of_distance, draw.scale(3e-5, 7e-5), {Cause::reduction_underflow}, Role::activation,
             {OpId::square, OpId::sum, OpId::sqrt});
}
void mask(Instance& i, Draw& draw) {
  i.recipe = half(DType::f16);
  plant_flaw(i, Flaw::mask, draw.scale(7e4, 1e9), {Cause::activation_overflow, Cause::reduction_overflow},
             Role::activation, {OpId::mul, OpId::add, OpId::softmax});
  i.truth.cure = "a mask that f16 holds, or the mask and the softmax in f32";
}

void large_parameter(Instance& i, Draw& draw) {
  i.recipe = half(DType::f16);
  plant_flaw(i, Flaw::large_parameter, draw.scale(1e5, 1e7), {Cause::weight_overflow}, Role::weight, {});
  i.truth.phases = {};
  i.truth.cured = half(DType::bf16);
  i.truth.specific = {"/dtype", "/scaling"};
  i.truth.cure = "a dtype with the range of f32";
  i.truth.does_not_help = "a loss scale, f32 ops: the parameter itself is Inf";
}

void log_of_softmax(Instance& i, Draw& draw) {
  i.recipe = unscaled();
  i.loss = LossForm::log_of_softmax;
  i.loss_scale = draw.real(25, 50);
  // The gradient of the log of a probability below 2^-16 overflows before the probability is 0.
  i.truth = {.causes = {Cause::reduction_underflow, Cause::gradient_overflow},
             .sites = {lines_of(i.loss)},
             .roles = {Role::activation, Role::error},
             .phases = {Phase::forward, Phase::backward},
             .cured = with_f32(i.recipe, {OpId::softmax, OpId::log, OpId::mean}),
             .specific = {"/policy"},
             .cure = "the softmax in f32, or log_softmax",
             .does_not_help = "a smaller loss scale: the loss itself is Inf"};
}

void large_squares(Instance& i, Draw& draw) {
  i.recipe = unscaled();
  i.loss = LossForm::large_squares;
  i.loss_scale = draw.scale(400, 3000);
  i.truth = {.causes = {Cause::reduction_overflow},
             .sites = {lines_of(i.loss)},
             .roles = {Role::activation},
             .phases = {Phase::forward},
             .cured = with_f32(i.recipe, {OpId::square, OpId::mean}),
             .specific = {"/policy"},
             .cure = "the loss in f32",
             .does_not_help = "a smaller loss scale: the loss itself is Inf"};
}

// --- the loss scale ---

void of_scale(Instance& i, std::vector<Cause> causes, Role role) {
  i.truth.causes = std::move(causes);
  i.truth.roles = {role, Role::weight_gradient};  // a loss scale multiplies both
  i.truth.phases = {Phase::backward};
  i.truth.cured = i.recipe;
  i.truth.cured.scaling = optim::GradScalerOptions{};
  i.truth.specific = {"/scaling"};
  i.truth.cure = "dynamic loss scaling";
  i.truth.does_not_help = "forward in f32, masters";
}
// A loss of tiny gradients, as the mean over very many tokens has.
void faint_loss(Instance& i, Draw& draw) {
  i.loss_weight = draw.scale(2e-7, 2e-6);
  i.options.training.rates.eps = 1e-16;
}
void no_loss_scale(Instance& i, Draw& draw) {
  faint_loss(i, draw);
  i.recipe = unscaled();
  of_scale(i, {Cause::gradient_underflow}, Role::error);
}
void scale_too_low(Instance& i, Draw& draw) {
  faint_loss(i, draw);
  i.recipe = unscaled();
  i.recipe.scaling = optim::GradScalerOptions{.init_scale = draw.one_of<double>({0.25, 0.5, 1, 2}), .dynamic = false};
  of_scale(i, {Cause::scale_too_low}, Role::error);
}
void scale_too_high(Instance& i, Draw& draw) {
  i.recipe = unscaled();
  i.recipe.scaling = optim::GradScalerOptions{.init_scale = std::exp2(draw.integer(20, 24)), .dynamic = false};
  of_scale(i, {Cause::scale_too_high}, Role::error);
}
void scale_grows(Instance& i, Draw& draw) {
  i.recipe = unscaled();
  i.recipe.scaling = optim::GradScalerOptions{.init_scale = std::exp2(draw.integer(16, 18)),
                                              .growth_factor = draw.one_of<double>({16, 64, 256}),
                                              .growth_interval = 1};
  of_scale(i, {Cause::scale_grows}, Role::error);
}
// The largest number of f16 is exceeded without any loss scale.
void gradient_overflow(Instance& i, Draw& draw) {
  i.loss_weight = draw.scale(4e6, 4e7);
  i.recipe = unscaled();
  of_scale(i, {Cause::gradient_overflow}, Role::error);
  i.truth.cured = half(DType::bf16);
  i.truth.specific = {"/scaling", "/dtype"};
  i.truth.cure = "a dtype with the range of f32, or a loss scale below 1";
}

constexpr Group f = Group::failure;

const std::vector<Kind> kKinds = {
    {"variance-of-squares",
     f,
     "a hand-written norm computes E[x^2] - E[x]^2 in bf16",
     kNorms,
     {mlp, cnn, transformer},
     1,
     variance},
    {"exponential-overflow", f, "a softmax without its maximum subtracted overflows f16", kNorms, kPlain, 1,
     raw_exponential},
    {"square-overflow",
     f,
     "the root mean square of large activations overflows f16",
     kNorms,
     {mlp, cnn_norm, transformer},
     1,
     large_square},
    {"square-underflow",
     f,
     "the squares of small numbers are 0 in f16, and a root of them divides",
     kNorms,
     {mlp_norm, cnn, recurrent},
     1,
     small_square},
    {"divisor-underflow", f, "numbers that are divided by their largest one are all 0 in f16", kOverflows, kPlain, 1,
     small_divisor},
    {"activation-overflow", f, "an activation exceeds the largest number of f16 for one op", kOverflows, kEach, 1,
     gain},
    {"product-underflow",
     f,
     "a product of probabilities becomes 0 in f16 before its log",
     kNorms,
     {mlp, mlp_norm, transformer},
     1,
     product_of_gates},
    {"running-sum",
     f,
     "a running sum in bf16 no longer notices what is added",
     kSums,
     {mlp, cnn_norm, transformer, recurrent},
     1,
     running_sum},
    {"root-of-zero",
     f,
     "a distance is 0 in f16, and the gradient of its root divides by it",
     kOverflows,
     {mlp, cnn, recurrent},
     1,
     root_of_distance},
    {"mask",
     f,
     "a finite mask is -Inf in f16, so a query without keys gives NaN",
     kAttention,
     {mlp, transformer, recurrent},
     1,
     mask},
    {"parameter-overflow", f, "a parameter exceeds the largest number of f16", kOverflows, kNormed, 1, large_parameter},
    {"log-of-zero", f, "the loss is the log of a softmax that is 0 in f16", kNorms, kEach, 1, log_of_softmax},
    {"loss-overflow", f, "the squares of a loss overflow f16", kNorms, kPlain, 1, large_squares},
    {"no-loss-scale", f, "gradients are below the smallest number of f16, and there is no loss scale", kOverflows,
     kEach, 1, no_loss_scale},
    {"scale-too-low", f, "a static loss scale is too small", kOverflows, kPlain, 1, scale_too_low},
    {"scale-too-high", f, "a static loss scale is too large, and steps are skipped", kOverflows, kEach, 1,
     scale_too_high},
    {"scale-grows", f, "a dynamic loss scale grows too fast, and steps are skipped again and again", kOverflows,
     kNormed, 1, scale_grows},
    {"gradient-overflow", f, "gradients exceed the largest number of f16 without a loss scale", kOverflows, kPlain, 1,
     gradient_overflow},
};

}  // namespace

std::vector<Kind> kinds_of_f16() { return kKinds; }

}  // namespace gradual::precision_bench
