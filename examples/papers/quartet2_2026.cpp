// Quartet II: Accurate LLM Pre-Training in NVFP4 by Improved Unbiased Gradient Estimation (Panferov, Schultheis,
// Tabesh, Alistarh 2026, arXiv 2601.22813): randomness belongs into the scales of blocks, not into their elements.
//
// After a random rotation, elements are rounded to nearest, which errs least. A factor of the scales makes up for what
// that takes from the size, and the scales alone are rounded at random (MS-EDEN).
#include <map>

#include "gradient_error.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Quartet II 2026: NVFP4 with random scales errs less than half of stochastic rounding, without a bias.\n"
    "  quartet2_2026\n  options: --draws N\n";

struct Variant {
  const char* name;
  Scaling scaling;
  RoundingMode mode;
};
// Rounded up, the scales of blocks clip nothing; clipped elements would give stochastic rounding a bias.
const Variant kVariants[] = {
    {"to nearest", Nvfp4Blocks{.block = 16}, RoundingMode::nearest_even},
    {"stochastic elements", Nvfp4Blocks{.block = 16, .rule = CodedRule::up}, RoundingMode::stochastic},
    {"stochastic scales (MS-EDEN)", EdenBlocks{}, RoundingMode::nearest_even}};

amp::Recipe recipe(const Variant& v) {
  amp::Recipe r = amp::recipe("quartet2");
  r.name = v.name;
  for (const auto field : {&amp::Quantization::wgrad_x, &amp::Quantization::wgrad_dy}) {
    Quantizer& q = *((*r.quantization).*field);
    q.scaling = v.scaling;
    q.rounding.mode = v.mode;
  }
  for (const auto field : {&amp::Quantization::forward_x, &amp::Quantization::forward_w, &amp::Quantization::dgrad_dy,
                           &amp::Quantization::dgrad_w})
    (*r.quantization).*field = std::nullopt;
  return r;
}

double squared(const Tensor& t) { return square(t).sum().item(); }

// The squared error of normal numbers, as a part of theirs.
double of_numbers(const Variant& v) {
  default_generator() = Generator(1);
  const Tensor x = randn({512, 512});
  const Quantizer q{.format = format("e2m1"), .rounding = {v.mode}, .scaling = v.scaling};
  return squared(fake_quantize(x, q, {.key = {3, 1}}) - x) / squared(x);
}

void body(example::Arguments& arguments) {
  const long draws = arguments.number("--draws", 2048);
  arguments.done();
  std::printf("squared errors, as parts of the square%9s %11s %12s %24s\n", "numbers", "a gradient", "mean of many",
              "the same with outliers");
  std::map<std::string, double> numbers;
  std::map<std::string, paper::GradientErrors> gradient;
  std::map<std::string, paper::GradientErrors> with_outliers;
  for (const Variant& v : kVariants) {
    numbers[v.name] = of_numbers(v);
    const paper::GradientErrors e = paper::gradient_errors(recipe(v), 1, draws, squared);
    const paper::GradientErrors o = paper::gradient_errors(recipe(v), 10, draws, squared);
    gradient[v.name] = e;
    with_outliers[v.name] = o;
    std::printf("%-38s%8.2f%% %10.2f%% %11.4f%% %11.2f%% %11.4f%%\n", v.name, 100 * numbers[v.name], 100 * e.one,
                100 * e.mean, 100 * o.one, 100 * o.mean);
  }
  std::printf(
      "\nThe paper (abstract): MS-EDEN has more than 2x lower quantization error than stochastic rounding, without a\n"
      "bias; models of up to 1.9 billion parameters. Its authors' code was read for the order of steps. Here normal\n"
      "numbers and the gradient of one layer's weight; nothing is trained. A Hadamard transform of few outliers is no\n"
      "uniform rotation.\n\n");
  const paper::GradientErrors nearest = gradient["to nearest"];
  const paper::GradientErrors elements = gradient["stochastic elements"];
  const paper::GradientErrors scales = gradient["stochastic scales (MS-EDEN)"];
  // Of independent errors without a bias the mean of n has the n-th part; twice that leaves room for chance.
  const double part = 2.0 / static_cast<double>(draws);
  example::claim(numbers["stochastic scales (MS-EDEN)"] < numbers["stochastic elements"] / 2,
                 "random scales: less than half the error of random elements");
  example::claim(scales.one < elements.one / 2, "of a gradient too");
  example::claim(elements.mean < part * elements.one, "random elements: the mean comes to the exact gradient");
  example::claim(scales.mean < part * scales.one, "random scales: the mean comes to the exact gradient");
  example::claim(nearest.mean > 2 * part * nearest.one, "to nearest: the mean keeps an error, whatever the rotation");
  const paper::GradientErrors outliers = with_outliers["stochastic scales (MS-EDEN)"];
  example::claim(outliers.mean < with_outliers["to nearest"].mean / 4,
                 "with outliers the mean of random scales errs less than a quarter of that to nearest");
  example::claim(outliers.mean > 2 * part * outliers.one, "but a bias remains: few outliers turn to few values");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
