// Delayed scaling in training: when histories of amaxes advance, and when they stay.
#include <doctest/doctest.h>

#include <variant>

#include "../../amp/quantization.h"
#include "../../amp/recipe.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/autograd.h"
#include "../../autograd/grad_mode.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "quantized_run.h"
#include "support.h"

using namespace gradual;
using amp::Quantization;
using amp::Recipe;
using amp::RecipeRun;

namespace {

Quantization delayed(int history = 3) {
  Quantization q = *amp::recipe("fp8-delayed").quantization;
  for (const auto& [field, quantizer] : amp::kQuantizerFields)
    if (auto& one = q.*quantizer) std::get<DelayedScale>(one->scaling).history = history;
  return q;
}

}  // namespace

TEST_CASE("delayed scales advance when the outermost region ends and when backward ends, and at no other time") {
  const Quantization q = delayed();
  const Recipe recipe = with(q);
  const auto state = std::make_shared<amp::QuantizationState>(q);
  const Tensor x = full({2, 4}, 7);
  const Tensor w = full({3, 4}, 14).set_requires_grad();
  const auto region = [&] { return amp::RecipeScope(recipe, Device::cpu(), state); };
  Tensor y;
  {
    const amp::RecipeScope outer = region();
    {
      const amp::RecipeScope inner = region();
      y = linear(x, w);
    }
    REQUIRE(state->sites().size() == 1);
    CHECK(state->sites()[0]->x.scale == 1);
    CHECK(state->sites()[0]->x.amax.empty());
  }
  const amp::QuantizationState::Site& site = *state->sites()[0];
  CHECK(site.x.scale == 64);  // 448 / 7
  CHECK(site.w.scale == 32);  // 448 / 14
  CHECK(site.x.amax == std::vector<float>{7});
  CHECK(site.dy.amax.empty());
  y.backward(full({2, 3}, 0.5));
  CHECK(site.dy.amax.empty());  // not before somebody says that backward has ended
  state->end_backward();
  CHECK(site.dy.scale == 57344 / 0.5F);
  CHECK(site.dy.amax == std::vector<float>{0.5F});
  CHECK(site.x.amax == std::vector<float>{7});
  const auto forward = [&](const Tensor& in) {
    const amp::RecipeScope scope = region();
    return linear(in, w);
  };
  {
    const NoGrad evaluation;
    forward(x * 100);
  }
  CHECK(site.x.amax == std::vector<float>{7});
  CHECK_THROWS_AS(
      [&] {
        const amp::RecipeScope scope = region();
        linear(x * 100, w);
        throw_error("in the middle of a step");
      }(),
      Error);
  CHECK(site.x.amax == std::vector<float>{7});
  forward(x * 2);
  CHECK(site.x.scale == 448 / 700.0F);  // what was staged before the error counts
  for (int i = 0; i < 3; ++i) forward(x * 2);
  CHECK(site.x.scale == 32);  // the history of three has forgotten it
  CHECK(site.x.amax == std::vector<float>{14, 14, 14});
}

TEST_CASE("a region without gradients inside a training region takes nothing from its checkpointed segments") {
  const Quantization q = delayed();
  const Recipe recipe = with(q);
  const auto state = std::make_shared<amp::QuantizationState>(q);
  const Tensor x = full({2, 4}, 7);
  const Tensor w = full({3, 4}, 14).set_requires_grad();
  Tensor y;
  {
    const amp::RecipeScope outer(recipe, Device::cpu(), state);
    {
      const NoGrad evaluation;
      const amp::RecipeScope inner(recipe, Device::cpu(), state);
      linear(x * 100, w);
    }
    y = checkpoint([&](const Tensor& in) { return linear(in, w); }, x);
  }
  const amp::QuantizationState::Site& site = *state->sites()[0];
  CHECK(site.x.amax == std::vector<float>{7});
  CHECK(site.w.amax == std::vector<float>{14});
}

TEST_CASE("a run in eval mode reads histories and leaves them as they are") {
  nn::Sequential net(nn::Linear(8, 4));
  RecipeRun run(with(delayed()), net, adamw);
  const Tensor x = random({5, 8}, 1);
  const auto loss = [&] { return sum(net(x)); };
  run.step(loss);
  const AmaxHistory before = run.quantization()->sites()[0]->x;
  const AmaxHistory dy = run.quantization()->sites()[0]->dy;
  net.eval();
  run.evaluate(loss);
  run.backward(run.forward(loss));  // an attack on the input, say
  const amp::QuantizationState::Site& site = *run.quantization()->sites()[0];
  CHECK(site.x.amax == before.amax);
  CHECK(site.dy.amax == dy.amax);
  CHECK_FALSE(site.x.is_staged);
  net.train();
  run.step(loss);
  CHECK(site.x.amax.size() == 2);
  // An evaluation between the two halves of a step takes nothing from it.
  const Tensor value = run.forward(loss);
  net.eval();
  run.evaluate(loss);
  net.train();
  run.backward(value);
  run.update();
  CHECK(site.x.amax.size() == 3);
  CHECK(site.dy.amax.size() == 3);
  CHECK(site.dy.amax[0] == 1);
}

TEST_CASE("a state without sites, of a run that has not begun, empties the histories") {
  nn::Sequential net(nn::Linear(8, 4));
  RecipeRun run(with(delayed()), net, adamw);
  const StateDict start = run.quantization()->state_dict();
  run.step([&] { return sum(net(random({5, 8}, 1))); });
  run.quantization()->load_state_dict(start);
  for (const AmaxHistory* h : {&run.quantization()->sites()[0]->x, &run.quantization()->sites()[0]->dy}) {
    CHECK(h->amax.empty());
    CHECK(h->scale == 1);
  }
}
