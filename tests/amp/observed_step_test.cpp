// Steps of every recipe: the same bits with and without observers, on the CPU and on a GPU.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "../../amp/precision_observer.h"
#include "../../amp/recipe.h"
#include "../../autograd/anomaly.h"
#include "../../core/observe/profile.h"
#include "../../core/observe/tracer.h"
#include "../../nn/activation.h"
#include "../../nn/linear.h"
#include "../../nn/norm.h"
#include "../../nn/sequential.h"
#include "../../optim/adam.h"
#include "../support/cpu_backends.h"
#include "../support/gpu.h"
#include "support.h"

using namespace gradual;
using gradual::test::drawn, gradual::test::kGpu, gradual::test::same_numbers;

namespace {

struct Observers {
  std::int64_t lines = 0;
  amp::CastStatsTable table;
  Tracer tracer{[this](const std::string&) { ++lines; }, true};
  Profile profile;
  AnomalyMode anomaly{AnomalyMode::OnFinding::record};
  amp::PrecisionObserver precision;
  ObserverScope tracing{tracer};
  ObserverScope profiling{profile};
  explicit Observers(const amp::Recipe& recipe) : precision(table, recipe) {}
};

// What three steps leave: losses, and all that a checkpoint holds.
struct Left {
  std::vector<Tensor> losses;
  StateDict state;
};

Left after_steps(const amp::Recipe& recipe, Device device, double eps, bool observed) {
  manual_seed(7);
  nn::Sequential net(nn::Linear(32, 48), nn::ReLU(), nn::Linear(48, 32), nn::GELU(Gelu::tanh), nn::LayerNorm(32),
                     nn::Linear(32, 16));
  net.to(device);
  amp::RecipeRun run(recipe, net, [eps](auto groups, const auto& precision) {
    return std::make_unique<optim::AdamW>(std::move(groups),
                                          optim::AdamWOptions{.lr = 0.01, .eps = eps, .precision = precision});
  });
  Left left;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const Tensor x = drawn({16, 32}, 10 + i).to(device);
    const Tensor y = zeros({16}, {.dtype = DType::i64, .device = device});
    std::optional<Observers> observers;
    if (observed) observers.emplace(recipe);
    left.losses.push_back(run.step([&] { return cross_entropy(net(x), y); }).loss);
    if (eps > 1e-4) CHECK(std::isfinite(left.losses.back().item()));
    if (observed) CHECK(observers->lines > 10);
  }
  left.state = run.state_dict();
  return left;
}

// Recipes, and one that rounds the gradients of weights too.
std::vector<amp::Recipe> recipes_for(Device device) {
  std::vector<amp::Recipe> all;
  if (device.is_cuda())
    for (const char* name : test::kRecipesForGpu) all.push_back(amp::recipe(name));
  else
    for (const std::string& name : amp::recipe_names()) all.push_back(amp::recipe(name));
  amp::Recipe rounded = amp::recipe("fp8-current");
  rounded.name = "rounded-gradients";
  rounded.quantization->weight_gradient = rounded.quantization->dgrad_dy;
  all.push_back(rounded);
  return all;
}

void check_recipes(Device device, double eps) {
  for (const amp::Recipe& recipe : recipes_for(device)) {
    CAPTURE(recipe.name);
    const Left alone = after_steps(recipe, device, eps, false);
    const Left observed = after_steps(recipe, device, eps, true);
    for (std::size_t i = 0; i < alone.losses.size(); ++i) CHECK(same_numbers(alone.losses[i], observed.losses[i]));
    std::size_t tensors = 0;
    for (const auto& entry : alone.state) {
      const std::string& key = entry.name;
      CAPTURE(key);
      const auto* t = std::get_if<Tensor>(&entry.value);
      if (!t) continue;
      CHECK(same_numbers(*t, observed.state.tensor(key)));
      ++tensors;
    }
    CHECK(tensors >= 8);
  }
}

}  // namespace

TEST_CASE("steps of every recipe have the same bits with and without observers, by every CPU backend") {
  for (const CpuBackend backend : testing::cpu_backends()) {
    CAPTURE(to_string(backend));
    const CpuBackendScope scope(backend);
    check_recipes(Device::cpu(), 1e-3);
  }
  check_recipes(Device::cpu(), 1e-8);  // 0 in f16: fp16-pure ends in NaN
}

// Finite steps alone: a GPU has one NaN, but in the emulator its sign is the compiler's choice, kernel by kernel.
TEST_CASE("CUDA: steps of recipes have the same bits with and without observers") {
  if (test::have_gpu()) check_recipes(kGpu, 1e-3);
}
