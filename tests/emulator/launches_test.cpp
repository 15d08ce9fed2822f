// How much a training step asks of a GPU: the launches and library calls of small models, counted.
#include <doctest/doctest.h>

#include <gradual/amp/autocast.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/gradual.h>
#include <gradual/lab/models.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

struct Task {
  std::shared_ptr<nn::Module> model;
  Tensor x, y;
  DType dtype;
};

// Of the third step: the first ones make states and choose algorithms.
template <class O, class Options> std::vector<std::string> step_of(const Task& task, const Options& options) {
  task.model->to(kGpu);
  O optimizer(task.model->parameters(), options);
  const bool scales = task.dtype == DType::f16;
  optim::GradScaler scaler;
  const Tensor x = task.x.to(kGpu);
  const Tensor y = task.y.to(kGpu);
  const auto step = [&] {
    optimizer.zero_grad();
    Tensor loss;
    {
      const amp::Autocast scope({.dtype = task.dtype, .device = kGpu});
      const Tensor logits = (*task.model)(x);
      loss = cross_entropy(logits.dim() == 2 ? logits : logits.reshape({-1, logits.size(-1)}), y);
    }
    (scales ? scaler.scale(loss) : loss).backward();
    if (!scales) return optimizer.step();
    scaler.step(optimizer);
    scaler.update();
  };
  step();
  step();
  return kernels_of(step);
}

Tensor labels(std::int64_t classes, const Shape& sizes) {
  Generator g(3);
  return randint(0, classes, sizes, {.dtype = DType::i64}, g);
}
std::size_t count(const std::vector<std::string>& names, const std::string& part) {
  return static_cast<std::size_t>(
      std::ranges::count_if(names, [&](const auto& n) { return n.find(part) != std::string::npos; }));
}

TEST_CASE("a step of an MLP in f16 takes so many launches") {
  const auto model = std::make_shared<nn::Sequential>(nn::Linear(32, 64), nn::ReLU(), nn::Linear(64, 10));
  const auto names = step_of<optim::SGD>({model, drawn({16, 32}, 1), labels(10, {16}), DType::f16},
                                         optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
  CHECK(names.size() == 28);
  CHECK(count(names, "cublasLtMatmul") == 5);  // forward, and backward without the inputs' gradient
  CHECK(count(names, "Step<") == 1);
}

TEST_CASE("a step of a CNN in bf16 takes so many launches") {
  const auto names =
      step_of<optim::AdamW>({lab::make_cnn(1, 8, 8, 10), drawn({4, 1, 8, 8}, 1), labels(10, {4}), DType::bf16},
                            optim::AdamWOptions{.lr = 1e-3});
  CHECK(names.size() == 50);
  CHECK(count(names, "cuDNN convolution") == 5);
  CHECK(count(names, "Step<") == 1);
}

TEST_CASE("a step of a transformer in bf16 takes so many launches") {
  const auto launches = [](std::int64_t layers) {
    const auto model = lab::make_gpt({.vocabulary = 24, .context = 16, .width = 32, .heads = 2, .layers = layers});
    return step_of<optim::AdamW>({model, labels(24, {2, 16}), labels(24, {32}), DType::bf16},
                                 optim::AdamWOptions{.lr = 1e-3});
  };
  const auto one = launches(1);
  const auto two = launches(2);
  CHECK(two.size() - one.size() == 51);  // a layer's
  CHECK(one.size() == 81);
  CHECK(count(one, "cudaMemsetAsync") == 2);  // of the two embeddings' gradients,
  CHECK(count(one, "SortPairs") == 2);        // whose additions are sorted
  CHECK(count(one, "cudaMemcpyAsync") == 1);
  CHECK(count(two, "cuDNN attention") == 4);
  CHECK(count(two, "ConvertElements") == 0);  // scalar casts
  CHECK(count(two, "MapElements") == 0);      // and sums
}

TEST_CASE("the gradient of a packed projection is its three parts, copied") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = drawn({2, 8, 96}, 1, dtype).to(kGpu);
    const auto backward = [&](bool whole) {
      const Tensor packed = x.detach().set_requires_grad();
      std::vector<Tensor> parts, gradients;
      for (int i = whole ? 0 : 1; i < 3; ++i) {
        parts.push_back(packed.narrow(-1, 32 * i, 32));
        gradients.push_back(drawn({2, 8, 32}, 5, dtype).to(kGpu));
      }
      const auto names = kernels_of([&] { autograd::backward(parts, gradients); });
      const Tensor zero = zeros({2, 8, 32}, {.dtype = dtype, .device = kGpu});
      const Tensor part = gradients[0];
      CHECK(same_numbers(packed.grad(), cat({whole ? part : zero, part, part}, -1)));
      return names;
    };
    const auto three = backward(true);
    CHECK(three.size() == 3);
    CHECK(count(three, "MoveElements") == 3);
    const auto two = backward(false);
    CHECK(two.size() == 3);
    CHECK(count(two, "FillElements") == 1);
  }
}

TEST_CASE("what CUDA copies and clears is counted too") {
  const auto named = [](const auto& f) {
    f();  // the first time may make buffers
    return kernels_of(f);
  };
  using Names = std::vector<std::string>;
  const Names copy = {"cudaMemcpyAsync"};
  const Tensor host = drawn({2, 8, 32}, 1);
  const Tensor x = host.to(kGpu);
  CHECK(named([&] { x.clone(); }) == copy);
  CHECK(named([&] { x.to(Device::cpu()); }) == copy);
  CHECK(named([&] { host.to(kGpu); }) == copy);
  CHECK(named([&] { empty({2 << 20}).to(kGpu); }) == Names(2, "cudaMemcpyAsync"));  // a piece of 4 MiB at a time
  const auto backward =
      named([&] { call_row(OpId::slice_backward, SliceAttrs{.dim = 2, .start = 0, .stop = 32, .size = 96}, x); });
  REQUIRE(backward.size() == 2);
  CHECK(backward[0] == "cudaMemsetAsync");
  CHECK(backward[1].find("MoveElements") != std::string::npos);
  const Tensor index = labels(3, {8}).to(kGpu);
  const auto added = named([&] { index_add(x, 1, index, 3); });
  CHECK(added[0] == "cudaMemsetAsync");
  CHECK(count(added, "SortPairs") == 1);
  CastCounts counts;
  const auto counted = named([&] {
    const CountScope scope(&counts);
    x.to(DType::f16);
  });
  REQUIRE(counted.size() == 3);  // the counts are cleared, added up, and read
  CHECK(counted.front() == "cudaMemsetAsync");
  CHECK(counted.back() == "cudaMemcpyAsync");
}

TEST_CASE("batch norm moves its running statistics in a launch") {
  nn::BatchNorm2d norm(8);
  norm.to(kGpu);
  const Tensor x = drawn({4, 8, 6, 6}, 1).to(kGpu);
  const auto training = kernels_of([&] { norm(x); });
  CHECK(count(training, "MoveStatistics") == 1);
  const auto alone = kernels_of([&] { batch_norm(x, norm.weight, norm.bias, {}, {}, true); });
  CHECK(training.size() == alone.size() + 1);
}

}  // namespace
}  // namespace gradual
