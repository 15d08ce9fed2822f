// Characterization and Mitigation of Training Instabilities in Microscaling Formats (Su et al. 2025, arXiv 2506.20752).
//
// A student learns a teacher; in MX formats its loss bursts. The paper finds the cause in the weights of the norms:
// those of a block are close to each other, and where the shared power of two is rounded down (FLOOR), all of them
// become the format's largest number.
#include <gradual/inspect/block_xray.h>

#include <algorithm>
#include <array>

#include "student.h"

using namespace gradual;
using paper::Precision, paper::recipe, paper::Student, paper::Teacher, paper::kWidth;

namespace {

constexpr const char* kUsage =
    "MX instabilities 2025: the loss of a student bursts in MXFP4 if the weights of its norms are quantised.\n"
    "  mx_instability2025\n  options: --seeds N  --steps N\n";

struct Outcome {
  long burst = 0;   // the step at which the loss first exceeds five times the median of the last 100; 0: none
  double loss = 0;  // mean of the steps 300 to 600
};

// Trains in `p`, and from step `change` on in `then`.
Outcome train(const Precision& p, std::uint64_t seed, long steps, long change = 0, const Precision& then = {}) {
  default_generator() = Generator(seed);
  const Teacher teacher;
  Student student;
  student.quantise_norms(p);
  auto run = std::make_unique<amp::RecipeRun>(recipe(p), student, optim::AdamOptions{.lr = 0.03});
  std::vector<double> losses;
  Outcome out;
  for (long step = 1; step <= steps && out.burst == 0; ++step) {
    if (step == change) {
      const StateDict state = run->optimizer().state_dict();
      run.reset();
      student.quantise_norms(then);
      run = std::make_unique<amp::RecipeRun>(recipe(then), student, optim::AdamOptions{.lr = 0.03});
      run->optimizer().load_state_dict(state);
    }
    const Tensor x = randn({64, kWidth});
    const Tensor y = teacher(x);
    losses.push_back(run->step([&] { return mse_loss(student(x), y); }).loss.item());
    if (step > 300 && step <= 600) out.loss += losses.back() / 300;
    if (step <= 300) continue;
    std::vector<double> last(losses.end() - 100, losses.end());
    std::nth_element(last.begin(), last.begin() + 50, last.end());
    if (!(losses.back() <= 5 * last[50])) out.burst = step;
  }
  return out;
}

// The paper's cause without training: weights of norms close to 0.93, as a block of a trained network may have them.
// Prints what is clipped, and the factor of a fresh student's gradient along the exact one. Returns mxfp8's factors.
std::array<double, 3> clustered() {
  default_generator() = Generator(1);
  const Teacher teacher;
  Student student;
  for (auto* b : student.blocks) b->norm.weight.detach().copy_(0.93 + 0.02 * randn({kWidth}));
  const Tensor x = randn({1024, kWidth});
  const Tensor y = teacher(x);
  const auto gradient = [&](const Precision& p) {
    student.quantise_norms(p);
    student.zero_grad();
    const amp::RecipeScope scope(recipe(p));
    mse_loss(student(x), y).backward();
    std::vector<Tensor> all;
    for (const Tensor& w : student.parameters()) all.push_back(w.grad().flatten());
    return cat(all, 0);
  };
  const Tensor exact = gradient({});
  const Tensor weights = student.blocks[0]->norm.weight.detach().reshape({1, kWidth});
  std::array<double, 3> factors{};
  std::printf(
      "norm weights 0.93 +- 0.02, a fresh student:\n%31s clipped, factor; rceil: clipped, factor; norms in f32\n", "");
  for (const char* format : {"mxfp4", "mxfp6", "mxfp8"}) {
    const auto xray = inspect::xray(weights, recipe({format}).quantization->forward_w.value());
    const auto clipped = [&](const char* rule) {
      return static_cast<double>(xray.of(rule, 32).clipped) * 100 / kWidth;
    };
    for (const int i : {0, 1, 2})
      factors[i] = (gradient({format, i < 2, i == 1}) * exact).sum().item() / (exact * exact).sum().item();
    std::printf("%-31s %5.0f %% %8.3f %14.0f %% %8.3f %12.3f\n", format, clipped("floor"), factors[0], clipped("rceil"),
                factors[1], factors[2]);
  }
  return factors;
}

struct Row {
  const char* name;
  Precision precision;
};
const Row kRows[] = {{"f32", {}},
                     {"mxfp4, norms in f32", {"mxfp4"}},
                     {"mxfp8", {"mxfp8", true}},
                     {"mxfp6", {"mxfp6", true}},
                     {"mxfp4, activations in f32", {"mxfp4", true, false, false}},
                     {"mxfp4, rceil", {"mxfp4", true, true}},
                     {"mxfp4", {"mxfp4", true}}};
constexpr int kF32 = 0;
constexpr int kNorms = 1;
constexpr int kMxfp4 = 6;

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 4);
  const long steps = arguments.number("--steps", 2500);
  arguments.done();
  const std::array<double, 3> factors = clustered();
  std::vector<long> at[7];  // of each row, the steps of the bursts
  long bursts[7] = {};
  long changed[7] = {};
  double loss[7] = {};
  std::printf("\n%-26s bursts   loss, steps 300 to 600   steps of the bursts\n", "from the start");
  for (const int i : {0, 1, 2, 3, 4, 5, 6}) {
    std::string text;
    for (long seed = 1; seed <= seeds; ++seed) {
      const Outcome o = train(kRows[i].precision, static_cast<std::uint64_t>(seed), steps);
      at[i].push_back(o.burst);
      bursts[i] += o.burst > 0;
      loss[i] += o.loss / static_cast<double>(seeds);
      text += o.burst > 0 ? " " + std::to_string(o.burst) : " -";
    }
    std::printf("%-26s %ld of %ld %16.4f          %s\n", kRows[i].name, bursts[i], seeds, loss[i], text.c_str());
  }
  std::printf("\nmxfp4, and 20 steps before its burst a change to .. : bursts in the next 520 steps\n");
  for (const int i : {6, 0, 1, 5, 4}) {
    for (long seed = 1; seed <= seeds; ++seed)
      if (const long burst = at[kMxfp4][static_cast<std::size_t>(seed) - 1]; burst > 0)
        changed[i] += train(kRows[kMxfp4].precision, static_cast<std::uint64_t>(seed), burst + 500, burst - 20,
                            kRows[i].precision)
                          .burst > 0;
    std::printf("%-26s %ld of %ld\n", kRows[i].name, changed[i], bursts[kMxfp4]);
  }
  std::printf(
      "\nThe paper: 4 blocks of width 512 train in f32; in E4M3 the loss bursts near step 5,090. A change some steps "
      "before\nto f32, to norms that are not quantised or to finer activations averts or delays the burst.\n"
      "Here: width 32, batches of 64 (theirs: 2048), Adam at 0.03 (theirs: 0.0006). MXFP4 bursts; mxfp8 and mxfp6 "
      "hardly do\nin so few steps. Norms in f32 cure it, rceil and finer activations do not: at this size the cause is "
      "the rounding of the\nnorms to two significant bits, not their clipping.\n\n");
  example::claim(
      factors[0] < 0.95 && std::abs(factors[1] - 1) < 0.03 && std::abs(factors[2] - 1) < 0.03,
      "clustered norms: FLOOR makes mxfp8's gradient smaller by over 5%, rceil and norms in f32 by under 3%");
  example::claim(loss[kMxfp4] > 1.02 * loss[kNorms] && loss[kNorms] > 1.02 * loss[kF32],
                 "before the bursts, mxfp4's loss is above f32's, and higher with quantised norms");
  if (seeds < 3 || steps < 2500) return;  // a burst is a matter of chance
  example::claim(2 * bursts[kMxfp4] >= seeds && bursts[kF32] == 0 && 2 * bursts[kNorms] <= bursts[kMxfp4],
                 "mxfp4 bursts in half of the runs or more, with norms in f32 at most half as often, f32 never");
  example::claim(
      changed[kMxfp4] == bursts[kMxfp4] && 3 * changed[kF32] <= bursts[kMxfp4] && 3 * changed[kNorms] <= bursts[kMxfp4],
      "20 steps before the burst, f32 and norms in f32 each avert two of three bursts or more");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
