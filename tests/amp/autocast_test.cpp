#include "../../amp/autocast.h"

#include <doctest/doctest.h>

#include <thread>

#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/function.h"
#include "../../autograd/grad_mode.h"
#include "../../core/ops/ops.h"
#include "../../core/tensor/memory.h"
#include "recorder.h"
#include "support.h"

using namespace gradual;
using amp::Autocast;
using amp::CastPolicy;

TEST_CASE("regions nest, are disabled inside one another and restored, on exceptions too") {
  CHECK(amp::current_autocast() == nullptr);
  CHECK_FALSE(amp::is_autocast_enabled());
  const Tensor a = random({3, 3}, 1);
  {
    const Autocast outer;
    CHECK(amp::autocast_dtype() == DType::bf16);  // the CPU's default
    CHECK(matmul(a, a).dtype() == DType::bf16);
    {
      const Autocast half({.dtype = DType::f16});
      CHECK(matmul(a, a).dtype() == DType::f16);
      {
        const Autocast off({.enabled = false});
        CHECK_FALSE(amp::is_autocast_enabled());
        CHECK(matmul(a, a).dtype() == DType::f32);
        const Autocast on({.dtype = DType::bf16});
        CHECK(matmul(a, a).dtype() == DType::bf16);
      }
      CHECK(amp::autocast_dtype() == DType::f16);
    }
    try {
      const Autocast half({.dtype = DType::f16});
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {}
    CHECK(amp::autocast_dtype() == DType::bf16);
    CHECK_THROWS_AS(matmul(a, random({4}, 2)), Error);  // an op's own exception
    CHECK(matmul(a, a).dtype() == DType::bf16);
  }
  CHECK(matmul(a, a).dtype() == DType::f32);
  CHECK(amp::current_autocast() == nullptr);
}

TEST_CASE("the region's dtype and device") {
  CHECK(message_of([] {
          Autocast({.dtype = DType::f32});
        }).starts_with("Autocast: casts to f16 or bf16, not to f32; {.enabled = false}"));
  CHECK_THROWS_AS(Autocast({.dtype = DType::f8e4m3fn}), Error);
  const Tensor a = random({3, 3}, 1);
  const Autocast cuda({.device = Device::cuda()});
  CHECK(amp::autocast_dtype(Device::cuda(1)) == DType::f16);
  CHECK_FALSE(amp::is_autocast_enabled());
  CHECK(matmul(a, a).dtype() == DType::f32);  // not on the region's device
  const Autocast cpu({.dtype = DType::bf16});
  const Autocast inner({.dtype = DType::f16, .device = Device::cuda()});
  CHECK(matmul(a, a).dtype() == DType::bf16);  // the region around still serves the CPU
  CHECK(amp::autocast_dtype() == DType::bf16);
}

TEST_CASE("a region without a device serves every device") {
  const Autocast scope;
  CHECK(amp::autocast_dtype(Device::cuda()) == DType::f16);
  CHECK(amp::autocast_dtype(Device::cpu()) == DType::bf16);
  const Autocast off({.enabled = false});
  CHECK_FALSE(amp::is_autocast_enabled(Device::cuda()));
}

TEST_CASE("autocast() makes any callable run under it") {
  const Tensor a = random({3, 3}, 1);
  const auto product =
      amp::autocast({.dtype = DType::f16}, [](const Tensor& x, const Tensor& y) { return matmul(x, y); });
  CHECK(product(a, a).dtype() == DType::f16);
  CHECK(amp::current_autocast() == nullptr);
  int calls = 0;
  auto counting = amp::autocast({.enabled = false}, [calls]() mutable { return ++calls; });
  counting();
  CHECK(counting() == 2);
}

// amp.md's cases 9 to 13 keep their order below.

TEST_CASE("each lower op on f32 inputs equals the manual cast bit for bit") {
  const Tensor x = random({2, 6, 8}, 1);
  const Tensor w = random({5, 8}, 2);
  const Tensor bias = random({5}, 3);
  const Tensor image = random({2, 3, 6, 6}, 4);
  const Tensor kernel = random({4, 3, 3, 3}, 5);
  const Tensor kernel_bias = random({4}, 6);
  const Tensor mask = random({6, 6}, 7) * 100;
  using Fn = std::function<Tensor(const std::function<Tensor(const Tensor&)>&)>;
  const std::vector<Fn> ops{
      [&](auto c) { return matmul(c(x), c(w).t()); },
      [&](auto c) { return linear(c(x), c(w), c(bias)); },
      [&](auto c) { return linear(c(x), c(w)); },
      [&](auto c) { return conv2d(c(image), c(kernel), c(kernel_bias), {.padding = 1}); },
      [&](auto c) { return scaled_dot_product_attention(c(x), c(x), c(x), mask, {.causal = true}); },
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Fn& op : ops) {
      const Tensor by_hand = op([&](const Tensor& t) { return t.to(dtype); });
      const Autocast scope({.dtype = dtype});
      const Tensor y = op([](const Tensor& t) { return t; });
      CHECK(y.dtype() == dtype);
      CHECK(same_bits(y, by_hand));
      const DType other = dtype == DType::f16 ? DType::bf16 : DType::f16;
      CHECK(op([&](const Tensor& t) { return t.to(other); }).dtype() == dtype);
    }
  }
}

