// Loss scaling on a GPU against the CPU: the same scales, skips and numbers, and nobody waits before somebody asks.
#include <doctest/doctest.h>

#include <memory>
#include <variant>

#include <gradual/autograd/grad_mode.h>
#include <gradual/core/files/checkpoint_file.h>
#include <gradual/core/ops/dispatch.h>
#include <gradual/optim/grad_scaler.h>
#include "../optim/helpers.h"
#include "../support/files.h"
#include "support/gpu.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

// Counts what goes to the CPU or comes from there.
struct Crossings : Interceptor {
  int count = 0;
  Outputs call(const OpCall& call) override {
    if (call.op == OpId::to_device) ++count;
    return next_below_amp(call);
  }
};

// Two parameters under AdamW with masters and a scaler that moves often.
struct Run {
  Tensor w, b;
  std::unique_ptr<AdamW> optimizer;
  GradScaler scaler{{.init_scale = 1024, .growth_interval = 3, .hysteresis = 2}};
  std::vector<StepResult> results;

  explicit Run(Device device, LowPrecisionUpdate update = LowPrecisionUpdate::masters) {
    w = Tensor(from_data(numbers(35, 1), {5, 7}, {.dtype = DType::f16}).to(device).detach()).set_requires_grad();
    b = Tensor(from_data(numbers(35, 2), {5, 7}).to(device).detach()).set_requires_grad();
    optimizer = std::make_unique<AdamW>(std::vector<Tensor>{w, b},
                                        AdamWOptions{.lr = 0.01, .precision = {.update = update, .seed = 3}});
  }
  // The gradient of w times the scale; at an overflow with an Inf in it.
  void step(std::uint64_t i, bool overflow, bool unscale = false) {
    const Device device = w.device();
    const Tensor x = from_data(numbers(35, 10 + i), {5, 7}).to(device);
    const Tensor y = mul(mul(cast(w, DType::f32), x), b);
    Tensor seed = ones({5, 7}, {.device = device});
    if (overflow) seed.select(0, 2).fill_(INFINITY);
    scaler.scale(y).backward(seed);
    if (unscale) scaler.unscale_(*optimizer);
    results.push_back(scaler.step(*optimizer));
    scaler.update();
    optimizer->zero_grad();
  }
};

bool overflows(std::uint64_t i) { return i == 2 || i == 3 || i == 4 || i == 9; }

void check_same(Run& a, Run& b) {
  CHECK(same_numbers(a.w, b.w));
  CHECK(same_numbers(a.b, b.b));
  const StateDict x = a.optimizer->state_dict();
  const StateDict y = b.optimizer->state_dict();
  REQUIRE(x.size() == y.size());
  for (const StateDict::Entry& e : x) {
    CAPTURE(e.name);
    if (const Tensor* t = std::get_if<Tensor>(&e.value)) CHECK(same_numbers(*t, y.tensor(e.name)));
    else CHECK(gradual::describe(e.value) == gradual::describe(y.at(e.name)));
  }
  CHECK(a.scaler.scale() == b.scaler.scale());
  CHECK(a.scaler.growth_tracker() == b.scaler.growth_tracker());
  REQUIRE(a.scaler.history().size() == b.scaler.history().size());
  for (std::size_t i = 0; i < a.scaler.history().size(); ++i) {
    CHECK(a.scaler.history()[i].update == b.scaler.history()[i].update);
    CHECK(a.scaler.history()[i].scale == b.scaler.history()[i].scale);
  }
}

}  // namespace

TEST_CASE("a GPU's scaled steps have the CPU's bits and scales and skip where it skips") {
  if (!have_gpu()) return;
  for (const LowPrecisionUpdate update :
       {LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan, LowPrecisionUpdate::stochastic}) {
    for (const bool unscale : {false, true}) {
      CAPTURE(to_string(update));
      CAPTURE(unscale);
      Run cpu(Device::cpu(), update);
      Run gpu(Device::cuda(), update);
      for (std::uint64_t i = 0; i < 14; ++i) {
        cpu.step(i, overflows(i), unscale);
        gpu.step(i, overflows(i), unscale);
      }
      check_same(cpu, gpu);
      CHECK(cpu.scaler.history().size() > 3);
      for (std::uint64_t i = 0; i < 14; ++i) {
        CHECK(gpu.results[i].skipped() == overflows(i));
        CHECK(gpu.results[i].nonfinite() == cpu.results[i].nonfinite());
        CHECK(gpu.results[i].index() == cpu.results[i].index());
      }
    }
  }
}

TEST_CASE("a scaled step on a GPU reads nothing back") {
  if (!have_gpu()) return;
  Run run(Device::cuda());
  run.step(0, false);
  const Tensor seed = ones({5, 7}, {.device = Device::cuda()});
  Crossings crossings;
  {
    const Scoped<Interceptor*> scope(chain().amp, &crossings);
    for (int i = 0; i < 4; ++i) {
      run.scaler.scale(mul(cast(run.w, DType::f32), run.b)).backward(seed);
      run.scaler.step(*run.optimizer);
      run.scaler.update();
      run.optimizer->zero_grad();
    }
  }
  CHECK(crossings.count == 0);
  CHECK(run.scaler.scale() == 2048);
}

