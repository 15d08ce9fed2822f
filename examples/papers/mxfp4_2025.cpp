// Training LLMs with MXFP4 (Tseng, Yu, Park 2025, arXiv 2502.20586): backward in MXFP4 needs gradients without a bias.
//
// Rounded to nearest, the gradient of a weight has the same error each time. Rounded at random without clipping, it is
// right on average, and a Hadamard transform of both operands keeps its variance small where a block has an outlier.
#include <map>

#include "gradient_error.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "MXFP4 2025: gradients in MXFP4 are right on average with stochastic rounding, and vary less after a transform.\n"
    "  mxfp4_2025\n  options: --draws N\n";

struct Variant {
  const char* name;
  RoundingMode mode;
  int transform;
};
constexpr Variant kVariants[] = {{"to nearest", RoundingMode::nearest_even, 0},
                                 {"to nearest, transform of 64", RoundingMode::nearest_even, 64},
                                 {"stochastic", RoundingMode::stochastic, 0},
                                 {"stochastic, transform of 64", RoundingMode::stochastic, 64}};

amp::Recipe recipe(const Variant& v) {
  amp::Recipe r = amp::recipe("mxfp4-backward");
  r.name = v.name;
  for (const auto& field : amp::kQuantizerFields)
    if (auto& q = *r.quantization.*field.quantizer) {
      q->rounding.mode = v.mode;
      q->hadamard = v.transform;
    }
  return r;
}

double norm_of(const Tensor& t) { return norm(t).item(); }

void body(example::Arguments& arguments) {
  const long draws = arguments.number("--draws", 256);
  arguments.done();
  std::printf("relative error of a weight's gradient%17s %18s\n", "one", "mean of many");
  std::map<std::string, paper::GradientErrors> found;
  for (const Variant& v : kVariants) {
    const paper::GradientErrors e = paper::gradient_errors(recipe(v), 20, draws, norm_of);
    found[v.name] = e;
    std::printf("%-36s %17.1f%% %17.2f%%\n", v.name, 100 * e.one, 100 * e.mean);
  }
  std::printf(
      "\nThe paper (abstract): unbiased gradient estimates by stochastic rounding; block-level outliers give it a "
      "high\n"
      "variance, which a random Hadamard transform bounds. GPT models of up to 6.7 billion parameters come close to\n"
      "bf16. Here one layer's gradient, and nothing is trained. Scales are rounded up, so that nothing clips; the\n"
      "transform has one draw of signs.\n\n");
  const paper::GradientErrors nearest = found["to nearest"];
  const paper::GradientErrors random = found["stochastic"];
  const paper::GradientErrors both = found["stochastic, transform of 64"];
  example::claim(nearest.mean > 0.9 * nearest.one, "to nearest: the mean is as wrong as each gradient");
  example::claim(random.mean < random.one / 8, "stochastic: the mean comes close to the exact gradient");
  example::claim(both.mean < both.one / 8, "and after the transform");
  example::claim(both.one < random.one, "the transform makes each gradient better");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
