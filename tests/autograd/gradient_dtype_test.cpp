// The engine brings each gradient to the dtype and shape of the input it is for, and knows gradients that are constant.
#include <functional>
#include <utility>

#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

// x W^T written as a user would: under bf16 autocast its forward and backward compute in bf16.
struct MyLinear : Function {
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    save_for_backward({in[0], in[1]});
    return {matmul(in[0], in[1].t())};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override {
    return {matmul(g[0], saved()[1]), matmul(g[0].t(), saved()[0])};
  }
};

// Hands on whatever gradient it is told to.
struct Gives : Function {
  explicit Gives(Tensor given) : gradient(std::move(given)) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override { return {in[0] * 1}; }
  std::vector<Tensor> backward(const std::vector<Tensor>&) override { return {gradient}; }
  Tensor gradient;
};

Tensor f32_leaf() { return leaf({1, -2, 3, 4, -5, 6}, {2, 3}, DType::f32); }

}  // namespace

TEST_CASE("a Function under autocast may return bf16 gradients of f32 inputs") {
  const Tensor x = f32_leaf();
  const Tensor w = leaf({1, 2, 3, 4, 5, 6}, {2, 3}, DType::f32);
  {
    const amp::Autocast autocast({.dtype = DType::bf16});
    const Tensor y = apply(std::make_shared<MyLinear>(), {x, w})[0];
    CHECK(y.dtype() == DType::bf16);
    y.sum().backward();
  }
  CHECK(x.grad().dtype() == DType::f32);
  CHECK(values(x.grad()) == Values{5, 7, 9, 5, 7, 9});
  CHECK(values(w.grad()) == Values{5, -7, 9, 5, -7, 9});
}

TEST_CASE("a Function's gradient that broadcasts over the input's is summed; any other shape is an Error") {
  const Tensor x = leaf({1, 2, 3}, {3}, DType::f32);
  apply(std::make_shared<Gives>(ones({4, 3}, {.dtype = DType::f16})), {x})[0].backward(ones({3}));
  CHECK(values(x.grad()) == Values{4, 4, 4});
  const auto wrong = [&](const Tensor& g) {
    return message_of([&] { apply(std::make_shared<Gives>(g), {x})[0].backward(ones({3})); });
  };
  check_message(wrong(ones({2})), {"gave input 0 a gradient [2] f32", "[3] f32"});
  check_message(wrong(ones({3}, {.dtype = DType::i64})), {"a gradient [3] i64"});
}

TEST_CASE("a hook may return another dtype, and backward may start from one") {
  const Tensor x = f32_leaf();
  x.register_hook([](const Tensor& g) { return g.to(DType::f16) * 2; });
  const Tensor y = x * 3;
  y.backward(ones({2, 3}, {.dtype = DType::bf16}));
  CHECK(x.grad().dtype() == DType::f32);
  CHECK(values(x.grad()) == Values(6, 6.0));
  const Tensor z = f32_leaf();
  z.register_hook([](const Tensor& g) { return g.select(0, 0); });
  check_message(message_of([&] { (z * 3).sum().backward(); }), {"hook", "[3] f32", "[2, 3] f32"});
}

TEST_CASE("the gradient of a constant gradient is zero") {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> functions = {
      {"linear", [](const Tensor& x) { return x * 3 + 1; }},
      {"sum", [](const Tensor& x) { return x; }},
      {"relu", [](const Tensor& x) { return relu(x); }},
      {"abs", [](const Tensor& x) { return abs(x); }},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); }},
      {"clamp", [](const Tensor& x) { return clamp(x, -1, 1); }},
      {"maximum", [](const Tensor& x) { return maximum(x, 0.5); }},
      {"slice", [](const Tensor& x) { return x.narrow(1, 1, 2); }},
      {"mean", [](const Tensor& x) { return x.mean(); }},
      {"matmul", [](const Tensor& x) {
         return matmul(x, ones({3, 2}, {.dtype = DType::f64}));
       }}};
  for (const auto& function : functions) {
    const auto& f = function.second;
    CAPTURE(function.first);
    const Tensor x = leaf({1, -2, 3, 4, -5, 6}, {2, 3});
    const Tensor g = autograd::grad({f(x).sum()}, {x}, {}, {.create_graph = true})[0];
    const Tensor first = autograd::grad({f(x).sum()}, {x})[0];
    CHECK(values(g) == values(first));
    const Tensor second = autograd::grad({g.sum()}, {x})[0];
    CHECK(second.sizes() == x.sizes());
    CHECK(values(second) == Values(6, 0.0));
  }
  const Tensor x = leaf({1, -2, 3});
  (x * 3).sum().backward({}, false, true);
  x.grad().sum().backward();  // adds nothing
  CHECK(values(x.grad()) == Values{3, 3, 3});
  const Tensor unused = leaf({1.0});
  check_message(message_of([&] { autograd::grad({(x * 2).sum()}, {unused}); }), {"was not used"});
}
