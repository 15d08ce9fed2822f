// Recipes quartet2 and eco-fp8: signs that each product draws, gradients without a bias, errors that go into the
// momentum, and resumed runs.
#include <doctest/doctest.h>

#include <cmath>

#include "../../amp/recipe.h"
#include "../../nn/activation.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "support.h"

using namespace gradual;
using amp::Quantization;

namespace {

Quantization with_drawn_signs(const Quantizer& plain) {
  Quantizer q = plain;
  q.hadamard = 32;
  q.signs = HadamardSigns::drawn;
  return {.forward_x = q, .forward_w = q, .dgrad_dy = q, .dgrad_w = q, .wgrad_x = q, .wgrad_dy = q};
}

amp::Recipe recipe_of(const Quantization& q) {
  amp::Recipe r{.name = "test"};
  r.quantization = q;
  return r;
}

// y, dx and dW of a layer under a recipe, by this seed.
struct Step {
  Tensor y, dx, dw;
};
Step step(const amp::Recipe& r, std::uint64_t seed) {
  const Tensor x = random({128, 70}, 1).set_requires_grad();
  const Tensor w = random({128, 70}, 2).set_requires_grad();
  default_generator() = Generator(seed);
  Tensor y;
  {
    const amp::RecipeScope scope(r);
    y = linear(x, w);
    y.backward(random({128, 128}, 3));
  }
  return {y.detach(), x.grad(), w.grad()};
}

double squared(const Tensor& t) { return square(t).sum().item(); }

std::shared_ptr<nn::Sequential> make_model() {
  default_generator() = Generator(4);
  return std::make_shared<nn::Sequential>(nn::Linear(32, 16), nn::ReLU(), nn::Linear(16, 8));
}

}  // namespace

TEST_CASE("drawn signs: both operands of a product have the same, each product others") {
  const Step fine = step(recipe_of(with_drawn_signs({.format = format("e8m20")})), 1);
  const Step exact = step({.name = "exact"}, 1);
  CHECK(squared(fine.y - exact.y) < 1e-9 * squared(exact.y));
  CHECK(squared(fine.dx - exact.dx) < 1e-9 * squared(exact.dx));
  CHECK(squared(fine.dw - exact.dw) < 1e-9 * squared(exact.dw));
  const amp::Recipe coarse =
      recipe_of(with_drawn_signs({.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16}}));
  const Step one = step(coarse, 1);
  CHECK(same_bits(one.dw, step(coarse, 1).dw));
  CHECK_FALSE(same_bits(one.y, step(coarse, 2).y));
  CHECK_FALSE(same_bits(one.dx, step(coarse, 2).dx));
  CHECK_FALSE(same_bits(one.dw, step(coarse, 2).dw));
  // Under one seed, products that follow each other.
  const auto two_products = [](const amp::Recipe& r) {
    default_generator() = Generator(1);
    const amp::RecipeScope scope(r);
    const Tensor x = random({128, 70}, 1);
    const Tensor w = random({128, 70}, 2);
    const Tensor first = linear(x, w);
    return same_bits(first, linear(x, w));
  };
  CHECK_FALSE(two_products(coarse));
  Quantization fixed = *coarse.quantization;
  for (auto* operand : {&fixed.forward_x, &fixed.forward_w}) (*operand)->signs = HadamardSigns::fixed;
  CHECK(two_products(recipe_of(fixed)));
  Quantization q = *coarse.quantization;
  q.wgrad_dy->signs = HadamardSigns::fixed;
  CHECK(message_of([&] { amp::check_valid(q); }) ==
        "quantization, wgrad: the signs of the Hadamard transform are those of both operands");
  const amp::Recipe read = amp::recipe_from_json(amp::to_json(coarse));
  CHECK(read.quantization == coarse.quantization);
}

