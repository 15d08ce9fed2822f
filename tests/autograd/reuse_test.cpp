// What backward holds at once, and results in the memory of operands that nobody else can see.
// NOLINTBEGIN(bugprone-use-after-move): what a tensor is after a move is under test
#include <functional>
#include <utility>

#include "gradual/core/observe/observer.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

constexpr std::int64_t kElements = 1 << 20;
constexpr std::int64_t kBytes = kElements * 4;

std::int64_t total() { return memory_stats().total.current; }
std::int64_t activations() { return memory_stats()[Category::activations].current; }

// What f needed above what was in use before, in tensors of kBytes; small ones do not count.
double peak_of(const std::function<void()>& f) {
  reset_peak_memory();
  const std::int64_t before = total();
  f();
  return static_cast<double>((memory_stats().total.peak - before) * 10 / kBytes) / 10;
}

}  // namespace

TEST_CASE("memory: backward frees what a node saved as soon as its rule has run") {
  const Tensor x = full({kElements}, 0.5, {.requires_grad = true});
  Tensor y = x;
  std::vector<std::int64_t> kept;
  for (int i = 0; i < 6; ++i) {
    y = tanh(y);
    y.register_hook([&](const Tensor& g) {
      kept.push_back(activations());
      return g;
    });
  }
  const std::int64_t all = activations();
  CHECK(all >= 6 * kBytes);
  y = y.sum();
  y.backward();
  REQUIRE(kept.size() == 6);
  for (std::size_t i = 0; i < kept.size(); ++i) CHECK(kept[i] == all - static_cast<std::int64_t>(i) * kBytes);
  CHECK(activations() == all - 6 * kBytes);
}

TEST_CASE("memory: backward of a chain needs a few tensors at once, however long it is") {
  for (const int length : {2, 12}) {
    const Tensor x = full({kElements}, 0.5, {.requires_grad = true});
    Tensor y = x;
    for (int i = 0; i < length; ++i) y = tanh(y);
    y = y.sum();
    CAPTURE(length);
    // The gradient, which every rule writes over, and one square of an output; 1 - square lies in it.
    CHECK(peak_of([&] { y.backward(); }) <= 2);
    CHECK(x.grad().is_contiguous());
    const Tensor again = full({kElements}, 0.5, {.requires_grad = true});
    y = again;
    for (int i = 0; i < length; ++i) y = tanh(y);
    y.sum().backward({}, true);  // what is retained is not written over
    CHECK(values(x.grad()) == values(again.grad()));
  }
}

TEST_CASE("memory: what relu or gelu was taken of is freed before the gradient of the weight is computed") {
  const Tensor x = full({1024, 1024}, 0.5);
  const Tensor b = zeros({1024});
  using Layer = Tensor (*)(const Tensor& in, const Tensor& weight, const Tensor& bias);
  for (const Layer layer : {Layer([](auto& in, auto& w, auto& bias) { return linear_relu(in, w, bias); }),
                            Layer([](auto& in, auto& w, auto& bias) { return linear_gelu(in, w, bias); })}) {
    const Tensor w = full({1024, 1024}, 0.5, {.requires_grad = true});
    const auto loss = [&] { return layer(x, w, b).sum(); };
    Tensor y = loss();
    CHECK(peak_of([&] { y.backward(); }) < 2);  // the gradient at the sum, the weight's, and scratch
    const Tensor once = w.grad();
    w.zero_grad();
    CHECK_THROWS_AS(y.backward(), Error);
    y = loss();
    y.backward({}, true);
    y.backward();
    CHECK(values(w.grad()) == values(once * 2));
  }
}

TEST_CASE("memory: gradients that meet are added in the memory of one of them") {
  const Tensor x = full({kElements}, 0.5, {.requires_grad = true});
  const Tensor w = full({kElements}, 3);
  Tensor y = (x * w + x * w + x * w + x * w).sum();
  CHECK(peak_of([&] { y.backward(); }) <= 3);  // the sum's own, the one gathered, the next to add
  CHECK(x.grad().min().item() == 12);
  CHECK(x.grad().max().item() == 12);
}

