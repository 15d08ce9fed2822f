// Recorded steps on a GPU against the same steps without a recording: the same bits.
#include <doctest/doctest.h>

#include <memory>

#include <gradual/amp/autocast.h>
#include <gradual/autograd/grad_mode.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/cuda.h>
#include <gradual/cuda/runtime/graph.h>
#include <gradual/nn/activation.h>
#include <gradual/nn/conv.h>
#include <gradual/nn/dropout.h>
#include <gradual/nn/linear.h>
#include <gradual/nn/norm.h>
#include <gradual/nn/sequential.h>
#include <gradual/optim/clip.h>
#include <gradual/optim/grad_scaler.h>
#include <gradual/optim/schedule.h>
#include "../optim/helpers.h"
#include "support/gpu.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

Tensor on_gpu(std::size_t n, std::uint64_t seed, DType dtype = DType::f32) {
  return from_data(numbers(n, seed), {static_cast<std::int64_t>(n)}, {.dtype = dtype}).to(kGpu).detach();
}

// A step with dropout, masters of f16 weights, momentum of all kinds, a loss scale that moves and a rate that decays.
struct Run {
  Tensor w, b, x, y;
  std::unique_ptr<Optimizer> optimizer;
  GradScaler scaler{{.init_scale = 256, .growth_interval = 2}};
  std::unique_ptr<Scheduler> scheduler;
  StepResult result;
  Generator generator{7};

  explicit Run(LowPrecisionUpdate update, bool sgd = false)
      : w(on_gpu(300, 1, DType::f16)), b(on_gpu(300, 2)), x(on_gpu(300, 3)) {
    w.set_requires_grad();
    b.set_requires_grad();
    const UpdateOptions precision{.update = update, .seed = 5};
    if (sgd)
      optimizer = std::make_unique<SGD>(
          std::vector<Tensor>{w, b}, SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .precision = precision});
    else
      optimizer = std::make_unique<AdamW>(std::vector<Tensor>{w, b}, AdamWOptions{.lr = 0.1, .precision = precision});
    scheduler = std::make_unique<Scheduler>(*optimizer, cosine(10));
  }
  void step() {
    optimizer->zero_grad();
    y = dropout(relu(add(mul(cast(w, DType::f32), x), b)), 0.25);
    scaler.scale(y).backward(ones({300}, {.device = kGpu}));
    result = scaler.step(*optimizer);
    scaler.update();
  }
  // The numbers of batch i; one of them is bad.
  void feed(std::uint64_t i) const {
    const Tensor next = on_gpu(300, 100 + i);
    if (i == 5) next.select(0, 3).fill_(INFINITY);
    x.copy_(next);
  }
};