TEST_CASE("quartet2: the means of dx and dW come to the exact ones") {
  amp::Recipe r = amp::recipe("quartet2");
  r.quantization->forward_x = std::nullopt;
  r.quantization->forward_w = std::nullopt;
  const Step exact = step({.name = "exact"}, 1);
  constexpr int kDraws = 400;
  Tensor dx = zeros_like(exact.dx);
  Tensor dw = zeros_like(exact.dw);
  double one_dx = 0;
  double one_dw = 0;
  for (int k = 0; k < kDraws; ++k) {
    const Step s = step(r, static_cast<std::uint64_t>(k) + 1);
    dx = dx + s.dx / kDraws;
    dw = dw + s.dw / kDraws;
    one_dx += squared(s.dx - exact.dx) / kDraws;
    one_dw += squared(s.dw - exact.dw) / kDraws;
  }
  // Independent errors without a bias: the part 1 / kDraws, within what means of 8960 numbers vary. 128 numbers fill
  // the groups that are turned: of few numbers and zeros the transform is no uniform rotation.
  CHECK(squared(dx - exact.dx) < 1.25 / kDraws * one_dx);
  CHECK(squared(dw - exact.dw) < 1.25 / kDraws * one_dw);
}

TEST_CASE("eco-fp8: weights are e4m3, and the momentum takes the difference") {
  const auto model = make_model();
  const double lr = 0.0625;
  const double mu = 0.75;
  amp::RecipeRun run(amp::recipe("eco-fp8"), *model, optim::SGDOptions{.lr = lr, .momentum = mu});
  const Quantizer& q = *run.recipe().quantization->weight;
  const Tensor weight = model->named_parameters()[0].second;
  const Tensor x = random({16, 32}, 5);
  Tensor w = weight.detach().clone();  // it begins rounded
  CHECK(same_bits(w, fake_quantize(w, q)));
  Tensor m = zeros_like(w);
  for (int k = 0; k < 6; ++k) {
    const Tensor loss = run.forward([&] { return square((*model)(x)).mean(); });
    run.backward(loss);
    m = m * mu + weight.grad();
    const Tensor wide = w - m * lr;
    w = fake_quantize(wide, q);
    m = m + (wide - w) * ((1 - 1 / mu) / lr);
    run.update();
    CHECK(same_bits(weight, w));
    CHECK(squared(run.optimizer().state_dict().tensor("params.0.momentum") - m) <= 1e-9 * squared(m));
  }
}

TEST_CASE("eco-fp8 and quartet2 go on after a resume with the same bits") {
  for (const char* name : {"eco-fp8", "quartet2", "unscaled-fp8"}) {
    CAPTURE(name);
    const Tensor x = random({16, 32}, 5);
    const auto steps = [&](amp::RecipeRun& run, nn::Module& model, int n) {
      for (int k = 0; k < n; ++k) run.step([&] { return square(model(x)).mean(); });
    };
    const auto whole = make_model();
    amp::RecipeRun a(amp::recipe(name), *whole, optim::AdamWOptions{.lr = 1e-2});
    steps(a, *whole, 6);
    const auto first = make_model();
    const auto second = make_model();  // leaves the generator as it was before the first run
    amp::RecipeRun b(amp::recipe(name), *first, optim::AdamWOptions{.lr = 1e-2});
    steps(b, *first, 3);
    const StateDict state = b.state_dict();
    amp::RecipeRun c(amp::recipe(name), *second, optim::AdamWOptions{.lr = 1e-2});
    c.load_state_dict(state);
    steps(c, *second, 3);
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(same_bits(whole->named_parameters()[i].second, second->named_parameters()[i].second));
  }
}

TEST_CASE("what an eco recipe refuses") {
  amp::Recipe r = amp::recipe("eco-fp8");
  r.name = "mine";
  r.quantization->weight = std::nullopt;
  CHECK(message_of([&] { amp::check_valid(r); }).find("there is neither") != std::string::npos);
  r = amp::recipe("eco-fp8");
  r.name = "mine";
  r.quantization->moment1 = r.quantization->weight;
  CHECK(message_of([&] { amp::check_valid(r); }).find("leave the quantizer of `moment1` out") != std::string::npos);
}
