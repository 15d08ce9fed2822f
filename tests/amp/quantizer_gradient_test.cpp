// Gradients of quantised products that are not straight-through, and learned scales.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "../../amp/learned_scales.h"
#include "../../amp/quantization.h"
#include "../../amp/recipe.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/autograd.h"
#include "../../nn/activation.h"
#include "../../nn/attention.h"
#include "../../nn/conv.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "../../optim/sgd.h"
#include "quantized_run.h"
#include "support.h"

using namespace gradual;
using amp::Quantization;
using amp::Recipe;
using amp::RecipeRun;

namespace {

struct Gradients {
  Tensor y, dx, dw;
};

Quantization with_gradient(Quantization q, QuantizerGradient gradient) {
  q.forward_x->gradient = gradient;
  q.forward_w->gradient = gradient;
  return q;
}

// Of `call`(x, w) under the quantisation, for a random gradient of y.
template <class F> Gradients of_product(const Quantization& q, const Tensor& x, const Tensor& w, const F& call) {
  const Tensor a = x.detach().clone().set_requires_grad();
  const Tensor b = w.detach().clone().set_requires_grad();
  Tensor y;
  {
    const amp::RecipeScope scope(with(q));
    y = call(a, b);
  }
  y.backward(random(y.sizes(), 17));
  return {y.detach(), a.grad(), b.grad()};
}

double largest_difference(const Tensor& a, const Tensor& b) { return absmax(a - b); }

constexpr QuantizerGradient kBent[] = {QuantizerGradient::clipped, QuantizerGradient::differentiable};

// Fully connected layers with learned scales.
std::unique_ptr<nn::Sequential> small_net() {
  manual_seed(5);
  return std::make_unique<nn::Sequential>(nn::Linear(16, 24), nn::ReLU(), nn::Linear(24, 8));
}

Tensor parameter(nn::Module& model, const std::string& name) {
  for (const auto& [known, p] : model.named_parameters())
    if (known == name) return p;
  FAIL("no parameter " << name);
  return {};
}

}  // namespace

TEST_CASE("the gradient of a quantizer changes no bit of forward, and multiplies the straight gradient") {
  const Tensor x = random({12, 64}, 1);
  const Tensor w = random({20, 64}, 2);
  const auto call = [](const Tensor& a, const Tensor& b) { return linear(a, b); };
  for (const char* name : {"mxfp4", "mxfp6", "fp8-rowwise", "int8"}) {
    CAPTURE(name);
    const Quantization q = *amp::recipe(name).quantization;
    const Gradients straight = of_product(q, x, w, call);
    for (const QuantizerGradient gradient : kBent) {
      CAPTURE(to_string(gradient));
      const Quantization bent = with_gradient(q, gradient);
      const Gradients got = of_product(bent, x, w, call);
      CHECK(same_bits(got.y, straight.y));
      CHECK(same_bits(got.dx, straight.dx * quantizer_slopes(x, *bent.forward_x)));
      CHECK(same_bits(got.dw, straight.dw * quantizer_slopes(w, *bent.forward_w)));
      if (gradient == QuantizerGradient::differentiable || std::string(name) == "mxfp4")
        CHECK_FALSE(same_bits(got.dw, straight.dw));
    }
  }
}

