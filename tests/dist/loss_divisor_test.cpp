// The gradient of a batch that is cut into shards is that of the whole batch's loss, whatever the loss divides by.
#include <doctest/doctest.h>
#include <gradual/dist/data_parallel.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dist/thread_ranks.h"
#include "support/files.h"

using namespace gradual;
using namespace gradual::dist;
using test::message_of;

namespace {

constexpr std::int64_t kSamples = 11;
constexpr std::int64_t kTokens = 3;
constexpr std::int64_t kClasses = 4;

// A batch norm, whose statistics are of all samples where they are synchronised, and a layer.
struct Net : nn::Module {
  explicit Net(bool with_norm) : normalizes(with_norm) {}
  nn::BatchNorm1d& norm = register_module("norm", nn::BatchNorm1d(5));
  nn::Linear& fc = register_module("fc", nn::Linear(5, kTokens* kClasses));
  Tensor forward(const Tensor& x) override { return fc(normalizes ? norm(x) : x); }
  bool normalizes;
};

// [B, T] classes: targets 0 to 5 and 20 to 22 of 33 are ignored, which leaves the first shard of 8 without any.
data::Batch batch_of(bool all_valid) {
  manual_seed(5);
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < kSamples * kTokens; ++i) {
    const bool ignored = !all_valid && (i < 6 || (i >= 20 && i < 23));
    classes.push_back(ignored ? -100 : i * i % kClasses);
  }
  return {randn({kSamples, 5}), from_data(classes, {kSamples, kTokens}, {.dtype = DType::i64})};
}

Tensor rows_of(const Tensor& logits) { return reshape(logits, {-1, kClasses}); }
Tensor classes_of(const data::Batch& b) { return reshape(b.targets, {-1}); }
Tensor mask_of(const data::Batch& b) { return cast(classes_of(b) != -100.0, DType::f32); }

using LossOf = std::function<ShardLoss(Net&, const data::Batch&)>;

ShardLoss entropy(Net& n, const data::Batch& b, CrossEntropyOptions options) {
  return cross_entropy(rows_of(n(b.inputs)), classes_of(b), options);
}

// By name. Those that count nothing on a shard without valid targets come first.
const std::map<std::string, LossOf> kLosses = {
    {"cross entropy", [](Net& n, const data::Batch& b) { return entropy(n, b, {}); }},
    {"smoothed", [](Net& n, const data::Batch& b) { return entropy(n, b, {.label_smoothing = 0.1}); }},
    {"sum", [](Net& n, const data::Batch& b) { return entropy(n, b, {.reduction = Reduction::sum}); }},
    {"none, sum",
     [](Net& n, const data::Batch& b) { return entropy(n, b, {.reduction = Reduction::none}).value.sum(); }},
    {"none, mean",
     [](Net& n, const data::Batch& b) { return entropy(n, b, {.reduction = Reduction::none}).value.mean(); }},
    {"masked mean",
     [](Net& n, const data::Batch& b) {
       const Tensor mask = mask_of(b);
       return (square(rows_of(n(b.inputs))).mean({1}) * mask).sum() / mask.sum();
     }},
    {"class weights",
     [](Net& n, const data::Batch& b) {
       const Tensor w = mask_of(b) * (cast(classes_of(b), DType::f32) + 1.5);
       return (entropy(n, b, {.reduction = Reduction::none}).value * w).sum() / w.sum();
     }},
    {"scaled class weights",
     [](Net& n, const data::Batch& b) {
       const Tensor w = mask_of(b) * (cast(classes_of(b), DType::f32) + 1.5);
       return (entropy(n, b, {.reduction = Reduction::none}).value * w).sum() / w.sum() * 0.5 / 3;
     }},
    {"means of losses and mask",
     [](Net& n, const data::Batch& b) {
       const Tensor mask = mask_of(b);
       return (square(rows_of(n(b.inputs))).mean({1}) * mask).mean() / mask.mean();
     }},
    {"weighted and smoothed",
     [](Net& n, const data::Batch& b) {
       const Tensor weight = tensor({0.5, 1.5, 2, 3}, {.dtype = DType::f32});
       return weighted_cross_entropy(rows_of(n(b.inputs)), classes_of(b), weight, {.label_smoothing = 0.1});
     }},
    {"scaled and cast",
     [](Net& n, const data::Batch& b) {
       return -cast(entropy(n, b, {}).value * 0.25, DType::f64) / 3 + entropy(n, b, {}).value;
     }},
    {"penalty",
     [](Net& n, const data::Batch& b) { return entropy(n, b, {}).value + 0.01 * square(n.fc.weight).sum(); }},
    {"mse",
     [](Net& n, const data::Batch& b) {
       return mse_loss(n(b.inputs), ones({b.size(), kTokens * kClasses}));
     }},
    {"mse sum",
     [](Net& n, const data::Batch& b) {
       return mse_loss(n(b.inputs), ones({b.size(), kTokens * kClasses}), Reduction::sum);
     }},
    {"two sums",
     [](Net& n, const data::Batch& b) {
       const Tensor y = n(b.inputs);
       const Tensor zero = zeros({b.size(), kTokens * kClasses});
       return mse_loss(y, zero, Reduction::sum) + l1_loss(y, zero, Reduction::sum);
     }},
    {"given count",
     [](Net& n, const data::Batch& b) {
       const double count = mask_of(b).sum().item();
       const Tensor sum = entropy(n, b, {.reduction = Reduction::sum}).value;
       return ShardLoss(sum / std::max(count, 1.0), count);
     }},
    {"summed",
     [](Net& n, const data::Batch& b) {
       return ShardLoss::summed(entropy(n, b, {.reduction = Reduction::sum}).value * 0.5);
     }},
};

