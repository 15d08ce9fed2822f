// TetraJet-v2 (Chen, Liu, Xu, Zhang, Beyer, Rapp, Zhu, Chen 2025, arXiv 2510.27527): NVFP4 training with an f32 scale for
// each 128 numbers instead of one for the tensor, and with weights reset that oscillate around a threshold of rounding.
//
// Near the end of a training steps are small, and the weights that still change their rounded value are those at a
// threshold: Q(W) leaps by a bin, back and forth, while W hardly moves. OsciReset puts them in the middle of their bin.
#include <array>
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "TetraJet-v2 2025: FP4 training with scales of outer blocks, and without oscillating weights.\n"
    "  tetrajet_2510\n  options: --seeds N  --steps N\n";

constexpr std::int64_t kInputs = 32;
constexpr std::int64_t kWords = 128;
constexpr std::int64_t kBatch = 128;
constexpr double kOscillates = 8;  // the rounded way over the own way, as in the authors' code

// Classes drawn from a linear model: the loss of the model itself is a floor that nobody goes below.
struct Language {
  Tensor weight = randn({kWords, kInputs}) * (1.5 / std::sqrt(kInputs));
  Tensor logits(const Tensor& x) const { return matmul(x, weight.t()); }
  Tensor draw(const Tensor& x) const {
    return argmax(logits(x) - log(-log(rand({x.size(0), kWords}) + 1e-20)), 1);  // the largest of Gumbel numbers
  }
};

// Backward rounds what forward's codes stand for again, as the paper has it: all layers are linear.
amp::Recipe recipe(const std::string& name, long steps) {
  if (name == "f32" || name == "NVFP4") return amp::recipe(name == "f32" ? "fp32" : "nvfp4");
  amp::Recipe r = amp::recipe("tetrajet-v2");
  r.name = name;
  r.quantization->requantize = true;
  if (name == "without reset") r.oscillation_reset.reset();
  else r.oscillation_reset = amp::OscillationReset{static_cast<int>(steps * 5 / 8), 50, 25, kOscillates};
  return r;
}

struct Outcome {
  double loss = 0;         // above the floor, mean of the last fifth of the steps
  double oscillating = 0;  // weights at the end, in percent
};

// The ways of weights and of what they are rounded to, over the last steps.
struct Ways {
  std::vector<Tensor> last, rounded, way, rounded_way;

  void follow(nn::Module& model, const Quantizer& q) {
    const NoGrad off;
    std::size_t i = 0;
    for (const auto& [name, p] : model.named_parameters()) {
      if (p.dim() < 2) continue;
      const Tensor now = p.detach().clone();
      const Tensor to = fake_quantize(now, q);
      if (last.size() <= i) {
        for (auto* list : {&way, &rounded_way}) list->push_back(zeros_like(now));
        last.push_back(now);
        rounded.push_back(to);
      }
      way[i].add_(abs(now - last[i]));
      rounded_way[i].add_(abs(to - rounded[i]));
      last[i] = now;
      rounded[i++] = to;
    }
  }
  double percent() const {
    double all = 0;
    double found = 0;
    for (std::size_t i = 0; i < way.size(); ++i) {
      all += static_cast<double>(way[i].numel());
      found += logical_and(gt(way[i], 0.0), ge(rounded_way[i], way[i] * kOscillates)).to(DType::f32).sum().item();
    }
    return 100 * found / all;
  }
};

Outcome trained(const std::string& name, std::uint64_t seed, long steps) {
  default_generator() = Generator(seed);
  const Language language;
  nn::Sequential model{nn::Linear(kInputs, 128), nn::ReLU(), nn::Linear(128, 128), nn::ReLU(), nn::Linear(128, kWords)};
  const amp::Recipe r = recipe(name, steps);
  amp::RecipeRun run(r, model, optim::AdamWOptions{.lr = 3e-3}, {.seed = seed, .steps = steps});
  const Quantizer bins = r.quantization ? *r.quantization->forward_w : *amp::recipe("nvfp4").quantization->forward_w;
  Generator contexts(seed + 1000);
  Outcome out;
  Ways ways;
  for (long step = 0; step < steps; ++step) {
    run.optimizer().param_groups()[0].lr = 3e-3 * (1.01 + std::cos(M_PI * step / steps)) / 2.01;
    const Tensor x = randn({kBatch, kInputs}, {}, contexts);
    const Tensor y = language.draw(x);
    const double loss = run.step([&] { return cross_entropy(model(x), y); }).loss.item();
    if (step >= steps - steps / 5)
      out.loss += (loss - cross_entropy(language.logits(x), y).item()) / static_cast<double>(steps / 5);
    if (step >= steps - 25) ways.follow(model, bins);
  }
  out.oscillating = ways.percent();
  return out;
}

// The squared errors of a rounding of tokens of very different sizes, relative to the tokens' squares, in percent; of one
// rounding, and of the mean of 256.
std::array<double, 2> errors(const Scaling& scaling, RoundingMode mode) {
  Generator g(7);
  const Tensor x = randn({256, 512}, {}, g) * exp(randn({256, 1}, {}, g) * 4.0);
  const Quantizer q{.format = format("e2m1"), .rounding = {mode}, .scaling = scaling};
  Tensor mean = zeros_like(x);
  double one = 0;
  const auto of = [&](const Tensor& y) { return 100 * (sum(square(y - x), {1}) / sum(square(x), {1})).mean().item(); };
  for (std::uint64_t k = 0; k < 256; ++k) {
    const Tensor y = fake_quantize(x, q, {.key = {3, k}});
    if (k == 0) one = of(y);
    mean.add_(y / 256.0);
  }
  return {one, of(mean)};
}

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 3);
  const long steps = arguments.number("--steps", 1600);
  arguments.done();
  const auto tensor = errors(Nvfp4Blocks{.block = 16}, RoundingMode::nearest_even);
  const auto outer = errors(DoubleBlocks{}, RoundingMode::nearest_even);
  const auto random = errors(DoubleBlocks{}, RoundingMode::stochastic);
  std::printf("squared error of a token     one rounding  mean of 256\n");
  std::printf("one scale of the tensor        %8.3f %%  %10.4f %%\n", tensor[0], tensor[1]);
  std::printf("scales of 128                  %8.3f %%  %10.4f %%\n", outer[0], outer[1]);
  std::printf("scales of 128, stochastic      %8.3f %%  %10.4f %%\n\n", random[0], random[1]);
  std::printf("%-27s %22s %22s\n", "mean of seeds", "loss above the floor", "weights that oscillate");
  std::map<std::string, Outcome> mean;
  for (const char* name : {"f32", "NVFP4", "without reset", "TetraJet-v2"}) {
    Outcome& m = mean[name];
    for (long seed = 1; seed <= seeds; ++seed) {
      const Outcome one = trained(name, static_cast<std::uint64_t>(seed), steps);
      m.loss += one.loss / static_cast<double>(seeds);
      m.oscillating += one.oscillating / static_cast<double>(seeds);
      if (std::getenv("SEEDS")) std::printf("  %s %ld %f %f\n", name, seed, one.loss, one.oscillating);
    }
    std::printf("%-27s %22.4f %20.2f %%\n", name, m.loss, m.oscillating);
  }
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