TEST_CASE("each fp32 op on half inputs gives f32, the value of the op on the widened input") {
  const Tensor x = random({4, 6}, 1);
  const Tensor w = random({6}, 2);
  const Tensor classes = from_data(std::vector<std::int64_t>{0, 1, 2, 5}, {4});
  using Fn = std::function<Tensor(const std::function<Tensor(const Tensor&)>&)>;
  const std::vector<Fn> ops{
      [&](auto c) { return exp(c(x)); },
      [&](auto c) { return log(abs(c(x))); },
      [&](auto c) { return log1p(abs(c(x))); },
      [&](auto c) { return rsqrt(abs(c(x))); },
      [&](auto c) { return reciprocal(c(x)); },
      [&](auto c) { return pow(c(x), 2); },
      [&](auto c) { return softplus(c(x)); },
      [&](auto c) { return sum(c(x)); },
      [&](auto c) { return logsumexp(c(x), {1}); },
      [&](auto c) { return norm(c(x)); },
      [&](auto c) { return softmax(c(x), 1); },
      [&](auto c) { return log_softmax(c(x), 1); },
      [&](auto c) { return layer_norm(c(x), 1, c(w), c(w)); },
      [&](auto c) { return rms_norm(c(x), 1, c(w)); },
      [&](auto c) { return cross_entropy(c(x), classes); },
      [&](auto c) { return mse_loss(c(x), c(x * 2)); },
      [&](auto c) { return l1_loss(c(x), c(x * 2)); },
      [&](auto c) { return bce_with_logits_loss(c(x), c(abs(x))); },
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      CAPTURE(i);
      const Tensor by_hand = ops[i]([&](const Tensor& t) { return t.to(dtype).to(DType::f32); });
      CHECK(ops[i]([&](const Tensor& t) { return t.to(dtype); }).dtype() == dtype);  // outside
      const Autocast scope({.dtype = dtype});
      CHECK(same_bits(ops[i]([&](const Tensor& t) { return t.to(dtype); }), by_hand));
    }
  }
}

