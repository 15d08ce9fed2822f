// The step that docs/a-training-step.md follows; way.py stops in each function that the page names.
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/gradual.h>

#include <cstdint>
#include <vector>

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = register_module("fc1", nn::Linear(4, 8));
  nn::Linear& fc2 = register_module("fc2", nn::Linear(8, 3));
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
};

// session.sh asks whether the debugger may stop here.
void shown() {}

}  // namespace

int main() {
  shown();
  set_cpu_backend(CpuBackend::eigen);
  const Tensor x = tensor({{0.1, 0.2, 0.3, 0.4}, {0.5, 0.6, 0.7, 0.8}}).to(DType::f32);
  const Tensor target = from_data(std::vector<std::int64_t>{0, 2}, {2});
  for (const char* recipe : {"amp-bf16", "amp-fp16"}) {
    Net net;
    amp::RecipeRun run(amp::recipe(recipe), net, optim::AdamOptions{});
    run.step([&] { return cross_entropy(net(x), target); });
  }
  return 0;
}