TEST_CASE("memory: gradients of many slices are written into one") {
  const Tensor x = full({8, kElements / 8}, 0.5, {.requires_grad = true});
  const auto loss = [&] {
    Tensor sum = x.narrow(0, 0, 1) * 0;
    for (int i = 0; i < 8; ++i) sum = sum + x.narrow(0, i, 1) * (i + 1);
    return (sum + slice(x, 0, {0, 8, 7}).sum({0}, true) * 100).sum();
  };
  const Tensor y = loss();
  CHECK(peak_of([&] { y.backward(); }) <= 1.7);  // x's, and parts: not another of x's size for each slice
  const Tensor whole =
      autograd::grad(std::vector<Tensor>{loss()}, std::vector<Tensor>{x}, {}, {.create_graph = true})[0];
  for (int i = 0; i < 8; ++i) {
    const double expected = i + 1 + (i % 7 == 0 ? 100 : 0);
    CHECK(x.grad().narrow(0, i, 1).min().item() == expected);
    CHECK(x.grad().narrow(0, i, 1).max().item() == expected);
    CHECK(whole.narrow(0, i, 1).max().item() == expected);
  }
}

TEST_CASE("gradients of slices have the numbers of composed ones, in whatever order and place they arrive") {
  using Part = std::pair<std::int64_t, std::int64_t>;  // from, to: of a dim of 6
  const std::vector<std::vector<Part>> cases = {
      {{0, 2}, {2, 4}, {4, 6}},          // from the last on
      {{4, 6}, {2, 4}, {0, 2}},          // from the first on
      {{0, 6}},                          // all of it
      {{0, 2}},                          // the rest is zeros
      {{4, 6}},                          //
      {{2, 4}},                          // in the middle
      {{2, 4}, {4, 6}},                  // a gap at one end
      {{2, 4}, {0, 2}},                  //
      {{0, 2}, {4, 6}},                  // a gap between
      {{1, 3}, {2, 6}},                  // one over the other
      {{0, 4}, {3, 5}, {2, 2}, {4, 6}},  // and an empty one
      {{0, 3}, {3, 6}, {0, 3}},          // twice
      {{3, 6}, {3, 6}},
  };
  for (const int dim : {0, 1}) {
    for (const bool more : {false, true}) {
      for (const auto& parts : cases) {
        CAPTURE(dim);
        CAPTURE(more);
        CAPTURE(&parts - cases.data());
        const Tensor x = full({6, 6}, 0.5, {.requires_grad = true});
        const auto loss = [&] {
          const Tensor h = x * 2;
          Tensor sum = h.narrow(1 - dim, 0, 1).sum() * 0;  // of the other dim, last
          double k = 1;
          for (const auto& part : parts) {
            sum = sum + (h.narrow(dim, part.first, part.second - part.first) * k++).sum();
            if (more && k == 2) sum = sum + (h * h).sum();  // what is no slice arrives between
          }
          return sum;
        };
        loss().backward();
        const Tensor want =
            autograd::grad(std::vector<Tensor>{loss()}, std::vector<Tensor>{x}, {}, {.create_graph = true})[0];
        CHECK(values(x.grad()) == values(want));
      }
    }
  }
}