TEST_CASE("promote gives the widest, in both orders") {
  const Tensor h = random({2, 3}, 1, DType::f16);
  const Tensor b = random({2, 3}, 1, DType::bf16);
  const Tensor f = random({2, 3}, 2);
  const Tensor condition = f > 0;
  const Tensor index = zeros({2, 3}, {.dtype = DType::i64});
  const Autocast scope({.dtype = DType::f16});
  using Fn = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::vector<Fn> ops{
      [](auto& x, auto& y) { return x + y; },
      [](auto& x, auto& y) { return x - y; },
      [](auto& x, auto& y) { return x * y; },
      [](auto& x, auto& y) { return x / y; },
      [](auto& x, auto& y) { return maximum(x, y); },
      [](auto& x, auto& y) { return minimum(x, y); },
      [&](auto& x, auto& y) { return where(condition, x, y); },
      [](auto& x, auto& y) {
        return cat({x, y});
      },
      [&](auto& x, auto& y) { return scatter_add(x, 1, index, y); },
  };
  for (const Fn& op : ops) {
    CHECK(op(h, f).dtype() == DType::f32);
    CHECK(op(f, h).dtype() == DType::f32);
    CHECK(op(h, b).dtype() == DType::f32);
    CHECK(op(h, h).dtype() == DType::f16);
    CHECK(op(b, b).dtype() == DType::bf16);  // not the region's dtype
  }
  CHECK((h + 1.5).dtype() == DType::f16);  // a number never promotes
  CHECK((h < f).dtype() == DType::bool_);
}

TEST_CASE("unlisted ops, in-place ops and explicit casts keep their dtypes") {
  const Tensor h = random({4, 3}, 1, DType::f16);
  const Tensor f = random({4, 3}, 2);
  const Tensor stat = ones({3});
  const Autocast scope({.dtype = DType::bf16});
  CHECK(relu(h).dtype() == DType::f16);
  CHECK(mean(h).dtype() == DType::f16);
  CHECK(batch_norm(h, stat, stat, stat, stat, true).y.dtype() == DType::f16);  // f32 parameters with a half input
  const Tensor x = h.clone();
  x.add_(f);
  CHECK(x.dtype() == DType::f16);
  x.mul_(f).copy_(f);
  CHECK(x.dtype() == DType::f16);
  CHECK(h.to(DType::f32).dtype() == DType::f32);
  CHECK(matmul(f.to(DType::f64), f.to(DType::f64).t()).dtype() == DType::f64);
}

TEST_CASE("a weight used twice is cast once, and twice where it was edited between") {
  for (const bool grad : {true, false}) {
    Tensor w = random({4, 4}, 1).set_requires_grad();
    const Tensor x = random({2, 4}, 2, DType::f16);
    const Autocast scope({.dtype = DType::f16});
    const StageScope recording(chain().autograd, grad ? default_autograd() : nullptr);
    Recorder recorder;
    const Tensor first = linear(x, w);
    CHECK(same_bits(linear(x, w), first));
    CHECK(recorder.amp_casts() == 1);
    CHECK(recorder.seen[0].cause == "amp: linear is lower");
    {
      const NoGrad off;
      w.mul_(2);
    }
    const Tensor edited = linear(x, w);
    CHECK(recorder.amp_casts() == 2);
    CHECK(same_bits(edited, first * 2));
    linear(x, w);
    CHECK(recorder.amp_casts() == 2);
  }
}

TEST_CASE("the cache: what it holds, when it is cleared, what it counts as") {
  Tensor w = random({64, 64}, 1).set_requires_grad();
  const Tensor x = random({2, 64}, 2);
  const auto casts = [] { return memory_stats()[Category::casts].current; };
  const std::int64_t before = casts();
  Recorder recorder;
  {
    const Autocast scope({.dtype = DType::f16});
    {
      const Autocast inner({.dtype = DType::bf16});  // another dtype is another entry
      CHECK(linear(x, w).dtype() == DType::bf16);
    }
    CHECK(linear(x, w).dtype() == DType::f16);
    CHECK(recorder.amp_casts() == 4);  // x is no weight: cast at each use
    {
      const Autocast inner({.dtype = DType::bf16});
      linear(x, w);
      linear(x, w.detach());             // not a leaf that requires grad
      CHECK(recorder.amp_casts() == 7);  // three casts of x or the detached w, none of w
      const Autocast uncached({.dtype = DType::bf16, .cache = false});
      linear(x, w);
      CHECK(recorder.amp_casts() == 9);
    }
    const NoGrad off;
    CHECK(casts() - before == 2 * 64 * 64 * 2);  // f16 and bf16; nothing else is held
  }
  CHECK(casts() == before);
  const Autocast scope({.dtype = DType::f16});
  linear(x, w);
  CHECK(recorder.amp_casts() == 11);  // a new region casts again
}

