// gradual-busy: training steps on one thread and on several, on an idle machine and next to busy loops.
//   gradual-busy [--threads N] [--loops N] [--rounds N]
#include <fmt/format.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>
#include <gradual/lab/models.h>
#include <gradual/nn/activation.h>
#include <gradual/nn/linear.h>
#include <gradual/nn/sequential.h>
#include <gradual/optim/adam.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

using namespace gradual;

namespace {

// Processes that compute without pause while this object lives.
class BusyLoops {
 public:
  explicit BusyLoops(int n) {
    for (int i = 0; i < n; ++i) {
      const pid_t child = fork();
      if (child == 0)
        for (volatile unsigned turns = 0;;) turns = turns + 1;
      if (child > 0) children_.push_back(child);
    }
  }
  BusyLoops(const BusyLoops&) = delete;
  ~BusyLoops() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> children_;
};

// Milliseconds per step, over at least a fifth of a second and 5 steps.
double time_steps(const std::function<void()>& step) {
  using Clock = std::chrono::steady_clock;
  step();
  const auto begin = Clock::now();
  std::chrono::duration<double, std::milli> passed{};
  int steps = 0;
  while (passed.count() < 200 || steps < 5) {
    step();
    ++steps;
    passed = Clock::now() - begin;
  }
  return passed.count() / steps;
}

struct Model {
  std::string name;
  nn::Module& module;
  Tensor x;
};

void measure(const Model& model, int threads, int loops, int rounds) {
  optim::AdamW optimizer(model.module.parameters(), {.lr = 1e-3});
  const Tensor y = randint(0, 10, {model.x.size(0)});
  const auto step = [&] {
    cross_entropy(model.module(model.x), y).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  std::vector<double> times[2][2];  // [busy][several threads]
  for (int round = 0; round < rounds; ++round)
    for (const bool busy : {false, true}) {
      const BusyLoops others(busy ? loops : 0);
      for (const bool several : {false, true}) {
        const ThreadsScope scope(several ? threads : 1);
        times[busy][several].push_back(time_steps(step));
      }
    }
  for (const bool busy : {false, true}) {
    double median[2];
    for (const bool several : {false, true}) {
      std::vector<double>& t = times[busy][several];
      std::sort(t.begin(), t.end());
      median[several] = t[t.size() / 2];
    }
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} to {:.2f} |\n", model.name, busy ? "busy" : "idle",
               median[0], median[1], median[1] / median[0], times[busy][1].front(), times[busy][1].back());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 2;
  int loops = 2;
  int rounds = 9;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    int* const to = flag == "--threads"  ? &threads
                    : flag == "--loops"  ? &loops
                    : flag == "--rounds" ? &rounds
                                         : nullptr;
    const int value = i + 1 < argc ? std::atoi(argv[i + 1]) : 0;
    if (!to || value < 1) {
      fmt::print(stderr, "usage: gradual-busy [--threads N] [--loops N] [--rounds N]     (each at least 1)\n");
      return 2;
    }
    *to = value;
  }
  manual_seed(1);
  const auto cnn = lab::make_cnn(1, 8, 8, 10);
  const auto images = lab::make_cnn(1, 28, 28, 10);
  nn::Sequential mlp{nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 512), nn::ReLU(), nn::Linear(512, 10)};
  fmt::print("{} threads, {} busy loops; milliseconds a step, medians of {} windows of 0.2 s\n\n", threads, loops,
             rounds);
  fmt::print(
      "| step | machine | 1 thread | {} threads | ratio | fastest to slowest window |\n|---|---|---|---|---|---|\n",
      threads);
  measure({"CNN 8x8, batch 64", *cnn, randn({64, 1, 8, 8})}, threads, loops, rounds);
  measure({"CNN 28x28, batch 64", *images, randn({64, 1, 28, 28})}, threads, loops, rounds);
  measure({"MLP 784-512-512-10, batch 128", mlp, randn({128, 784})}, threads, loops, rounds);
}