TEST_CASE("gradients of quantizers in convolutions: channels in blocks, rows of a weight, and what is refused") {
  const Tensor x = random({2, 32, 5, 5}, 1);
  const Tensor w = random({6, 32, 3, 3}, 2);
  const auto conv = [](const Tensor& a, const Tensor& b) { return conv2d(a, b, {}, {.padding = {1, 1}}); };
  const Quantization q = *amp::recipe("mxfp4").quantization;
  const Quantization bent = with_gradient(q, QuantizerGradient::clipped);
  const Gradients straight = of_product(q, x, w, conv);
  const Gradients got = of_product(bent, x, w, conv);
  CHECK(same_bits(got.y, straight.y));
  CHECK(same_bits(got.dx, straight.dx * quantizer_slopes(x, *bent.forward_x, {.axis = 1})));
  CHECK(same_bits(got.dw, straight.dw * quantizer_slopes(w, *bent.forward_w, {.axis = 1})));
  CHECK_FALSE(same_bits(got.dx, straight.dx));
  // A row of the product is the whole kernel of an output channel.
  Quantization rows{.forward_w = amp::recipe("e2m1-dge").quantization->forward_w};
  const Gradients of_rows = of_product(rows, x, w, conv);
  const Tensor slopes = quantizer_slopes(w.permute({0, 2, 3, 1}).reshape({6, -1}), *rows.forward_w);
  rows.forward_w->gradient = QuantizerGradient::straight;
  const Gradients plain = of_product(rows, x, w, conv);
  CHECK(same_bits(of_rows.y, plain.y));
  CHECK(same_bits(of_rows.dw, plain.dw * slopes.reshape({6, 3, 3, 32}).permute({0, 3, 1, 2})));
  CHECK(same_bits(of_rows.dx, plain.dx));
  // Windows are rounded, not x.
  const Tensor odd = random({2, 5, 5, 5}, 3);
  CHECK(message_of([&] {
          of_product(bent, odd, random({6, 5, 3, 3}, 4), conv);
        }).find("a clipped gradient: a convolution rounds windows, not x") != std::string::npos);
}

TEST_CASE("what the gradients of quantizers and learned scales refuse") {
  const auto refused = [](const Quantization& q) { return message_of([&] { amp::check_valid(q); }); };
  const Quantizer clipped{.format = format("int8"), .scaling = TensorScale{}, .gradient = QuantizerGradient::clipped};
  const Quantizer learned{.format = format("int8"), .scaling = LearnedScale{}};
  Quantizer turned = clipped;
  turned.hadamard = true;
  CHECK(refused({.dgrad_dy = clipped}) ==
        "quantization, dgrad_dy: the gradient is clipped; it is a choice of forward_x and forward_w, whose gradients "
        "flow");
  CHECK(refused({.moment1 = clipped}).starts_with("quantization, moment1: the gradient is clipped"));
  CHECK(refused({.forward_x = turned, .forward_w = turned}) ==
        "quantization, forward_x: a clipped gradient goes with numbers that are not transformed nor centered");
  CHECK(refused({.dgrad_dy = learned}) ==
        "quantization: scales of x and W can be learned; those of dy have no gradient");
  CHECK(refused({.wgrad_x = learned}) ==
        "quantization, wgrad_x: a learned scale is one of forward, so forward_x must have the same format, scaling and "
        "transform");
  CHECK(refused({.weight = learned}).find("no delayed nor learned scaling") != std::string::npos);
  CHECK(refused({.forward_x = learned, .smooth = true}) ==
        "quantization: smooth goes with an x whose scale is not learned");
  amp::AttentionPrecision inside;
  inside.q = clipped;
  CHECK(refused({.attention = inside}).find("q: the gradient is clipped; in attention it is straight") !=
        std::string::npos);
  CHECK(message_of([&] { amp::check_valid(amp::Exchange{.quantizer = clipped}); }) ==
        "exchange: the gradient is clipped; it belongs to a product");
  Recipe half = amp::recipe("bf16-master");
  half.name = "mine";
  half.quantization = amp::recipe("int4-lsq").quantization;
  CHECK(message_of([&] { amp::check_valid(half); }) ==
        "recipe 'mine': learned scales are f32 parameters (modes full and autocast); this mode keeps half ones");
  Recipe later = amp::recipe("mxfp4");
  later.name = "mine";
  later.schedule = {{.from = 3, .recipe = "int4-lsq"}};
  CHECK(message_of([&] {
          amp::check_valid(later);
        }).find("recipe 'int4-lsq' learns scales, which are a choice of the whole run") != std::string::npos);
  // Without a run there are no parameters.
  const amp::RecipeScope scope(amp::recipe("int4-lsq"));
  const Tensor w = random({3, 4}, 1).set_requires_grad();
  CHECK(message_of([&] {
          linear(random({2, 4}, 2), w);
        }).find("the model has no learned scale: an amp::RecipeRun") != std::string::npos);
}

