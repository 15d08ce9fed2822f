// Steps of quantised recipes on a GPU: nobody waits, so that they can be recorded; replays have the bits of the steps.
#include <doctest/doctest.h>

#include <cfloat>
#include <cmath>
#include <memory>
#include <variant>

#include <gradual/amp/quantized_run.h>
#include <gradual/amp/recipe.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/dispatch.h>
#include <gradual/core/quantize/quantizer.h>
#include <gradual/cuda/runtime/graph.h>
#include <gradual/nn/activation.h>
#include <gradual/nn/conv.h>
#include <gradual/nn/dropout.h>
#include <gradual/nn/flatten.h>
#include <gradual/nn/linear.h>
#include <gradual/nn/sequential.h>
#include <gradual/optim/adam.h>
#include "support/gpu.h"

using namespace gradual;
using namespace gradual::test;

namespace {

bool same_state(const StateDict& a, const StateDict& b) {
  bool same = a.size() == b.size();
  for (const StateDict::Entry& e : a) {
    CAPTURE(e.name);
    if (const Tensor* t = std::get_if<Tensor>(&e.value)) same = same && same_numbers(*t, b.tensor(e.name));
    else same = same && gradual::describe(e.value) == gradual::describe(b.at(e.name));
  }
  return same;
}

// A model in training by a recipe.
struct Training {
  Tensor x, y, loss;
  std::shared_ptr<nn::Module> model;
  std::unique_ptr<amp::RecipeRun> run;
  Generator generator{3};

  Training(const amp::Recipe& recipe, bool images, Device device = kGpu) {
    const GeneratorScope scope(generator);
    manual_seed(5);
    if (images)
      model = std::make_shared<nn::Sequential>(nn::Conv2d(1, 4, 3, {.padding = 1}), nn::ReLU(), nn::Conv2d(4, 4, 3),
                                               nn::Flatten(), nn::Linear(16, 4));
    else model = std::make_shared<nn::Sequential>(nn::Linear(20, 32), nn::ReLU(), nn::Dropout(0.25), nn::Linear(32, 4));
    model->to(device);
    x = zeros(images ? Shape{3, 1, 4, 4} : Shape{24, 20}, {.device = device});
    y = zeros({x.size(0), 4}, {.device = device});
    run = std::make_unique<amp::RecipeRun>(recipe, *model, [](auto groups, const auto& precision) {
      return std::make_unique<optim::AdamW>(std::move(groups), optim::AdamWOptions{.lr = 0.01, .precision = precision});
    });
  }
  void feed(std::uint64_t i, bool bad = false) const {
    x.copy_(drawn(x.sizes(), 100 + i).to(x.device()));
    y.copy_(drawn(y.sizes(), 200 + i).to(x.device()));
    if (bad) y.select(0, 1).fill_(INFINITY);
  }
  void step() {
    loss = run->step([&] { return mse_loss((*model)(x), y); }).loss;
  }
};

// Steps against replays of a recorded one.
void check_recorded(const amp::Recipe& recipe, bool images, int bad = -1) {
  CAPTURE(recipe.name);
  CAPTURE(images);
  Training plain(recipe, images);
  Training recorded(recipe, images);
  cuda::Graph graph;
  constexpr int kSteps = 6;
  for (int i = 0; i < kSteps; ++i) {
    for (Training* t : {&plain, &recorded}) {
      const GeneratorScope scope(t->generator);
      t->feed(static_cast<std::uint64_t>(i), i == bad);
      if (t == &recorded && i == 2) graph.capture([&] { recorded.step(); });
      if (t == &plain || i < 2) t->step();
      else graph.replay();
    }
    CAPTURE(i);
    CHECK(same_numbers(plain.loss, recorded.loss));
    CHECK(same_state(plain.run->state_dict(), recorded.run->state_dict()));
  }
  CHECK(plain.generator.stream() == recorded.generator.stream());
  // What is loaded reaches the next replay.
  Training other(recipe, images);
  {
    const GeneratorScope scope(other.generator);
    for (std::uint64_t i = 50; i < 53; ++i) {
      other.feed(i);
      other.step();
    }
  }
  const StateDict state = other.run->state_dict();
  for (Training* t : {&plain, &recorded}) {
    const GeneratorScope scope(t->generator);
    t->run->load_state_dict(state);
    t->feed(60);
    if (t == &plain) t->step();
    else graph.replay();
  }
  CHECK(same_numbers(plain.loss, recorded.loss));
  CHECK(same_state(plain.run->state_dict(), recorded.run->state_dict()));
}

}  // namespace

TEST_CASE("steps of quantised recipes are recorded and replayed with their bits" * doctest::test_suite("slow")) {
  if (!have_gpu()) return;
  for (const char* name : kRecipesForGpu)
    if (const amp::Recipe recipe = amp::recipe(name); recipe.quantization) check_recorded(recipe, false);
  for (const char* name : {"e4m3", "e5m2:stochastic"}) check_recorded(amp::recipe(name), false);
}