std::string error_of_capture(const std::function<void()>& f) {
  cuda::Graph graph;
  return error_of([&] { graph.capture(f); });
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("replays of a recorded step have the bits of the steps themselves") {
  if (!have_gpu()) return;
  for (const bool sgd : {false, true}) {
    for (const LowPrecisionUpdate update :
         {LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan, LowPrecisionUpdate::stochastic}) {
      CAPTURE(sgd);
      CAPTURE(to_string(update));
      Run plain(update, sgd);
      Run recorded(update, sgd);
      cuda::Graph graph;
      std::vector<float> outputs;
      for (std::uint64_t i = 0; i < 9; ++i) {
        for (Run* run : {&plain, &recorded}) {
          const GeneratorScope scope(run->generator);
          run->feed(i);
          if (run == &plain || i < 2) {
            run->step();
          } else {
            if (i == 2) graph.capture([&] { run->step(); });
            graph.replay();
          }
          run->scheduler->step();
        }
        CHECK(plain.generator.stream() == recorded.generator.stream());
        CHECK(same_numbers(plain.y, recorded.y));
        CHECK(same_numbers(plain.w, recorded.w));
        CHECK(same_numbers(plain.b, recorded.b));
        CHECK(plain.scaler.scale() == recorded.scaler.scale());
        CHECK(recorded.result.skipped() == (i == 5));
        outputs.push_back(recorded.y.to_vector<float>()[0]);
      }
      CHECK(recorded.optimizer->state_dict().integer("params.0.steps") == 8);
      CHECK(recorded.scaler.history().size() == plain.scaler.history().size());
      CHECK(graph.memory() > 0);
      // what was loaded into them goes into the next replay
      const StateDict state = plain.optimizer->state_dict();
      const StateDict scale = plain.scaler.state_dict();
      recorded.optimizer->load_state_dict(state);
      recorded.scaler.load_state_dict(scale);
      for (Run* run : {&plain, &recorded}) {
        const GeneratorScope scope(run->generator);
        run->generator.manual_seed(11);
        run->feed(20);
        if (run == &plain) run->step();
        else graph.replay();
      }
      CHECK(same_numbers(plain.w, recorded.w));
      CHECK(plain.scaler.scale() == recorded.scaler.scale());
    }
  }
}

TEST_CASE("an error of work before a capture is reported there") {
  if (!have_gpu()) return;
  const Tensor x = on_gpu(4, 1);
  const Tensor index = from_data(std::vector<std::int64_t>{1, 4}, {2}).to(kGpu);
  const Tensor picked = index_select(x, 0, index);
  CHECK(contains(error_of_capture([&] { relu(x); }), "index 4 (element 1 of the index) is out of range"));
  cuda::Graph graph;
  CHECK_NOTHROW(graph.capture([&] { relu(x); }));
}

TEST_CASE("a recorded step of a model under autocast has the bits of the step itself") {
  if (!have_gpu()) return;
  struct Trained {
    Tensor x, y, loss;
    nn::Sequential model;
    std::unique_ptr<AdamW> optimizer;
    GradScaler scaler;
    Generator generator{3};

    Trained() : x(on_gpu(32 * 12, 1).reshape({32, 12})), y(on_gpu(32 * 4, 2).reshape({32, 4})) {
      const GeneratorScope scope(generator);
      model.push_back(nn::Linear(12, 24));
      model.push_back(nn::ReLU());
      model.push_back(nn::Dropout(0.25));
      model.push_back(nn::Linear(24, 4));
      model.to(kGpu);
      optimizer = std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = 0.05});
    }
    void step() {
      optimizer->zero_grad();
      {
        const amp::Autocast autocast({.device = kGpu});
        loss = mse_loss(model(x), y);
      }
      scaler.scale(loss).backward();
      scaler.unscale_(*optimizer);
      clip_grad_norm_(*optimizer, 0.5);
      scaler.step(*optimizer);
      scaler.update();
    }
  };
  Trained plain, recorded;
  cuda::Graph graph;
  std::vector<double> losses;
  for (std::uint64_t i = 0; i < 6; ++i) {
    for (Trained* run : {&plain, &recorded}) {
      const GeneratorScope scope(run->generator);
      run->x.copy_(on_gpu(32 * 12, 50 + i).reshape({32, 12}));
      if (run == &recorded && i == 2) graph.capture([&] { run->step(); });
      if (run == &plain || i < 2) run->step();
      else graph.replay();
    }
    CHECK(same_numbers(plain.loss, recorded.loss));
    losses.push_back(plain.loss.item());
  }
  const std::vector<Tensor> a = plain.model.parameters();
  const std::vector<Tensor> b = recorded.model.parameters();
  for (std::size_t k = 0; k < a.size(); ++k) CHECK(same_numbers(a[k], b[k]));
  CHECK(losses[5] != losses[4]);
}

TEST_CASE("a recorded step with batch norm moves the running statistics at each replay") {
  if (!have_gpu()) return;
  constexpr std::size_t kNumbers = 4 * 3 * 6 * 6;
  struct Trained {
    nn::Conv2d conv{3, 16, 3, {.padding = 1}};
    nn::BatchNorm2d norm{16};
    Tensor x, y;
    std::unique_ptr<SGD> optimizer;

    explicit Trained(bool channels_last) {
      conv.to(kGpu);
      norm.to(kGpu);
      x = on_gpu(kNumbers, 1).reshape(channels_last ? Shape{4, 6, 6, 3} : Shape{4, 3, 6, 6});
      if (channels_last) x = x.permute({0, 3, 1, 2});
      std::vector<Tensor> all = conv.parameters();
      for (const Tensor& t : norm.parameters()) all.push_back(t);
      optimizer = std::make_unique<SGD>(all, SGDOptions{.lr = 0.1});
    }
    void step() {
      optimizer->zero_grad();
      y = norm(conv(x));
      relu(y).sum().backward();
      optimizer->step();
    }
    std::vector<Tensor> state() {
      return {y, norm.running_mean, norm.running_var, norm.num_batches_tracked, conv.weight, norm.weight, norm.bias};
    }
  };
  for (const bool channels_last : {false, true})
    for (const bool library : {false, true}) {
      CAPTURE(channels_last);
      CAPTURE(library);
      cuda::set_library_kernels(library);
      manual_seed(4);
      Trained plain(channels_last);
      manual_seed(4);
      Trained recorded(channels_last);
      cuda::Graph graph;
      std::vector<std::vector<double>> means;
      for (std::uint64_t i = 0; i < 6; ++i) {
        for (Trained* run : {&plain, &recorded}) {
          run->x.copy_(on_gpu(kNumbers, 50 + i).reshape({4, 3, 6, 6}));
          if (run == &recorded && i == 2) graph.capture([&] { run->step(); });
          if (run == &plain || i < 2) run->step();
          else graph.replay();
        }
        const std::vector<Tensor> a = plain.state();
        const std::vector<Tensor> b = recorded.state();
        for (std::size_t k = 0; k < a.size(); ++k) CHECK(same_numbers(a[k], b[k]));
        CHECK(recorded.norm.num_batches_tracked.item() == static_cast<double>(i + 1));
        means.push_back(numbers(recorded.norm.running_mean));
        if (i > 0) CHECK(means[i] != means[i - 1]);
      }
    }
  cuda::set_library_kernels(true);
}

