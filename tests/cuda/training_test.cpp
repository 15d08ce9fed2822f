// Whole models on a GPU: the losses of the CPU, in every recipe.
#include <doctest/doctest.h>

#include <cmath>

#include <gradual/amp/autocast.h>
#include <gradual/amp/recipe.h>
#include <gradual/autograd/activation_checkpoint.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/cuda.h>
#include <gradual/data/data_loader.h>
#include <gradual/gradual.h>
#include <gradual/lab/models.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

struct Task {
  lab::MakeModel make;
  data::Batch batch;
};

// The second convolution has blocks of 32 channels, as the lab's network, and few outputs: the emulator is slow.
std::shared_ptr<nn::Module> small_cnn() {
  return std::make_shared<nn::Sequential>(nn::Conv2d(1, 32, 3, {.padding = 1}), nn::BatchNorm2d(32), nn::ReLU(),
                                          nn::MaxPool2d(2), nn::Conv2d(32, 16, 3, {.padding = 1}), nn::BatchNorm2d(16),
                                          nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(64, 10));
}
Task images() {
  Generator g(4);
  return {small_cnn, {randn({4, 1, 8, 8}, {}, g), randint(0, 10, {4}, {.dtype = DType::i64}, g)}};
}
Task tokens() {
  Generator g(5);
  return {[] { return lab::make_gpt({.vocabulary = 11, .context = 6, .width = 16, .heads = 2, .layers = 1}); },
          {randint(0, 11, {3, 6}, {.dtype = DType::i64}, g), randint(0, 11, {18}, {.dtype = DType::i64}, g)}};
}

// The losses of so many steps.
std::vector<double> train(const Task& task, const std::string& recipe, Device device, int steps = 3) {
  manual_seed(7);
  const auto model = task.make();
  model->to(device);
  amp::RecipeRun run(amp::recipe(recipe), *model, [](auto groups, const auto& precision) {
    return std::make_unique<optim::AdamW>(std::move(groups), optim::AdamWOptions{.lr = 1e-2, .precision = precision});
  });
  const Tensor x = task.batch.inputs.to(device);
  const Tensor y = task.batch.targets.to(device);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    const amp::RunStep step = run.step([&] {
      const Tensor logits = (*model)(x);
      return cross_entropy(logits.dim() == 2 ? logits : logits.reshape({-1, logits.size(-1)}), y);
    });
    CHECK(step.loss.device() == device);
    losses.push_back(step.loss.item());
  }
  for (const Tensor& p : model->parameters()) CHECK(p.device() == device);
  return losses;
}

void same_losses(const Task& task, const std::string& recipe, double tolerance, int steps = 3) {
  CAPTURE(recipe);
  const std::vector<double> here = train(task, recipe, Device::cpu(), steps);
  const std::vector<double> there = train(task, recipe, kGpu, steps);
  for (std::size_t i = 0; i < here.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(here[i])) CHECK(std::isnan(there[i]));
    else CHECK(there[i] == doctest::Approx(here[i]).epsilon(tolerance));
  }
}

TEST_CASE("a convolutional network trains on a GPU as on the CPU, in every recipe") {
  if (!have_gpu()) return;
  const Task task = images();
  int refused = 0;
  for (const std::string& name : amp::recipe_names()) {
    if (!test::runs_on_gpu(amp::recipe(name))) {
      CHECK_THROWS_WITH_AS(train(task, name, kGpu, 1), doctest::Contains("run on the CPU only"), Error);
      ++refused;
      continue;
    }
    const bool single = name == "fp32" || name == "tf32";
    same_losses(task, name, single ? 1e-4 : 0.05, single ? 3 : 2);
  }
  CHECK(refused > 0);
}

TEST_CASE("a transformer trains on a GPU as on the CPU") {
  if (!have_gpu()) return;
  const Task task = tokens();
  for (const char* name : {"fp32", "amp-fp16", "amp-bf16", "bf16-master", "fp8-delayed"})
    same_losses(task, name, name == std::string("fp32") ? 1e-4 : 0.05);
}

TEST_CASE("two runs on a GPU give the same bits") {
  if (!have_gpu()) return;
  for (const Task& task : {images(), tokens()}) CHECK(train(task, "amp-bf16", kGpu) == train(task, "amp-bf16", kGpu));
}

TEST_CASE("nothing stays on the GPU when a run has ended, and the host holds none of its tensors") {
  if (!have_gpu()) return;
  const std::int64_t before = memory_stats(kGpu).total.current;
  train(images(), "fp16-master", kGpu);
  CHECK(memory_stats(kGpu).total.current == before);
  reset_peak_memory(kGpu);
  train(images(), "fp16-master", kGpu);
  CHECK(memory_stats(kGpu)[Category::masters].peak > 0);
  CHECK(memory_stats(kGpu)[Category::activations].peak > 0);
}

TEST_CASE("a checkpointed segment on a GPU has the bits of one that is kept") {
  if (!have_gpu()) return;
  for (const bool lower : {false, true}) {
    std::vector<Tensor> grads[2];
    for (const bool again : {false, true}) {
      const Tensor x = drawn({6, 24}, 1, DType::f16).to(kGpu).set_requires_grad();
      const Tensor w = drawn({24, 24}, 2).to(kGpu).set_requires_grad();
      const auto segment = [&](const Tensor& t) {
        const Tensor wide = t.to(DType::f32);
        return dropout(gelu(matmul(wide, w)), 0.5) * t + wide;
      };
      manual_seed(3);
      Tensor y;
      {
        const amp::Autocast scope({.device = kGpu, .enabled = lower});
        y = again ? checkpoint(segment, x) : segment(x);
      }
      y.backward(drawn({6, 24}, 3).to(kGpu));
      grads[again] = {y.detach(), x.grad(), w.grad()};
    }
    for (std::size_t i = 0; i < 3; ++i) CHECK(same_numbers(grads[0][i], grads[1][i]));
  }
}

TEST_CASE("the loader puts batches on a GPU, with and without its thread") {
  if (!have_gpu()) return;
  const data::Dataset numbers{.inputs = arange(0, 40, 1, {.dtype = DType::f32}).reshape({20, 2}),
                              .targets = arange(0, 20)};
  for (const bool prefetch : {true, false}) {
    data::DataLoader there(numbers, {.batch = 3, .shuffle = true, .device = kGpu, .prefetch = prefetch});
    data::DataLoader here(numbers, {.batch = 3, .shuffle = true});
    for (data::Batch a, b; there.next(a);) {
      REQUIRE(here.next(b));
      CHECK(a.inputs.device() == kGpu);
      CHECK(a.targets.device() == kGpu);
      CHECK(a.inputs.to_vector<double>() == b.inputs.to_vector<double>());
      CHECK(a.targets.to_vector<double>() == b.targets.to_vector<double>());
    }
  }
}

}  // namespace
}  // namespace gradual