TEST_CASE("a convolutional network's quantised steps are recorded") {
  if (!have_gpu()) return;
  for (const char* name : {"fp8-delayed", "fp8-current", "mxfp8", "nvfp4"}) check_recorded(amp::recipe(name), true);
}

TEST_CASE("fast f8 multiplies codes, their scales in the product, in all three products of a layer") {
  if (!have_gpu()) return;
  struct Counter : Interceptor {
    int products = 0;
    int multiplications = 0;
    Outputs call(const OpCall& call) override {
      products += op_info(call.op).kind == OpKind::Contraction;
      multiplications += call.op == OpId::mul_;
      return next_below_observe(call);
    }
  };
  // e5m2 with e5m2 (a dy for both operands), and sizes that are no multiple of 16, are no products for those
  // instructions.
  for (const char* name : {"fp8-current", "fp8-delayed", "msamp-o1"})
    for (const std::int64_t rows : {32, 24})
      for (const bool codes : {true, false}) {
        CAPTURE(name);
        CAPTURE(rows);
        CAPTURE(codes);
        Tensor results[2][3];
        int multiplications[2] = {};
        for (const bool fast : {false, true}) {
          amp::Recipe recipe = amp::recipe(name);
          recipe.quantization->save_codes = codes;
          const auto state = std::make_shared<amp::QuantizationState>(*recipe.quantization);
          const Tensor x = (drawn({rows, 48}, 1) * 20).to(kGpu).detach().set_requires_grad();
          const Tensor w = drawn({64, 48}, 2).to(kGpu).detach().set_requires_grad();
          const Tensor bias = drawn({64}, 3).to(kGpu);
          const Tensor dy = (drawn({rows, 64}, 4) * 0.01).to(kGpu);
          Counter seen;
          for (int i = 0; i < 2; ++i) {  // delayed scaling has scales then
            w.zero_grad();
            x.zero_grad();
            const FastF8Scope how(fast);
            const Scoped<Interceptor*> scope(chain().observe, i == 1 ? &seen : nullptr);
            Tensor y;
            {
              const amp::RecipeScope region(recipe, kGpu, state);
              y = linear(x, w, bias);
            }
            y.backward(dy);
            state->end_backward();
            results[fast][0] = y.detach();
          }
          results[fast][1] = x.grad();
          results[fast][2] = w.grad();
          CHECK(seen.products == 3);
          multiplications[fast] = seen.multiplications;
        }
        CHECK(multiplications[0] == 6);
        CHECK(multiplications[1] == (rows % 16 == 0 ? 0 : 2));  // wgrad contracts the rows
        for (int i = 0; i < 3; ++i) {
          CAPTURE(i);
          const Tensor a = results[0][i].to(Device::cpu());
          const Tensor b = results[1][i].to(Device::cpu());
          CHECK(absmax(a - b) <= 0x1p-11F * absmax(a));  // sums of at least 13 bits, and another order of scales
          CHECK(absmax(a) > 0);
        }
      }
}

TEST_CASE("moments that are codes wait for no verdict: a step with an overflow leaves them as they are" *
          doctest::test_suite("slow")) {
  if (!have_gpu()) return;
  amp::Recipe recipe = amp::recipe("msamp-o2");
  recipe.name = "scaled";
  recipe.scaling = optim::GradScalerOptions{.init_scale = 16, .growth_interval = 2};
  check_recorded(recipe, false, 4);
  recipe.quantization->moment1 = {.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16}};
  recipe.quantization->moment2->rounding.mode = RoundingMode::stochastic;
  check_recorded(recipe, false, 3);

  Training t(recipe, false);
  const GeneratorScope scope(t.generator);
  t.feed(0);
  t.step();
  const StateDict live = t.run->state_dict().sub("optimizer");
  std::vector<std::pair<std::string, Tensor>> before;
  for (const StateDict::Entry& e : live)
    if (const Tensor* tensor = std::get_if<Tensor>(&e.value)) before.emplace_back(e.name, tensor->clone());
  t.feed(1, true);
  t.step();
  const StateDict after = t.run->state_dict().sub("optimizer");
  CHECK(before.size() > 4);
  for (const auto& entry : before) {
    CAPTURE(entry.first);
    CHECK(same_numbers(entry.second, after.tensor(entry.first)));
  }
  CHECK(after.integer("params.0.steps") == 1);
  t.feed(2);
  t.step();
  CHECK(t.run->state_dict().sub("optimizer").integer("params.0.steps") == 2);
}