TEST_CASE("gradients of slices are not written into expanded tensors, nor into shared memory") {
  const auto gradient = [](const std::function<Tensor(const Tensor&)>& loss, const Shape& sizes) {
    const Tensor x = full(sizes, 1, {.requires_grad = true});
    loss(x).backward();
    return x.grad().to_vector<double>();
  };
  using Doubles = std::vector<double>;
  const auto first = [](const Tensor& t) { return t.narrow(0, 0, 1).sum() * 2; };
  CHECK(gradient([&](const Tensor& x) { return first(x) + x.sum() * 3; }, {2, 2}) == Doubles{5, 5, 3, 3});
  CHECK(gradient([&](const Tensor& x) { return first(x) + x.mean() * 4; }, {2, 2}) == Doubles{3, 3, 1, 1});
  CHECK(gradient([&](const Tensor& x) { return first(x) + (x.sum({0}) * 3).sum(); }, {2, 2}) == Doubles{5, 5, 3, 3});
  CHECK(gradient([&](const Tensor& x) { return first(x) + (x.sum({1}, true) * 3).sum(); }, {2, 2}) ==
        Doubles{5, 5, 3, 3});
  const auto pooled = [](const Tensor& x) {  // one token and the mean of all
    const Tensor h = x * 2;
    return (h.narrow(1, 0, 1) * 2).sum() + (h.mean({1}) * 4).sum();
  };
  CHECK(gradient(pooled, {1, 4, 2}) == Doubles{6, 6, 2, 2, 2, 2, 2, 2});

  std::vector<float> lent(4, 1);
  struct Lends : Function {
    explicit Lends(std::vector<float>& own) : memory(own) {}
    std::vector<Tensor> forward(const std::vector<Tensor>& in) override { return {in[0] * 1}; }
    std::vector<Tensor> backward(const std::vector<Tensor>&) override {
      return {from_blob(memory.data(), {2, 2}, DType::f32)};
    }
    std::vector<float>& memory;
  };
  const Tensor x = full({2, 2}, 1, {.requires_grad = true});
  const Tensor a = x.narrow(0, 0, 1).sum() * 2;
  const Tensor b = apply(std::make_shared<Lends>(lent), {x})[0];
  (a + b.sum()).backward();
  CHECK(lent == std::vector<float>(4, 1));
  CHECK(x.grad().to_vector<double>() == Doubles{3, 3, 1, 1});
}

TEST_CASE("memory: an op reuses the memory of a temporary") {
  const NoGrad off;
  const Tensor x = numbers({1, 2, 3});
  Tensor t = x + 1;
  void* const place = t.raw();
  SUBCASE("the only handle") {
    const std::uint32_t version = t.version();
    const Tensor u = std::move(t) * 2;
    CHECK(u.raw() == place);
    CHECK(!t.defined());
    CHECK(u.version() != version);
    CHECK(values(u) == Values{4, 6, 8});
  }
  SUBCASE("the right operand") {
    const Tensor u = 10 - std::move(t);
    CHECK(u.raw() == place);
    CHECK(values(u) == Values{8, 7, 6});
  }
  SUBCASE("a chain has one buffer") {
    reset_peak_memory();
    const std::int64_t before = total();
    const Tensor u = (((x + 1) * 2 + x) / 2 - x) * x;
    CHECK(values(u) == Values{1.5, 4, 7.5});
    CHECK(memory_stats().total.peak - before == static_cast<std::int64_t>(u.nbytes()));
  }
}

TEST_CASE("memory: an op does not write to memory that another tensor shares") {
  const NoGrad off;
  const Tensor x = numbers({1, 2, 3});
  Tensor t = x + 1;
  SUBCASE("another handle") {
    const Tensor other = t;
    CHECK(values(std::move(t) * 2) == Values{4, 6, 8});
    CHECK(values(other) == Values{2, 3, 4});
  }
  SUBCASE("a view") {
    const Tensor other = t.narrow(0, 1, 2);
    CHECK(values(std::move(t) * 2) == Values{4, 6, 8});
    CHECK(values(other) == Values{3, 4});
  }
  SUBCASE("both operands are one") {
    const Tensor other = t;
    CHECK(values(std::move(t) * Tensor(other)) == Values{4, 9, 16});
    CHECK(values(other) == Values{2, 3, 4});
  }
  SUBCASE("a temporary handle is not a leaf") {
    CHECK(values(t * 2) == Values{4, 6, 8});
    CHECK(values(t) == Values{2, 3, 4});
  }
  SUBCASE("memory of somebody else") {
    double mine[] = {1, 2};
    CHECK(values(from_blob(mine, {2}, DType::f64) * 2) == Values{2, 4});
    CHECK(mine[1] == 2);
  }
  SUBCASE("another shape or dtype") {
    CHECK(values(std::move(t) * ones({2, 3}, {.dtype = DType::f64})) == Values{2, 3, 4, 2, 3, 4});
    CHECK((x + 1 == numbers({2, 2, 2})).dtype() == DType::bool_);
    CHECK(values(from_data(std::vector<float>{1, 2, 3}, {3}) * x) == Values{1, 4, 9});
  }
  SUBCASE("an observer sees every operand as it was") {
    struct Look : Observer {
      Values seen;
      void after(const OpCall& call, const Outputs&, const CallRecord&) override { seen = values(call[0].clone()); }
    } look;
    const ObserverScope scope(look);
    CHECK(values(std::move(t) * 2) == Values{4, 6, 8});
    CHECK(look.seen == Values{2, 3, 4});
  }
}