// Those that are 0 / 0 on a shard without valid targets.
const std::set<std::string> kDivideByZero = {"masked mean", "class weights", "scaled class weights",
                                             "means of losses and mask", "weighted and smoothed"};

struct Outcome {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
};

std::vector<std::vector<float>> gradients_of(nn::Module& model) {
  std::vector<std::vector<float>> out;
  for (const auto& [name, p] : model.named_parameters())
    out.push_back(p.grad().defined() ? p.grad().to_vector<float>() : std::vector<float>());
  return out;
}

Net fresh(bool with_norm) {
  manual_seed(2);
  return Net(with_norm);
}

Outcome whole(const LossOf& loss, const data::Batch& batch, bool with_norm) {
  Net net = fresh(with_norm);
  const Tensor value = loss(net, batch).value;
  value.backward();
  return {value.item(), gradients_of(net)};
}

Outcome sharded(const LossOf& loss, const data::Batch& batch, const DataParallelOptions& options, int ranks) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](Communicator& c) {
    Net net = fresh(options.synchronized_batch_norm);
    DataParallel parallel(c, net, options);
    Outcome& out = all[static_cast<std::size_t>(c.rank())];
    out.loss = parallel.backward(batch, [&](const data::Batch& part) { return loss(net, part); }).item();
    out.gradients = gradients_of(net);
  });
  for (const Outcome& o : all) CHECK(o.gradients == all[0].gradients);
  return all[0];
}

void check_near(const Outcome& a, const Outcome& b) {
  CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-6));
  REQUIRE(a.gradients.size() == b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    REQUIRE(a.gradients[i].size() == b.gradients[i].size());
    double most = 0;
    double off = 0;
    for (std::size_t k = 0; k < a.gradients[i].size(); ++k) {
      most = std::max(most, std::abs(static_cast<double>(b.gradients[i][k])));
      off = std::max(off, std::abs(static_cast<double>(a.gradients[i][k] - b.gradients[i][k])));
      REQUIRE(std::isfinite(a.gradients[i][k]));
    }
    CHECK(off <= 32 * 0x1p-24 * most);  // sums of 33 rows in another order
  }
}

}  // namespace