TEST_CASE("a view of a leaf, a leaf of other geometry on the same storage and swapped storage do not hit") {
  Tensor w = random({4, 4}, 1).set_requires_grad();
  const Tensor storage_twin = as_strided(w.detach(), {4, 4}, {1, 4}, 0);
  Tensor twin = storage_twin;
  twin.set_requires_grad();
  const Tensor x = eye(4);
  const Autocast scope({.dtype = DType::f16});
  const Tensor plain = linear(x, w);
  CHECK(same_bits(linear(x, twin), plain.t()));
  CHECK(same_bits(matmul(x, w), plain.t()));  // and the same leaf in another op is the same cast
  w.swap_data(random({4, 4}, 9));
  CHECK(same_bits(linear(x, w), random({4, 4}, 9, DType::f16).t()));
}

TEST_CASE("a forward without grad and then one with it in one region: the gradient arrives") {
  Tensor w = random({4, 4}, 1).set_requires_grad();
  const Tensor x = random({2, 4}, 2);
  const Autocast scope({.dtype = DType::f16});
  Recorder recorder;
  {
    const NoGrad off;
    CHECK_FALSE(linear(x, w).requires_grad());
  }
  sum(linear(x, w)).backward();
  CHECK(recorder.amp_casts() == 4);  // x twice, w once, the sum's input once
  REQUIRE(w.grad().defined());
  CHECK(w.grad().dtype() == DType::f32);
  const Tensor expected = matmul(ones({4, 2}, {.dtype = DType::f16}), x.to(DType::f16)).to(DType::f32);
  CHECK(same_bits(w.grad(), expected));
  w.zero_grad();
  sum(linear(x, w) + linear(x, w)).backward();  // two nodes on one buffer
  CHECK(same_bits(w.grad(), expected * 2));
}

TEST_CASE("f64 and integers pass untouched, f64 with a half is an error in a contraction") {
  const Tensor f = random({3, 3}, 1);
  const Tensor d = f.to(DType::f64);
  const Tensor h = f.to(DType::f16);
  const Tensor i = ones({3, 3}, {.dtype = DType::i64});
  const Autocast scope({.dtype = DType::f16});
  CHECK(matmul(d, d).dtype() == DType::f64);
  CHECK(softmax(d, 0).dtype() == DType::f64);
  CHECK(sum(i).dtype() == DType::i64);
  CHECK((i + i).dtype() == DType::i64);
  CHECK((d + h).dtype() == DType::f64);
  const std::string expected =
      "matmul: [3, 3] f64 x [3, 3] f16: under autocast to f16 an f64 tensor keeps its dtype and cannot meet "
      "the "
      "others; cast it with to(DType::f32), or all to f64";
  CHECK(message_of([&] { matmul(d, h); }) == expected);
  CHECK_THROWS_AS(matmul(f, d), Error);
  CHECK_THROWS_AS(linear(h, h, zeros({3}, {.dtype = DType::f64})), Error);
  const Tensor f8 = f.to(DType::f8e4m3fn);
  CHECK(matmul(f8, f8).dtype() == DType::f32);  // f8 passes too: its contractions give f32
}

