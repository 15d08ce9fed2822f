// Recipes in which the result of every op is rounded (pure:FORMAT), and operands that backward rounds again from codes.
#include <doctest/doctest.h>

#include <variant>

#include "../../amp/quantized_results.h"
#include "../../amp/recipe.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/autograd.h"
#include "../../core/observe/observer.h"
#include "../../core/tensor/memory.h"
#include "../../lab/models.h"
#include "../../nn/linear.h"
#include "../../nn/norm.h"
#include "../../nn/sequential.h"
#include "../../optim/sgd.h"
#include "quantized_run.h"
#include "support.h"

using namespace gradual;
using amp::Quantization;
using amp::Recipe;
using amp::RecipeRun;

namespace {

bool is_of(const Tensor& t, const Format& f) { return same_bits(fake_quantize(t, f, {}, Overflow::ieee), t); }

struct Seen final : Observer {};

// The parameters after three steps of an MLP; `watched`: under an observer.
std::vector<Tensor> trained(const Recipe& recipe, bool watched, bool checkpointed = false) {
  manual_seed(3);
  nn::Sequential net(nn::Linear(20, 16), nn::BatchNorm1d(16), nn::Linear(16, 10));
  Generator draws(5);
  const GeneratorScope scope(draws);
  RecipeRun run(recipe, net, adamw);
  Seen seen;
  std::optional<ObserverScope> observer;
  if (watched) observer.emplace(seen);
  const Tensor x = random({8, 20}, 1);
  const Tensor y = arange(0, 8).to(DType::i64);
  const auto segment = [&](const Tensor& in) { return net(in); };
  for (int step = 0; step < 3; ++step)
    run.step([&] { return cross_entropy(checkpointed ? checkpoint(segment, x) : net(x), y); });
  std::vector<Tensor> out;
  for (const Tensor& p : net.parameters()) out.push_back(p.detach().clone());
  return out;
}

}  // namespace

TEST_CASE(
    "pure:FORMAT: weights, biases, running statistics, gradients, moments and the loss are values of the format") {
  for (const char* name : {"pure:e5m7", "pure:e4m3fn:stochastic", "pure:q4.6", "pure:posit16"}) {
    CAPTURE(name);
    const Recipe recipe = amp::recipe(name);
    const Format& f = recipe.quantization->result->format;
    manual_seed(1);
    nn::Sequential net(nn::Linear(20, 16), nn::BatchNorm1d(16), nn::Linear(16, 10));
    RecipeRun run(recipe, net, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-2});
    for (const Tensor& p : net.parameters()) CHECK(is_of(p.detach(), f));
    const Tensor x = random({8, 20}, 1);
    const Tensor y = arange(0, 8).to(DType::i64);
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = run.forward([&] { return cross_entropy(net(x), y); });
      CHECK(is_of(loss.detach(), f));
      run.backward(loss);
      for (const Tensor& p : net.parameters()) CHECK(is_of(p.grad(), f));
      run.update();
      int tensors = 0;
      for (const auto& entry : run.state_dict())
        if (const Tensor* t = std::get_if<Tensor>(&entry.value); t && t->is_floating()) {
          CHECK_MESSAGE(is_of(*t, f), entry.name);
          ++tensors;
        }
      CHECK(tensors == 6 + 2 + 6);  // parameters, running statistics, momentum
    }
  }
}

TEST_CASE("pure:FORMAT: bits do not depend on observers and checkpoints; f32 itself changes none") {
  for (const char* name : {"pure:e5m7", "pure:e4m3:stochastic"}) {
    const auto plain = trained(amp::recipe(name), false);
    const auto watched = trained(amp::recipe(name), true);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], watched[i]));
  }
  const auto e5m7 = trained(amp::recipe("pure:e5m7"), false);
  const auto again = trained(amp::recipe("pure:e5m7"), false, true);
  const auto fp32 = trained(amp::recipe("fp32"), false);
  const auto same = trained(amp::recipe("pure:e8m23"), false);
  for (std::size_t i = 0; i < fp32.size(); ++i) {
    CHECK(same_bits(fp32[i], same[i]));
    CHECK(same_bits(e5m7[i], again[i]));
    CHECK_FALSE(same_bits(fp32[i], e5m7[i]));
  }
}

