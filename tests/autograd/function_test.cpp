#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

int alive = 0;

// x^3, saving the input; the gradient is written with public ops.
struct Cube : Function {
  Cube() { ++alive; }
  ~Cube() override { --alive; }
  std::string name() const override { return "cube"; }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    CHECK(!grad_enabled());
    save_for_backward({in[0]});
    return {in[0] * in[0] * in[0]};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override {
    const Tensor& x = saved()[0];
    return {g[0] * (x * x * 3)};
  }
};

// exp, saving its output.
struct Exp : Function {
  Exp() { ++alive; }
  ~Exp() override { --alive; }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    const Tensor y = exp(in[0]);
    save_for_backward({y});
    return {y};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override { return {g[0] * saved()[0]}; }
};

// Calls whatever it is given.
struct Any : Function {
  std::function<std::vector<Tensor>(const std::vector<Tensor>&)> f, b;
  std::string name() const override { return "any"; }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override { return f(in); }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override { return b(g); }
  using Function::needs_input_grad;
  using Function::save_for_backward;
  using Function::saved;
};

Tensor cube(const Tensor& x) { return apply(std::make_shared<Cube>(), {x})[0]; }

}  // namespace

TEST_CASE("function: forward, backward and its place on the tape") {
  const Tensor x = leaf({1, 2});
  const Tensor y = cube(x);
  CHECK(values(y) == Values{1, 8});
  CHECK(y.requires_grad());
  y.sum().backward();
  CHECK(values(x.grad()) == Values{3, 12});
  CHECK(contains(Tape::of(y).to_string(), "cube"));
}

TEST_CASE("function: freed after backward, and with the graph") {
  const std::int64_t before = memory_stats()[Category::activations].current;
  const Tensor x = leaf({1, 2});
  {
    const Tensor y = cube(x);
    const Tensor loss = y.sum();
    CHECK(alive == 1);
    CHECK(memory_stats()[Category::activations].current == before + 16);
    loss.backward();
    CHECK(memory_stats()[Category::activations].current == before);
    check_message(message_of([&] { loss.backward(); }), {"cube", "retain_graph"});
  }
  CHECK(alive == 0);
  {
    const Tensor dropped = cube(x);
    const Tensor saves_its_output = apply(std::make_shared<Exp>(), {x})[0];  // no cycle
    CHECK(alive == 2);
  }
  CHECK(alive == 0);
  CHECK(memory_stats()[Category::activations].current == before);
}

TEST_CASE("function: gradients of gradients, through a saved input and a saved output") {
  const Tensor x = leaf({2});
  const Tensor g = autograd::grad({cube(x).sum()}, {x}, {}, {.create_graph = true})[0];
  const Tensor gg = autograd::grad({g.sum()}, {x}, {}, {.create_graph = true})[0];
  CHECK(values(gg) == Values{12});
  const Tensor e = apply(std::make_shared<Exp>(), {x})[0];
  const Tensor de = autograd::grad({e.sum()}, {x}, {}, {.create_graph = true})[0];
  const Tensor dde = autograd::grad({de.sum()}, {x})[0];
  CHECK(values(dde)[0] == doctest::Approx(std::exp(2)).epsilon(1e-14));
}

TEST_CASE("function: an edited saved tensor is an error") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 1;
  const Tensor z = cube(y).sum();
  y.add_(1);
  check_message(message_of([&] { z.backward(); }), {"cube", "changed in place", "[2] f64", "version 1"});
}

TEST_CASE("function: several inputs and outputs, absent gradients, needs_input_grad") {
  const Tensor a = leaf({2});
  const Tensor b = numbers({3});
  auto f = std::make_shared<Any>();
  f->f = [&](const std::vector<Tensor>& in) {
    CHECK(f->needs_input_grad(0));
    CHECK(!f->needs_input_grad(1));
    return std::vector<Tensor>{in[0] * in[1], in[0] + in[1], in[0]};
  };
  f->b = [&](const std::vector<Tensor>& g) {
    CHECK(g.size() == 3);
    CHECK(g[0].defined());
    CHECK(!g[1].defined());
    CHECK(g[2].defined());
    return std::vector<Tensor>{g[0] * 3 + g[2] * 100, Tensor()};
  };
  const auto y = apply(f, {a, b});
  REQUIRE(y.size() == 3);
  CHECK(!y[2].is_same(a));  // handed through under a handle of its own
  CHECK(a.is_leaf());
  (y[0] + y[2]).sum().backward();
  CHECK(values(a.grad()) == Values{103});
  f->f = nullptr;
  f->b = nullptr;
}

TEST_CASE("function: errors name the function") {
  const Tensor x = leaf({1, 2});
  const auto with = [](auto forward, auto backward) {
    auto f = std::make_shared<Any>();
    f->f = forward;
    f->b = backward;
    return f;
  };
  using In = const std::vector<Tensor>&;
  const auto one = [](In in) { return std::vector<Tensor>{in[0] * 2}; };
  check_message(message_of([&] {
                  apply(with(one, [](In) { return std::vector<Tensor>{numbers({1, 2, 3})}; }), {x})[0].sum().backward();
                }),
                {"any", "input 0", "[3]", "[2]"});
  check_message(
      message_of([&] { apply(with(one, [](In) { return std::vector<Tensor>{}; }), {x})[0].sum().backward(); }),
      {"any", "0 gradients", "1 inputs"});
  const Tensor integers = ones({2}, {.dtype = DType::i64});
  check_message(
      message_of([&] { apply(with(one, [&](In) { return std::vector<Tensor>{integers}; }), {x})[0].sum().backward(); }),
      {"any", "i64", "f64"});
  check_message(message_of([&] { apply(with([](In) { return std::vector<Tensor>{}; }, one), {x}); }),
                {"any", "1 to 3"});
  check_message(message_of([&] { apply(with([](In) { return std::vector<Tensor>(2); }, one), {x}); }),
                {"any", "undefined"});
  const auto used = with(one, one);
  apply(used, {x});
  check_message(message_of([&] { apply(used, {x}); }), {"any", "applied before"});
  CHECK(grad_enabled());
}

