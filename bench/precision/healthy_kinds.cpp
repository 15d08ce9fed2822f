// Runs that need no explanation, some with hazards that do no harm.
#include <cmath>
#include <string>
#include <vector>

#include "kinds.h"

namespace gradual::precision_bench {
namespace {

using enum Family;

const std::vector<Family>& kEach = all_families();

void half_precision(Instance& i, Draw& draw) {
  i.recipe = amp::recipe(draw.one_of<std::string>({"amp-fp16", "amp-bf16", "fp16-master", "bf16-master", "tf32"}));
}
void eight_bits(Instance& i, Draw& draw) {
  i.recipe = amp::recipe(draw.one_of<std::string>({"fp8-current", "fp8-delayed", "fp8-rowwise", "mxfp8", "int8"}));
}
void kahan(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("bf16-master");
  i.recipe.masters = amp::Masters::none;
  i.recipe.update =
      draw.one_of<optim::LowPrecisionUpdate>({optim::LowPrecisionUpdate::kahan, optim::LowPrecisionUpdate::stochastic});
}
// A dynamic scale that starts too high skips a few steps.
void some_skips(Instance& i, Draw& draw) {
  i.recipe = amp::recipe(draw.one_of<std::string>({"amp-fp16", "fp16-master"}));
  i.recipe.scaling->init_scale = std::exp2(draw.integer(17, 20));
}
// Some gradients of f16 are 0 under a static scale, too few to matter.
void some_underflow(Instance& i, Draw& draw) {
  i.recipe = amp::recipe("fp16-master");
  i.recipe.scaling = optim::GradScalerOptions{.init_scale = std::exp2(draw.integer(3, 8)), .dynamic = false};
}
// A narrow accumulator for short sums.
void short_sums(Instance& i, Draw& draw) {
  i.recipe.quantization.emplace().accumulator =
      accumulator(draw.one_of<std::string>({"fp16-acc", "e8m12", "e8m13:toward-zero", "bf16-acc/chunk=8"}));
}
// Inputs of another size, which scales follow.
void other_range(Instance& i, Draw& draw) {
  i.recipe = amp::recipe(draw.one_of<std::string>({"fp8-current", "mxfp8", "fp8-rowwise", "amp-bf16"}));
  const bool large = draw.integer(0, 1) == 1;
  draw_range(i, draw, large ? 1e2 : 1e-4, large ? 1e4 : 1e-2);
}

// Large channels under formats whose exponents reach them, or in high precision.
void large_channels(Instance& i, Draw& draw) {
  i.model.width = 32;
  draw_outlier(i, draw);
  i.model.outlier_every = draw.one_of<std::int64_t>({0, 4, 8});
  i.model.outlier_size = draw.scale(10, 100);
  i.recipe = amp::recipe(draw.one_of<std::string>({"fp8-current", "fp8-rowwise", "mxfp8", "e5m2", "amp-bf16"}));
}

constexpr Group h = Group::healthy;

const std::vector<Kind> kKinds = {
    {"half", h, "mixed precision in half", kProgram, kEach, 3, half_precision},
    {"eight-bits", h, "operands in 8 bits with scales", kProgram, kEach, 3, eight_bits},
    {"no-masters", h, "bf16 weights with Kahan or stochastic updates", kProgram, kEach, 2, kahan},
    {"some-skips", h, "a loss scale that starts too high skips a few steps", kProgram, kEach, 3, some_skips},
    {"some-underflow", h, "a static loss scale loses some gradients", kProgram, kEach, 2, some_underflow},
    {"short-sums", h, "narrow accumulators for short sums", kProgram, kEach, 2, short_sums},
    {"large-channels",
     h,
     "channels that are far larger, under 8 bits and bf16",
     kProgram,
     {mlp, mlp_norm, transformer},
     3,
     large_channels},
    {"other-range", h, "a layer whose inputs are large or small, under scales", kProgram, kEach, 2, other_range},
};

}  // namespace

std::vector<Kind> healthy_kinds() { return kKinds; }

}  // namespace gradual::precision_bench
