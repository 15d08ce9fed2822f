#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

TEST_CASE("engine: gradients of a small expression") {
  const Tensor x = leaf({1, 2, 3});
  const Tensor w = leaf({4, 5, 6});
  (x * w + x).sum().backward();
  CHECK(values(x.grad()) == Values{5, 6, 7});
  CHECK(values(w.grad()) == Values{1, 2, 3});
}

TEST_CASE("engine: gradients accumulate in leaves over several backwards") {
  const Tensor x = leaf({1, 2});
  (x * 3).sum().backward();
  const Tensor first = x.grad().clone();
  (x * x).sum().backward();
  CHECK(values(first) == Values{3, 3});
  CHECK(values(x.grad()) == Values{5, 7});
  x.zero_grad();
  CHECK(!x.grad().defined());
}

TEST_CASE("engine: two leaves never share one gradient tensor") {
  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({3, 4});
  const Tensor seed = numbers({1, 1});
  (a + b).backward(seed);
  CHECK(!a.grad().shares_storage(b.grad()));
  CHECK(!a.grad().shares_storage(seed));
  CHECK(!b.grad().shares_storage(seed));
  a.grad().mul_(10);
  CHECK(values(b.grad()) == Values{1, 1});
  CHECK(values(seed) == Values{1, 1});
}

TEST_CASE("engine: a second backward needs retain_graph") {
  const Tensor x = leaf({1, 2});
  const Tensor y = (x * x).sum();
  y.backward({}, true);
  y.backward({}, true);
  CHECK(values(x.grad()) == Values{4, 8});
  y.backward();
  CHECK(values(x.grad()) == Values{6, 12});
  const std::string message = message_of([&] { y.backward(); });
  check_message(message, {"mul", "engine_test.cpp", "freed", "retain_graph"});
  CHECK(values(x.grad()) == Values{6, 12});  // nothing half-written
  SUBCASE("a node that kept nothing can run again") {
    const Tensor z = (x + x).sum();
    z.backward();
    z.backward();
    CHECK(values(x.grad()) == Values{10, 16});
  }
  SUBCASE("an optional input is freed, not absent") {
    const Tensor w = leaf({1, 1});
    const Tensor z = (numbers({2, 3}) * w).sum();
    z.backward();
    check_message(message_of([&] { z.backward(); }), {"retain_graph"});
  }
}

TEST_CASE("engine: broadcast gradients are summed back") {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor row = leaf({1, 10, 100});
  const Tensor column = leaf({1, 2}, {2, 1});
  const Tensor scalar = leaf({2}, {});
  (x * row * column * scalar).sum().backward();
  CHECK(values(x.grad()) == Values{2, 20, 200, 4, 40, 400});
  CHECK(values(row.grad()) == Values{2 * 1 + 4 * 4, 2 * 2 + 4 * 5, 2 * 3 + 4 * 6});
  CHECK(column.grad().sizes() == Shape{2, 1});
  CHECK(values(column.grad()) == Values{2 * 321, 2 * 654});
  CHECK(scalar.grad().sizes() == Shape{});
  CHECK(values(scalar.grad()) == Values{321 + 2 * 654});
  SUBCASE("one gradient shared by operands of different shapes") {
    const Tensor a = leaf({1}, {1});
    const Tensor b = leaf({1, 2, 3});
    (a + b).sum().backward();
    CHECK(values(a.grad()) == Values{3});
    CHECK(values(b.grad()) == Values{1, 1, 1});
  }
}

TEST_CASE("engine: diamonds, and a weight used twice") {
  const Tensor x = leaf({3});
  const Tensor a = x * 2;
  const Tensor b = a * a;    // 4 x^2
  const Tensor c = a + b;    // 2 x + 4 x^2
  (b * c).sum().backward();  // 8 x^3 + 16 x^4
  CHECK(values(x.grad()) == Values{24 * 9 + 64 * 27});

  const Tensor w = leaf({1, 2, 3, 4}, {2, 2});
  const Tensor v = from_data(Values{1, -1}, {2, 1}, {.dtype = DType::f64});
  matmul(w, matmul(w, v)).sum().backward();
  // y = 1^T W W v: dW = 1 (W v)^T + W^T 1 v^T
  CHECK(values(w.grad()) == Values{-1 + 4, -1 - 4, -1 + 6, -1 - 6});
}

