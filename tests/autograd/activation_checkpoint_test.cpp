#include "helpers.h"

#include <cstring>
#include <tuple>

using namespace gradual;
using namespace gradual::testing;

namespace {

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0;
}

// Two layers with dropout, a residual and captured weights; every value and gradient that comes out.
std::vector<Tensor> run(bool checkpointed, bool residual, bool autocast) {
  manual_seed(11);
  const Tensor x = rand({16, 32}).set_requires_grad();
  const Tensor w1 = randn({32, 32}).set_requires_grad();
  const Tensor w2 = randn({32, 32}).set_requires_grad();
  const auto block = [&](const Tensor& h) {
    const Tensor a = dropout(tanh(matmul(h, w1)), 0.5);
    return dropout(matmul(a, w2), 0.25) * h + h;  // h three times
  };
  Tensor loss;
  {
    const amp::Autocast scope({.dtype = DType::bf16, .enabled = autocast});
    Tensor y = x * 2;
    for (int i = 0; i < 3; ++i) {
      const Tensor out = checkpointed ? checkpoint(block, y) : block(y);
      y = residual ? y + out : out;
    }
    loss = square(y).mean();
  }
  loss.backward();
  return {loss.detach(), x.grad(), w1.grad(), w2.grad(), rand({4})};
}

}  // namespace

TEST_CASE("checkpoint: the same bits as without; dropout, residuals, autocast that has ended by then") {
  for (const int variant : {0, 1, 2, 3}) {
    const auto plain = run(false, variant & 1, variant & 2);
    const auto saved = run(true, variant & 1, variant & 2);
    CAPTURE(variant);
    CHECK(plain[2].defined());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      CAPTURE(i);
      CHECK(same_bits(plain[i], saved[i]));
    }
  }
}

TEST_CASE("checkpoint: slices of an input and of a captured tensor keep the signs of zeros") {
  const Tensor w = numbers({-0.0, 1});
  const auto gradients = [&](bool checkpointed) {
    const Tensor x = leaf({1, 2, 3, 4});
    const Tensor held = leaf({5, 6, 7, 8, 9});
    const auto block = [&](const Tensor& h) {
      return (h.narrow(0, 0, 2) * w + h.narrow(0, 2, 2) * w + held.narrow(0, 1, 2) * w + held.narrow(0, 3, 2) * w)
          .sum();
    };
    (checkpointed ? checkpoint(block, x) : block(x)).backward();
    return std::vector<Tensor>{x.grad(), held.grad()};
  };
  const auto plain = gradients(false);
  const auto saved = gradients(true);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], saved[i]));
  CHECK(std::signbit(saved[0].select(0, 2).item()));
}

TEST_CASE("checkpoint: keeps less for backward") {
  const auto saved_after_forward = [](bool checkpointed) {
    const Tensor x = leaf(Values(4096, 0.1));
    const auto block = [](const Tensor& h) { return exp(sin(tanh(exp(sin(h))))); };
    const std::int64_t before = memory_stats()[Category::activations].current;
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = checkpointed ? checkpoint(block, y) : block(y);
    const std::int64_t kept = memory_stats()[Category::activations].current - before;
    y.sum().backward();
    CHECK(memory_stats()[Category::activations].current == before);
    return kept;
  };
  const std::int64_t plain = saved_after_forward(false);
  const std::int64_t saved = saved_after_forward(true);
  CHECK(plain == 13 * 4096 * 8);  // the input, then exp, tanh and exp of each block
  CHECK(saved == 4 * 4096 * 8);   // the input of each block
}

