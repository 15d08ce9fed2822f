// u-muP: The Unit-Scaled Maximal Update Parametrization (Blake et al. 2024, arXiv 2407.17465): numbers of size 1 need
// no scales in FP8.
//
// Gradients of a mean over a batch are small, and those below a format's smallest number are lost. Fixed factors in
// forward and backward keep weights, activations and their gradients near 1, where FP8 has its numbers.
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "u-muP 2024: FP8 without scales trains a unit-scaled network as f32 does, and not an ordinary one.\n"
    "  ump_2024\n  options: --mnist DIR  --epochs N  --seeds N\n";

constexpr std::int64_t kWidth = 256;
constexpr int kHidden = 3;
constexpr long kBatch = 100;
constexpr double kTokens = 1e5;  // of a language model's batch, over which the loss is a mean

std::shared_ptr<nn::Module> ordinary(std::int64_t pixels) {
  auto model = std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(pixels, kWidth), nn::ReLU());
  for (int k = 0; k < kHidden; ++k) {
    model->push_back(nn::Linear(kWidth, kWidth));
    model->push_back(nn::ReLU());
  }
  model->push_back(nn::Linear(kWidth, 10));
  return model;
}

std::shared_ptr<nn::Module> unit_scaled(std::int64_t pixels) {
  auto model = std::make_shared<nn::Sequential>(nn::Flatten(), nn::UnitLinear(pixels, kWidth), nn::UnitReLU());
  for (int k = 0; k < kHidden; ++k) {
    model->push_back(nn::UnitLinear(kWidth, kWidth));
    model->push_back(nn::UnitReLU());
  }
  model->push_back(nn::UnitLinear(kWidth, 10));
  return model;
}

struct Network {
  const char* name;
  std::shared_ptr<nn::Module> (*make)(std::int64_t pixels);
  Tensor (*loss)(const Tensor& logits, const Tensor& classes);
  double weight;  // of the mean over the images
  double lr;      // of Adam; unit weights are sqrt(256) = 16 times as large
};
const Network kNetworks[] = {
    {"ordinary", ordinary, [](const Tensor& y, const Tensor& c) { return cross_entropy(y, c) * (kBatch / kTokens); },
     kBatch / kTokens, 1e-3},
    {"unit-scaled", unit_scaled, [](const Tensor& y, const Tensor& c) { return nn::unit_cross_entropy(y, c); }, 1,
     16e-3}};

// The loss of the last epoch, and the part of the numbers of dy that FP8 made 0 in the first step.
struct Outcome {
  double loss = 0;
  double lost = 0;
};

Outcome trained(const Network& n, const data::Split& data, const amp::Recipe& recipe, std::uint64_t seed, long epochs) {
  default_generator() = Generator(seed);
  const auto model = n.make(data.train.inputs.numel() / data.train.size());
  amp::RecipeRun run(recipe, *model, optim::AdamOptions{.lr = n.lr}, {.seed = seed});
  data::DataLoader loader(data.train, {.batch = kBatch, .shuffle = true, .seed = seed, .drop_last = true});
  amp::CastStatsTable casts;
  std::optional<amp::PrecisionObserver> watch(std::in_place, casts, recipe);
  Outcome out;
  for (long epoch = 0; epoch < epochs; ++epoch) {
    out.loss = 0;
    for (const data::Batch& b : loader) {
      const Tensor loss = run.step([&] { return n.loss((*model)(b.inputs), b.targets); }).loss;
      out.loss += loss.item() / n.weight / static_cast<double>(loader.size());
      watch.reset();
    }
  }
  out.lost = amp::total(casts, {amp::Role::error}).underflow_percent();
  return out;
}

void body(example::Arguments& arguments) {
  const data::Split images = paper::images(arguments);
  const long seeds = arguments.number("--seeds", 3);
  const long epochs = arguments.number("--epochs", 10);
  arguments.done();
  std::printf("mean of %ld seeds%26s %22s\n", seeds, "loss", "gradients lost at first");
  std::map<std::string, Outcome> found;
  for (const Network& n : kNetworks)
    for (const char* name : {"fp32", "unscaled-fp8"}) {
      Outcome& mean = found[std::string(n.name) + ", " + name];
      for (long seed = 1; seed <= seeds; ++seed) {
        const Outcome one = trained(n, images, amp::recipe(name), static_cast<std::uint64_t>(seed), epochs);
        mean.loss += one.loss / static_cast<double>(seeds);
        mean.lost += one.lost / static_cast<double>(seeds);
      }
      const bool rounds = std::string(name) != "fp32";
      std::printf("%-12s %-15s %14.4f %15s\n", n.name, name, mean.loss,
                  rounds ? (std::to_string(std::lround(mean.lost)) + "%").c_str() : "");
    }
  std::printf(
      "\nThe paper (from memory, not read): unit scaling and muP combined make the optimal learning rate the same for\n"
      "all widths, and models train in FP8 without further ado. The learning rate's transfer is not checked. Here a "
      "network of %d layers of %d, digits, e4m3 forward and e5m2 backward, no scale anywhere. The\n"
      "ordinary network's loss is divided by 1,000, so that gradients are as small as those of a mean over %.0f "
      "tokens;\n"
      "unit scaling has the number of samples in its factor.\n\n",
      kHidden + 2, static_cast<int>(kWidth), kTokens);
  const double ordinary_gap = found["ordinary, unscaled-fp8"].loss / found["ordinary, fp32"].loss;
  const double unit_gap = found["unit-scaled, unscaled-fp8"].loss / found["unit-scaled, fp32"].loss;
  std::printf("loss in FP8 over that in f32: ordinary %.1f, unit-scaled %.2f\n", ordinary_gap, unit_gap);
  // The last layer's. Where they are lost, earlier layers have none to lose.
  example::claim(found["ordinary, unscaled-fp8"].lost > 10, "ordinary: FP8 makes gradients of activations 0");
  example::claim(found["unit-scaled, unscaled-fp8"].lost < 5, "unit-scaled: it loses few");
  example::claim(ordinary_gap > 3, "ordinary: the loss in FP8 is three times f32's or more");
  example::claim(found["unit-scaled, unscaled-fp8"].loss < 1.5 * found["unit-scaled, fp32"].loss + 0.005,
                 "unit-scaled: FP8 ends near f32");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