TEST_CASE("a gradient that is not straight has no second derivative") {
  Quantization q = with_gradient(*amp::recipe("mxfp4").quantization, QuantizerGradient::clipped);
  const Tensor x = random({4, 32}, 1).set_requires_grad();
  const Tensor w = random({4, 32}, 2).set_requires_grad();
  Tensor y;
  {
    const amp::RecipeScope scope(with(q));
    y = linear(x, w);
  }
  CHECK(message_of([&] { autograd::grad({y.sum()}, {x}, {}, {.create_graph = true}); }) ==
        "linear rewritten by quantization: a quantizer whose gradient is not straight has no second derivative");
}

TEST_CASE("learned steps begin as LSQ says, and their gradients are LSQ's") {
  constexpr double kMost = 7;
  const auto net = small_net();
  RecipeRun run(amp::recipe("int4-lsq"), *net, optim::SGDOptions{.lr = 0});
  const Tensor x = random({10, 16}, 3);
  const Tensor c = random({10, 24}, 4);
  auto& first = dynamic_cast<nn::Linear&>(*net->named_modules()[1].second);
  const Tensor w = parameter(*net, "0.weight");
  const Tensor w_step = parameter(*net, "0.weight_step");
  const Tensor x_step = parameter(*net, "0.weight_input_step");
  CHECK(w_step.item() == 0);
  run.step([&] { return (first(x) * c).sum(); });
  const double begin_x = 2 * abs(x).mean().item() / std::sqrt(kMost);
  CHECK(w_step.item() == doctest::Approx(2 * abs(w).mean().item() / std::sqrt(kMost)));
  CHECK(x_step.item() == doctest::Approx(begin_x));
  // Steps of our own, in which numbers are clipped.
  {
    const NoGrad off;
    w_step.fill_(0.02);
    x_step.fill_(0.25);
  }
  const Tensor loss = run.forward([&] { return (first(x) * c).sum(); });
  run.backward(loss);
  // The definition: q(v) - v / s within the range, -7 or 7 beyond, times the gradient of the rounded number.
  const auto reference = [&](const Tensor& v, double step, const Tensor& gradient, double elements) {
    const std::vector<float> numbers = v.contiguous().to_vector<float>();
    const std::vector<float> g = gradient.contiguous().to_vector<float>();
    double sum = 0;
    std::int64_t clipped = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double u = numbers[i] / step;
      const bool beyond = std::fabs(u) > kMost;
      clipped += beyond;
      sum += g[i] * (beyond ? std::copysign(kMost, u) : std::nearbyint(u) - u);
    }
    CHECK(clipped > 2);
    return sum / std::sqrt(elements * kMost);
  };
  const auto rounded = [&](const Tensor& v, double step) {
    return fake_quantize(v, {.format = format("int4"), .scaling = FixedScale{.value = 1 / step}});
  };
  const Tensor dx = matmul(c, rounded(w.detach(), 0.02));
  const Tensor dw = matmul(c.transpose(0, 1), rounded(x, 0.25));
  CHECK(w_step.grad().item() == doctest::Approx(reference(w.detach(), 0.02, dw, 16 * 24)).epsilon(1e-4));
  CHECK(x_step.grad().item() == doctest::Approx(reference(x, 0.25, dx, 16)).epsilon(1e-4));
  const Tensor masked = where(gt(abs(w.detach()), 0.02 * kMost), zeros({}), dw);
  CHECK(largest_difference(w.grad(), masked) <= 1e-4 * absmax(dw));
}

