// Scaling Laws for Precision (Kumar et al. 2024, arXiv 2411.04330): training with weights of P bits is like training
// N (1 - exp(-P / gamma)) parameters, and rounding weights after training hurts more the more data they saw. Scaling
// Laws for Floating-Point Quantization Training (2025, arXiv 2501.02423): in few bits, data beyond some size harm.
//
// Networks of several sizes learn a wide one, without noise, each sample seen once: the loss has no floor.
#include "paper.h"
#include "precision_law.h"

using namespace gradual;
using namespace paper;

namespace {

constexpr const char* kUsage =
    "Precision laws 2024: fewer bits act like fewer parameters; more data makes rounding after training hurt more.\n"
    "  precision_laws2024\n  options: --seeds N  --steps N (of the longest runs)\n";

constexpr std::int64_t kInputs = 16;
constexpr std::int64_t kBatch = 32;
constexpr long kWidths[] = {8, 16, 32, 64};
constexpr long kParts[] = {9, 3, 1};  // runs see this part of the longest ones' data

// Weights in integers of so many bits, with a scale for each output of a layer; gradients as if they were not rounded.
amp::Recipe recipe(int bits) {
  amp::Recipe r = amp::recipe("fp32");
  r.name = std::to_string(bits) + " bits";
  if (bits == kExact) return r;
  const Format integer = format("q1." + std::to_string(bits - 2));
  r.quantization = {.forward_w = Quantizer{.format = integer, .overflow = Overflow::saturate, .scaling = RowScale{}}};
  return r;
}

struct Task {
  Tensor first = randn({kInputs, 512}) * exp(-0.2 * arange(0, kInputs, 1, {.dtype = DType::f32})).reshape({-1, 1});
  Tensor second = randn({512, 4}) / 16.0;
  Tensor test = randn({2048, kInputs});
  Tensor target(const Tensor& x) const { return matmul(tanh(matmul(x, first)), second); }
};

double loss_of(const Task& task, nn::Module& model, int bits) {
  const NoGrad off;
  const amp::RecipeScope scope(recipe(bits));
  const Tensor y = task.target(task.test);
  return square(model(task.test) - y).mean().item() / square(y - y.mean({0}, true)).mean().item();
}

// Adds a run's share of the mean over seeds to `mean`. The rate falls along half a cosine.
void train(Point& mean, long width, long steps, long seed, double share) {
  default_generator() = Generator(static_cast<std::uint64_t>(seed));
  const Task task;
  nn::Sequential model{nn::Linear(kInputs, width), nn::Tanh(), nn::Linear(width, 4)};
  amp::RecipeRun run(recipe(mean.bits), model, optim::AdamOptions{.lr = 1e-2});
  optim::Scheduler rate(run.optimizer(), optim::cosine(steps));
  for (long step = 0; step < steps; ++step) {
    const Tensor x = randn({kBatch, kInputs});
    const Tensor y = task.target(x);
    run.step([&] { return square(model(x) - y).mean(); });
    rate.step();
  }
  mean.parameters = static_cast<double>((kInputs + 1) * width + (width + 1) * 4);
  mean.samples = static_cast<double>(steps * kBatch);
  const double loss = loss_of(task, model, mean.bits);
  mean.loss += share * loss;
  if (mean.bits == kExact) mean.harm += share * (loss_of(task, model, 3) - loss);
}

// What must hold in every size.
struct Trends {
  bool harm_grows = true;     // that of rounding afterwards, with nine times the data
  bool data_harm = true;      // training in 3 bits, from a third of the data to all
  bool data_help_f32 = true;  // the same in f32
};

// Trains one size in so many bits, with all parts of the data.
std::vector<Point> row(int bits, long width, long seeds, long steps, Trends& trends) {
  std::vector<Point> points;
  for (const long part : kParts) {
    Point& p = points.emplace_back(Point{.bits = bits});
    for (long seed = 1; seed <= seeds; ++seed) train(p, width, steps / part, seed, 1.0 / static_cast<double>(seeds));
  }
  std::printf("%2d bits, N %4.0f:", bits, points[0].parameters);
  for (const Point& p : points) std::printf(" %.4f", p.loss);
  const bool more_harms = points[2].loss > points[1].loss;
  if (bits == 3 && !more_harms) trends.data_harm = false;
  if (bits == kExact) {
    std::printf("; rounded to 3 bits afterwards");
    for (const Point& p : points) std::printf(" %.4f", p.loss + p.harm);
    if (more_harms) trends.data_help_f32 = false;
    if (points[2].harm <= points[0].harm) trends.harm_grows = false;
  }
  std::printf("\n");
  return points;
}

void compare_laws(const std::vector<Point>& points) {
  std::printf("\nleast squares of log L; N in units of 100, D in units of 10,000\n");
  const RunColumns c(points);
  const auto shares = fitted("N_eff / N for each P", Law::shares, c, {-2, 0.5, -3, 0.5, -3, -2, -1, -0.1});
  bool rises = true;
  for (std::size_t i = 4; i < 8; ++i) {
    std::printf(" %.3f", std::exp(shares[i]));
    rises = rises && (i == 4 || shares[i] > shares[i - 1]);
  }
  std::printf("\n");
  const auto gamma = fitted("N_eff = N (1 - e^(-P/g))", Law::gamma, c, {-2, 0.5, -3, 0.5, 1});
  std::printf(" g %.1f\n", std::exp(gamma[4]));
  const auto sum = fitted("C e^(-P/g) added to L", Law::sum, c, {-2, 0.5, -3, 0.5, 0, 0});
  std::printf(" g %.2f, C %.2f\n\n", std::exp(sum[4]), std::exp(sum[5]));
  example::claim(rises && shares[4] < std::log(0.2),
                 "fewer bits act like fewer parameters, 3 bits like less than a fifth");
  example::claim(sum.back() < gamma.back() / 2, "but not as 1 - e^(-P/g): an added error fits better");
}

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 3);
  const long steps = arguments.number("--steps", 4500);
  arguments.done();
  std::printf("loss as a share of the constant's, mean of %ld seeds; data: 1/9, 1/3, all\n", seeds);
  std::vector<Point> all;
  Trends trends;
  for (const int bits : kBits)
    for (const long width : kWidths)
      for (const Point& p : row(bits, width, seeds, steps, trends)) all.push_back(p);
  compare_laws(all);
  example::claim(trends.harm_grows, "rounding to 3 bits after training hurts more with more data, in every size");
  example::claim(trends.data_harm && trends.data_help_f32,
                 "three times the data harm training in 3 bits and help f32, in every size");
  std::printf(
      "\nThe papers (abstracts and summaries): 465 language models to 1.7 billion parameters follow 1 - e^(-P/g);\n"
      "rounding after training harms the more, the more data a model saw; below some precision there is a size from\n"
      "which on more data harm. Here 172 to 1,348 parameters; weights alone are rounded.\n");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
