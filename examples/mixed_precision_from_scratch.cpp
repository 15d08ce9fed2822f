// Mixed precision by hand, and the same with amp.
//
// A two-layer MLP (inputs -> hidden -> 10, ReLU, SGD) is trained from the same weights on the same batches:
//   fp32      as usual;
//   by hand   FP32 masters, FP16 copies of them, a scaled loss: every cast is written out, with plain tensor ops;
//   amp       the same in five lines, with the recipe fp16-static:128;
//   and with the recipes of --recipes.
// You learn what the recipe does at each step of the loop, that it does nothing else (the losses have the same bits),
// and what uses the memory: the allocator counts all bytes during the steps.
//
// After Micikevicius et al. 2018, "Mixed Precision Training". FP16 needs hardware support to be fast: on a CPU without
// FP16 arithmetic it saves memory, but maybe no time.
#include <gradual/data/data_loader.h>
#include <gradual/data/digits.h>
#include <gradual/data/idx.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "example.h"
#include "report.h"

using namespace gradual;
using example::Report;

namespace {

constexpr double kLr = 0.01;
constexpr double kScale = 128;

using Step = std::function<Tensor(const data::Batch&)>;  // one training step; returns the loss

std::shared_ptr<nn::Sequential> make_model(std::int64_t inputs, std::int64_t hidden) {
  manual_seed(0);
  return std::make_shared<nn::Sequential>(nn::Linear(inputs, hidden), nn::ReLU(), nn::Linear(hidden, 10));
}

// The same model as a plain function of its four parameters, in any dtype.
Tensor forward(const std::vector<Tensor>& w, const Tensor& x) {
  return linear(relu(linear(x, w[0], w[1])), w[2], w[3]);
}

Step fp32_by_hand(const std::shared_ptr<nn::Sequential>& model) {
  return [weights = model->parameters()](const data::Batch& b) {
    const Tensor loss = cross_entropy(forward(weights, b.inputs), b.targets);
    loss.backward();
    const NoGrad no_grad;
    for (const Tensor& w : weights) {
      w.add_(w.grad(), -kLr);
      w.zero_grad();
    }
    return loss.detach();
  };
}

Step mixed_by_hand(const std::shared_ptr<nn::Sequential>& model) {
  std::vector<Tensor> masters;  // FP32: the weights that training updates
  for (const Tensor& p : model->parameters()) {
    masters.push_back(p.detach());
    masters.back().set_category(Category::masters);  // only for the memory table below
  }
  return [masters](const data::Batch& b) {
    // 1. Round the masters to FP16: the model that computes.
    std::vector<Tensor> half;
    for (const Tensor& m : masters) {
      half.push_back(m.to(DType::f16));
      half.back().set_category(Category::parameters);
      half.back().set_requires_grad();
    }
    // 2. Forward in FP16; the loss in FP32, where exp and log have room.
    const Tensor loss = cross_entropy(forward(half, b.inputs).to(DType::f32), b.targets);
    // 3. Backward of the scaled loss lifts FP16 gradients away from zero.
    (loss * kScale).backward();
    // 4. Skip the step if a gradient overflowed.
    const NoGrad no_grad;
    for (const Tensor& h : half)
      if (!std::isfinite(h.grad().to(DType::f32).abs().sum().item())) return loss.detach();
    // 5. Unscale in FP32 (in FP16 small gradients would underflow again) and update the masters.
    for (std::size_t i = 0; i < masters.size(); ++i)
      masters[i].add_(half[i].grad().to(DType::f32) * (1 / kScale), -kLr);
    return loss.detach();
  };
}

Step with_amp(const std::shared_ptr<nn::Sequential>& model, const std::string& recipe) {
  auto run = std::make_shared<amp::RecipeRun>(amp::recipe(recipe), *model, [](auto groups, auto& precision) {
    return std::make_unique<optim::SGD>(std::move(groups), optim::SGDOptions{.lr = kLr, .precision = precision});
  });
  return [model, run](const data::Batch& b) {
    return run->step([&] { return cross_entropy((*model)(b.inputs), b.targets); }).loss;
  };
}

using MakeStep = std::function<Step(const std::shared_ptr<nn::Sequential>&)>;
Report train(std::string name, DType inputs, const MakeStep& make, const std::vector<data::Batch>& batches,
             std::int64_t hidden, Device device) {
  Report report{.name = std::move(name), .before = memory_stats(device)};
  const auto model = make_model(batches[0].inputs.size(1), hidden);
  model->to(device);
  const Step step = make(model);
  reset_peak_memory(device);
  report.ms = 1e30;
  report.ms_with_copies = 1e30;
  for (const data::Batch& batch : batches) {
    data::Batch here;
    const double copies = example::milliseconds(device, [&] {
      here = {batch.inputs.to(device).to(inputs), batch.targets.to(device)};
    });
    Tensor loss;
    const double ms = example::milliseconds(device, [&] { loss = step(here); });
    report.losses.push_back(loss.item());
    report.ms = std::min(report.ms, ms);
    report.ms_with_copies = std::min(report.ms_with_copies, ms + copies);
  }
  report.memory = memory_stats(device);
  return report;
}

// Images labelled by a fixed random map: for timing without data.
data::Dataset random_data(std::int64_t samples) {
  Generator generator(1);
  const Tensor x = rand({samples, 784}, {}, generator);
  return {.inputs = x, .targets = argmax(matmul(x - 0.5, randn({784, 10}, {}, generator)), 1)};
}

std::vector<data::Batch> load(const std::string& spec, std::int64_t batch, std::int64_t steps) {
  if (spec != "digits" && spec != "random" && spec.rfind("mnist:", 0) != 0)
    throw std::runtime_error("--data is digits, random or mnist:DIR, not '" + spec + "'");
  const data::Dataset train = spec == "digits"   ? data::split(data::digits(), 1437).train
                              : spec == "random" ? random_data(batch * steps)
                                                 : data::mnist(spec.substr(6)).train;
  batch = std::min(batch, train.size());
  data::DataLoader loader(train, {.batch = batch, .shuffle = true, .drop_last = true});
  std::vector<data::Batch> batches;
  for (data::Batch b; static_cast<std::int64_t>(batches.size()) < steps;)
    if (loader.next(b)) batches.push_back({flatten(b.inputs, 1), b.targets});
  return batches;
}

constexpr const char* kUsage =
    "Mixed precision by hand, and the same by amp.\n"
    "  mixed_precision_from_scratch                             # embedded digits, 64 -> 1024 -> 10, seconds\n"
    "  mixed_precision_from_scratch --full --data mnist:DIR     # 784 -> 8192 -> 10 with batches of 8192, minutes\n"
    "  mixed_precision_from_scratch --full --device cuda --data random\n"
    "  options: --full  --data digits|mnist:DIR|random  --recipes LIST  --hidden N  --batch N  --steps N\n"
    "           --threads N (1; --full: all cores)\n";

void body(example::Arguments& arguments) {
  const bool full = arguments.flag("--full");
  const std::string spec = arguments.text("--data", "digits");
  const std::int64_t hidden = arguments.number("--hidden", full ? 8192 : 1024);
  const std::int64_t batch = arguments.number("--batch", full ? 8192 : 200);
  const std::int64_t steps = arguments.number("--steps", 7);
  const Device device = example::device();
  const std::string recipes = arguments.text("--recipes", device.is_cuda() ? "tf32,amp-fp16,amp-bf16,fp8-delayed" : "");
  // Steps of less than a millisecond are timed on one thread: on a busy machine two threads would measure waiting.
  set_num_threads(static_cast<int>(arguments.number("--threads", full ? num_threads() : 1)));
  arguments.done();

  const std::vector<data::Batch> batches = load(spec, batch, steps);
  std::printf("%lld -> %lld -> 10, batches of %lld, SGD %g, static loss scale %g, %lld steps\n",
              static_cast<long long>(batches[0].inputs.size(1)), static_cast<long long>(hidden),
              static_cast<long long>(batches[0].size()), kLr, kScale, static_cast<long long>(steps));
  std::vector<Report> runs;
  const auto add = [&](const std::string& name, DType inputs, const MakeStep& make) {
    runs.push_back(train(name, inputs, make, batches, hidden, device));
  };
  add("fp32", DType::f32, fp32_by_hand);
  add("by hand", DType::f16, mixed_by_hand);
  add("amp", DType::f16, [](const auto& model) { return with_amp(model, "fp16-static:128"); });
  for (std::stringstream list(recipes); list.good();) {
    std::string name;
    if (std::getline(list, name, ',')) add(name, DType::f32, [&](const auto& model) { return with_amp(model, name); });
  }
  example::print(runs);
  if (device.is_cpu()) std::printf("(a CPU without f16 arithmetic converts around each product: that takes time)\n\n");

  double against_amp = 0;
  double against_fp32 = 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    against_amp = std::max(against_amp, std::fabs(runs[1].losses[i] - runs[2].losses[i]));
    against_fp32 = std::max(against_fp32, std::fabs(runs[1].losses[i] - runs[0].losses[i]));
  }
  std::printf("largest difference in loss: by hand and amp %g, by hand and fp32 %g\n", against_amp, against_fp32);
  // On a GPU the model's relu is fused with a product, whose sums may have another order.
  if (device.is_cuda())
    example::claim(against_amp < 1e-3, "amp does what was written by hand, but for the order of sums");
  else example::claim(against_amp == 0, "amp does what was written by hand, to the bit");
  example::claim(against_fp32 < 5e-3, "mixed precision follows fp32 (within 0.005)");
  if (steps > 1) example::claim(runs[1].losses.back() < runs[1].losses.front(), "the loss falls");
  const double ratio = runs[0].mb(Category::activations) / runs[1].mb(Category::activations);
  example::claim(ratio > 1.8 && ratio < 2.1, "activations take half the memory");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
