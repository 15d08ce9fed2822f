// In-place writes: what they may touch, what they do to gradients, and what notices them.
#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

TEST_CASE("versions: an edited saved input is an error that names op, shape and versions") {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = x * 2;
  const Tensor z = (y * y).sum();
  y.mul_(2);
  const std::string message = message_of([&] { z.backward(); });
  check_message(message, {"mul", "version_test.cpp", "[3] f64", "version 1", "version 0", "clone"});
  CHECK(!x.grad().defined());
}

TEST_CASE("versions: an edited saved output, and an edit through a view") {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = exp(x);
  const Tensor z = y.sum();
  {
    const NoGrad off;
    y.narrow(0, 0, 1).fill_(7);
  }
  check_message(message_of([&] { z.backward(); }), {"exp", "changed in place"});
}

TEST_CASE("versions: an edit of what nothing saved is fine") {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = x + 1;
  const Tensor z = (y + y).sum();
  y.mul_(2);
  z.backward();
  CHECK(values(x.grad()) == Values{2, 2, 2});
}

TEST_CASE("versions: parameters stepped between forward and backward") {
  const Tensor w = leaf({1, 2});
  const Tensor x = leaf({3, 4});
  const Tensor loss = (w * x).sum();
  {
    const NoGrad off;
    w.add_(1);
  }
  check_message(message_of([&] { loss.backward(); }), {"mul", "changed in place"});
}

TEST_CASE("in place: gradients of add_, mul_, copy_ and fill_") {
  const Tensor x = leaf({1, 2});
  const Tensor w = leaf({3, 4});
  SUBCASE("add_ with alpha") {
    const Tensor y = x * 2;
    y.add_(w, 5).add_(1);
    CHECK(values(y) == Values{18, 25});
    (y * numbers({1, 10})).sum().backward();
    CHECK(values(x.grad()) == Values{2, 20});
    CHECK(values(w.grad()) == Values{5, 50});
  }
  SUBCASE("add_ that broadcasts") {
    const Tensor b = leaf({1}, {1});
    const Tensor y = x * 2;
    y.add_(b);
    y.sum().backward();
    CHECK(values(b.grad()) == Values{2});
  }
  SUBCASE("mul_ by a tensor and by a number") {
    const Tensor y = x * 2;
    y.mul_(w).mul_(10);
    CHECK(values(y) == Values{60, 160});
    y.sum().backward();
    CHECK(values(x.grad()) == Values{60, 80});
    CHECK(values(w.grad()) == Values{20, 40});  // the value before the write
  }
  SUBCASE("mul_ by itself") {
    const Tensor y = x * 2;
    y.mul_(y);
    CHECK(values(y) == Values{4, 16});
    y.sum().backward();
    CHECK(values(x.grad()) == Values{8, 16});
  }
  SUBCASE("copy_ cuts the old value off") {
    const Tensor y = x * 2;
    y.copy_(w);
    (y * y).sum().backward();
    CHECK(values(x.grad()) == Values{0, 0});
    CHECK(values(w.grad()) == Values{6, 8});
  }
  SUBCASE("copy_ into a fresh tensor, other dtype") {
    const Tensor y = zeros({2});
    y.copy_(w);
    CHECK(!y.is_leaf());
    (y * 2).sum().backward();
    CHECK(w.grad().dtype() == DType::f64);
    CHECK(values(w.grad()) == Values{2, 2});
  }
  SUBCASE("fill_") {
    const Tensor y = x * 2;
    y.fill_(7);
    (y * w).sum().backward();
    CHECK(values(x.grad()) == Values{0, 0});
    CHECK(values(w.grad()) == Values{7, 7});
  }
}

TEST_CASE("in place: second derivatives see the value before the write") {
  const Tensor x = leaf({3});
  const Tensor w = leaf({5});
  const Tensor y = x * 2;
  y.mul_(w);                                                                        // y = 2 x w
  const Tensor dw = autograd::grad({y.sum()}, {w}, {}, {.create_graph = true})[0];  // 2 x
  CHECK(values(dw) == Values{6});
  const Tensor dwdx = autograd::grad({dw.sum()}, {x})[0];
  CHECK(values(dwdx) == Values{2});
}

TEST_CASE("in place: refused, naming the functional form") {
  const Tensor x = leaf({1, 2});
  const Tensor w = leaf({3, 4});
  check_message(message_of([&] { x.add_(2.5); }), {"add_: [2] f64 x 2.5: ", "leaf", "add(x", "NoGrad"});
  check_message(message_of([&] { x.mul_(w); }), {"mul_", "[2] f64", "leaf", "mul(x"});
  CHECK(values(x) == Values{1, 2});

  const Tensor y = x * 2;
  const Tensor view = y.narrow(0, 0, 1);
  check_message(message_of([&] { y.mul_(2); }), {"shares storage", "mul(x"});
  check_message(message_of([&] { view.fill_(2); }), {"shares storage", "fill(x"});
  check_message(message_of([&] { x.narrow(0, 0, 1).add_(1); }), {"shares storage"});
  CHECK(values(y) == Values{2, 4});

  const Tensor buffer = zeros({2}, {.dtype = DType::f64});  // a view would take the gradient, the buffer would not
  check_message(message_of([&] { buffer.narrow(0, 0, 1).copy_(y.detach().narrow(0, 0, 1) * w.narrow(0, 0, 1)); }),
                {"shares storage"});
  const Tensor numbers = arange(0, 2);
  check_message(message_of([&] { numbers.copy_(w); }), {"floating"});
}

TEST_CASE("in place: free under no_grad and on tensors without gradients") {
  const Tensor x = leaf({1, 2});
  {
    const NoGrad off;
    x.add_(1);
    x.narrow(0, 0, 1).fill_(9);
  }
  CHECK(values(x) == Values{9, 3});
  CHECK(x.is_leaf());
  const Tensor plain = numbers({1, 2});
  plain.narrow(0, 1, 1).add_(5);
  CHECK(values(plain) == Values{1, 7});
  CHECK(plain.version() == 1);
}

TEST_CASE("in place: hooks and the chain of writes") {
  const Tensor x = leaf({1, 2});
  Tensor y = x * 1;
  for (int i = 0; i < 5; ++i) y.mul_(2).add_(x);
  // y -> 2 y + x, five times: 32 x + 31 x
  CHECK(values(y) == Values{63, 126});
  y.sum().backward();
  CHECK(values(x.grad()) == Values{63, 63});
}
