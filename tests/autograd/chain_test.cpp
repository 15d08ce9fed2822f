// Long tapes, leaks, threads and what is counted as saved for backward.
#include "helpers.h"

#include <sys/resource.h>

#include <thread>

using namespace gradual;
using namespace gradual::testing;

namespace {

std::int64_t saved_now() { return memory_stats()[Category::activations].current; }
std::int64_t bytes_now() { return memory_stats().total.current; }

// Runs f on a thread with a stack of 256 KiB: recursion over a long tape would end there.
void with_small_stack(const std::function<void()>& f) {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, 256 << 10) == 0);
  pthread_t thread{};
  const auto run = [](void* p) -> void* {
    (*static_cast<const std::function<void()>*>(p))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&f)) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace

TEST_CASE("chain: a million nodes forward, backward and gone, in a small stack") {
  constexpr int kNodes = 1'000'000;
  const std::int64_t bytes = bytes_now();
  double gradient = 0;
  std::size_t listed = 0;
  with_small_stack([&] {
    const Tensor x = leaf({1, 2});
    Tensor y = x;
    for (int i = 0; i < kNodes; ++i) y = y + 1;
    listed = Tape::of(y).nodes().size();
    y.backward(numbers({1, 3}));
    gradient = values(x.grad())[1];
  });
  CHECK(listed == kNodes + 1);
  CHECK(gradient == 3);
  CHECK(bytes_now() == bytes);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  MESSAGE("peak resident set: " << usage.ru_maxrss / 1024 << " MiB");
}

TEST_CASE("chain: dropped without a backward, with saved tensors in every node") {
  const std::int64_t bytes = bytes_now();
  with_small_stack([&] {
    const Tensor x = leaf({1, 2});
    Tensor y = x;
    for (int i = 0; i < 200'000; ++i) y = y * x;
    y = Tensor();
  });
  CHECK(bytes_now() == bytes);
}

TEST_CASE("chain: a long graph of a gradient's graph goes without recursion") {
  const std::int64_t bytes = bytes_now();
  with_small_stack([&] {
    const Tensor x = leaf({1});
    Tensor y = x;
    for (int i = 0; i < 20'000; ++i) y = y * 1.0001;
    const Tensor g = autograd::grad({(y * y).sum()}, {x}, {}, {.create_graph = true})[0];
    CHECK(autograd::grad({g.sum()}, {x})[0].defined());
  });
  CHECK(bytes_now() == bytes);
}

TEST_CASE("leaks: every byte and every saved byte is back when a graph is gone") {
  const auto step = [](bool backward, bool create_graph) {
    const Tensor x = leaf({1, 2, 3, 4}, {2, 2});
    const Tensor w = leaf({1, 0, 2, 1}, {2, 2});
    const Tensor loss = (softmax(tanh(matmul(x, w)), 1) * exp(x)).sum();
    if (create_graph) {
      const Tensor g = autograd::grad({loss}, {w}, {}, {.create_graph = true})[0];
      square(g).sum().backward();
    } else if (backward) {
      loss.backward();
    }
  };
  step(true, true);
  const std::int64_t bytes = bytes_now();
  const std::int64_t saved = saved_now();
  for (int i = 0; i < 3; ++i) {
    step(false, false);
    step(true, false);
    step(true, true);
  }
  CHECK(bytes_now() == bytes);
  CHECK(saved_now() == saved);
}

TEST_CASE("leaks: a failed backward keeps nothing either") {
  const std::int64_t bytes = bytes_now();
  const std::int64_t saved = saved_now();
  {
    const Tensor x = leaf({1, 2});
    const Tensor y = x * x;
    y.register_hook([](const Tensor&) -> Tensor { throw_error("hook"); });
    CHECK_THROWS_AS((exp(y) * y).sum().backward(), Error);
  }
  CHECK(bytes_now() == bytes);
  CHECK(saved_now() == saved);
}

TEST_CASE("saved: rises with the forward, falls with the backward") {
  const std::int64_t before = saved_now();
  const Tensor x = leaf(Values(1024, 0.5));
  const Tensor y = exp(x);
  const Tensor z = sin(y);
  CHECK(saved_now() == before + 1024 * 8);  // y: exp's output and sin's input, counted once
  const Tensor loss = z.sum();
  CHECK(saved_now() == before + 1024 * 8);
  loss.backward();
  CHECK(saved_now() == before);
  CHECK(memory_stats()[Category::gradients].current >= 1024 * 8);
}

TEST_CASE("saved: only tensors that a required gradient needs") {
  const Tensor x = leaf(Values(512, 2));
  const Tensor constant = numbers(Values(512, 3));
  const auto saved_by = [](const Tensor& y) {
    std::int64_t bytes = 0;
    for (const Tensor& t : Tape::of(y).nodes().back()->saved_tensors()) bytes += static_cast<std::int64_t>(t.nbytes());
    return bytes;
  };
  const Tensor by_constant = x * constant;
  CHECK(saved_by(by_constant) == 512 * 8);  // the constant alone
  CHECK(Tape::of(by_constant).nodes().back()->saved_tensors()[0].is_same(constant));
  CHECK(saved_by(x * x) == 2 * 512 * 8);
  CHECK(saved_by(x * 2) == 0);
  CHECK(saved_by(x + constant) == 0);
  CHECK(saved_by(x - x) == 0);
  CHECK(saved_by(x.sum()) == 0);
  const Tensor a = leaf(Values(6, 1), {2, 3});
  const Tensor b = from_data(Values(12, 1), {3, 4}, {.dtype = DType::f64});
  CHECK(saved_by(matmul(a, b)) == 12 * 8);  // b, for a's gradient
  const NoGrad off;
  CHECK(!(x * x).requires_grad());
}

TEST_CASE("threads: independent graphs at the same time") {
  std::vector<Values> results(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      const Tensor x = leaf({1, 2, 3});
      for (int i = 0; i < 200; ++i) {
        const Tensor y = (x * x * static_cast<double>(t + 1)).sum();
        y.backward();
      }
      results[t] = values(x.grad());
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::size_t t = 0; t < results.size(); ++t) {
    const double k = 400.0 * static_cast<double>(t + 1);
    CHECK(results[t] == Values{k, 2 * k, 3 * k});
  }
}

TEST_CASE("threads: a graph built in one and run in another") {
  const Tensor x = leaf({2});
  Tensor y;
  std::thread([&] { y = (x * x * x).sum(); }).join();
  std::thread([&] { y.backward(); }).join();
  CHECK(values(x.grad()) == Values{12});
  CHECK(saved_now() >= 0);
}
