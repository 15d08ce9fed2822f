// Failures of what is kept between steps: weights, moments, statistics.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kinds.h"

namespace gradual::precision_bench {
namespace {

using enum Family;
using inspect::Cause;

const std::vector<Family> kEach = {mlp, mlp_norm, cnn, cnn_norm, transformer, recurrent};

// Half parameters without masters; the optimizer computes in f32.
amp::Recipe without_masters(DType dtype) {
  amp::Recipe r = amp::recipe(dtype == DType::f16 ? "fp16-master" : "bf16-master");
  r.masters = amp::Masters::none;
  return r;
}

void of_optimizer(Instance& i, Cause cause, Role role, amp::Recipe cured, std::vector<std::string> specific) {
  i.truth.causes = {cause};
  i.truth.roles = {role};
  i.truth.phases = {Phase::optimizer};
  i.truth.cured = std::move(cured);
  i.truth.specific = std::move(specific);
  i.truth.does_not_help = "a loss scale, other formats of operands";
}

// A long training whose updates are below half a unit in the last place of the weights.
void of_lost_updates(Instance& i) {
  i.options.epochs = 30;
  i.options.sample_every = 32;
  i.options.training.schedule = lab::ScheduleKind::constant;
  amp::Recipe cured = i.recipe;
  cured.masters = amp::Masters::per_tensor;
  of_optimizer(i, Cause::update_vanishes, Role::update, cured, {"/masters", "/update"});
  i.truth.cure = "FP32 masters, a stochastic or a Kahan update";
}

// The updates of all weights are below half an ulp.
void updates_lost(Instance& i, Draw& draw) {
  const DType dtype = draw.one_of<DType>({DType::bf16, DType::bf16, DType::f16});
  i.recipe = without_masters(dtype);
  const bool sequence = i.model.family == transformer || i.model.family == recurrent;
  i.model.initial = sequence ? 1.5 : 2.5;
  i.options.lr = draw.scale(1.5e-4, 3e-4);
  if (dtype == DType::f16) {
    i.model.initial *= 3;
    i.options.lr = draw.scale(6e-5, 1e-4);
  }
  of_lost_updates(i);
}

void updates_lost_sgd(Instance& i, Draw& draw) {
  i.recipe = without_masters(DType::bf16);
  i.options.optimizer = "sgd";
  i.model.initial = i.model.family == recurrent ? 1.5 : 2;
  i.options.lr = draw.scale(1e-3, 2e-3);
  of_lost_updates(i);
}

// Weights that an 8-bit format keeps between steps.
void weights_in_8_bits(Instance& i, Draw& draw) {
  const Quantizer kept{.format = format(draw.one_of<std::string>({"e4m3fn", "e5m2", "e4m2"})),
                       .scaling = TensorScale{}};
  i.recipe.quantization.emplace().weight = kept;
  i.options.lr = draw.scale(5e-4, 1e-3);
  i.options.epochs = 8;
  amp::Recipe cured = i.recipe;
  cured.quantization->weight.reset();
  of_optimizer(i, Cause::update_vanishes, Role::update, cured, {"/quantization/weight"});
  i.truth.cure = "weights kept in f32 or as masters; stochastic rounding";
}

// Weight decay is all that moves weights of columns without a signal; it is lost.
void decay_lost(Instance& i, Draw& draw) {
  i.recipe = without_masters(DType::bf16);
  i.data.quiet_columns = true;
  i.data.train = 480;
  i.options.lr = draw.scale(6e-3, 9e-3);
  i.options.training.rates.weight_decay = draw.real(1.2, 1.6) * 1e-3 / i.options.lr;
  i.options.training.schedule = lab::ScheduleKind::constant;
  i.options.epochs = 100;
  i.options.sample_every = 64;
  amp::Recipe cured = i.recipe;
  cured.masters = amp::Masters::per_tensor;
  of_optimizer(i, Cause::decay_vanishes, Role::update, cured, {"/masters", "/update"});
  i.truth.sites = {"b0.layer"};
  i.truth.cure = "FP32 masters, a stochastic or a Kahan update";
}

void adam_eps(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("fp16-pure");
  i.loss_weight = draw.real(0.5, 2);
  amp::Recipe cured = i.recipe;
  cured.masters = amp::Masters::per_tensor;
  cured.optimizer_state = DType::f32;
  of_optimizer(i, Cause::adam_eps, Role::state, cured, {"/masters", "/optimizer_state", "/update", "/gradients"});
  i.truth.cure = "FP32 masters, the optimizer's arithmetic and state in f32";
}

// Second moments in f16 under an optimizer that computes in f32.
void second_moment_vanishes(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("fp16-master");
  i.recipe.optimizer_state = DType::f16;
  i.loss_weight = draw.scale(2e-3, 1e-2);
  i.options.training.rates.eps = 1e-10;
  amp::Recipe cured = i.recipe;
  cured.optimizer_state = DType::f32;
  of_optimizer(i, Cause::second_moment, Role::state, cured, {"/optimizer_state"});
  i.truth.cure = "moments in f32";
}
void second_moment_overflows(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("bf16-master");
  i.recipe.dtype = DType::bf16;
  i.recipe.optimizer_state = DType::f16;
  i.loss_weight = draw.scale(1e5, 1e6);
  amp::Recipe cured = i.recipe;
  cured.optimizer_state = DType::f32;
  of_optimizer(i, Cause::second_moment, Role::state, cured, {"/optimizer_state"});
  i.truth.cure = "moments in f32";
}
// Second moments as integers with one scale: nearly all are 0, and the steps are huge.
void second_moment_int8(Instance& i, Draw& draw) {
  const Quantizer kept{.format = format(draw.one_of<std::string>({"int8", "int4", "e2m1"})), .scaling = TensorScale{}};
  i.recipe.quantization.emplace().moment2 = kept;
  amp::Recipe cured = i.recipe;
  cured.quantization->moment2.reset();
  of_optimizer(i, Cause::second_moment, Role::state, cured, {"/quantization/moment2"});
  i.truth.cure = "moments in f32, smaller blocks, a format with more exponents";
}

// The running statistics of batch norms in half do not move.
void statistics_lost(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("bf16-pure");
  i.recipe.masters = amp::Masters::per_tensor;
  i.recipe.optimizer_state = DType::f32;
  i.model.momentum = draw.scale(1.2e-3, 1.9e-3);
  i.model.offset = draw.real(0.5, 1);
  i.options.epochs = 40;
  i.options.sample_every = 64;
  i.truth.causes = {Cause::batch_statistics};
  for (std::int64_t b = 0; b < i.model.depth; ++b) i.truth.sites.push_back("b" + std::to_string(b) + ".norm");
  i.truth.roles = {Role::state};
  i.truth.phases = {Phase::forward};
  i.truth.cured = amp::recipe("bf16-master");
  i.truth.specific = {"/mode", "/policy"};
  i.truth.cure = "norms and their statistics in f32";
  i.truth.does_not_help = "masters, a loss scale";
}
void statistics_overflow(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("fp16-pure");
  i.recipe.masters = amp::Masters::per_tensor;
  i.recipe.optimizer_state = DType::f32;
  i.recipe.scaling = optim::GradScalerOptions{};
  i.data.scale = draw.scale(1000, 3000);
  i.truth.causes = {Cause::batch_statistics};
  for (std::int64_t b = 0; b < i.model.depth; ++b) i.truth.sites.push_back("b" + std::to_string(b) + ".norm");
  i.truth.roles = {Role::state};
  i.truth.cured = amp::recipe("fp16-master");
  i.truth.specific = {"/mode", "/policy"};
  i.truth.cure = "norms and their statistics in f32";
  i.truth.does_not_help = "masters, a loss scale";
}

// A moving average of the weights that is kept in half stands still; the training itself is right.
void average_lost(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("bf16-master");
  i.recipe.averages = amp::Averages::storage;
  i.model.initial = 2.5;
  i.options.lr = draw.scale(3e-4, 6e-4);
  i.options.training.average = draw.real(0.98, 0.99);
  i.options.training.schedule = lab::ScheduleKind::constant;
  i.options.epochs = 40;
  i.options.sample_every = 32;
  amp::Recipe cured = i.recipe;
  cured.averages = amp::Averages::f32;
  of_optimizer(i, Cause::average_vanishes, Role::state, cured, {"/averages"});
  i.truth.cure = "averages in f32";
}

// The gradients of the parts of a batch fit f16, their sum does not.
void accumulation(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("fp16-master");
  i.recipe.gradients = autograd::GradientSums::storage;
  i.recipe.scaling = optim::GradScalerOptions{.init_scale = std::exp2(draw.integer(17, 19)), .dynamic = false};
  i.options.training.accumulate = 8;
  amp::Recipe cured = i.recipe;
  cured.gradients = autograd::GradientSums::f32;
  i.truth.causes = {Cause::accumulator, Cause::scale_too_high};
  i.truth.roles = {Role::sum, Role::error, Role::weight_gradient};
  i.truth.phases = {Phase::backward};
  i.truth.cured = cured;
  i.truth.specific = {"/gradients", "/scaling"};
  i.truth.cure = "gradients added up in f32";
}

constexpr Group f = Group::failure;

const std::vector<Kind> kKinds = {
    {"update-lost", f, "updates are below half an ulp of half weights without masters", kUpdates, kEach, 1,
     updates_lost},
    {"update-lost-sgd", f, "the same under SGD", kUpdates, {mlp, mlp_norm, cnn}, 1, updates_lost_sgd},
    {"weights-in-8-bits",
     f,
     "weights kept in 8 bits do not move",
     kUpdates,
     {mlp, cnn_norm, transformer},
     1,
     weights_in_8_bits},
    {"decay-lost",
     f,
     "weight decay is below half an ulp, and weights that only decay stay",
     kUpdates,
     {mlp},
     3,
     decay_lost},
    {"average-lost",
     f,
     "a moving average of the weights in bf16 stands still",
     kUpdates,
     {mlp, mlp_norm, cnn, cnn_norm},
     1,
     average_lost},
    {"adam-eps", f, "Adam's eps and second moments are 0 in f16", kEps, kEach, 1, adam_eps},
    {"second-moment-vanishes",
     f,
     "second moments are 0 in f16",
     kState,
     {mlp, cnn, transformer},
     1,
     second_moment_vanishes},
    {"second-moment-overflows",
     f,
     "second moments are Inf in f16, and nothing moves",
     kState,
     {mlp, cnn_norm, recurrent},
     1,
     second_moment_overflows},
    {"second-moment-integer",
     f,
     "second moments as integers with one scale are 0",
     kState,
     {mlp_norm, cnn, transformer, recurrent},
     1,
     second_moment_int8},
    {"statistics-lost",
     f,
     "running statistics in bf16 do not move",
     kUpdates,
     {mlp_norm, cnn_norm},
     2,
     statistics_lost},
    {"statistics-overflow", f, "running variances exceed f16", kNorms, {mlp_norm, cnn_norm}, 1, statistics_overflow},
    {"accumulation",
     f,
     "gradients of micro-batches overflow the dtype in which they add up",
     kSums,
     {mlp, transformer},
     1,
     accumulation},
};

}  // namespace

std::vector<Kind> kinds_of_updates() { return kKinds; }

}  // namespace gradual::precision_bench
