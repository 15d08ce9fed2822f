#include <doctest/doctest.h>
#include <gradual/core/observe/observer.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/data/digits.h>
#include <gradual/dist/data_parallel.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "dist/thread_ranks.h"
#include "support/files.h"

using namespace gradual;
using namespace gradual::dist;
using test::message_of;

namespace {

std::shared_ptr<nn::Sequential> net() {
  manual_seed(1);
  return std::make_shared<nn::Sequential>(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Conv2d(4, 6, 3),
                                          nn::BatchNorm2d(6), nn::Flatten(), nn::Linear(96, 8), nn::BatchNorm1d(8),
                                          nn::Tanh(), nn::Linear(8, 10));
}

data::Batch batch_of(std::int64_t n, DType dtype) {
  const data::Dataset digits = data::digits();
  return {digits.inputs.narrow(0, 0, n).reshape({n, 1, 8, 8}).to(dtype), digits.targets.narrow(0, 0, n)};
}

// All parameters' gradients and all buffers after one backward, and the loss.
std::vector<double> numbers_of(nn::Module& model, const Tensor& loss) {
  std::vector<double> out = {loss.item()};
  const auto add_all = [&](const Tensor& t) {
    for (const double v : t.to(DType::f64).to_vector<double>()) out.push_back(v);
  };
  for (const auto& [name, p] : model.named_parameters()) add_all(p.grad());
  for (const auto& [name, b] : model.named_buffers()) add_all(b);
  return out;
}

std::vector<double> synchronized(int ranks, std::int64_t n, DType dtype) {
  std::vector<double> out;
  run_threads(ranks, [&](Communicator& c) {
    const auto model = net();
    model->to(dtype);
    DataParallel parallel(c, *model, {.synchronized_batch_norm = true});
    const Tensor loss = parallel.backward(batch_of(n, dtype), [&](const data::Batch& part) {
      return cross_entropy((*model)(part.inputs), part.targets);
    });
    if (c.rank() == ranks - 1) out = numbers_of(*model, loss);
  });
  return out;
}

}  // namespace

TEST_CASE("synchronised batch norm has the gradients and statistics of the whole batch") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const auto model = net();
    model->to(dtype);
    const data::Batch batch = batch_of(37, dtype);
    const Tensor loss = cross_entropy((*model)(batch.inputs), batch.targets);
    loss.backward();
    const std::vector<double> whole = numbers_of(*model, loss.detach());
    double largest = 0;
    for (const double v : whole) largest = std::max(largest, std::fabs(v));
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(ranks);
      const std::vector<double> numbers = synchronized(ranks, 37, dtype);
      REQUIRE(numbers.size() == whole.size());
      // sums of 37 x 36 numbers in another order
      const double tolerance = (dtype == DType::f64 ? 1e-13 : 1e-5) * std::max(1.0, largest);
      for (std::size_t i = 0; i < whole.size(); ++i) CHECK(std::fabs(numbers[i] - whole[i]) <= tolerance);
    }
  }
}

TEST_CASE("synchronised batch norm has the same bits on any number of ranks") {
  set_deterministic(true);
  const std::vector<double> one = synchronized(1, 50, DType::f32);
  for (const int ranks : {2, 3, 4, 8}) {
    CAPTURE(ranks);
    CHECK(synchronized(ranks, 50, DType::f32) == one);
  }
  set_deterministic(false);
}

TEST_CASE("observers see the shards of a synchronised batch norm, and change no bit") {
  struct Count : Observer {
    void after(const OpCall& call, const Outputs&, const CallRecord&) override {
      losses += call.op == OpId::cross_entropy;
    }
    int losses = 0;
  } count;
  const auto model = net();
  const auto ranks = single();
  DataParallel parallel(*ranks, *model, {.synchronized_batch_norm = true});
  const auto loss = [&](const data::Batch& part) { return cross_entropy((*model)(part.inputs), part.targets); };
  {
    const ObserverScope scope(count);
    CHECK(numbers_of(*model, parallel.backward(batch_of(20, DType::f32), loss)) == synchronized(1, 20, DType::f32));
  }
  CHECK(count.losses == 8);
}