TEST_CASE("engine: unused outputs") {
  const Tensor x = from_data(Values{1, 2, 3, 4}, {1, 1, 2, 2}, {.requires_grad = true});
  const auto parts = split(x.reshape({4}), 2);
  parts[1].sum().backward();
  CHECK(values(x.grad()) == Values{0, 0, 1, 1});
  const Tensor unused = x * 5;  // recorded and dropped
  CHECK(unused.requires_grad());
}

TEST_CASE("engine: backward needs a scalar or a gradient of the right shape") {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = x * 2;
  check_message(message_of([&] { y.backward(); }), {"[3]", "gradient"});
  check_message(message_of([&] { y.backward(numbers({1, 1})); }), {"[2]", "[3]"});
  check_message(message_of([&] { y.backward(ones({3}, {.dtype = DType::i64})); }), {"i64", "f64"});
  check_message(message_of([&] { numbers({1}).backward(); }), {"does not depend"});
  CHECK(!x.grad().defined());
  y.backward(numbers({1, 10, 100}));
  CHECK(values(x.grad()) == Values{2, 20, 200});
  leaf({1}, {1}).backward();  // a leaf is its own output
}

TEST_CASE("engine: detach cuts, no_grad and enable_grad nest") {
  const Tensor x = leaf({2});
  const Tensor y = x * 3;
  CHECK(!y.detach().requires_grad());
  CHECK(y.detach().shares_storage(y));
  (y.detach() * x).sum().backward();
  CHECK(values(x.grad()) == Values{6});
  CHECK(grad_enabled());
  {
    const NoGrad off;
    CHECK(!grad_enabled());
    CHECK(!(x * 2).requires_grad());
    {
      const EnableGrad on;
      CHECK((x * 2).requires_grad());
      const NoGrad again;
      CHECK(!(x * 2).requires_grad());
    }
    CHECK(!grad_enabled());
  }
  CHECK(grad_enabled());
  CHECK_THROWS_AS(
      [&] {
        const NoGrad off;
        throw_error("out of the scope");
      }(),
      Error);
  CHECK(grad_enabled());
}

TEST_CASE("engine: a failing backward leaves the thread as it was") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * x;
  y.register_hook([](const Tensor&) -> Tensor { throw_error("hook"); });
  const Context before = context();
  CHECK_THROWS_WITH((y * y).sum().backward(), "hook");
  CHECK(grad_enabled());
  CHECK(context().phase == before.phase);
  CHECK(context().module == before.module);
  CHECK(context().line.line() == before.line.line());
  CHECK(autograd::Engine::current() == nullptr);
  CHECK(!x.grad().defined());
  (x * 2).sum().backward();  // the buffers are clean
  CHECK(values(x.grad()) == Values{2, 2});
}

TEST_CASE("engine: many pending nodes at once") {
  // The table of pending nodes grows and shrinks: every one of n branches waits until its turn.
  const Tensor x = leaf({1});
  std::vector<Tensor> branches;
  for (int i = 0; i < 5000; ++i) branches.push_back(x * static_cast<double>(i));
  cat(branches).sum().backward();
  CHECK(values(x.grad()) == Values{4999.0 * 5000 / 2});
  x.zero_grad();
  (x * 2).sum().backward();
  CHECK(values(x.grad()) == Values{2});
}

TEST_CASE("hooks: see, replace and leave") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 3;
  Values seen;
  const std::uint64_t on_y = y.register_hook([&](const Tensor& g) -> Tensor {
    seen = values(g);
    return g * 10;
  });
  const std::uint64_t on_x = x.register_hook([](const Tensor& g) { return g + 1; });
  (y * numbers({1, 2})).sum().backward({}, true);
  CHECK(seen == Values{1, 2});
  CHECK(values(x.grad()) == Values{31, 61});
  y.remove_hook(on_y);
  x.remove_hook(on_x);
  x.zero_grad();
  (y * numbers({1, 2})).sum().backward();
  CHECK(values(x.grad()) == Values{3, 6});
}

TEST_CASE("hooks: run once, on the whole gradient") {
  const Tensor x = leaf({5});
  int calls = 0;
  x.register_hook([&](const Tensor& g) {
    ++calls;
    CHECK(values(g) == Values{3});
    return Tensor();
  });
  (x + x + x).sum().backward();
  CHECK(calls == 1);
  CHECK(values(x.grad()) == Values{3});
}

TEST_CASE("hooks: errors") {
  const Tensor x = leaf({1, 2});
  x.register_hook([](const Tensor&) { return numbers({1, 2, 3}); });
  check_message(message_of([&] { (x * 2).sum().backward(); }), {"hook", "[3] f64", "[2] f64"});
  check_message(message_of([&] { numbers({1}).register_hook([](const Tensor& g) { return g; }); }), {"require grad"});
}

