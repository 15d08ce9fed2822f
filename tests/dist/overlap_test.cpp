#include <doctest/doctest.h>
#include <gradual/autograd/activation_checkpoint.h>
#include <gradual/autograd/function.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/dist/data_parallel.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/thread_ranks.h"
#include "support/files.h"

using namespace gradual;
using namespace gradual::dist;
using test::message_of;

namespace {

// Parameters that are shared, sliced, used in a checkpointed segment, on some ranks or never, frozen, or have a hook.
struct Odd : nn::Module {
  explicit Odd(bool with_segment) : segment(with_segment) {
    manual_seed(1);
    for (const auto& [name, p] : {std::pair("shared", &shared), {"inner", &inner}, {"table", &table}})
      *p = register_parameter(name, mul(randn({6, 6}), 0.3));
    for (const auto& [name, p] : {std::pair("twice", &twice), {"sometimes", &sometimes}, {"never", &never}})
      *p = register_parameter(name, randn({6}));
    hooked = register_parameter("hooked", randn({6}));
    frozen = register_parameter("frozen", randn({6}), false);
    last = register_parameter("last", randn({4, 6}));
    hooked.register_hook([](const Tensor& g) { return mul(g, 3.0); });
  }
  Tensor forward(const Tensor& x) override {
    const auto middle = [this](const Tensor& t) { return tanh(add(matmul(t, inner), mul(twice, hooked))); };
    Tensor h = add(matmul(x, shared), table.narrow(0, 0, 1));
    h = segment ? checkpoint(middle, h) : middle(h);
    h = add(matmul(h, shared), add(add(table.narrow(0, 3, 2).sum(), twice), frozen));
    if (x.narrow(0, 0, 1).narrow(1, 0, 1).item() > 0) h = mul(h, sometimes);
    return linear(h, last);
  }
  Tensor shared, inner, table, twice, sometimes, never, hooked, frozen, last;
  bool segment;
};

// Of all parameters after three calls of backward; empty: none.
std::vector<std::vector<float>> gradients(int ranks, std::int64_t bucket_bytes, bool segment, bool half,
                                          std::int64_t samples = 11) {
  std::vector<std::vector<float>> out;
  run_threads(ranks, [&](Communicator& c) {
    Odd model(segment);
    manual_seed(7);
    const data::Batch batch{randn({samples, 6}), zeros({samples}, DType::i64)};
    DataParallel parallel(c, model, {.bucket_bytes = bucket_bytes});
    for (int k = 0; k < 3; ++k)
      parallel.backward(batch, [&](const data::Batch& part) {
        std::optional<amp::Autocast> cast;
        if (half) cast.emplace(amp::AutocastOptions{.dtype = DType::bf16});
        return cross_entropy(model(part.inputs), part.targets);
      });
    if (c.rank() != ranks - 1) return;
    for (const auto& [name, p] : model.named_parameters())
      out.push_back(p.grad().defined() ? p.grad().to_vector<float>() : std::vector<float>());
  });
  return out;
}

// Notes when messages start, and in which thread.
struct Log {
  void note(const std::string& what) {
    const std::lock_guard lock(mutex);
    events.push_back(what);
    news.notify_all();
  }
  bool holds(const std::string& what) const { return std::ranges::find(events, what) != events.end(); }
  std::mutex mutex;
  std::condition_variable news;
  std::vector<std::string> events;
};

struct Logged : Communicator {
  Logged(Communicator& c, Log& l) : Communicator(c.rank(), c.size(), "logged"), to(c), log(l) {}
  std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received) override {
    log.note(std::this_thread::get_id() == home ? "sent by the caller" : "sent by a thread");
    return to.start(sent, received);
  }
  void abort(int status) override { to.abort(status); }
  Communicator& to;
  Log& log;
  std::thread::id home = std::this_thread::get_id();
};

// Returns its input; calls f in backward.
struct InBackward final : Function {
  explicit InBackward(std::function<void()> call) : f(std::move(call)) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& x) override { return {x[0].clone()}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override {
    f();
    return g;
  }
  std::function<void()> f;
};

struct TwoLayers : nn::Module {
  nn::Linear& first = register_module("first", nn::Linear(4, 5));
  nn::Linear& second = register_module("second", nn::Linear(5, 3));
};

// One backward of two layers, a shard for each rank. f(second) runs in it between the layers.
void two_layers(Communicator& c, std::int64_t bucket_bytes, const std::function<void(nn::Linear&)>& f) {
  TwoLayers model;
  DataParallel parallel(c, model, {.shards = c.size(), .bucket_bytes = bucket_bytes});
  parallel.backward({randn({16, 4}), zeros({16}, DType::i64)}, [&](const data::Batch& part) {
    const Tensor h = model.first(part.inputs);
    const Tensor same = apply(std::make_shared<InBackward>([&] { f(model.second); }), {h})[0];
    return cross_entropy(model.second(same), part.targets);
  });
}

