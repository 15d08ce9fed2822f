// Layers and functions made of other ops: results and gradients of PyTorch (golden/make_layers.py), precision, and what
// bad arguments give.
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "helpers.h"
#include "support/source_dir.h"

using namespace nn_test;

namespace {

using Inputs = std::vector<Tensor>;

// From -1 to 1: the fraction of (i + 1)(key + 1) times 2654435761 / 2^32.
Tensor numbers(const Shape& sizes, std::uint64_t key) {
  std::vector<double> v(static_cast<std::size_t>(numel(sizes)));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<double>((i + 1) * (key + 1) * 2654435761U % (std::uint64_t{1} << 32)) / 0x1p31 - 1;
  return from_data(v, sizes, {.dtype = DType::f64, .requires_grad = true});
}

// The net gets the values of in[first], .. as its parameters, which take their places.
void use(nn::Module& net, Inputs& in, std::size_t first = 1) {
  const NoGrad off;
  net.to(DType::f64);
  for (const auto& [name, p] : net.named_parameters()) {
    p.detach().copy_(in.at(first));
    in[first++] = p;
  }
  REQUIRE(first == in.size());
}

Tensor run(nn::Module&& net, Inputs& in) {
  use(net, in);
  return net(in[0]);
}

// The outputs and the last states. in: x, `states` of the state, the parameters.
Tensor run(nn::Recurrent&& net, Inputs& in, std::size_t states) {
  use(net, in, 1 + states);
  nn::RecurrentState state{states > 0 ? in[1] : Tensor(), states > 1 ? in[2] : Tensor()};
  const Tensor y = net(in[0], state);
  if (states == 0) CHECK(same_bits(net(in[0]), y));
  std::vector<Tensor> all = {y.reshape(-1), state.hidden.reshape(-1)};
  if (state.cell.defined()) all.push_back(state.cell.reshape(-1));
  return cat(all);
}

std::map<std::string, std::function<Tensor(Inputs&)>> cases() {
  using nn::GRU, nn::LSTM;
  const Tensor classes = tensor({2, 0, 1, 2}).to(DType::i64);
  return {
      {"conv1d",
       [](Inputs& in) {
         return run(nn::Conv1d(4, 6, 3, {2, 3, 2, 2}), in);
       }},
      {"conv_transpose2d",
       [](Inputs& in) {
         return run(nn::ConvTranspose2d(3, 4, {3, 2}), in);
       }},
      {"conv_transpose2d options",
       [](Inputs& in) {
         return run(nn::ConvTranspose2d(4, 6, {3, 2}, {{3, 2}, {1, 2}, {2, 1}, {1, 3}, 2}), in);
       }},
      {"group_norm", [](Inputs& in) { return run(nn::GroupNorm(3, 6, {.eps = 1e-4}), in); }},
      {"lstm", [](Inputs& in) { return run(LSTM(5, 3), in, 0); }},
      {"lstm two layers", [](Inputs& in) { return run(LSTM(5, 3, {.layers = 2, .bias = false}), in, 2); }},
      {"gru", [](Inputs& in) { return run(GRU(5, 3), in, 0); }},
      {"gru two layers", [](Inputs& in) { return run(GRU(5, 3, {.layers = 2}), in, 1); }},
      {"adaptive_max_pool2d", [](Inputs& in) { return nn::AdaptiveMaxPool2d(3, 2)(in[0]); }},
      {"nearest", [](Inputs& in) { return interpolate(in[0], 5, 9); }},
      {"bilinear", [](Inputs& in) { return interpolate(in[0], 5, 3, Interpolation::bilinear); }},
      {"cumsum", [](Inputs& in) { return cumsum(in[0], 1); }},
      {"prod", [](Inputs& in) { return prod(in[0], 1); }},
      {"prod of all", [](Inputs& in) { return prod(in[0]); }},
      {"max", [](Inputs& in) { return max_with_indices(in[0], 1).values; }},
      {"max kept", [](Inputs& in) { return max_with_indices(in[0], -1, true).values; }},
      {"sort", [](Inputs& in) { return sort(in[0], 1).values; }},
      {"sort descending", [](Inputs& in) { return sort(in[0], 0, true).values; }},
      {"topk", [](Inputs& in) { return topk(in[0], 2, 1).values; }},
      {"topk smallest", [](Inputs& in) { return topk(in[0], 3, -1, false).values; }},
      {"huber_loss", [](Inputs& in) { return huber_loss(in[0], in[1], Reduction::none, 0.4); }},
      {"nll_loss", [classes](Inputs& in) { return nll_loss(in[0], classes); }},
      {"kl_div", [](Inputs& in) { return kl_div(in[0], abs(in[1]), Reduction::sum); }},
  };
}

}  // namespace