TEST_CASE("an observer of gradients draws no random number, and codes under rounded results are decoded exactly") {
  struct Watch : autograd::GradientObserver {
    void gradient(const autograd::GradientEvent&) override { ++seen; }
    int seen = 0;
  };
  const auto backward = [](bool watched) {
    default_generator() = Generator(1);
    std::optional<Watch> watch;
    if (watched) watch.emplace();
    const Tensor x = random({4, 8}, 1).set_requires_grad();
    const amp::ResultScope scope(amp::recipe("pure:e4m3:stochastic").quantization);
    (square(x.narrow(1, 0, 4)).sum() + square(x.narrow(1, 2, 4)).sum()).backward();
    CHECK((!watched || watch->seen > 0));
    return std::pair(x.grad(), default_generator().stream());
  };
  const auto [plain, drawn] = backward(false);
  const auto [watched, drawn_too] = backward(true);
  CHECK(same_bits(plain, watched));
  CHECK(drawn == drawn_too);

  const QuantizedTensor codes =
      quantize(random({8, 6}, 1), {.format = format("e4m3fn"), .scaling = PowerBlocks{.block = 4}}, {.axis = 0});
  const Tensor exact = codes.dequantize();
  Quantization coarse;
  coarse.result = Quantizer{.format = format("e2m1"), .overflow = Overflow::saturate};
  const amp::ResultScope scope(coarse);
  CHECK(same_bits(codes.dequantize(), exact));
}

TEST_CASE("a result is rounded once: the op's own, and that of a quantised product after its scales") {
  Quantization q;
  q.result = Quantizer{.format = format("e4m3fn"), .overflow = Overflow::ieee};
  const Tensor x = random({4, 8}, 1);
  const Tensor w = random({3, 8}, 2);
  const Tensor b = random({3}, 3);
  const auto rounded = [&](const Tensor& t) { return fake_quantize(t, *q.result); };
  {
    const amp::RecipeScope scope(with(q));
    CHECK(same_bits(linear(x, w, b), rounded(linear(x, w, b))));
  }
  const Tensor exact = linear(x, w, b);
  const auto under = [&](const Quantization& other) {
    const amp::RecipeScope scope(with(other));
    return linear(x, w, b);
  };
  CHECK(same_bits(under(q), rounded(exact)));
  Quantization scaled = *amp::recipe("fp8-current").quantization;
  const Tensor product = under(scaled);
  scaled.result = q.result;
  CHECK(same_bits(under(scaled), rounded(product)));
  // Inner scopes without a quantizer of results, and what comes after, are not rounded.
  const amp::ResultScope outer(q);
  {
    const amp::RecipeScope plain(amp::recipe("fp32"));
    CHECK(same_bits(linear(x, w, b), exact));
  }
  CHECK(same_bits(linear(x, w, b), rounded(exact)));
}

TEST_CASE("pure:FORMAT in files, and what is wrong") {
  for (const char* name : {"pure:e5m7", "pure:int8", "pure:hif8:nearest-away", "pure:bf16", "pure:nf4"}) {
    const Recipe r = amp::recipe(name);
    CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == r.quantization);
  }
  const Recipe mine = amp::recipe_from_json(R"({"name": "mine", "quantization": {"result": {"format": "e5m7"}}})");
  CHECK(mine.quantization->result->format == format("e5m7"));
  CHECK_FALSE(mine.quantization->forward_x);
  CHECK(message_of([] { amp::recipe("pure:e9m9"); }).find("format e9m9: 9 exponent bits") != std::string::npos);
  CHECK(message_of([] { amp::recipe("pure:"); }).find("recipe 'pure:': no format ''") != std::string::npos);
  Quantization q = *amp::recipe("pure:e5m7").quantization;
  q.modules = {{"last", "fp32"}};
  check_valid(q);  // the operands of the last layer's products stay in f32; its results do not
  Quantization other = *amp::recipe("mxfp8").quantization;
  other.modules = {{"last", "pure:e5m7"}};
  CHECK(message_of([&] { check_valid(other); }).find("rounds all results") != std::string::npos);
  q.modules.clear();
  q.result->hadamard = true;
  CHECK(message_of([&] { check_valid(q); }).find("no transform") != std::string::npos);
}

