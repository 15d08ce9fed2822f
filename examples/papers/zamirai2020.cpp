// Revisiting bfloat16 training (Zamirai, Zhang, Aberger, De Sa 2020, arXiv 2010.06192).
//
// Weights, activations and gradients are bf16, without FP32 masters. A weight keeps 8 significant bits, so an update
// below 1/512 of it is lost when the sum is rounded to nearest, and training stalls as updates become small. Stochastic
// rounding keeps such updates on average; Kahan summation keeps the lost part in a second bf16 number.
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Zamirai et al. 2020: bf16 weights stall with nearest rounding; stochastic rounding and Kahan summation cure it.\n"
    "  zamirai2020                # on the digits\n"
    "  options: --mnist DIR (files of MNIST)  --epochs N  --seeds N\n";

void body(example::Arguments& arguments) {
  const data::Split images = paper::images(arguments);
  const long seeds = arguments.number("--seeds", 3);
  const std::int64_t pixels = images.train.inputs.numel() / images.train.size();
  const paper::Training training{.model =
                                     [pixels] {
                                       return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(pixels, 128),
                                                                               nn::ReLU(), nn::Linear(128, 128),
                                                                               nn::ReLU(), nn::Linear(128, 10));
                                     },
                                 .optimizer = optim::SGDOptions{.lr = 2e-3, .momentum = 0.9},
                                 .epochs = static_cast<int>(arguments.number("--epochs", 30)),
                                 .batch = 32};
  arguments.done();

  std::map<std::string, paper::Outcome> found;
  std::printf("\nmean of %ld seeds\n%-27s %7s %10s\n", seeds, "", "loss", "accuracy");
  const auto train = [&](const std::string& name, const amp::Recipe& recipe) {
    paper::print(name, found[name] = paper::mean_of_seeds(training, images, recipe, seeds));
  };
  train("f32", amp::recipe("fp32"));
  amp::Recipe bf16 = amp::recipe("bf16-pure");
  for (const auto update :
       {optim::LowPrecisionUpdate::none, optim::LowPrecisionUpdate::stochastic, optim::LowPrecisionUpdate::kahan}) {
    bf16.update = update;
    bf16.name = update == optim::LowPrecisionUpdate::none ? "nearest" : std::string(to_string(update));
    train(bf16.name, bf16);
  }
  std::printf(
      "\nThe paper: nearest rounding of weight updates degrades training; with stochastic rounding or Kahan summation, "
      "seven models\nend 0.1%% below to 0.2%% above 32-bit training, up to 7%% above nearest rounding.\n"
      "Here: a small network. With stochastic and Kahan updates, an update is computed in f32 and rounded once; with "
      "nearest, each\nof its operations rounds to bf16, as in the paper.\n\n");
  const double f32 = found["f32"].loss;
  example::claim(found["nearest"].loss > 1.5 * f32, "nearest: the loss stays above 1.5 times f32's");
  for (const char* name : {"stochastic", "kahan"}) {
    example::claim(std::abs(found[name].loss - f32) < 0.1 * f32,
                   (std::string(name) + ": within 10% of f32's loss").c_str());
    example::claim(found[name].accuracy > found["f32"].accuracy - 1,
                   (std::string(name) + ": within 1 point of f32's accuracy").c_str());
  }
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