TEST_CASE("shards weighted by what their loss divides by give the whole batch's gradient" *
          doctest::test_suite("slow")) {
  for (const bool all_valid : {true, false})
    for (const auto& entry : kLosses) {
      const std::string& name = entry.first;
      const LossOf& loss = entry.second;
      CAPTURE(name);
      CAPTURE(all_valid);
      const data::Batch batch = batch_of(all_valid);
      const Outcome expected = whole(loss, batch, false);
      for (const int shards : {1, 2, 4, 8, 16}) {
        CAPTURE(shards);
        const Outcome one = sharded(loss, batch, {.shards = shards}, 1);
        check_near(one, expected);
        for (const int ranks : {2, 3})
          for (const std::int64_t bytes : {0, 1}) {
            if (ranks > shards) continue;
            CAPTURE(ranks);
            const Outcome many = sharded(loss, batch, {.shards = shards, .bucket_bytes = bytes}, ranks);
            CHECK(many.gradients == one.gradients);
            CHECK(many.loss == one.loss);
          }
      }
    }
}

TEST_CASE("synchronised batch norm weights shards by the same" * doctest::test_suite("slow")) {
  for (const bool all_valid : {true, false})
    for (const auto& entry : kLosses) {
      const std::string& name = entry.first;
      const LossOf& loss = entry.second;
      if (!all_valid && kDivideByZero.contains(name)) continue;  // 0 / 0 on a shard: docs/distributed.md
      CAPTURE(name);
      CAPTURE(all_valid);
      const data::Batch batch = batch_of(all_valid);
      const Outcome one = sharded(loss, batch, {.shards = 8, .synchronized_batch_norm = true}, 1);
      check_near(one, whole(loss, batch, true));
      const Outcome two = sharded(loss, batch, {.shards = 8, .synchronized_batch_norm = true}, 2);
      CHECK(two.gradients == one.gradients);
    }
}

TEST_CASE("a sum of what one number scaled is an error, as a scaled sum is") {
  const LossOf scaled = [](Net& n, const data::Batch& b) {
    return (square(n(b.inputs)) / static_cast<double>(b.size())).sum();
  };
  const std::string message = message_of([&] { sharded(scaled, batch_of(true), {.shards = 4}, 1); });
  CHECK(message.find("times or over a number") != std::string::npos);
}

TEST_CASE("terms that divide by different things add where all targets count") {
  const data::Batch batch = batch_of(true);
  const LossOf loss = [](Net& n, const data::Batch& b) {
    return entropy(n, b, {}).value + mse_loss(n(b.inputs), ones({b.size(), kTokens * kClasses})) * 0.5;
  };
  check_near(sharded(loss, batch, {.shards = 4}, 2), whole(loss, batch, false));
}

TEST_CASE("if all targets count, the weights are the shares of samples to the bit") {
  const data::Batch batch = batch_of(true);
  const LossOf& loss = kLosses.at("cross entropy");
  constexpr int kShards = 4;
  const Outcome out = sharded(loss, batch, {.shards = kShards}, 1);
  std::vector<TreeSum<float>> trees(out.gradients.size());
  for (int k = 0; k < kShards; ++k) {
    const Range part = part_of(kSamples, kShards, k);
    const Outcome own =
        whole(loss, {batch.inputs.narrow(0, part.first, part.size()), batch.targets.narrow(0, part.first, part.size())},
              false);
    const auto share = static_cast<float>(static_cast<double>(part.size()) / static_cast<double>(kSamples));
    for (std::size_t i = 0; i < trees.size(); ++i) {
      std::vector<float> values = own.gradients[i];
      for (float& v : values) v *= share;
      trees[i].add(0, k, std::move(values));
    }
  }
  for (std::size_t i = 0; i < trees.size(); ++i) CHECK(trees[i].total() == out.gradients[i]);
}

TEST_CASE("a batch without a valid target has a loss of NaN, as without shards, and gradients of zero") {
  data::Batch batch = batch_of(true);
  batch.targets.fill_(-100);
  const Outcome out = sharded(kLosses.at("cross entropy"), batch, {.shards = 4}, 1);
  CHECK(std::isnan(out.loss));
  for (const float g : out.gradients.back()) CHECK(g == 0);
}