// The second layer's weight gradient after `steps` calls of backward of two layers. The first one is frozen from call
// number `frozen_from` on, so that its bucket, the last one, gets no gradient.
std::vector<float> with_frozen_layer(int ranks, std::int64_t bucket_bytes, int frozen_from, int steps) {
  std::vector<float> out;
  run_threads(ranks, [&](Communicator& c) {
    manual_seed(3);
    TwoLayers model;
    const data::Batch batch{randn({16, 4}), zeros({16}, DType::i64)};
    DataParallel parallel(c, model, {.bucket_bytes = bucket_bytes});
    for (int k = 0; k < steps; ++k) {
      if (k == frozen_from) model.first.set_requires_grad(false);
      parallel.backward(batch, [&](const data::Batch& part) {
        return cross_entropy(model.second(model.first(part.inputs)), part.targets);
      });
    }
    if (c.rank() == 0) out = model.second.weight.grad().to_vector<float>();
  });
  return out;
}

}  // namespace

TEST_CASE("buckets: a layer whose bucket comes last may be frozen, from the start or later") {
  set_deterministic(true);
  for (const int frozen_from : {0, 1}) {
    const auto expected = with_frozen_layer(1, 0, frozen_from, 3);
    REQUIRE_FALSE(expected.empty());
    for (const int ranks : {2, 4}) CHECK(with_frozen_layer(ranks, 1, frozen_from, 3) == expected);
  }
  set_deterministic(false);
}

TEST_CASE("buckets change no bit of parameters that are shared, sliced, checkpointed, hooked or sometimes used" *
          doctest::test_suite("long")) {
  set_deterministic(true);
  for (const bool segment : {false, true})
    for (const bool half : {false, true}) {
      const auto one = gradients(1, 0, segment, half);
      REQUIRE(one.size() == 9);
      CHECK(one[5].empty());  // never
      CHECK_FALSE(one[4].empty());
      const auto few = gradients(1, 0, segment, half, 3);  // five shards have no sample
      for (const int ranks : {2, 3, 4, 8})
        for (const std::int64_t bytes : {0, 1, 200}) {
          CAPTURE(segment);
          CAPTURE(half);
          CAPTURE(ranks);
          CAPTURE(bytes);
          CHECK(gradients(ranks, bytes, segment, half) == one);
          CHECK(gradients(ranks, bytes, segment, half, 3) == few);
        }
    }
  set_deterministic(false);
}

TEST_CASE("a full bucket is on its way before backward ends, sent by another thread") {
  for (const std::int64_t bytes : {0, 1}) {
    const bool overlaps = bytes > 0;
    run_threads(2, [&](Communicator& c) {
      Log log;
      Logged logged(c, log);
      two_layers(logged, bytes, [&](nn::Linear&) {
        std::unique_lock lock(log.mutex);
        const auto sent = [&] { return log.holds("sent by a thread"); };
        if (overlaps) log.news.wait_for(lock, std::chrono::seconds(60), sent);
        log.events.emplace_back("half of backward");
      });
      const auto at = [&](const char* what) { return std::ranges::find(log.events, what) - log.events.begin(); };
      REQUIRE(log.holds("half of backward"));
      if (overlaps) REQUIRE(at("sent by a thread") < at("half of backward"));
      else REQUIRE_FALSE(log.holds("sent by a thread"));
      REQUIRE(log.events.back() == "sent by the caller");
    });
  }
}

TEST_CASE("a rank that fails in backward, after it has sent, ends the others; so does one that they differ from") {
  std::atomic<int> ended = 0;
  CHECK(message_of([&] {
          run_threads(3, [&](Communicator& c) {
            try {
              two_layers(c, 1, [&](nn::Linear&) {
                if (c.rank() == 1) throw_error("out of paper");
              });
            } catch (const Error& e) {
              ended += std::string(e.what()).ends_with(c.rank() == 1 ? "out of paper" : "rank 1 failed");
              throw;
            }
          });
        }) == "out of paper");
  CHECK(ended == 3);
  CHECK(message_of([] { run_threads(2, [](Communicator& c) { two_layers(c, c.rank() + 1, [](nn::Linear&) {}); }); }) ==
        "the ranks differ in the bytes of a bucket: rank 0 has '1', rank 1 has '2'");
  CHECK(message_of([] { run_threads(2, [](Communicator& c) { two_layers(c, -1, [](nn::Linear&) {}); }); }) ==
        "data-parallel training: bucket_bytes is -1; it must be 0 or more");
}

TEST_CASE("a gradient that changes after it was sent is an error, and none without buckets") {
  const auto late = [](std::int64_t bytes) {
    return message_of([&] {
      run_threads(2, [&](Communicator& c) {
        two_layers(c, bytes, [](nn::Linear& second) {
          const EnableGrad on;
          mul(second.bias, 2.0).sum().backward();
        });
      });
    });
  };
  CHECK(late(1) ==
        "DataParallel: a function's backward changed the gradient of 'second.bias' when it was on its way to other "
        "ranks, after its uses on the tape; set bucket_bytes to 0");
  CHECK(late(0) == "nothing was thrown");
}
