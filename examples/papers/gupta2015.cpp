// Deep learning with limited numerical precision (Gupta, Agrawal, Gopalakrishnan, Narayanan 2015, arXiv 1502.02551).
//
// 16-bit fixed point holds weights, activations and gradients. Rounding to nearest drops every update below half a
// step of the weights, and training stalls; stochastic rounding keeps such updates on average.
#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Gupta et al. 2015: 16-bit fixed point trains with stochastic rounding, and fails with rounding to nearest.\n"
    "  gupta2015                  # on the digits\n"
    "  options: --mnist DIR (the paper's data: files of MNIST)  --epochs N  --seeds N\n";

// Every operand of a product, every gradient of a weight and every weight is in `fraction` bits after the point.
amp::Recipe fixed_point(int fraction, RoundingMode mode) {
  const Quantizer q{.format = format("q" + std::to_string(15 - fraction) + "." + std::to_string(fraction)),
                    .rounding = {.mode = mode}};
  amp::Recipe r = amp::recipe("fp32");
  r.name = "fixed point";
  r.quantization = amp::Quantization{.forward_x = q,
                                     .forward_w = q,
                                     .dgrad_dy = q,
                                     .dgrad_w = q,
                                     .wgrad_x = q,
                                     .wgrad_dy = q,
                                     .weight_gradient = q,
                                     .weight = q};
  return r;
}

void body(example::Arguments& arguments) {
  const data::Split images = paper::images(arguments);
  const long seeds = arguments.number("--seeds", 3);
  const auto pixels = images.train.inputs.numel() / images.train.size();
  const paper::Training training{.model =
                                     [pixels] {
                                       return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(pixels, 256),
                                                                               nn::ReLU(), nn::Linear(256, 256),
                                                                               nn::ReLU(), nn::Linear(256, 10));
                                     },
                                 .optimizer = optim::SGDOptions{.lr = 0.1},
                                 .epochs = static_cast<int>(arguments.number("--epochs", 12))};
  arguments.done();

  const paper::Outcome f32 = paper::mean_of_seeds(training, images, amp::recipe("fp32"), seeds);
  std::printf("\nmean of %ld seeds\n%-27s %7s %10s\n", seeds, "", "loss", "accuracy");
  paper::print("f32", f32);
  paper::Outcome nearest[2], stochastic[2];
  for (const int i : {0, 1}) {
    const int fraction = i == 0 ? 8 : 14;
    const std::string name = std::to_string(fraction) + " fraction bits, ";
    nearest[i] = paper::mean_of_seeds(training, images, fixed_point(fraction, RoundingMode::nearest_even), seeds);
    paper::print(name + "nearest", nearest[i]);
    stochastic[i] = paper::mean_of_seeds(training, images, fixed_point(fraction, RoundingMode::stochastic), seeds);
    paper::print(name + "stochastic", stochastic[i]);
  }
  std::printf(
      "\nThe paper: with 8 fraction bits and rounding to nearest its network on MNIST does not train; with stochastic "
      "rounding\nit comes close to f32 with 8 fraction bits, and cannot be told from it with 14.\n"
      "Here: a smaller network; biases stay f32, and results of a layer are rounded where the next product reads "
      "them.\n\n");
  example::claim(nearest[0].loss > 2 * stochastic[0].loss, "8 bits: to nearest, the loss stays at more than twice");
  example::claim(nearest[0].accuracy < f32.accuracy - 5,
                 "8 bits: to nearest, accuracy is 5 points below f32's or more");
  example::claim(stochastic[0].accuracy > f32.accuracy - 4, "8 bits: stochastic comes within 4 points of f32");
  example::claim(stochastic[1].accuracy > f32.accuracy - 2, "14 bits: stochastic comes within 2 points of f32");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