TEST_CASE("learned scales train, are saved, and go on after a resume with the same bits") {
  const Tensor x = random({16, 16}, 5);
  const auto steps = [&](RecipeRun& run, nn::Module& model, int n) {
    for (int k = 0; k < n; ++k) run.step([&] { return square(model(x)).mean(); });
  };
  for (const char* name : {"int4-lsq", "mxfp4-clipped", "e2m1-dge"}) {
    CAPTURE(name);
    const auto whole = small_net();
    RecipeRun a(amp::recipe(name), *whole, optim::AdamWOptions{.lr = 1e-2});
    steps(a, *whole, 3);
    const StateDict at_three = a.state_dict();
    std::vector<Tensor> kept;  // state dicts share storage with the model
    for (const auto& entry : at_three)
      if (const auto* t = std::get_if<Tensor>(&entry.value)) kept.push_back(t->clone());
    StateDict copy;
    std::size_t at = 0;
    for (const auto& entry : at_three) {
      if (std::holds_alternative<Tensor>(entry.value)) copy.set(entry.name, kept[at++]);
      else std::visit([&](const auto& v) { copy.set(entry.name, v); }, entry.value);
    }
    steps(a, *whole, 3);
    const auto second = small_net();
    RecipeRun b(amp::recipe(name), *second, optim::AdamWOptions{.lr = 1e-2});
    b.load_state_dict(copy);
    steps(b, *second, 3);
    const auto parameters = whole->named_parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      CHECK(same_bits(parameters[i].second, second->named_parameters()[i].second));
    if (std::string(name) != "int4-lsq") continue;
    CHECK(at_three.contains("model.0.weight_step"));
    CHECK(copy.tensor("model.0.weight_step").item() > 0);
    CHECK(copy.tensor("model.0.weight_step").item() != parameter(*whole, "0.weight_step").item());
  }
}

TEST_CASE("a model without learned scales takes the rest of a state that has them") {
  const auto net = small_net();
  const RecipeRun run(amp::recipe("int4-lsq"), *net, optim::SGDOptions{.lr = 0.1});
  const auto plain = small_net();
  const StateDict state = net->state_dict();
  CHECK(message_of([&] { plain->load_state_dict(state); }).find("unexpected: 0.weight_step, 0.weight_input_step") !=
        std::string::npos);
  const StateDict rest = amp::without_foreign_steps(state, *plain);
  CHECK(rest.size() == 4);
  plain->load_state_dict(rest);
  CHECK(amp::without_foreign_steps(state, *net).size() == 8);
}

TEST_CASE("a checkpointed segment gives learned scales the same gradients") {
  const Tensor x = random({16, 16}, 5);
  const auto gradients = [&](bool checkpointed) {
    const auto net = small_net();
    RecipeRun run(amp::recipe("int4-lsq"), *net, optim::SGDOptions{.lr = 1e-2});
    std::vector<Tensor> all;
    for (int k = 0; k < 2; ++k) {
      const Tensor loss = run.forward([&] {
        const Tensor y = checkpointed ? checkpoint([&](const Tensor& t) { return (*net)(t); }, x.clone()) : (*net)(x);
        return square(y).mean();
      });
      run.backward(loss);
      for (const auto& [name, p] : net->named_parameters()) all.push_back(p.grad().clone());
      run.update();
    }
    return all;
  };
  const std::vector<Tensor> plain = gradients(false);
  const std::vector<Tensor> again = gradients(true);
  REQUIRE(plain.size() == again.size());
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], again[i]));
}

TEST_CASE("learned scales: save_codes off changes no bit, in the first step too") {
  const Tensor x = random({16, 16}, 5);
  const auto trained = [&](bool save_codes) {
    Recipe r = amp::recipe("int4-lsq");
    r.name = "mine";
    r.quantization->save_codes = save_codes;
    const auto net = small_net();
    RecipeRun run(r, *net, optim::SGDOptions{.lr = 1e-2});
    std::vector<Tensor> all;
    for (int k = 0; k < 3; ++k) {
      run.backward(run.forward([&] { return square((*net)(x)).mean(); }));
      for (const auto& [name, p] : net->named_parameters()) all.push_back(p.grad().clone());
      run.update();
    }
    CHECK(parameter(*net, "0.weight_step").item() > 0);
    return all;
  };
  const std::vector<Tensor> with_codes = trained(true);
  const std::vector<Tensor> without = trained(false);
  REQUIRE(with_codes.size() == without.size());
  for (std::size_t i = 0; i < without.size(); ++i) CHECK(same_bits(with_codes[i], without[i]));
}

