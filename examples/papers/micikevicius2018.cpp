// Mixed precision training (Micikevicius et al. 2018, arXiv 1710.03740): why losses are scaled.
//
// A detector: a digit lies somewhere on an empty image, and each pixel of the output says whether the digit's centre is
// there. Nearly all pixels are background. The gradient of a background pixel is p / n: its probability divided by the
// number of pixels in the mean. In f16 it becomes 0 once p is below n / 2^25: from there on, the pixel no longer lowers
// its probability. With a loss scale of 8 that happens at an eighth of this probability.
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Micikevicius et al. 2018: a detector whose gradients f16 loses without a loss scale.\n"
    "  micikevicius2018\n  options: --epochs N  --seeds N\n";

constexpr std::int64_t kSide = 20;
constexpr std::int64_t kDigit = 8;
constexpr std::int64_t kBatch = 128;
// Multiplies the loss, and divides the rate. Gradients are as small as those of a mean over 128 times as many pixels:
// over images of 226x226.
constexpr double kWeight = 1.0 / 128;

// Each digit at a random place of an empty image; the target is 1 at its centre, 0 elsewhere.
data::Dataset scenes(const data::Dataset& digits) {
  const std::int64_t n = digits.size();
  data::Dataset out{zeros({n, 1, kSide, kSide}), zeros({n, 1, kSide, kSide})};
  Generator places(7);
  const Tensor place = (rand({n, 2}, {}, places) * static_cast<double>(kSide - kDigit)).to(DType::i64);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = place[i].to_vector<std::int64_t>();
    const Tensor pixels = digits.inputs[i][0] * 0.3760 + 0.3053;  // 0 to 1
    out.inputs.index({i, 0, Slice{at[0], at[0] + kDigit}, Slice{at[1], at[1] + kDigit}}).copy_(pixels);
    out.targets[i][0][at[0] + kDigit / 2][at[1] + kDigit / 2].fill_(1);
  }
  return out;
}

// Shares of numbers by power of two, in percent: those that f16 makes 0 (below 2^-25), its subnormals, its normals.
struct Histogram {
  double zero = 0;
  double lost = 0;
  double subnormal = 0;
  double normal = 0;
  double count = 0;
  void add(const Tensor& gradient) {
    for (const float g : abs(gradient).to_vector<float>()) {
      ++(g == 0 ? zero : g <= 0x1p-25F ? lost : g < 0x1p-14F ? subnormal : normal);
      ++count;
    }
  }
  void print() const {
    std::printf(
        "gradients of activations in f32: %.0f%% are 0, %.0f%% not 0 but 0 in f16, %.0f%% subnormal in f16, %.2f%% "
        "normal\n",
        100 * zero / count, 100 * lost / count, 100 * subnormal / count, 100 * normal / count);
  }
};

struct Found {
  double loss = 0;        // of the last epoch, without kWeight
  double hits = 0;        // percent of test images whose largest output is at the centre
  double background = 0;  // mean probability of the pixels without a centre
};

Found train(const std::string& recipe, const data::Dataset& to_train, const data::Dataset& to_test, int epochs,
            std::uint64_t seed, Histogram* histogram) {
  default_generator() = Generator(seed);
  nn::Sequential model{nn::Conv2d(1, 8, 5, {.padding = 2}), nn::ReLU(), nn::Conv2d(8, 8, 5, {.padding = 2}), nn::ReLU(),
                       nn::Conv2d(8, 1, 3, {.padding = 1})};
  amp::RecipeRun run(amp::recipe(recipe), model, optim::SGDOptions{.lr = 3 / kWeight}, {.seed = seed});
  data::DataLoader loader(to_train, {.batch = kBatch, .shuffle = true, .seed = seed, .drop_last = true});
  Found found;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    found.loss = 0;
    for (const data::Batch& b : loader) {
      const auto loss = [&] {
        const Tensor y = model(b.inputs);
        if (histogram && epoch > 0)
          y.register_hook([&](const Tensor& g) {
            histogram->add(g);
            return g;
          });
        return bce_with_logits_loss(y.to(DType::f32), b.targets) * kWeight;
      };
      found.loss += run.step(loss).loss.item() / kWeight / static_cast<double>(loader.size());
    }
  }
  model.eval();
  const Tensor y = run.evaluate([&] { return model(to_test.inputs); });
  const Tensor is_background = 1 - to_test.targets;
  found.hits = 100 * eq(argmax(flatten(y, 1), 1), argmax(flatten(to_test.targets, 1), 1)).to(DType::f32).mean().item();
  found.background = (sigmoid(y.to(DType::f32)) * is_background).sum().item() / is_background.sum().item();
  return found;
}

void body(example::Arguments& arguments) {
  const int epochs = static_cast<int>(arguments.number("--epochs", 12));
  const long seeds = arguments.number("--seeds", 2);
  arguments.done();
  const data::Split digits = data::split(data::digits(), 1437);
  const data::Dataset to_train = scenes(digits.train);
  const data::Dataset to_test = scenes(digits.test);
  Histogram histogram;
  std::map<std::string, Found> found;
  std::printf("means of %ld seeds %15s %18s %26s\n", seeds, "loss", "found in a test", "background's probability");
  for (const std::string name : {"fp32", "fp16-static:1", "fp16-static:8", "fp16-static:128", "fp16-master"}) {
    Found& mean = found[name];
    for (long seed = 1; seed <= seeds; ++seed) {
      const Found f = train(name, to_train, to_test, epochs, static_cast<std::uint64_t>(seed),
                            name == "fp32" ? &histogram : nullptr);
      mean.loss += f.loss / static_cast<double>(seeds);
      mean.hits += f.hits / static_cast<double>(seeds);
      mean.background += f.background / static_cast<double>(seeds);
    }
    std::printf("%-19s %14.5f %17.1f%% %26.5f\n", name.c_str(), mean.loss, mean.hits, mean.background);
  }
  histogram.print();
  const double floor = 0x1p-25 * kSide * kSide * kBatch / kWeight;
  std::printf(
      "with scale 1 the gradient of a background pixel becomes 0 at the probability %.5f, with 8 at %.5f\n\n"
      "The paper: of the activation gradients of its detector, SSD, 67%% are 0, and many others are so small that f16\n"
      "makes them 0. SSD diverges with scale 1 and trains with scale 8 (mAP 77.1; f32: 76.9). fp16-master has a "
      "dynamic\n"
      "scale. Here: three convolutions on images of 20x20 that hold one digit; the numbers are not comparable, the\n"
      "effect is.\n\n",
      floor, floor / 8);
  const Found& fp32 = found["fp32"];
  const Found& lost = found["fp16-static:1"];
  example::claim(histogram.lost > 0.9 * histogram.count, "f16 makes 0 of more than 90% of the gradients");
  example::claim(lost.hits < fp32.hits / 2, "with scale 1, f16 finds less than half of what f32 finds");
  example::claim(lost.background > 10 * fp32.background,
                 "with scale 1, the background's probability is more than 10 times that of f32");
  for (const char* name : {"fp16-static:8", "fp16-static:128", "fp16-master"})
    example::claim(found[name].hits > fp32.hits - 5, (std::string(name) + " comes within 5 points of f32").c_str());
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
