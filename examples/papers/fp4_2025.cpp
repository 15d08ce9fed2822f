// FP4 All the Way (Chmiel, Fishman, Banner, Soudry 2025, arXiv 2505.19115): when the norm of the gradient falls below
// about sqrt(3) times the noise of quantization, training in FP4 becomes less effective.
//
// A network learns another one, whose values it can reach exactly: the gradient falls as the loss falls, and the noise
// falls less. A schedule ends the run in high precision.
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "FP4 all the way 2025: FP4 training stalls when gradients fall to the noise; more precision goes on.\n"
    "  fp4_2025\n  options: --seeds N  --steps N\n";

constexpr std::int64_t kInputs = 32;
constexpr std::int64_t kBatch = 128;

// NVFP4 with stochastic rounding in backward, as the paper has it; no transform.
amp::Recipe recipe(const std::string& name) {
  amp::Recipe r = amp::recipe(name == "f32" ? "fp32" : "nvfp4");
  if (!r.quantization) return r;
  r.name = name;
  r.quantization->wgrad_x->hadamard = false;
  r.quantization->wgrad_dy->hadamard = false;
  for (auto* backward : {&r.quantization->dgrad_w, &r.quantization->wgrad_x})
    (*backward)->rounding.mode = RoundingMode::stochastic;
  if (name == "NVFP4, the end in f32") r.schedule = {{.last = 0.25, .recipe = "fp32"}};
  return r;
}

double norm_of_gradients(nn::Module& model) {
  double squares = 0;
  for (const auto& [name, p] : model.named_parameters()) squares += square(p.grad()).sum().item();
  return std::sqrt(squares);
}

struct Outcome {
  double middle = 0;       // the loss at three quarters of the steps
  double end = 0;          // and in the last steps
  double first_ratio = 0;  // the norm of the gradient over that of the noise, in step 0
  double ratio = 0;        // and at three quarters
};

// The gradient of a step in f32 over the norm of the difference that NVFP4 makes to it.
double ratio_to_noise(nn::Module& model, const std::function<Tensor()>& loss) {
  const auto gradient = [&](const amp::Recipe& r) {
    const RandomKey before = default_generator().state();
    {
      const amp::RecipeScope scope(r);
      loss().backward();
    }
    default_generator().set_state(before);
  };
  gradient(amp::recipe("fp32"));
  const double exact = norm_of_gradients(model);
  for (const auto& [name, p] : model.named_parameters()) p.set_grad(p.grad() * -1.0);
  gradient(recipe("NVFP4"));  // adds
  const double noise = norm_of_gradients(model);
  for (const auto& [name, p] : model.named_parameters()) p.zero_grad();
  return exact / noise;
}

Outcome trained(const std::string& name, std::uint64_t seed, long steps) {
  default_generator() = Generator(seed);
  nn::Sequential teacher{nn::Linear(kInputs, 32), nn::Tanh(), nn::Linear(32, 8)};
  nn::Sequential model{nn::Linear(kInputs, 64), nn::Tanh(), nn::Linear(64, 8)};
  amp::RecipeRun run(recipe(name), model, optim::AdamOptions{.lr = 2e-3}, {.seed = seed, .steps = steps});
  Outcome out;
  const long window = steps / 20;
  for (long step = 0; step < steps; ++step) {
    const Tensor x = randn({kBatch, kInputs});
    const Tensor y = [&] {
      const NoGrad off;
      return teacher(x);
    }();
    const auto loss = [&] { return square(model(x) - y).mean(); };
    if (step == 0) out.first_ratio = ratio_to_noise(model, loss);
    if (step == steps - steps / 4 - 1) out.ratio = ratio_to_noise(model, loss);
    const double now = run.step(loss).loss.item() / static_cast<double>(window);
    const long left = steps - step;
    if (left > steps / 4 && left <= steps / 4 + window) out.middle += now;
    if (left <= window) out.end += now;
  }
  return out;
}

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 3);
  const long steps = arguments.number("--steps", 2000);
  arguments.done();
  std::printf("%-24s %14s %12s %30s\n", "mean of seeds", "loss at 3/4", "at the end",
              "gradient / noise, first, at 3/4");
  std::map<std::string, Outcome> mean;
  for (const char* name : {"f32", "NVFP4", "NVFP4, the end in f32"}) {
    Outcome& m = mean[name];
    for (long seed = 1; seed <= seeds; ++seed) {
      const Outcome one = trained(name, static_cast<std::uint64_t>(seed), steps);
      for (auto field : {&Outcome::middle, &Outcome::end, &Outcome::first_ratio, &Outcome::ratio})
        m.*field += one.*field / static_cast<double>(seeds);
    }
    std::printf("%-24s %14.6f %12.6f %20.2f %9.2f\n", name, m.middle, m.end, m.first_ratio, m.ratio);
  }
  std::printf(
      "\nThe paper (abstract): below a ratio of about sqrt(3) = 1.73 quantized training becomes less effective; NVFP4 "
      "with\n"
      "stochastic rounding in backward and update, 7 billion parameters. Here 2,600 parameters, and the noise is the\n"
      "whole difference of the gradients, that of forward's rounding included.\n\n");
  const Outcome& low = mean["NVFP4"];
  const Outcome& scheduled = mean["NVFP4, the end in f32"];
  example::claim(low.first_ratio > std::sqrt(3.0), "at the start the gradient is above sqrt(3) times the noise");
  example::claim(low.ratio < std::sqrt(3.0), "at three quarters of the steps it is below");
  example::claim(low.end > 3 * mean["f32"].end, "FP4's loss stays at more than three times f32's");
  example::claim(low.end > 0.5 * low.middle, "from there on FP4 gains less than half of its loss");
  example::claim(scheduled.end < 0.5 * low.end, "the last quarter in f32 takes off more than half of it");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