TEST_CASE("learned scales: slices of one parameter, as cross-attention has them, share its steps") {
  constexpr double kMost = 7;
  // Two layers in one parameter, each with an input of its own.
  struct Packed final : nn::Module {
    Tensor& weight = register_parameter("weight", random({24, 16}, 1) * 0.2);
    Tensor both(const Tensor& a, const Tensor& b, const Tensor& by_a, const Tensor& by_b) const {
      return (linear(a, weight.narrow(0, 0, 8)) * by_a).sum() + (linear(b, weight.narrow(0, 8, 16)) * by_b).sum();
    }
  };
  Packed net;
  RecipeRun run(amp::recipe("int4-lsq"), net, optim::SGDOptions{.lr = 0});
  const Tensor a = random({10, 16}, 2);
  const Tensor b = random({6, 16}, 3);
  const Tensor by_a = random({10, 8}, 4);
  const Tensor by_b = random({6, 16}, 5);
  run.step([&] { return net.both(a, b, by_a, by_b); });
  const Tensor w_step = parameter(net, "weight_step");
  const Tensor x_step = parameter(net, "weight_input_step");
  CHECK(w_step.item() > 0);
  CHECK(x_step.item() > 0);
  {
    const NoGrad off;
    w_step.fill_(0.03);
    x_step.fill_(0.25);
  }
  run.backward(run.forward([&] { return net.both(a, b, by_a, by_b); }));
  const auto rounded = [&](const Tensor& v, double step) {
    return fake_quantize(v, {.format = format("int4"), .scaling = FixedScale{.value = 1 / step}});
  };
  // LSQ's definition, of each slice with its own number of elements.
  const auto gradient = [&](const Tensor& v, double step, const Tensor& of_rounded, double elements) {
    const std::vector<float> numbers = v.contiguous().to_vector<float>();
    const std::vector<float> g = of_rounded.contiguous().to_vector<float>();
    double sum = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double u = numbers[i] / step;
      sum += g[i] * (std::fabs(u) > kMost ? std::copysign(kMost, u) : std::nearbyint(u) - u);
    }
    return sum / std::sqrt(elements * kMost);
  };
  const Tensor w = net.weight.detach();
  const Tensor first = w.narrow(0, 0, 8);
  const Tensor second = w.narrow(0, 8, 16);
  const double of_weight = gradient(first, 0.03, matmul(by_a.t(), rounded(a, 0.25)), 8 * 16) +
                           gradient(second, 0.03, matmul(by_b.t(), rounded(b, 0.25)), 16 * 16);
  const double of_input = gradient(a, 0.25, matmul(by_a, rounded(first, 0.03)), 16) +
                          gradient(b, 0.25, matmul(by_b, rounded(second, 0.03)), 16);
  CHECK(w_step.grad().item() == doctest::Approx(of_weight).epsilon(1e-4));
  CHECK(x_step.grad().item() == doctest::Approx(of_input).epsilon(1e-4));
  // Cross-attention itself.
  manual_seed(6);
  nn::MultiheadAttention attention(16, 2);
  RecipeRun trained(amp::recipe("int4-lsq"), attention, optim::SGDOptions{.lr = 0.01});
  for (int k = 0; k < 2; ++k)
    trained.step([&] {
      return square(attention(random({2, 5, 16}, 7), random({2, 3, 16}, 8), random({2, 3, 16}, 8))).mean();
    });
  CHECK(parameter(attention, "in_proj_weight_step").item() > 0);
}

TEST_CASE("learned scales lower the loss of a layer that they round") {
  const auto net = small_net();
  RecipeRun run(amp::recipe("int4-lsq"), *net, optim::AdamOptions{.lr = 3e-3});
  const Tensor x = random({64, 16}, 6);
  const Tensor y = run.evaluate([&] { return (*net)(x); });  // before any scale is learned
  const auto step = [&] { return run.step([&] { return square((*net)(x)-y).mean(); }).loss.item(); };
  step();
  // Weights and biases stay as they are: the scales alone, which begin four times too large, lower the loss.
  std::vector<std::pair<Tensor, Tensor>> kept;
  {
    const NoGrad off;
    for (const auto& [name, p] : net->named_parameters())
      if (p.dim() == 0) Tensor(p).mul_(4.0);
      else kept.emplace_back(p, p.clone());
  }
  const double first = step();
  double last = first;
  for (int k = 0; k < 150; ++k) {
    {
      const NoGrad off;
      for (const auto& [p, value] : kept) Tensor(p).copy_(value);
    }
    last = step();
  }
  CAPTURE(first);
  CAPTURE(last);
  CHECK(last < 0.5 * first);
}