TEST_CASE("function: backward runs under forward's generator, module and line") {
  const Tensor x = leaf({1, 2});
  auto f = std::make_shared<Any>();
  Values drawn, drawn_again;
  std::string module, line;
  f->f = [&](const std::vector<Tensor>& in) {
    drawn = values(rand({3}));
    return std::vector<Tensor>{in[0] * 2};
  };
  f->b = [&](const std::vector<Tensor>& g) {
    drawn_again = values(rand({3}));
    module = context().module;
    line = file_line(context().line);
    CHECK(context().phase == Phase::backward);
    return std::vector<Tensor>{g[0]};
  };
  manual_seed(7);
  Tensor y;
  {
    const ModuleScope scope("block.3");
    y = apply(f, {x})[0];
  }
  const Generator after = default_generator();
  {
    const ModuleScope other("elsewhere");
    y.sum().backward();
    CHECK(std::string(context().module) == "elsewhere");
  }
  CHECK(drawn == drawn_again);
  CHECK(default_generator().state().stream == after.state().stream);
  CHECK(module == "block.3");
  CHECK(contains(line, "function_test.cpp"));
  f->f = nullptr;
  f->b = nullptr;
}

TEST_CASE("function: one inside another, and without gradients") {
  const Tensor x = leaf({2});
  auto f = std::make_shared<Any>();
  f->f = [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{cube(in[0]) + 1}; };
  f->b = [&](const std::vector<Tensor>& g) { return std::vector<Tensor>{g[0] * 12}; };
  const Tensor y = apply(f, {x})[0];
  CHECK(values(y) == Values{9});
  y.sum().backward();
  CHECK(values(x.grad()) == Values{12});
  CHECK(alive == 0);
  CHECK(!cube(numbers({3})).requires_grad());
  {
    const NoGrad off;
    CHECK(!cube(x).requires_grad());
  }
  CHECK(alive == 0);
}

TEST_CASE("function: an exception in forward or backward leaves the thread clean") {
  const Tensor x = leaf({2});
  auto f = std::make_shared<Any>();
  f->f = [](const std::vector<Tensor>&) -> std::vector<Tensor> { throw_error("forward broke"); };
  CHECK_THROWS_WITH(apply(f, {x}), "forward broke");
  CHECK(grad_enabled());
  auto g = std::make_shared<Any>();
  g->f = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{in[0] * 2}; };
  g->b = [](const std::vector<Tensor>&) -> std::vector<Tensor> { throw_error("backward broke"); };
  const std::uint64_t stream = default_generator().state().stream;
  CHECK_THROWS_WITH(apply(g, {x})[0].sum().backward(), "backward broke");
  CHECK(grad_enabled());
  CHECK(context().phase == Phase::forward);
  CHECK(default_generator().state().stream == stream);
  CHECK(values(cube(x)) == Values{8});
}

TEST_CASE("function: backward runs in the modes of forward") {
  const auto any = std::make_shared<Any>();
  any->f = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{in[0] * 2.0}; };
  Modes seen;
  any->b = [&](const std::vector<Tensor>& g) {
    seen = modes();
    return std::vector<Tensor>{g[0] * 2.0};
  };
  const Tensor x = ones({1, 1}).set_requires_grad();
  Tensor y;
  {
    const AccumulatorScope sums(accumulator("fp16-acc"));
    const MatmulPrecisionScope precision(MatmulPrecision::tf32);
    const FastF8Scope f8(true);
    const UnfusedScope parts;
    const CategoryScope category(Category::activations);
    y = apply(any, {x})[0];
  }
  y.backward();
  CHECK(seen.matmul_precision == MatmulPrecision::tf32);
  CHECK(seen.fast_f8);
  CHECK(!seen.fused_rows);
  CHECK(seen.category == Category::activations);
  CHECK(seen.accumulator == accumulator("fp16-acc"));
  CHECK(modes().matmul_precision == MatmulPrecision::f32);
  CHECK(!modes().accumulator);
}

TEST_CASE("function: products of backward add in the accumulator of forward") {
  const auto any = std::make_shared<Any>();
  any->f = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{in[0] * 2.0}; };
  any->b = [](const std::vector<Tensor>& g) {
    return std::vector<Tensor>{matmul(full({1, 4096}, 1.0), full({4096, 1}, 1.0)) * g[0]};
  };
  const Tensor x = ones({1, 1}).set_requires_grad();
  Tensor y;
  {
    const AccumulatorScope sums(accumulator("fp16-acc"));
    y = apply(any, {x})[0];
  }
  y.backward();
  CHECK(x.grad().item() == 2048);  // in f16, 2048 + 1 is 2048
}