namespace {

// y = x W under the quantisation, and the gradients for one dy.
struct Products {
  Tensor y, dx, dw;
  std::int64_t kept = 0;
};
Products products(const Quantization& q, const Tensor& x0, const Tensor& w0) {
  const Tensor x = x0.detach().clone().set_requires_grad();
  const Tensor w = w0.detach().clone().set_requires_grad();
  const auto state = std::make_shared<amp::QuantizationState>(q);
  const auto saved = [] { return memory_stats()[Category::activations].current; };
  Tensor h = x * 1;
  const std::int64_t before = saved();
  Tensor y;
  {
    const amp::RecipeScope scope(with(q), Device::cpu(), state);
    y = matmul(h, w);
  }
  h = Tensor();
  const std::int64_t kept = saved() - before;
  y.backward(random(y.sizes(), 9));
  return {y.detach(), x.grad(), w.grad(), kept};
}

}  // namespace

TEST_CASE("requantize: backward rounds the numbers that forward's codes stand for") {
  const Tensor x = random({64, 96}, 1) * exp(random({64, 96}, 2) * 2);
  const Tensor w = random({96, 32}, 3);
  for (const char* name : {"mxfp8", "mxfp4", "fp8-block128"}) {
    CAPTURE(name);
    Quantization q = *amp::recipe(name).quantization;
    const Products plain = products(q, x, w);
    q.requantize = true;
    const Products again = products(q, x, w);
    CHECK(same_bits(plain.y, again.y));
    CHECK_FALSE(same_bits(plain.dw, again.dw));
    CHECK(again.kept <= 2 * 64 * 96);  // codes of 8 bits and fewer, and their scales
    CHECK(plain.kept >= 4 * 64 * 96);
    // The definition: a plain step on numbers that are rounded already.
    const Tensor rx = fake_quantize(x, *q.forward_x, {.axis = -1});
    const Tensor rw = fake_quantize(w, *q.forward_w, {.axis = -2});
    q.requantize = false;
    const Products defined = products(q, rx, rw);
    CHECK(same_bits(again.dx, defined.dx));
    CHECK(same_bits(again.dw, defined.dw));
  }
  // By chance: the codes are those that forward multiplied. Forward is the identity on dw's side then.
  Quantization q;
  q.forward_x = Quantizer{.format = format("e2m1"), .rounding = rounding_from_name("stochastic")};
  q.requantize = true;
  const Tensor eye_w = eye(96);
  const Products p = products(q, x, eye_w);
  const Tensor dy = random({64, 96}, 9);
  CHECK(same_bits(p.dw, matmul(p.y.t(), dy)));
}

TEST_CASE("requantize: files, and what has no codes") {
  const Recipe r = amp::recipe_from_json(R"({"name": "r", "base": "mxfp8", "quantization": {"requantize": true}})");
  CHECK(r.quantization->requantize);
  CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == r.quantization);
  const Tensor x = random({2, 3, 6, 6}, 1);
  const Tensor w = random({4, 3, 3, 3}, 2).set_requires_grad();
  CHECK(message_of([&] {
          const amp::RecipeScope scope(r);
          conv2d(x, w);
        }).find("requantize: a convolution rounds windows, not x") != std::string::npos);
  Quantization q = *amp::recipe("nvfp4").quantization;
  q.requantize = true;
  q.forward_x->hadamard = true;
  q.forward_w->hadamard = true;
  CHECK(message_of([&] { check_valid(q); }).find("requantize goes with forward operands") != std::string::npos);
  // One scale per tensor, in a convolution, and another quantizer in backward.
  Recipe tensor = amp::recipe("fp8-current");
  tensor.name = "tensor";
  tensor.quantization->requantize = true;
  tensor.quantization->wgrad_x->format = format("e5m2");
  const Tensor exact_w = w.detach();
  const Tensor rx = fake_quantize(x, *tensor.quantization->forward_x);
  const auto dw = [&](const Recipe& recipe, const Tensor& in) {
    const Tensor weight = exact_w.clone().set_requires_grad();
    const auto state = std::make_shared<amp::QuantizationState>(*recipe.quantization);
    Tensor y;
    {
      const amp::RecipeScope scope(recipe, Device::cpu(), state);
      y = conv2d(in, weight);
    }
    y.backward(random(y.sizes(), 3));
    return weight.grad();
  };
  Recipe plain = tensor;
  plain.quantization->requantize = false;
  CHECK(same_bits(dw(tensor, x), dw(plain, rx)));
  CHECK_FALSE(same_bits(dw(tensor, x), dw(plain, x)));
}
