// Training LLMs with MXFP4 (Tseng, Yu, Park 2025, arXiv 2502.20586): backward in MXFP4 needs gradients without a bias.
//
// Rounded to nearest, the gradient of a weight has the same error each time. Rounded at random without clipping, it is
// right on average, and a Hadamard transform of both operands keeps its variance small where a block has an outlier.
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "MXFP4 2025: gradients in MXFP4 are right on average with stochastic rounding, and vary less after a transform.\n"
    "  mxfp4_2025\n  options: --draws N\n";

constexpr std::int64_t kSamples = 128;
constexpr std::int64_t kInputs = 64;
constexpr std::int64_t kOutputs = 32;

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

// Relative errors of one gradient of the weight, and of the mean of many.
struct Errors {
  double one = 0;
  double mean = 0;
};

// x and dy: normal numbers, of which one sample in 64 is 20 times as large.
Errors errors(const amp::Recipe& r, long draws) {
  default_generator() = Generator(1);
  nn::Linear layer(kInputs, kOutputs, {.bias = false});
  const Tensor size = ones({kSamples, 1});
  for (std::int64_t i = 0; i < kSamples; i += 64) size.narrow(0, i, 1).fill_(20);
  const Tensor x = randn({kSamples, kInputs}) * size;
  const Tensor dy = randn({kSamples, kOutputs}) * size;
  const Tensor exact = matmul(dy.t(), x);
  Tensor mean = zeros_like(exact);
  Errors found;
  for (long k = 0; k < draws; ++k) {
    default_generator() = Generator(static_cast<std::uint64_t>(k + 2));
    {
      const amp::RecipeScope scope(r);
      (layer(x) * dy).sum().backward();
    }
    const Tensor gradient = layer.weight.grad();
    found.one += norm(gradient - exact).item() / norm(exact).item() / static_cast<double>(draws);
    mean += gradient / static_cast<double>(draws);
    layer.weight.zero_grad();
  }
  found.mean = norm(mean - exact).item() / norm(exact).item();
  return found;
}

void body(example::Arguments& arguments) {
  const long draws = arguments.number("--draws", 256);
  arguments.done();
  std::printf("relative error of a weight's gradient%17s %18s\n", "one", "mean of many");
  std::map<std::string, Errors> found;
  for (const Variant& v : kVariants) {
    const Errors e = errors(recipe(v), draws);
    found[v.name] = e;
    std::printf("%-36s %17.1f%% %17.2f%%\n", v.name, 100 * e.one, 100 * e.mean);
  }
  std::printf(
      "\nThe paper (abstract): unbiased gradient estimates by stochastic rounding; block-level outliers give it a "
      "high\n"
      "variance, which a random Hadamard transform bounds. GPT models of up to 6.7 billion parameters come close to\n"
      "bf16. Here one layer's gradient, and nothing is trained. Scales are rounded up, so that nothing clips; the\n"
      "transform has one draw of signs.\n\n");
  const Errors nearest = found["to nearest"];
  const Errors random = found["stochastic"];
  const Errors both = found["stochastic, transform of 64"];
  example::claim(nearest.mean > 0.9 * nearest.one, "to nearest: the mean is as wrong as each gradient");
  example::claim(random.mean < random.one / 8, "stochastic: the mean comes close to the exact gradient");
  example::claim(both.mean < both.one / 8, "and after the transform");
  example::claim(both.one < random.one, "the transform makes each gradient better");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
