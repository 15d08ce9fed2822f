// Effective Quantization of Muon Optimizer States (Gupta et al. 2025, arXiv 2509.23106): 8 bits between linear steps
// suffice for Muon's momentum; Adam's moments need a map with fine steps near 0.
//
// Adam divides by the root of the second moment, element by element: one that is rounded to 0 makes a step of m / eps.
// Muon makes the whole momentum orthogonal, and no element is divided by a small one.
#include <map>

#include "../own_optimizers.h"
#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "8-bit Muon 2025: a linear map of 8 bits suffices for Muon's momentum, not for Adam's moments.\n"
    "  muon8_2025\n  options: --mnist DIR  --epochs N  --seeds N\n";

constexpr int kBlock = 2048;

Quantizer in_blocks(const char* format_name) {
  return {.format = format(format_name), .overflow = Overflow::saturate, .scaling = FloatBlocks{.block = kBlock}};
}

// All in f32, except the moments: their map is "linear" or "dynamic" (codes of 8 bits), or "f32".
amp::Recipe recipe(const std::string& map) {
  amp::Recipe r = amp::recipe("fp32");
  r.name = map;
  if (map == "linear") r.quantization = {.moment1 = in_blocks("int8"), .moment2 = in_blocks("uint8")};
  if (map == "dynamic") r.quantization = {.moment1 = in_blocks("dynamic8"), .moment2 = in_blocks("udynamic8")};
  return r;
}

amp::MakeOptimizer muon() {
  return [](std::vector<optim::ParamGroup> groups, const optim::UpdateOptions& precision) {
    return std::make_unique<example::Muon>(std::move(groups), optim::ParamGroup{.lr = 0.01}, precision);
  };
}

amp::MakeOptimizer adamw() { return optim::AdamWOptions{.lr = 2e-3}; }

std::shared_ptr<nn::Module> mlp(std::int64_t pixels) {
  const nn::LinearOptions plain{.bias = false};
  return std::make_shared<nn::Sequential>(nn::Sequential{nn::Flatten(), nn::Linear(pixels, 128, plain), nn::ReLU(),
                                                         nn::Linear(128, 128, plain), nn::ReLU(),
                                                         nn::Linear(128, 10, plain)});
}

// What 20 steps leave of AdamW's second moments.
optim::MomentFaults faults(const data::Split& images, const char* map) {
  default_generator() = Generator(1);
  const auto model = mlp(images.train.inputs.numel() / images.train.size());
  amp::RecipeRun run(recipe(map), *model, adamw());
  data::DataLoader loader(images.train, {.batch = 50, .shuffle = true, .seed = 1});
  int steps = 0;
  for (const data::Batch& b : loader)
    if (steps++ < 20) run.step([&] { return cross_entropy((*model)(b.inputs), b.targets); });
  return run.optimizer().moment_faults();
}

void body(example::Arguments& arguments) {
  const data::Split images = paper::images(arguments);
  const long seeds = arguments.number("--seeds", 3);
  const int epochs = static_cast<int>(arguments.number("--epochs", 10));
  arguments.done();
  const std::int64_t pixels = images.train.inputs.numel() / images.train.size();
  std::printf("\n%-27s %7s %10s\n", "mean of seeds", "loss", "accuracy");
  std::map<std::string, paper::Outcome> mean;
  for (const auto& [optimizer, make] : {std::pair("Muon", muon()), std::pair("AdamW", adamw())})
    for (const char* map : {"f32", "dynamic", "linear"}) {
      const std::string name = std::string(optimizer) + ", " + map;
      const paper::Training t{.model = [=] { return mlp(pixels); }, .optimizer = make, .epochs = epochs};
      mean[name] = paper::mean_of_seeds(t, images, recipe(map), seeds);
      paper::print(name, mean[name]);
    }
  for (const char* map : {"dynamic", "linear"}) {
    const optim::MomentFaults f = faults(images, map);
    std::printf(
        "AdamW after 20 steps, %s: %.1f%% of the weights have a first moment that is not 0, and a second of 0\n", map,
        100 * static_cast<double>(f.vanished) / static_cast<double>(f.elements));
  }
  std::printf(
      "\nThe paper (abstract, two versions): 8-bit Muon is as good as Muon with linear and with dynamic steps; 8-bit\n"
      "AdamW is stable with dynamic ones alone. Models to 2.7 billion parameters; the state is 62%% smaller. Here "
      "26,000\n"
      "parameters and digits.\n\n");
  const double muon32 = mean["Muon, f32"].loss;
  const double adam32 = mean["AdamW, f32"].loss;
  const auto near = [](double loss, double exact) { return std::abs(loss - exact) < 0.25 * exact; };
  example::claim(near(mean["Muon, linear"].loss, muon32) && near(mean["Muon, dynamic"].loss, muon32),
                 "Muon's loss with 8 bits of either kind is within a quarter of f32's");
  example::claim(near(mean["AdamW, dynamic"].loss, adam32), "so is AdamW's with dynamic steps");
  example::claim(!(mean["AdamW, linear"].loss < 10 * adam32), "with linear steps AdamW diverges");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