TEST_CASE("each replay draws other numbers and the generator knows") {
  if (!have_gpu()) return;
  const Tensor x = ones({64}, {.device = kGpu});
  Tensor y, z;
  const auto draw = [&] {
    y = dropout(x, 0.5);
    z = dropout(x, 0.5);
  };
  std::vector<Tensor> plain, replayed;
  {
    Generator g(3);
    const GeneratorScope scope(g);
    for (int i = 0; i < 3; ++i) {
      draw();
      plain.push_back(y.clone());
      plain.push_back(z.clone());
      rand({2});  // somebody else draws in between
    }
  }
  Generator g(3);
  const GeneratorScope scope(g);
  cuda::Graph graph;
  graph.capture(draw);
  CHECK(g.stream() == 0);
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    replayed.push_back(y.clone());
    replayed.push_back(z.clone());
    rand({2});
  }
  CHECK(g.stream() == 9);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CHECK(same_numbers(plain[i], replayed[i]));
    for (std::size_t j = 0; j < i; ++j) CHECK(!same_numbers(plain[i], plain[j]));
  }
}

TEST_CASE("numbers that follow from the host's alone are part of a recorded step") {
  if (!have_gpu()) return;
  Tensor i, h, x;
  cuda::Graph graph;
  graph.capture([&] {
    i = arange(0, 200, 1, {.dtype = DType::i32, .device = kGpu});
    h = linspace(0, 1, 77, {.dtype = DType::f16, .device = kGpu});
    x = arange(5, 0, -1, {.dtype = DType::u8, .device = kGpu});
  });
  graph.replay();
  CHECK(same_numbers(i, arange(0, 200, 1, {.dtype = DType::i32})));
  CHECK(same_numbers(h, linspace(0, 1, 77, {.dtype = DType::f16})));
  CHECK(same_numbers(x, arange(5, 0, -1, {.dtype = DType::u8})));
}

TEST_CASE("a graph's memory is its own until graph and tensors are destroyed") {
  if (!have_gpu()) return;
  const std::int64_t before = memory_stats(kGpu).total.current;
  Tensor result;
  const Tensor x = full({1000}, 2, {.device = kGpu});
  Tensor old = full({1000}, 5, {.device = kGpu});
  auto graph = std::make_unique<cuda::Graph>();
  graph->capture([&] {
    old = Tensor();  // of others: freed after the recording
    result = mul(add(mul(x, x), x), x);
  });
  const std::int64_t own = graph->memory();
  CHECK(own > 0);
  CHECK(own < 6 * 4096);
  for (int i = 0; i < 3; ++i) {
    const Tensor other = full({1000}, -1, {.device = kGpu});  // must not lie where the graph writes
    x.fill_(i);
    graph->replay();
    CHECK(result.to_vector<float>() == std::vector<float>(1000, static_cast<float>((i * i + i) * i)));
    CHECK(other.to_vector<float>() == std::vector<float>(1000, -1));
  }
  graph.reset();
  CHECK(result.to_vector<float>()[0] == 12);
  result = Tensor();
  x.fill_(0);
  CHECK(memory_stats(kGpu).total.current == before + static_cast<std::int64_t>(x.nbytes()));
}

TEST_CASE("what cannot be recorded is an error that names it and leaves nothing behind") {
  if (!have_gpu()) return;
  const Tensor x = ones({3}, {.device = kGpu});
  const std::string item = error_of_capture([&] { add(x, x)[0].item(); });
  CHECK(contains(item, "to_device: [] f32 from cuda:0 to the CPU cannot be recorded"));
  CHECK(contains(error_of_capture([&] { ones({2}).to(kGpu); }), "to_device: [2] f32 from the CPU to cuda:0 cannot"));
  CHECK(contains(error_of_capture([&] { cuda::synchronize(); }), "cuda::synchronize() cannot be recorded"));
  CHECK(contains(error_of_capture([&] { throw_error("mine"); }), "mine"));
  CHECK(contains(error_of_capture([&] {
                   cuda::Graph inner;
                   inner.capture([] {});
                 }),
                 "capture within capture"));
  CHECK(contains(error_of_capture([&] { manual_seed(3); }), "seeds the default generator"));
  const Tensor p = ones({3}, {.device = kGpu}).set_requires_grad();
  Adam adam({p});
  p.set_grad(ones({3}, {.device = kGpu}));
  CHECK(contains(error_of_capture([&] { adam.step(); }), "take a step before capture()"));
  CHECK(contains(error_of([] { cuda::Graph().replay(); }), "needs a step"));
  // after all of these, work is done again
  CHECK(add(x, x).to_vector<float>() == std::vector<float>(3, 2));
  cuda::Graph graph;
  graph.capture([&] { x.add_(1); });
  CHECK(contains(error_of([&] { graph.capture([] {}); }), "it has captured a step already"));
  CHECK(x.to_vector<float>() == std::vector<float>(3, 1));
  graph.replay();
  graph.replay();
  CHECK(x.to_vector<float>() == std::vector<float>(3, 3));
}
