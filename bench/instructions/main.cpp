// gradual-step NAME COUNT: runs one small step COUNT times and nothing else, so that an instruction counter can tell
// two counts apart (`./dev instructions`).
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>
#include <gradual/nn/activation.h>
#include <gradual/nn/linear.h>
#include <gradual/nn/sequential.h>
#include <gradual/optim/sgd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

using namespace gradual;

// The three steps are those of op/mul8_record, op/mul8_forward_backward and train/mlp_small_step.
void mul8_record(int count) {
  const Tensor a = ones({8}).set_requires_grad();
  const Tensor b = ones({8});
  for (int i = 0; i < count; ++i) mul(a, b);
}

void mul8_forward_backward(int count) {
  const Tensor a = ones({8}).set_requires_grad();
  const Tensor b = ones({8});
  const Tensor g = ones({8});
  for (int i = 0; i < count; ++i) {
    mul(a, b).backward(g);
    a.zero_grad();
  }
}

void mlp_small_step(int count) {
  nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 128), nn::ReLU(), nn::Linear(128, 10)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  const Tensor x = randn({32, 64});
  const Tensor y = randint(0, 10, {32});
  for (int i = 0; i < count; ++i) {
    cross_entropy(model(x), y).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

struct Step {
  std::string_view name;
  void (*run)(int count);
};
constexpr Step kSteps[] = {
    {"mul8_record", mul8_record}, {"mul8_forward_backward", mul8_forward_backward}, {"mlp_small_step", mlp_small_step}};

}  // namespace

int main(int argc, char** argv) {
  const int count = argc == 3 ? std::atoi(argv[2]) : 0;
  gradual::set_num_threads(1);
  for (const Step& step : kSteps) {
    if (count < 1 || step.name != argv[1]) continue;
    step.run(count);
    return 0;
  }
  std::fprintf(stderr, "usage: gradual-step NAME COUNT, with NAME one of");
  for (const Step& step : kSteps) std::fprintf(stderr, " %s", step.name.data());
  std::fprintf(stderr, "\n");
  return 2;
}
