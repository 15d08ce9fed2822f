// Failures that are not precision: f32 has them too.
#include <string>
#include <utility>
#include <vector>

#include "kinds.h"

namespace gradual::precision_bench {
namespace {

using enum Family;
using inspect::Cause;

amp::Recipe harmless(Draw& draw) {
  return amp::recipe(draw.one_of<std::string>({"amp-bf16", "tf32", "bf16-master", "fp8-current"}));
}

void of_program(Instance& i, Draw& draw, std::vector<Cause> causes, const std::string& cure) {
  i.recipe = harmless(draw);
  i.truth.causes = std::move(causes);
  i.truth.cure = cure;
  i.truth.does_not_help = "any recipe";
}
void plant_code(Instance& i, Draw& draw, Flaw flaw, double strength, Cause cause) {
  of_program(i, draw, {cause}, "the code");
  i.model.flaw = flaw;
  i.model.strength = strength;
  i.model.flaw_at = i.model.depth - 1;
  i.truth.sites = {"b" + std::to_string(i.model.flaw_at) + ".flaw"};
}
void wrong_sign(Instance& i, Draw& draw) { plant_code(i, draw, Flaw::wrong_sign, 1, Cause::wrong_gradient); }
void lost_gradient(Instance& i, Draw& draw) { plant_code(i, draw, Flaw::lost_gradient, 1, Cause::wrong_gradient); }
void unwritten(Instance& i, Draw& draw) { plant_code(i, draw, Flaw::written_nan, 1, Cause::bug); }
void log_of_negative(Instance& i, Draw& draw) {
  plant_code(i, draw, Flaw::log_of_negative, draw.real(0, 0.5), Cause::arithmetic);
}
void nan_row(Instance& i, Draw& draw) {
  of_program(i, draw, {Cause::data}, "the row");
  i.data.nan_row = true;
  i.truth.roles = {Role::data};
}
void huge_row(Instance& i, Draw& draw) {
  of_program(i, draw, {Cause::broken_sample, Cause::data}, "the row");
  i.data.huge_row = draw.scale(1e9, 1e15);
  i.options.optimizer = "sgd";
  i.options.lr = 0.05;
  i.truth.roles = {Role::data};
}
void shuffled_labels(Instance& i, Draw& draw) {
  of_program(i, draw, {Cause::labels}, "the labels");
  i.data.shuffled_labels = true;
  i.truth.roles = {Role::data};
}
void rate_too_large(Instance& i, Draw& draw) {
  of_program(i, draw, {Cause::learning_rate}, "a smaller rate");
  i.options.lr = draw.scale(2, 20);
}
void rate_too_small(Instance& i, Draw& draw) {
  of_program(i, draw, {Cause::small_rate}, "a larger rate");
  i.options.lr = draw.scale(1e-7, 2e-6);
}
void dead_units(Instance& i, Draw& draw) {
  of_program(i, draw, {Cause::dead_units}, "another initialisation");
  i.model.initial_bias = -draw.real(30, 100);
}

constexpr Group c = Group::control;

const std::vector<Kind> kKinds = {
    {"wrong-sign", c, "a function's gradient has the wrong sign", kProgram, {mlp, cnn, transformer}, 1, wrong_sign},
    {"lost-gradient", c, "a function's gradient is 0", kProgram, {mlp, cnn, recurrent}, 1, lost_gradient},
    {"unwritten-number",
     c,
     "a function leaves NaN in its result",
     kProgram,
     {mlp_norm, cnn, transformer},
     1,
     unwritten},
    {"log-of-negative", c, "a log of 0 in f32", kProgram, {mlp, cnn_norm}, 1, log_of_negative},
    {"nan-in-data", c, "a sample holds NaN", kProgram, {mlp, cnn_norm, recurrent}, 1, nan_row},
    {"huge-row", c, "a number of a sample is 10^9 or more", kProgram, {mlp, cnn, transformer}, 1, huge_row},
    {"shuffled-labels", c, "the labels say nothing", kProgram, {mlp, cnn, recurrent}, 1, shuffled_labels},
    {"rate-too-large",
     c,
     "the learning rate is too large",
     kProgram,
     {mlp, cnn, transformer, recurrent},
     1,
     rate_too_large},
    {"rate-too-small", c, "the learning rate is too small", kProgram, {mlp_norm, cnn, transformer}, 1, rate_too_small},
    {"dead-units", c, "all units of a layer are 0 from the start", kProgram, {mlp, cnn}, 1, dead_units},
};

}  // namespace

std::vector<Kind> controls() { return kKinds; }

}  // namespace gradual::precision_bench