TEST_CASE("a new thread has no region, a snapshot hands one over, and outlives its scope") {
  const Tensor a = random({3, 3}, 1);
  ThreadState state;
  {
    const Autocast scope({.dtype = DType::f16});
    state = snapshot();
    bool enabled = true;
    DType dtype{};
    DType handed{};
    std::thread([&] {
      enabled = amp::is_autocast_enabled();
      const Tensor y = softmax(matmul(a, a), 0);
      dtype = y.dtype();
      const ThreadStateScope same(state);
      handed = matmul(a, a).dtype();
    }).join();
    CHECK_FALSE(enabled);
    CHECK(dtype == DType::f32);
    CHECK(handed == DType::f16);
  }
  Tensor w = random({3, 3}, 2).set_requires_grad();
  const std::int64_t before = memory_stats()[Category::casts].current;
  {
    const ThreadStateScope later(state);
    CHECK(amp::is_autocast_enabled());
    CHECK(matmul(a, w).dtype() == DType::f16);
  }
  CHECK(memory_stats()[Category::casts].current == before);  // a region that has ended keeps no casts
  CHECK_FALSE(amp::is_autocast_enabled());
}

TEST_CASE("casts are on the tape, and backward runs in forward's dtypes with a region around it or without") {
  const auto run = [](bool around) {
    Tensor w = random({4, 4}, 1).set_requires_grad();
    Tensor x = random({2, 4}, 2).set_requires_grad();
    Tensor loss;
    const auto forward = [&] { return sum(linear(x, w)); };
    if (!around) {
      loss = amp::autocast({.dtype = DType::f16}, forward)();
      loss.backward();
    } else {
      const Autocast scope({.dtype = DType::bf16});  // another dtype: backward must not look at it
      loss = amp::autocast({.dtype = DType::f16}, forward)();
      Recorder recorder;
      loss.backward();
      CHECK(recorder.amp_casts() == 0);
      for (const Recorder::Seen& s : recorder.seen) CHECK(s.out != DType::bf16);
    }
    CHECK(x.grad().dtype() == DType::f32);
    return cat({x.grad(), w.grad()});
  };
  CHECK(same_bits(run(true), run(false)));
}

TEST_CASE("a banned op names its cure, and runs where autocast is off") {
  const Tensor p = sigmoid(random({4}, 1));
  const Tensor y = ones({4});
  {
    const Autocast scope;
    CHECK(message_of([&] { bce_loss(p, y); }) ==
          "bce_loss: [4] f32 x [4] f32: banned under autocast: it takes probabilities, and a half format "
          "rounds those "
          "near 0 and 1 to 0 and 1, where its logarithm fails; use bce_with_logits_loss on the logits, or open "
          "Autocast({.enabled = false}) around it and cast its input to f32");
    const Autocast off({.enabled = false});
    CHECK(bce_loss(p, y).dtype() == DType::f32);
  }
  amp::PolicyTable table;
  table.set("bce_loss", CastPolicy::fp32());
  const Autocast scope({.table = table});
  CHECK(bce_loss(p.to(DType::bf16), y).dtype() == DType::f32);
}

TEST_CASE("an edited table rules its region alone") {
  const Tensor x = random({4, 4}, 1);
  amp::PolicyTable table;
  table.set("matmul", CastPolicy::fp32()).set("softmax", CastPolicy::lower()).set("erf", CastPolicy::cast(DType::bf16));
  const Autocast outer({.dtype = DType::f16});
  {
    const Autocast scope({.dtype = DType::f16, .table = table});
    Recorder recorder;
    CHECK(matmul(x.to(DType::f16), x).dtype() == DType::f32);
    CHECK(softmax(x, 0).dtype() == DType::f16);
    CHECK(erf(x).dtype() == DType::bf16);
    CHECK(recorder.seen.back().op == OpId::erf);
    CHECK(recorder.seen[recorder.seen.size() - 2].cause == "amp: erf is bf16");
  }
  CHECK(matmul(x, x).dtype() == DType::f16);
}