TEST_CASE("layers and derived functions have PyTorch's results and gradients") {
  const nlohmann::json golden =
      nlohmann::json::parse(std::ifstream(source_dir() + "/tests/golden/layers.json")).at("cases");
  auto functions = cases();
  const TensorOptions wide{.dtype = DType::f64};
  for (const auto& item : golden.items()) {
    const std::string& name = item.key();
    const nlohmann::json& want = item.value();
    CAPTURE(name);
    if (name.starts_with("einsum "))
      functions[name] = [equation = name.substr(7)](Inputs& in) { return einsum(equation, in); };
    REQUIRE(functions.contains(name));
    Inputs in;
    for (const auto& sizes : want.at("sizes")) in.push_back(numbers(sizes.get<std::vector<std::int64_t>>(), in.size()));
    const Tensor y = functions.at(name)(in).reshape(-1);
    CHECK(distance(y, from_data(want.at("result").get<std::vector<double>>(), y.sizes(), wide)) < 1e-12);
    sum(y * cos(arange(1, static_cast<double>(y.numel()) + 1, 1, {.dtype = DType::f64}))).backward();
    for (std::size_t i = 0; i < in.size(); ++i) {
      CAPTURE(i);
      const Tensor g = in[i].grad().reshape(-1);
      CHECK(distance(g, from_data(want.at("gradients").at(i).get<std::vector<double>>(), g.sizes(), wide)) < 1e-12);
    }
    functions.erase(name);
  }
  CHECK(functions.empty());
}

TEST_CASE("sort is stable, puts NaN last, and keeps large integers apart") {
  const Tensor x = tensor({2.0, NAN, 1.0, 2.0, -INFINITY});
  CHECK(values(sort(x).indices) == std::vector<double>{4, 2, 0, 3, 1});
  CHECK(values(sort(x, 0, true).indices) == std::vector<double>{1, 0, 3, 2, 4});
  const std::int64_t big = std::int64_t{1} << 60;
  const Tensor whole = from_data(std::vector<std::int64_t>{big + 1, big, big + 2}, 3, {.dtype = DType::i64});
  CHECK(values(topk(whole, 2).indices) == std::vector<double>{2, 0});
  CHECK(sort(scalar(3)).values.item() == 3);
  CHECK(sort(zeros({0, 3}), 0).values.sizes() == Shape{0, 3});
  CHECK(topk(zeros({2, 3}), 0).values.sizes() == Shape{2, 0});
  CHECK(message_of([] { topk(zeros(3), 4); }) == "topk: 4 of 3 elements");
}

TEST_CASE("cumsum and prod of half numbers round once; zeros have a gradient") {
  const Tensor x = full({2, 300}, 1 / 3.0, DType::f16);
  CHECK(same_bits(cumsum(x, 1), cumsum(x.to(DType::f32), 1).to(DType::f16)));
  CHECK(same_bits(prod(x + 0.75, 1), prod((x + 0.75).to(DType::f32), 1).to(DType::f16)));
  CHECK(values(cumsum(tensor({1, 2, 3}).to(DType::i64), 0)) == std::vector<double>{1, 3, 6});
  Tensor zero = tensor({2.0, 0.0, 3.0});
  zero.set_requires_grad();
  prod(zero).backward();
  CHECK(values(zero.grad()) == std::vector<double>{0, 6, 0});
  CHECK(values(prod(zeros({2, 0}), 1)) == std::vector<double>{1, 1});
}

TEST_CASE("multinomial draws by weight, with and without replacement") {
  const Tensor weights = tensor({{1.0, 0.0, 3.0, 0.0}, {0.0, 2.0, 2.0, 4.0}});
  Generator g(3);
  const Tensor many = multinomial(weights, 20000, true, g);
  CHECK(many.sizes() == Shape{2, 20000});
  const auto share = [&](int row, double of) { return eq(select(many, 0, row), of).to(DType::f64).mean().item(); };
  CHECK(share(0, 0) == doctest::Approx(0.25).epsilon(0.05));
  CHECK(share(0, 1) + share(0, 3) == 0);
  CHECK(share(1, 3) == doctest::Approx(0.5).epsilon(0.05));
  const Tensor two = multinomial(weights, 2, false, g);
  CHECK(values(sort(two.narrow(0, 0, 1)).values) == std::vector<double>{0, 2});
  CHECK(contains(message_of([&] { multinomial(weights, 3); }), "weights of at least 0, 3 of them above 0"));
  CHECK(contains(message_of([&] { multinomial(neg(weights), 1); }), "multinomial: 1 draws from [2, 4]"));
}

