// Training deep neural networks with 8-bit floating point numbers (Wang, Choi, Brand, Chen, Gopalakrishnan 2018, arXiv
// 1812.08011): chunked accumulation.
//
// A sum in 16 bits (6 exponent and 9 mantissa bits) outgrows its terms: a term below half a step of the sum is lost.
// Sums of 64 terms, which are then added, lose far less. In training, the longest sums are those of weight gradients.
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Wang et al. 2018: sums in 16 bits and fewer need chunks.\n"
    "  wang2018\n  options: --epochs N  --seeds N\n";

// The relative error of the sum of n numbers, uniform with mean 1 and standard deviation 1, as the paper draws them.
double error_of_sum(const std::string& how, std::int64_t n) {
  Generator g(1);
  const Tensor x = 1 - std::sqrt(3.0) + 2 * std::sqrt(3.0) * rand({n}, {}, g);
  const double exact = x.to(DType::f64).sum().item();
  const AccumulatorScope scope(accumulator(how));
  return std::abs(x.sum().item() / exact - 1);
}

void sums() {
  std::printf("relative error of a sum of numbers with mean 1 and standard deviation 1\n%-16s", "terms");
  const char* const how[] = {"f32", "e6m9", "e6m9/chunk=64", "e6m9:stochastic"};
  for (const char* name : how) std::printf(" %16s", name);
  std::map<std::string, double> last;
  for (std::int64_t n = 256; n <= 65536; n *= 4) {
    std::printf("\n%-16ld", static_cast<long>(n));
    for (const char* name : how) std::printf(" %15.2f%%", 100 * (last[name] = error_of_sum(name, n)));
  }
  std::printf(
      "\n\nThe paper: without chunks the sum stands still from 4,096 terms on; with chunks of 32 or more, or with "
      "stochastic rounding,\nit follows f32's to 65,536.\n");
  example::claim(last["e6m9"] > 0.5, "65,536 terms in e6m9: more than half of the sum is lost");
  example::claim(last["e6m9/chunk=64"] < 0.01, "the same in chunks of 64: the error is below 1%");
}

// Two convolutions with operands in the paper's FP8, e5m2. A weight gradient of the second sums 128 x 64 products.
void training(example::Arguments& arguments) {
  data::Split images = paper::images(arguments);
  const long seeds = arguments.number("--seeds", 3);
  const paper::Training training{.model =
                                     [] {
                                       return std::make_shared<nn::Sequential>(
                                           nn::Conv2d(1, 8, 3, {.padding = 1}), nn::ReLU(),
                                           nn::Conv2d(8, 8, 3, {.padding = 1}), nn::ReLU(),
                                           nn::AvgPool2d({.kernel = 4}), nn::Flatten(), nn::Linear(32, 10));
                                     },
                                 .optimizer = optim::SGDOptions{.lr = 0.05, .momentum = 0.9},
                                 .epochs = static_cast<int>(arguments.number("--epochs", 12)),
                                 .batch = 128};
  for (data::Dataset* d : {&images.train, &images.test}) d->inputs = d->inputs * 0.3760 + 0.3053;  // 0 to 1
  std::printf("\nmean of %ld seeds\n%-27s %7s %10s\n", seeds, "sums in", "loss", "accuracy");
  std::map<std::string, paper::Outcome> found;
  for (const char* name : {"f32", "e6m9", "e6m3", "e6m3/chunk=64"}) {
    amp::Recipe recipe = amp::recipe("e5m2");
    recipe.quantization->accumulator = accumulator(name);
    paper::print(name, found[name] = paper::mean_of_seeds(training, images, recipe, seeds));
  }
  std::printf(
      "\nThe paper: ResNet50 on ImageNet needs the chunks. Its longest sums have some 10^6 terms.\n"
      "Here they have 8,192 of either sign, which e6m9 still holds; e6m3 shows at this length what longer sums do to "
      "e6m9.\n\n");
  const double lost = found["e6m3"].loss - found["f32"].loss;
  const double chunked = found["e6m3/chunk=64"].loss - found["f32"].loss;
  example::claim(std::abs(found["e6m9"].loss - found["f32"].loss) < 0.2, "e6m9 trains as f32 at this length");
  example::claim(lost > 0.4, "e6m3 without chunks: the loss stays more than 0.4 above f32's");
  example::claim(chunked < 0.6 * lost, "chunks of 64 take back at least 40% of that");
}

void body(example::Arguments& arguments) {
  sums();
  training(arguments);
  arguments.done();
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