TEST_CASE("a recipe's steps with ignored targets are those of one process without shards") {
  const data::Batch batch = batch_of(false);
  const auto train = [&](int shards) {
    Net net = fresh(false);
    amp::RecipeRun run(amp::recipe("fp32"), net, optim::SGDOptions{.lr = 0.5});
    const auto loss = [&](const data::Batch& part) { return entropy(net, part, {}).value; };
    const auto ranks = single();
    DataParallel parallel(*ranks, run, {.shards = std::max(shards, 1)});
    for (int i = 0; i < 3; ++i)
      if (shards == 0) run.step([&] { return loss(batch); });
      else parallel.step(batch, loss);
    return net.fc.weight.detach().clone();
  };
  const Tensor expected = train(0);
  for (const int shards : {1, 2, 8}) CHECK(abs(train(shards) - expected).max().item() <= 1e-6);
}

TEST_CASE("with masters the sum over shards and over calls stays in f32") {
  for (const char* name : {"bf16-master", "bf16-pure"}) {
    CAPTURE(name);
    nn::Linear layer(1, 1, {.bias = false});
    amp::RecipeRun run(amp::recipe(name), layer, optim::SGDOptions{.lr = 1});
    const auto ranks = single();
    DataParallel parallel(*ranks, run, {.shards = 4});
    const auto add = [&](double c) {
      parallel.backward({full({4, 1}, c), Tensor()},
                        [&](const data::Batch& part) { return layer(part.inputs).mean(); });
    };
    add(1);
    for (int i = 0; i < 256; ++i) add(0x1p-10);
    CHECK(layer.weight.grad().item() == (std::string(name) == "bf16-pure" ? 1 : 1.25));
  }
}

TEST_CASE("losses whose weight nobody can know are errors that say what to return") {
  const data::Batch batch = batch_of(false);
  Net net = fresh(false);
  const auto ranks = single();
  DataParallel parallel(*ranks, net, {.shards = 4});
  const auto error = [&](const std::function<Tensor(const data::Batch&)>& loss) {
    return message_of([&] { parallel.backward(batch, loss); });
  };
  CHECK(error([&](const data::Batch& b) {
          return entropy(net, b, {.reduction = Reduction::sum}).value / static_cast<double>(b.size());
        }).find("the loss is a sum (cross_entropy") != std::string::npos);
  CHECK(error([&](const data::Batch& b) {
          return square(net(b.inputs)).sum() * 0.5;
        }).find("dist::ShardLoss(loss, count)") != std::string::npos);
  const std::string two = error([&](const data::Batch& b) {
    return entropy(net, b, {}).value + mse_loss(net(b.inputs), ones({b.size(), kTokens * kClasses}));
  });
  CHECK_MESSAGE(two.find("divides by 0 of 6; ") != std::string::npos, two);
  CHECK(two.find("divide by different things") != std::string::npos);
  int calls = 0;
  const std::string kinds = error(
      [&](const data::Batch& b) { return ++calls == 2 ? square(net(b.inputs)).sum() : square(net(b.inputs)).mean(); });
  CHECK(kinds ==
        "DataParallel: the loss of shard 1 is a sum and that of the first shard a mean; all must be of one kind");
}

TEST_CASE("a shard whose loss throws leaves gradients, buffers and the generator as they were") {
  const data::Batch batch = batch_of(true);
  Net net = fresh(true);
  const auto ranks = single();
  DataParallel parallel(*ranks, net, {.shards = 4});
  const auto loss = [&](const data::Batch& b) { return entropy(net, b, {}).value; };
  parallel.backward(batch, loss);
  const auto gradients = gradients_of(net);
  const Tensor mean = net.norm.running_mean.detach().clone();
  const RandomKey key = default_generator().state();
  int calls = 0;
  CHECK_THROWS_AS(parallel.backward(batch,
                                    [&](const data::Batch& b) {
                                      if (++calls == 3) throw_error("the third shard is wrong");
                                      return loss(b);
                                    }),
                  Error);
  CHECK(gradients_of(net) == gradients);
  CHECK(abs(net.norm.running_mean - mean).max().item() == 0);
  CHECK(default_generator().state() == key);
}