TEST_CASE("transposed convolutions are lowered, and quantised, as conv2d is") {
  manual_seed(0);
  nn::ConvTranspose2d layer(16, 8, 2, {.stride = 2});
  const Tensor x = noise({2, 16, 4, 4});
  {
    const amp::Autocast region({.dtype = DType::bf16});
    CHECK(layer(x).dtype() == DType::bf16);
  }
  for (const char* name : {"fp8-current", "mxfp8"}) {
    CAPTURE(name);
    layer.zero_grad();
    amp::RecipeRun recipe(amp::recipe(name), layer, optim::SGDOptions{.lr = 0.1});
    const Tensor loss = recipe.forward([&] { return square(layer(x)).mean(); });
    recipe.backward(loss);
    const Tensor got = layer.weight.grad().clone();
    const Tensor y = recipe.evaluate([&] { return layer(x); });
    layer.zero_grad();
    square(layer(x)).mean().backward();
    const Tensor exact = layer.weight.grad();
    const double error = (norm(got - exact) / norm(exact)).item();
    CHECK(error < 0.1);
    CHECK(error > 1e-4);  // it is rounded
    const double result = (norm(y - layer(x)) / norm(y)).item();
    CHECK(result < 0.1);
    CHECK(result > 1e-4);
  }
}

TEST_CASE("bad arguments of layers and functions") {
  using namespace nn;
  CHECK(contains(message_of([] { Conv1d(3, 4, 1, {.groups = 2}); }), "Conv1d: 2 groups do not divide 3 input"));
  CHECK(contains(message_of([] { Conv1d(1, 1, 2)(zeros({2, 3})); }), "conv1d: x [2, 3] and weight [1, 1, 2]"));
  CHECK(contains(message_of([] {
                   ConvTranspose2d(1, 1, 2, {.output_padding = 1})(zeros({1, 1, 2, 2}));
                 }),
                 "output_padding 1 must be at least 0 and less than stride 1 or dilation 1"));
  CHECK(message_of([] { ConvTranspose2d(0, 1, 2); }) == "ConvTranspose2d: in is 0; it must be at least 1");
  CHECK(contains(message_of([] { interpolate(zeros({1, 1, 2, 2}), 0, 1); }), "interpolate: [1, 1, 2, 2] to 0 x 1"));
  CHECK(contains(message_of([] { adaptive_max_pool2d(zeros({2, 2}), 1, 1); }), "adaptive_max_pool2d: [2, 2] to 1 x 1"));
  CHECK(contains(message_of([] { huber_loss(zeros(2), zeros(2), Reduction::mean, 0); }), "a delta above 0"));
  CHECK(contains(message_of([] { nll_loss(zeros(2), zeros(2)); }), "nll_loss: [2] and classes f32 [2]"));
}

TEST_CASE("bad arguments of recurrent layers and einsum") {
  using nn::GRU, nn::LSTM;
  CHECK(message_of([] { LSTM(3, 0); }) == "LSTM: hidden is 0; it must be at least 1");
  CHECK(message_of([] { GRU(3, 2)(zeros({1, 2, 4})); }) == "GRU: input [1, 2, 4]; allowed is [N, L, 3]");
  CHECK(message_of([] {
          nn::RecurrentState state{zeros({1, 3, 2}), {}};
          GRU(3, 2)(zeros({1, 2, 3}), state);
        }) == "GRU: a state [1, 3, 2]; allowed is [1, 1, 2]");
  const Tensor a = zeros({2, 3});
  CHECK(contains(message_of([&] { einsum("ij,jk->ik", {a, a}); }), "a letter has one size"));
  CHECK(contains(message_of([&] { einsum("ii", {zeros({2, 2})}); }), "a letter is twice in one operand"));
  CHECK(contains(message_of([&] { einsum("ij->ik", {a}); }), "the result has letters of operands, each once"));
  CHECK(contains(message_of([&] { einsum("ijk", {a}); }), "an operand has a letter for each dim"));
  CHECK(contains(message_of([&] { einsum("ij,ij,ij", {a, a, a}); }), "one or two operands"));
}

TEST_CASE("ModuleList holds modules for a forward of one's own") {
  nn::ModuleList layers;
  layers.push_back(nn::Linear(2, 3));
  layers.push_back(nn::Linear(3, 1));
  CHECK(layers.size() == 2);
  CHECK(layers.named_parameters()[2].first == "1.weight");
  CHECK(layers[1](layers[0](zeros({4, 2}))).sizes() == Shape{4, 1});
  CHECK(message_of([&] { layers[2]; }) == "Sequential: no module 2; there are 2");
}