namespace {

struct Scaled : Function {
  explicit Scaled(std::optional<DType> dtype) : wants(dtype) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    enabled_forward = amp::is_autocast_enabled();
    save_for_backward({in[0], in[1]});
    const Tensor y = matmul(in[0], in[1]);
    forward_dtypes = {in[0].dtype(), in[1].dtype(), y.dtype()};
    return {y};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override {
    enabled_backward = amp::is_autocast_enabled();
    const Tensor dx = matmul(g[0], saved()[1].t());
    backward_dtype = dx.dtype();
    return {cast(dx, saved()[0].dtype()), cast(matmul(saved()[0].t(), g[0]), saved()[1].dtype())};
  }
  std::optional<DType> amp_dtype() const override { return wants; }
  std::string name() const override { return "scaled"; }

  std::optional<DType> wants;
  bool enabled_forward = false;
  bool enabled_backward = false;
  std::vector<DType> forward_dtypes;
  DType backward_dtype{};
};

}  // namespace

TEST_CASE("a user function that declares its dtype gets it and runs with autocast off, backward too") {
  Tensor x = random({3, 3}, 1).set_requires_grad();
  Tensor w = random({3, 3}, 2).set_requires_grad();
  const auto f = std::make_shared<Scaled>(DType::f32);
  Tensor y;
  {
    const Autocast scope({.dtype = DType::f16});
    y = apply(f, {matmul(x, x), w})[0];
    CHECK(amp::is_autocast_enabled());
  }
  CHECK(f->forward_dtypes == std::vector<DType>{DType::f32, DType::f32, DType::f32});
  CHECK_FALSE(f->enabled_forward);
  const Autocast around({.dtype = DType::f16});
  sum(y).backward();
  CHECK_FALSE(f->enabled_backward);
  CHECK(f->backward_dtype == DType::f32);
  CHECK(x.grad().dtype() == DType::f32);

  const auto h = std::make_shared<Scaled>(DType::bf16);
  Recorder recorder;
  apply(h, {x, w});
  CHECK(h->forward_dtypes[0] == DType::bf16);
  CHECK(recorder.seen[0].cause == "amp: scaled asks for bf16");
}

TEST_CASE("a user function that declares none runs under forward's region, backward as well") {
  Tensor x = random({3, 3}, 1).set_requires_grad();
  const Tensor w = random({3, 3}, 2);
  const auto f = std::make_shared<Scaled>(std::nullopt);
  Tensor y;
  {
    const Autocast scope({.dtype = DType::f16});
    y = apply(f, {x, w})[0];
  }
  CHECK(f->enabled_forward);
  CHECK(f->forward_dtypes == std::vector<DType>{DType::f32, DType::f32, DType::f16});
  y.backward(ones({3, 3}, {.dtype = DType::f16}));  // the region's scope is gone: its snapshot serves
  CHECK(f->enabled_backward);
  CHECK(f->backward_dtype == DType::f16);
}

TEST_CASE("a checkpointed segment recomputes in forward's dtypes, though the region has ended") {
  Tensor w = random({4, 4}, 1).set_requires_grad();
  Tensor x = random({2, 4}, 2).set_requires_grad();
  std::vector<DType> dtypes;
  const auto segment = [&](const Tensor& t) {
    const Tensor y = linear(t, w);
    dtypes.push_back(y.dtype());
    return softmax(y, 1);
  };
  const auto gradients = [&](bool checkpointed) {
    x.zero_grad();
    w.zero_grad();
    Tensor loss;
    {
      const Autocast scope({.dtype = DType::f16});
      loss = sum(square(checkpointed ? checkpoint(segment, x) : segment(x)));
    }
    const Autocast around({.dtype = DType::bf16});
    loss.backward();
    return cat({x.grad(), w.grad()});
  };
  const Tensor expected = gradients(false);
  CHECK(same_bits(gradients(true), expected));
  CHECK(dtypes == std::vector<DType>{DType::f16, DType::f16, DType::f16});  // plain, forward, recomputation
}