TEST_CASE("memory: a temporary that a node saved is not overwritten") {
  const Tensor w = leaf({3, 4});
  const Tensor x = leaf({1, 2});
  Tensor t = x + 1;
  Tensor y = std::move(t) * w;  // saves both
  Tensor z = exp(y);            // saves its output
  z = std::move(z) * 2;
  CHECK(values(z) == Values{2 * std::exp(6.0), 2 * std::exp(12.0)});
  z.sum().backward();
  CHECK(values(w.grad()) == Values{2 * std::exp(6.0) * 2, 2 * std::exp(12.0) * 3});
  CHECK(values(x.grad()) == Values{2 * std::exp(6.0) * 3, 2 * std::exp(12.0) * 4});
}

TEST_CASE("memory: gradients that others hold keep their numbers") {
  const Tensor x = leaf({1, 2});
  const Tensor seed = numbers({1, 10});
  std::vector<Tensor> held;
  Tensor y = x;
  for (int i = 0; i < 3; ++i) {
    y = tanh(y) * 2;
    y.register_hook([&](const Tensor& g) {
      held.push_back(g);
      return g;
    });
  }
  std::vector<Values> then;
  y.register_hook([&](const Tensor& g) {
    then.push_back(values(g));
    return g;
  });
  y.backward(seed);
  CHECK(values(seed) == Values{1, 10});
  REQUIRE(held.size() == 3);
  CHECK(values(held[0]) == Values{1, 10});
  const std::vector<Tensor> again = [&] {
    Tensor a = x;
    std::vector<Tensor> steps;
    for (int i = 0; i < 3; ++i) steps.push_back(a = tanh(a) * 2);
    return autograd::grad({a}, {steps[2], steps[1], steps[0]}, {seed});
  }();
  for (std::size_t i = 0; i < 3; ++i) CHECK(values(held[i]) == values(again[i]));
  SUBCASE("captured ones too") {
    CHECK(values(again[0]) == Values{1, 10});
    CHECK(!again[1].shares_storage(again[2]));
  }
}

TEST_CASE("gradients of several leaves lie apart, with create_graph too") {
  for (const bool create_graph : {false, true}) {
    CAPTURE(create_graph);
    const Tensor a = ones({3}, {.requires_grad = true});
    const Tensor b = ones({3}, {.requires_grad = true});
    (a + b).sum().backward({}, false, create_graph);
    CHECK_FALSE(a.grad().shares_storage(b.grad()));
    (a + b).sum().backward();
    CHECK(values(a.grad()) == Values{2, 2, 2});
    CHECK(values(b.grad()) == Values{2, 2, 2});
    const Tensor seed = ones({3});
    const Tensor leaf = ones({3}, {.requires_grad = true});
    leaf.backward(seed, false, create_graph);
    leaf.backward(seed);
    CHECK(values(seed) == Values{1, 1, 1});
  }
}
// NOLINTEND(bugprone-use-after-move)