TEST_CASE("grad(): for leaves and others, without touching grad") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * x;
  const Tensor z = (y * y).sum();
  const auto g = autograd::grad({z}, {y, x}, {}, {.retain_graph = true});
  CHECK(values(g[0]) == Values{2, 8});
  CHECK(values(g[1]) == Values{4, 32});
  CHECK(!x.grad().defined());
  const auto seeded = autograd::grad({y}, {x}, {numbers({1, 10})}, {.retain_graph = true});
  CHECK(values(seeded[0]) == Values{2, 40});
  const auto several = autograd::grad({z, y}, {x}, {Tensor(), numbers({1, 1})});
  CHECK(values(several[0]) == Values{4 + 2, 32 + 4});
}

TEST_CASE("grad(): stops at the tensors asked for") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * x;
  int below = 0;
  x.register_hook([&](const Tensor&) {
    ++below;
    return Tensor();
  });
  const auto g = autograd::grad({(y * 3).sum()}, {y});
  CHECK(values(g[0]) == Values{3, 3});
  CHECK(below == 0);
}

TEST_CASE("grad(): inputs that were not used") {
  const Tensor x = leaf({1});
  const Tensor other = leaf({1});
  const auto y = [&] { return (x * 2).sum(); };
  check_message(message_of([&] { autograd::grad({y()}, {x, other}); }), {"input 1", "allow_unused"});
  const auto g = autograd::grad({y()}, {x, other}, {}, {.allow_unused = true});
  CHECK(values(g[0]) == Values{2});
  CHECK(!g[1].defined());
  check_message(message_of([&] { autograd::grad({y()}, {numbers({1})}); }), {"does not require grad"});
}

TEST_CASE("create_graph: second and third derivatives with known values") {
  const Tensor x = leaf({2});
  const Tensor y = (x * x * x * x).sum();
  const Tensor first = autograd::grad({y}, {x}, {}, {.create_graph = true})[0];
  CHECK(values(first) == Values{32});
  const Tensor second = autograd::grad({first.sum()}, {x}, {}, {.create_graph = true})[0];
  CHECK(values(second) == Values{48});
  const Tensor third = autograd::grad({second.sum()}, {x})[0];
  CHECK(values(third) == Values{48});
}

TEST_CASE("create_graph: through a saved output, and mixed derivatives") {
  const Tensor x = leaf({0.5});
  const Tensor g = autograd::grad({exp(x).sum()}, {x}, {}, {.create_graph = true})[0];
  CHECK(g.requires_grad());
  const Tensor gg = autograd::grad({g.sum()}, {x})[0];
  CHECK(values(gg)[0] == doctest::Approx(std::exp(0.5)).epsilon(1e-14));

  const Tensor a = leaf({3});
  const Tensor b = leaf({5});
  const Tensor da = autograd::grad({(a * a * b).sum()}, {a}, {}, {.create_graph = true})[0];  // 2 a b
  da.sum().backward();
  CHECK(values(a.grad()) == Values{10});
  CHECK(values(b.grad()) == Values{6});
}

TEST_CASE("create_graph: a gradient penalty reaches the parameters") {
  const Tensor w = leaf({1, 2, 3, 4}, {2, 2});
  const Tensor x = leaf({1, -1}, {1, 2});
  const Tensor y = tanh(matmul(x, w)).sum();
  const Tensor dx = autograd::grad({y}, {x}, {}, {.create_graph = true})[0];
  square(dx).sum().backward();
  REQUIRE(w.grad().defined());
  const double h = 1e-6;
  const auto penalty = [&](double shift) {
    Tensor moved = w.detach().clone();
    moved.index({0, 1}).add_(shift);
    const Tensor z = x.detach().clone().set_requires_grad();
    return square(autograd::grad({tanh(matmul(z, moved)).sum()}, {z})[0]).sum().item();
  };
  CHECK(values(w.grad())[1] == doctest::Approx((penalty(h) - penalty(-h)) / (2 * h)).epsilon(1e-6));
}

TEST_CASE("leaves: requires_grad can be taken back and given again") {
  Tensor x = leaf({1});
  CHECK(x.is_leaf());
  const Tensor y = x * 2;
  CHECK(!y.is_leaf());
  x.set_requires_grad(false);
  CHECK(!(x * 2).requires_grad());
  x.set_requires_grad(true);
  (x * 2).sum().backward();
  CHECK(values(x.grad()) == Values{2});
  Tensor z = y;
  check_message(message_of([&] { z.set_requires_grad(false); }), {"mul", "detach"});
  Tensor index = arange(0, 3);
  check_message(message_of([&] { index.set_requires_grad(); }), {"i64"});
  CHECK(!cast(x, DType::i64).requires_grad());
}