TEST_CASE("the GPU's moments in codes are the CPU's, rounded by chance as well") {
  if (!have_gpu()) return;
  for (const RoundingMode mode : {RoundingMode::nearest_even, RoundingMode::stochastic}) {
    const Quantizer first{.format = format("e4m3fn"), .rounding = {.mode = mode}, .scaling = TensorScale{}};
    const Quantizer second{.format = format("e2m1"), .rounding = {.mode = mode}, .scaling = Nvfp4Blocks{.block = 16}};
    std::vector<StateDict> states;
    for (const Device device : {Device::cpu(), kGpu}) {
      const Tensor w = drawn({6, 40}, 1).to(device).detach().set_requires_grad();
      optim::Adam adam({w}, {.precision = {.moments = {first, second}, .seed = 7}});
      for (std::uint64_t i = 0; i < 4; ++i) {
        w.set_grad(drawn({6, 40}, 10 + i).to(device));
        adam.step();
      }
      states.push_back(adam.state_dict());
    }
    CHECK(same_state(states[0], states[1]));
  }
}

TEST_CASE("amax histories on a GPU have the CPU's bits") {
  if (!have_gpu()) return;
  for (const bool most_recent : {false, true}) {
    const Quantizer q{.format = format("e4m3fn"),
                      .scaling = DelayedScale{.margin = 1, .history = 3, .most_recent = most_recent}};
    AmaxHistory here, there;
    for (const float amax : {0.0F, 4.0F, 7.0F, INFINITY, 2.0F, NAN, 3.0F, 0x1p-140F, 0x1p-140F, 0x1p-140F, 5.0F}) {
      CAPTURE(amax);
      const Tensor x = from_data(std::vector<float>{-amax / 2, amax, 0}, {3});
      for (int twice = 0; twice < 2; ++twice) {
        const QuantizeOptions a{.history = &here, .use = twice == 0 ? QuantizeFor::first_use : QuantizeFor::later_use};
        QuantizeOptions b = a;
        b.history = &there;
        const Tensor on_cpu = fake_quantize(x * (1 + twice), q, a);
        CHECK(same_numbers(on_cpu, fake_quantize((x * (1 + twice)).to(kGpu), q, b)));
      }
      here.advance(std::get<DelayedScale>(q.scaling), q.format);
      there.advance(std::get<DelayedScale>(q.scaling), q.format);
      AmaxHistory copy = there;
      there.read();
      for (const AmaxHistory* h : {&copy, &there}) {
        CHECK(std::bit_cast<std::uint32_t>(h->scale) == std::bit_cast<std::uint32_t>(here.scale));
        CHECK(h->used == here.used);
        CHECK(h->staged == 0);
        CHECK(same_numbers(from_data(h->amax, {static_cast<std::int64_t>(h->amax.size())}),
                           from_data(here.amax, {static_cast<std::int64_t>(here.amax.size())})));
      }
    }
    // to the CPU and back
    const Tensor x = full({4}, 6);
    fake_quantize(x, q, {.history = &there});
    fake_quantize(x, q, {.history = &here});
    CHECK(there.staged == 6);
    there.advance(std::get<DelayedScale>(q.scaling), q.format);
    here.advance(std::get<DelayedScale>(q.scaling), q.format);
    CHECK(same_numbers(fake_quantize(x, q, {.history = &here}), fake_quantize(x.to(kGpu), q, {.history = &there})));
    there.advance(std::get<DelayedScale>(q.scaling), q.format);
    here.advance(std::get<DelayedScale>(q.scaling), q.format);
    CHECK(there.read().amax == here.amax);
    CHECK(there.scale == here.scale);
    // another length, and other numbers
    DelayedScale longer = std::get<DelayedScale>(q.scaling);
    longer.history = 5;
    there.advance(longer, q.format);
    here.advance(longer, q.format);
    CHECK(there.read().amax == here.amax);
    CHECK(there.amax.size() == 4);
    there = AmaxHistory();
    fake_quantize(x.to(kGpu), q, {.history = &there});
    CHECK(there.read().scale == 1);
    CHECK(there.staged == 6);
    CHECK(there.amax.empty());
  }
}

TEST_CASE("gradients that are not finite stay as they are on a GPU too") {
  if (!have_gpu()) return;
  amp::Quantization q;
  q.weight_gradient = {.format = format("e2m1"), .scaling = TensorScale{}};
  amp::Recipe recipe{.name = "gradients", .quantization = q};
  for (const bool bad : {false, true}) {
    CAPTURE(bad);
    Tensor seen[2];
    for (const Device device : {Device::cpu(), kGpu}) {
      Training t(recipe, false, device);
      const Tensor w = t.model->parameters()[0];
      Tensor g = drawn(w.sizes(), 8);
      if (bad) g.select(0, 3).fill_(NAN);
      w.set_grad(g.clone().to(device));
      amp::QuantizationState state(q);
      amp::quantize_gradients(state, *t.model);
      seen[device.is_cuda()] = w.grad();
      CHECK(same_numbers(w.grad(), g) == bad);
    }
    CHECK(same_numbers(seen[0], seen[1]));
  }
}