TEST_CASE("an error in a shard that others wait for ends the step; the next one is whole") {
  const auto model = net();
  const auto ranks = single();
  DataParallel parallel(*ranks, *model, {.synchronized_batch_norm = true});
  int calls = 0;
  const auto step = [&](std::int64_t n, const DataParallel::Loss& loss) {
    return message_of([&] { parallel.backward(batch_of(n, DType::f32), loss); });
  };
  const auto loss = [&](const data::Batch& part) { return cross_entropy((*model)(part.inputs), part.targets); };
  CHECK(step(7, loss) == "DataParallel: a batch of 7 samples for 8 shards; synchronised batch norm needs one each");
  const std::string of_a_shard = step(20, [&](const data::Batch& part) {
    if (++calls == 5) throw_error("the fifth shard is wrong");
    return loss(part);
  });
  CHECK(of_a_shard == "the fifth shard is wrong");
  const std::string without_a_norm = step(20, [&](const data::Batch& part) {
    return ++calls % 8 == 0 ? square(model->named_parameters()[0].second).sum() : loss(part);
  });
  CHECK(without_a_norm == "the shards of a batch ran batch norm unequally often; they cannot share its statistics");
  const auto fresh = net();
  model->load_state_dict(fresh->state_dict());
  for (const auto& [name, p] : model->named_parameters()) p.zero_grad();
  CHECK(numbers_of(*model, parallel.backward(batch_of(20, DType::f32), loss)) == synchronized(1, 20, DType::f32));
}

TEST_CASE("synchronised batch norm of huge equal numbers is 0") {
  nn::Sequential model(nn::BatchNorm1d(1), nn::Flatten());
  const data::Batch batch{full({8, 1, 4}, 0x1p126), zeros({8})};
  const auto ranks = single();
  DataParallel parallel(*ranks, model, {.synchronized_batch_norm = true});
  const Tensor loss = parallel.backward(batch, [&](const data::Batch& part) { return model(part.inputs).sum(); });
  CHECK(loss.item() == 0);
  for (const auto& [name, p] : model.named_parameters())
    for (const double g : p.grad().to_vector<double>()) CHECK(std::isfinite(g));
}

TEST_CASE("synchronised batch norm of huge numbers and of tiny ones without eps is that of the whole batch") {
  const Tensor ordinary = data::digits().inputs.narrow(0, 0, 37).reshape({37, 1, 64}) + 1;
  for (const std::pair<int, double>& numbers : {std::pair{100, 1e-5}, std::pair{-90, 0.0}}) {
    const int power = numbers.first;
    const double eps = numbers.second;
    CAPTURE(power);
    const Tensor x = ordinary * std::ldexp(1.0, power);
    const auto run = [&](const auto& backward) {
      manual_seed(1);
      nn::Sequential model(nn::BatchNorm1d(1, {.eps = eps}), nn::Flatten(), nn::Linear(64, 10));
      const Tensor loss =
          backward(model, [&](const data::Batch& part) { return cross_entropy(model(part.inputs), part.targets); });
      std::vector<double> out = numbers_of(model, loss.detach());
      std::erase_if(out, [](double v) { return std::isinf(v); });  // a running variance of 2^200
      return out;
    };
    const data::Batch batch{x, data::digits().targets.narrow(0, 0, 37)};
    const std::vector<double> whole = run([&](nn::Module&, const auto& loss) {
      const Tensor all = loss(batch);
      all.backward();
      return all;
    });
    const std::vector<double> parts = run([&](nn::Module& model, const auto& loss) {
      const auto ranks = single();
      return DataParallel(*ranks, model, {.synchronized_batch_norm = true}).backward(batch, loss);
    });
    REQUIRE(parts.size() == whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i)
      CHECK(std::fabs(parts[i] - whole[i]) <= 1e-5 * std::max(1.0, std::fabs(whole[i])));
  }
}