TEST_CASE("leaves: the tape outlives its leaf") {
  Tensor y;
  const Tensor other = leaf({2});
  {
    const Tensor gone = leaf({3});
    y = (gone * other).sum();
  }
  y.backward();
  CHECK(values(other.grad()) == Values{3});
}

TEST_CASE("leaves: one that became a result, and went, gathers nothing for its past") {
  const Tensor other = leaf({5, 5});
  Tensor past;
  {
    Tensor w = leaf({1, 2});
    past = (w + other).sum();
    w.set_requires_grad(false);
    w.add_(other);  // a result now
    CHECK(!w.is_leaf());
    w.sum().backward();
    CHECK(values(other.grad()) == Values{1, 1});
    past.backward({}, true);
    CHECK(!w.grad().defined());
  }
  past.backward();
  CHECK(values(other.grad()) == Values{3, 3});
}

TEST_CASE("engine: gradients keep the dtype of what they belong to") {
  const Tensor x = leaf({1, 2}, {2}, DType::f16);
  const Tensor w = leaf({3, 4}, {2}, DType::f32);
  (x * w).sum().backward();
  CHECK(x.grad().dtype() == DType::f16);
  CHECK(w.grad().dtype() == DType::f32);
  CHECK(values(x.grad()) == Values{3, 4});
}

TEST_CASE("engine: a second backward through relu of a constant gradient adds nothing") {
  const Tensor x = leaf({-1, 2}, {2});
  const Tensor dx = autograd::grad({relu(x)}, {x}, {numbers({3, 4})}, {.create_graph = true})[0];
  sum(dx * x).backward();
  CHECK(values(x.grad()) == Values{0, 4});
}

TEST_CASE("engine: an overflowed gradient stays out of what relu and copies cut off") {
  const Tensor x = leaf({-1, 1}, {2});
  relu(x).backward(numbers({INFINITY, 1}));
  CHECK(values(x.grad()) == Values{0, 1});
  const Tensor z = leaf({1, 2});
  const Tensor y = z * 1;
  y.fill_(3);
  y.backward(numbers({INFINITY, NAN}));
  CHECK(values(z.grad()) == Values{0, 0});
}

// The numbers are PyTorch 2.15's.
TEST_CASE("engine: an overflowed gradient stays out of the smaller operand and of powers that are constant") {
  const auto gradients = [](const Values& a, const Values& b, const auto& op, const Values& dy) {
    const Tensor x = leaf(a);
    const Tensor y = leaf(b);
    op(x, y).backward(numbers(dy));
    return std::pair(values(x.grad()), values(y.grad()));
  };
  const auto largest = [](const Tensor& x, const Tensor& y) { return maximum(x, y); };
  const auto smallest = [](const Tensor& x, const Tensor& y) { return minimum(x, y); };
  const Values dy{INFINITY, INFINITY, 3};
  CHECK(gradients({1, 2, 5}, {2, 1, 5}, largest, dy) == std::pair(Values{0, INFINITY, 1.5}, Values{INFINITY, 0, 1.5}));
  CHECK(gradients({1, 2, 5}, {2, 1, 5}, smallest, dy) == std::pair(Values{INFINITY, 0, 1.5}, Values{0, INFINITY, 1.5}));
  // NaN is the result, and where it comes from is not to be lost on the way back.
  CHECK(gradients({NAN, 1}, {1, NAN}, largest, {2, 3}) == std::pair(Values{2, 3}, Values{2, 3}));
  CHECK(gradients({NAN, 1}, {1, NAN}, smallest, {2, 3}) == std::pair(Values{2, 3}, Values{2, 3}));

  const Tensor x = leaf({0, 2, -1});
  pow(x, 0).backward(numbers({INFINITY, -INFINITY, NAN}));
  CHECK(values(x.grad()) == Values{0, 0, 0});
  const auto power = [](const Tensor& b, const Tensor& e) { return pow(b, e); };
  CHECK(gradients({0}, {2}, power, {INFINITY}).second == Values{0});
  const Tensor e = leaf({2, 0});
  pow(0.0, e).backward(numbers({INFINITY, -INFINITY}));
  CHECK(values(e.grad()) == Values{0, 0});
}