TEST_CASE("checkpoint: parameters get gradients where no input requires grad") {
  const Tensor table = leaf({1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor tokens = from_data(std::vector<std::int64_t>{2, 0, 2}, {3});
  const auto look = [&](const Tensor& i) { return square(embedding(table, i)); };
  const Tensor y = checkpoint(look, tokens);
  CHECK(y.requires_grad());
  y.sum().backward();
  CHECK(values(table.grad()) == Values{2, 4, 0, 0, 20, 24});
}

TEST_CASE("checkpoint: grad() reaches what the segment captured, and nothing else is touched") {
  const Tensor x = leaf({2});
  const Tensor w = leaf({3});
  const Tensor other = leaf({5});
  const Tensor y = checkpoint([&](const Tensor& h) { return h * w * other; }, x);
  const auto g = autograd::grad({y.sum()}, {w, x});
  CHECK(values(g[0]) == Values{10});
  CHECK(values(g[1]) == Values{15});
  CHECK(!w.grad().defined());
  CHECK(!other.grad().defined());
}

TEST_CASE("checkpoint: a captured tensor that is no leaf") {
  const Tensor x = leaf({2});
  const Tensor a = x * x;  // used inside and outside
  int calls = 0;
  a.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Tensor y = checkpoint([&](const Tensor& h) { return h * a; }, x);
  (y + a).sum().backward();  // x^3 + x^2
  CHECK(values(x.grad()) == Values{12 + 4});
  CHECK(calls == 1);
}

TEST_CASE("checkpoint: segments inside segments, several inputs and outputs, retain_graph") {
  const Tensor x = leaf({2});
  const Tensor w = leaf({3});
  int forwards = 0;
  const auto inner = [&](const Tensor& h) {
    ++forwards;
    return h * h * w;
  };
  const auto outer = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{checkpoint(inner, in[0]) + in[1], in[1]};
  };
  const auto y = checkpoint(outer, std::vector<Tensor>{x, w});
  const Tensor loss = (y[0] * y[1]).sum();  // (x^2 w + w) w
  CHECK(loss.item() == (4 * 3 + 3) * 3);
  CHECK(forwards == 1);
  loss.backward({}, true);
  CHECK(values(x.grad()) == Values{2 * 2 * 3 * 3});
  CHECK(values(w.grad()) == Values{2 * 4 * 3 + 2 * 3});
  CHECK(forwards == 3);  // once in the outer recomputation, once in its own
  loss.backward();
  CHECK(values(x.grad()) == Values{2 * 36});
  check_message(message_of([&] { loss.backward(); }), {"freed", "retain_graph"});
}

TEST_CASE("checkpoint: second derivatives") {
  const Tensor x = leaf({2});
  const Tensor w = leaf({3});
  const auto y = checkpoint([&](const Tensor& h) { return h * h * h * w; }, x);
  const Tensor g = autograd::grad({y.sum()}, {x}, {}, {.create_graph = true})[0];  // 3 x^2 w
  CHECK(values(g) == Values{36});
  const auto gg = autograd::grad({g.sum()}, {x, w});
  CHECK(values(gg[0]) == Values{36});  // 6 x w
  CHECK(values(gg[1]) == Values{12});  // 3 x^2
}

TEST_CASE("checkpoint: forward's state comes back, the thread's own stays") {
  const Tensor x = leaf({2});
  std::vector<std::string> modules;
  std::vector<bool> again, recording;
  const auto f = [&](const Tensor& h) {
    modules.emplace_back(context().module);
    again.push_back(recomputing());
    recording.push_back(grad_enabled());
    return h * h;
  };
  Tensor y;
  {
    const ModuleScope scope("block.0");
    y = checkpoint(f, x);
  }
  y.sum().backward();
  CHECK(modules == std::vector<std::string>{"block.0", "block.0"});
  CHECK(again == std::vector<bool>{false, true});
  CHECK(recording == std::vector<bool>{false, true});
  CHECK(!recomputing());
  CHECK(std::string(context().module).empty());
}

TEST_CASE("checkpoint: products are computed again as forward's were: TF32, accumulators") {
  const auto gradient = [](bool checkpointed, auto&& run) {
    const Tensor x = full({2, 2}, 1 + 0x1p-11 + 0x1p-12, {.requires_grad = true});
    const Tensor w = full({2, 2}, 1 + 0x1p-12);
    const auto f = [&](const Tensor& h) { return square(matmul(h, w)); };
    run([&] { return checkpointed ? checkpoint(f, x) : f(x); }).sum().backward();
    return values(x.grad());
  };
  const auto tf32 = [](const auto& forward) {
    const MatmulPrecisionScope scope(MatmulPrecision::tf32);
    return forward();
  };
  const auto bf16_sums = [](const auto& forward) {
    const AccumulatorScope scope(accumulator("bf16-acc"));
    return forward();
  };
  const auto plain = [](const auto& forward) { return forward(); };
  CHECK(gradient(true, tf32) == gradient(false, tf32));
  CHECK(gradient(true, bf16_sums) == gradient(false, bf16_sums));
  CHECK(gradient(true, tf32) != gradient(true, plain));
  CHECK(gradient(true, bf16_sums) != gradient(true, plain));
}

TEST_CASE("checkpoint: batch norm's running statistics advance once") {
  const auto statistics = [](bool checkpointed) {
    manual_seed(3);
    nn::BatchNorm1d norm(4);
    const Tensor x = randn({8, 4}).set_requires_grad();
    const auto f = [&](const Tensor& h) { return norm(h); };
    (checkpointed ? checkpoint(f, x) : f(x)).sum().backward();
    CHECK(norm.num_batches_tracked.item() == 1);
    return std::pair(values(norm.running_mean), values(norm.running_var));
  };
  CHECK(statistics(false) == statistics(true));
}

TEST_CASE("checkpoint: an exception in the recomputation leaves the thread clean") {
  const Tensor x = leaf({2});
  int calls = 0;
  const auto f = [&](const Tensor& h) -> Tensor {
    if (++calls == 2) throw_error("the second time");
    return h * h;
  };
  const Tensor y = checkpoint(f, x).sum();
  CHECK_THROWS_WITH(y.backward(), "the second time");
  CHECK(!recomputing());
  CHECK(grad_enabled());
  CHECK(autograd::Engine::current() == nullptr);
  CHECK(!x.grad().defined());
  (x * 3).sum().backward();
  CHECK(values(x.grad()) == Values{3});
}

TEST_CASE("checkpoint: an edited input is an error, without recording it just runs") {
  const Tensor x = leaf({2});
  const Tensor h = x * 2;
  const Tensor y = checkpoint([](const Tensor& t) { return t * t; }, h).sum();
  h.add_(1);
  check_message(message_of([&] { y.backward(); }), {"checkpoint", "changed in place"});
  const NoGrad off;
  CHECK(!checkpoint([](const Tensor& t) { return t * t; }, x).requires_grad());
}

TEST_CASE("checkpoint: random numbers of a generator of one's own, and segments inside segments") {
  const auto gradients = [](bool checkpointed) {
    manual_seed(5);
    Generator own(9);
    const Tensor x = leaf(Values(64, 1));
    const auto inner = [&](const Tensor& h) { return dropout(h * h, 0.5, own) + dropout(h, 0.5); };
    const auto outer = [&](const Tensor& h) {
      const Tensor a = dropout(h, 0.25, own);
      const Tensor b = checkpointed ? checkpoint(inner, a) : inner(a);
      return dropout(b * b, 0.5, own);
    };
    const Tensor y = checkpointed ? checkpoint(outer, x) : outer(x);
    y.sum().backward();
    return std::tuple(values(y), values(x.grad()), own.stream(), default_generator().stream());
  };
  CHECK(gradients(false) == gradients(true));
}

TEST_CASE("checkpoint: a segment that draws more when it runs again is an error") {
  const Tensor x = leaf({1, 2});
  int calls = 0;
  const auto f = [&](const Tensor& h) { return ++calls == 1 ? h * 2 : dropout(h, 0.5); };
  const Tensor y = checkpoint(f, x).sum();
  check_message(message_of([&] { y.backward(); }), {"draws more"});
}