TEST_CASE("of two optimizers on a GPU only the one that overflowed skips") {
  if (!have_gpu()) return;
  const Tensor a = Tensor(ones({9}, {.device = Device::cuda()})).set_requires_grad();
  const Tensor b = Tensor(ones({9}, {.device = Device::cuda()})).set_requires_grad();
  SGD first({a}, {.lr = 1});
  SGD second({b}, {.lr = 1});
  GradScaler scaler({.init_scale = 8});
  const Tensor loss = scaler.scale(a + b);
  loss.backward(ones({9}, {.device = Device::cuda()}), true);
  b.grad().select(0, 8).fill_(-static_cast<double>(INFINITY));
  const StepResult good = scaler.step(first);
  const StepResult bad = scaler.step(second);
  CHECK_THROWS_AS(scaler.step(first), Error);
  scaler.update();
  CHECK(good.applied());
  CHECK(bad.param() == "parameter 0");
  CHECK(a.to_vector<double>() == Values(9, 0));
  CHECK(b.to_vector<double>() == Values(9, 1));
  CHECK(scaler.scale() == 4);
  CHECK_THROWS_AS(loss.backward(ones({9}, {.device = Device::cuda()})), Error);  // it had another scale
  // a scale that is set, and scalers that are copied
  scaler.scale(a);
  GradScaler copy = scaler;
  scaler.update(512.0);
  CHECK(scaler.scale() == 512);
  CHECK(scaler.history().size() == 3);
  CHECK(copy.scale() == 4);
  copy = scaler;
  CHECK(copy.scale() == 512);
  GradScaler fixed({.init_scale = 2, .dynamic = false});
  a.set_grad(full({9}, INFINITY, {.device = Device::cuda()}));
  fixed.scale(a);
  CHECK(fixed.step(first).skipped());
  fixed.update();
  CHECK(fixed.scale() == 2);
}

TEST_CASE("scaler and optimizer go from a GPU to a checkpoint, to the CPU and back") {
  if (!have_gpu()) return;
  Run straight(Device::cpu());
  Run first(Device::cuda());
  for (std::uint64_t i = 0; i < 12; ++i) straight.step(i, overflows(i));
  for (std::uint64_t i = 0; i < 4; ++i) first.step(i, overflows(i));
  const ::test::TemporaryFolder folder;
  const std::string path = folder / "run.gradual";
  StateDict weights;
  weights.set("w", first.w);
  weights.set("b", first.b);
  save_checkpoint(
      path,
      {{"weights", weights}, {"optimizer", first.optimizer->state_dict()}, {"scaler", first.scaler.state_dict()}});
  const auto resumed = [&](Device device) {
    const Checkpoint saved = load_checkpoint(path);
    auto run = std::make_unique<Run>(device);
    const NoGrad no_grad;
    run->w.copy_(saved.part("weights").tensor("w"));
    run->b.copy_(saved.part("weights").tensor("b"));
    run->optimizer->load_state_dict(saved.part("optimizer"));
    run->scaler.load_state_dict(saved.part("scaler"));
    return run;
  };
  auto cpu = resumed(Device::cpu());
  auto gpu = resumed(Device::cuda());
  for (std::uint64_t i = 4; i < 8; ++i) {
    cpu->step(i, overflows(i));
    gpu->step(i, overflows(i));
  }
  // in the middle of a run, from one device to the other
  gpu->w.swap_data(gpu->w.detach().to(Device::cpu()));
  gpu->b.swap_data(gpu->b.detach().to(Device::cpu()));
  cpu->w.swap_data(cpu->w.detach().to(Device::cuda()));
  cpu->b.swap_data(cpu->b.detach().to(Device::cuda()));
  for (std::uint64_t i = 8; i < 12; ++i) {
    cpu->step(i, overflows(i));
    gpu->step(i, overflows(i));
  }
  for (Run* run : {cpu.get(), gpu.get()}) {
    CHECK(same_numbers(run->w, straight.w));
    CHECK(same_numbers(run->b, straight.b));
    CHECK(run->scaler.scale() == straight.scaler.scale());
    CHECK(run->optimizer->state_dict().integer("params.0.steps") == 8);
  }
}

TEST_CASE("moments that are codes wait for a GPU's verdict and skip all the same") {
  if (!have_gpu()) return;
  const Quantizer codes{.format = format("e4m3fn"), .scaling = TensorScale{}};
  std::vector<Tensor> ends;
  for (const Device device : {Device::cpu(), Device::cuda()}) {
    const Tensor p = Tensor(from_data(numbers(12, 1), {3, 4}).to(device).detach()).set_requires_grad();
    AdamW optimizer({p}, {.lr = 0.1, .precision = {.moments = {codes, {}}}});
    GradScaler scaler({.init_scale = 4});
    for (int i = 0; i < 4; ++i) {
      scaler.scale(mul(p, p)).backward(ones({3, 4}, {.device = device}));
      if (i == 1) p.grad().select(0, 0).fill_(NAN);
      CHECK(scaler.step(optimizer).skipped() == (i == 1));
      scaler.update();
      optimizer.zero_grad();
    }
    CHECK(scaler.scale() == 2);
    ends.push_back(p);
  }
  CHECK(same_numbers(ends[0], ends[1]));
}
