#include <doctest/doctest.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/data/digits.h>
#include <gradual/dist/data_parallel.h>
#include <gradual/gradual.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dist/thread_ranks.h"
#include "support/files.h"

using namespace gradual;
using namespace gradual::dist;
using test::message_of;

namespace {

std::shared_ptr<nn::Module> small_net(std::uint64_t seed) {
  manual_seed(seed);
  return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(64, 32), nn::BatchNorm1d(32), nn::ReLU(),
                                          nn::Dropout(0.3), nn::Linear(32, 10));
}

// Attends to the rows of an image of 8 x 8.
struct RowNet : nn::Module {
  nn::Linear& embedding = register_module("embedding", nn::Linear(8, 16));
  nn::MultiheadAttention& attn = register_module("attn", nn::MultiheadAttention(16, 2, {.dropout = 0.1}));
  nn::Linear& head = register_module("head", nn::Linear(16, 10));
  Tensor forward(const Tensor& x) override {
    const Tensor rows = embedding(x.reshape({-1, 8, 8}));
    return head(mean(rows + attn(rows, rows, rows), {1}));
  }
};
std::shared_ptr<nn::Module> row_net(std::uint64_t seed) {
  manual_seed(seed);
  return std::make_shared<RowNet>();
}

struct Setting {
  std::string recipe = "fp32";
  std::string exchange = {};
  int ranks = 1;
  int emulated = 0;
  int steps = 5;
  std::int64_t batch = 50;  // shards of 6 and of 7 samples
  double huge_input = 0;    // of the last sample of step 2
  bool parts = false;       // each rank loads its shards alone
  double noise = 0;         // on what a rank loads, with parts
  double clip = 0.5;
  bool synchronized = false;  // batch norm
  std::int64_t bucket_bytes = DataParallelOptions{}.bucket_bytes;
  std::shared_ptr<nn::Module> (*model)(std::uint64_t seed) = small_net;
};

struct Outcome {
  StateDict state;
  std::vector<double> losses;
  std::int64_t skipped = 0;
  std::uint64_t bytes = 0;  // that the exchange sent
};

Outcome train_rank(Communicator& c, const Setting& s) {
  Outcome out;
  const auto model = s.model(static_cast<std::uint64_t>(c.rank()) + 7);  // rank 0's parameters count
  manual_seed(3);
  amp::Recipe recipe = amp::recipe(s.recipe);
  if (!s.exchange.empty()) recipe.exchange = amp::exchange_from_name(s.exchange);
  amp::RecipeRun run(recipe, *model, optim::AdamWOptions{.lr = 1e-2}, {.clip_norm = s.clip});
  DataParallel parallel(
      c, run,
      {.ranks_emulated = s.emulated, .synchronized_batch_norm = s.synchronized, .bucket_bytes = s.bucket_bytes});
  const data::DataLoaderOptions options{.batch = s.batch, .shuffle = true};
  const data::Dataset digits = data::digits();
  const auto fetch = [&](const std::vector<std::int64_t>& indices) {
    data::Batch batch = data::take(digits, indices);
    if (s.noise > 0) batch.inputs = add(batch.inputs, mul(randn(batch.inputs.sizes()), s.noise));
    return batch;
  };
  data::DataLoader loader = s.parts ? data::DataLoader(digits.size(), own_shards(c, parallel.shards(), fetch), options)
                                    : data::DataLoader(digits, options);
  for (int k = 0; k < s.steps; ++k) {
    data::Batch batch;
    loader.next(batch);
    if (s.huge_input > 0 && k == 2) batch.inputs.narrow(0, batch.size() - 1, 1).fill_(s.huge_input);
    const amp::RunStep step = parallel.step(
        batch, [&](const data::Batch& part) { return cross_entropy((*model)(part.inputs), part.targets); });
    out.losses.push_back(step.loss.item());
    out.skipped += step.result.skipped();
  }
  out.state = run.state_dict();
  out.bytes = parallel.take_exchanged().bytes;
  return out;
}

Outcome train(const Setting& s) {
  std::vector<Outcome> all(static_cast<std::size_t>(s.ranks));
  run_threads(s.ranks, [&](Communicator& c) { all[static_cast<std::size_t>(c.rank())] = train_rank(c, s); });
  return all.back();
}

void check_same_bits(const Outcome& a, const Outcome& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  CHECK(std::memcmp(a.losses.data(), b.losses.data(), a.losses.size() * sizeof(double)) == 0);  // NaN too
  CHECK(a.skipped == b.skipped);
  CHECK(a.bytes == b.bytes);
  REQUIRE(a.state.size() == b.state.size());
  for (const auto& entry : a.state) {
    const std::string& name = entry.name;
    const StateValue& value = entry.value;
    CAPTURE(name);
    if (!std::holds_alternative<Tensor>(value)) {
      CHECK(describe(value) == describe(b.state.at(name)));
      continue;
    }
    const Tensor x = std::get<Tensor>(value).contiguous();
    const Tensor y = b.state.tensor(name).contiguous();
    REQUIRE(x.sizes() == y.sizes());
    CHECK(std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0);
  }
}

}  // namespace

TEST_CASE("every number of ranks and size of buckets trains to the same bits, with every kind of recipe" *
          doctest::test_suite("long")) {
  set_deterministic(true);
  for (const char* recipe : {"fp32", "amp-fp16", "amp-bf16", "fp16-master", "bf16-pure", "fp8-delayed", "fp8-smooth",
                             "mxfp8", "e4m2:stochastic"}) {
    CAPTURE(recipe);
    const Outcome one = train({.recipe = recipe});
    CHECK(one.losses.back() < one.losses.front());
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const std::int64_t bytes : {0, 1, 300, 3000}) {  // of a bucket; 1: one for each parameter
        CAPTURE(ranks);
        CAPTURE(bytes);
        check_same_bits(train({.recipe = recipe, .ranks = ranks, .bucket_bytes = bytes}), one);
      }
    check_same_bits(train({.recipe = recipe, .ranks = 3, .parts = true}), one);
  }
  set_deterministic(false);
}

TEST_CASE("learned scales and gradients that are not straight: the same bits on every number of ranks") {
  set_deterministic(true);
  for (const char* recipe : {"int4-lsq", "mxfp4-clipped"}) {
    CAPTURE(recipe);
    const Outcome one = train({.recipe = recipe});
    CHECK(one.losses.back() < one.losses.front());
    for (const int ranks : {2, 3})
      for (const std::int64_t bytes : {0, 300}) {
        CAPTURE(ranks);
        CAPTURE(bytes);
        check_same_bits(train({.recipe = recipe, .ranks = ranks, .bucket_bytes = bytes}), one);
      }
    if (std::string(recipe) != "int4-lsq") continue;
    std::int64_t learned = 0;
    for (const auto& entry : one.state)
      if (entry.name.starts_with("model.") && entry.name.ends_with("_step")) {
        CHECK(std::get<Tensor>(entry.value).item() > 0);
        ++learned;
      }
    CHECK(learned >= 4);
  }
  set_deterministic(false);
}

TEST_CASE("delayed scales inside attention: the same bits and histories on every number of ranks") {
  set_deterministic(true);
  const Outcome one = train({.recipe = "fp8-attention-delayed", .model = row_net});
  CHECK(one.losses.back() < one.losses.front());
  std::set<std::string> histories;
  for (const auto& entry : one.state)
    if (const auto at = entry.name.find(".attention."); at != std::string::npos && entry.name.ends_with(".amax")) {
      CHECK(std::get<Tensor>(entry.value).numel() == 5);
      histories.insert(entry.name.substr(at + 11));
    }
  CHECK(histories ==
        std::set<std::string>{"q.amax", "k.amax", "v.amax", "p.amax", "do.amax", "dp.amax", "ds.amax", "o.amax"});
  for (const int ranks : {2, 3})
    for (const std::int64_t bytes : {0, 300})
      check_same_bits(
          train({.recipe = "fp8-attention-delayed", .ranks = ranks, .bucket_bytes = bytes, .model = row_net}), one);
  set_deterministic(false);
}

TEST_CASE("every number of ranks trains to the same bits with synchronised batch norm, with every kind of recipe") {
  set_deterministic(true);
  for (const char* recipe : {"fp32", "amp-fp16", "amp-bf16", "bf16-pure", "fp8-delayed", "mxfp8", "e4m2:stochastic"}) {
    CAPTURE(recipe);
    const Outcome one = train({.recipe = recipe, .steps = 3, .synchronized = true});
    CHECK(one.losses != train({.recipe = recipe, .steps = 3}).losses);
    for (const int ranks : {2, 3, 4})
      check_same_bits(train({.recipe = recipe, .ranks = ranks, .steps = 3, .synchronized = true}), one);
  }
  const Outcome huge = train({.recipe = "amp-fp16", .huge_input = 3e5, .synchronized = true});
  check_same_bits(train({.recipe = "amp-fp16", .ranks = 4, .huge_input = 3e5, .synchronized = true}), huge);
  set_deterministic(false);
}

TEST_CASE(
    "measured phases, resets of oscillating weights and outlier channels have the same bits on every number of ranks") {
  set_deterministic(true);
  amp::Recipe measured = amp::recipe("mxfp4");
  measured.name = "measured";
  const amp::PhaseCondition noise{.quantity = MeasuredQuantity::gradient_to_noise, .below = 1e30, .steps = 2};
  measured.schedule = {{.recipe = "fp32", .when = noise}};
  amp::register_recipe(measured);
  amp::Recipe resets = amp::recipe("tetrajet-v2");
  resets.name = "resets";
  resets.oscillation_reset = amp::OscillationReset{.period = 3, .window = 2, .ratio = 1.5};
  // every third step, before the resets' window begins
  resets.quantization->outliers->from = 2;
  resets.quantization->outliers->window = 1;
  resets.quantization->outliers->period = 3;
  amp::register_recipe(resets);
  for (const char* recipe : {"measured", "resets"})
    for (const bool synchronized : {false, true}) {
      CAPTURE(recipe);
      CAPTURE(synchronized);
      const Outcome one = train({.recipe = recipe, .synchronized = synchronized});
      if (one.state.contains("phases.begun")) {
        CHECK(one.state.integer("phases.begun") == 1);
        CHECK(one.state.integer("phases.0.step") == 2);
        CHECK(one.state.real("phases.0.value") > 1);
        CHECK(one.state.real("phases.0.value") < 100);
      } else {
        CHECK(one.state.integer("oscillation.windows") == 1);
        CHECK(one.state.integer("oscillation.resets") > 0);
        const double chosen = one.state.tensor("quantization.0.channels.outliers").to(DType::f64).sum().item();
        CHECK(chosen == std::max(1.0, std::round(0.1 * one.state.tensor("quantization.0.channels.outliers").numel())));
      }
      for (const int ranks : {2, 3, 8})
        check_same_bits(train({.recipe = recipe, .ranks = ranks, .synchronized = synchronized}), one);
      if (!synchronized) check_same_bits(train({.recipe = recipe, .ranks = 4, .bucket_bytes = 300}), one);
    }
  set_deterministic(false);
}

TEST_CASE("buckets change no bit of an overflow on one rank, and of synchronised batch norm") {
  set_deterministic(true);
  for (const std::int64_t bytes : {1, 3000}) {
    check_same_bits(train({.recipe = "amp-fp16", .ranks = 4, .huge_input = 3e5, .bucket_bytes = bytes}),
                    train({.recipe = "amp-fp16", .huge_input = 3e5}));
    check_same_bits(train({.ranks = 2, .synchronized = true, .bucket_bytes = bytes}), train({.synchronized = true}));
  }
  set_deterministic(false);
}

TEST_CASE("ranks that load their own shards train to the same bits, with random augmentation too") {
  set_deterministic(true);
  for (const std::int64_t batch : {50, 17}) {
    CAPTURE(batch);
    const Outcome whole = train({.batch = batch});
    const Outcome noisy = train({.batch = batch, .parts = true, .noise = 0.5});
    CHECK(whole.losses != noisy.losses);
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks);
      check_same_bits(train({.ranks = ranks, .batch = batch, .parts = true}), whole);
      check_same_bits(train({.ranks = ranks, .batch = batch, .parts = true, .noise = 0.5}), noisy);
    }
  }
  set_deterministic(false);
}

TEST_CASE("a batch of fewer samples than shards is dealt out whole") {
  const std::vector<std::int64_t> indices = {7, 3, 9, 1, 4};
  for (const int ranks : {1, 3, 8}) {
    CAPTURE(ranks);
    std::vector<data::Batch> parts(static_cast<std::size_t>(ranks));
    run_threads(ranks, [&](Communicator& c) {
      const auto fetch = [](const std::vector<std::int64_t>& i) { return data::take(data::digits(), i); };
      parts[static_cast<std::size_t>(c.rank())] = own_shards(c, 8, fetch)(indices);
    });
    std::vector<std::int64_t> targets;
    for (const data::Batch& part : parts) {
      CHECK(part.whole == 5);
      if (!part.inputs.defined()) continue;
      CHECK(part.first == static_cast<std::int64_t>(targets.size()));
      for (const std::int64_t t : part.targets.to_vector<std::int64_t>()) targets.push_back(t);
    }
    CHECK(targets == data::take(data::digits(), indices).targets.to_vector<std::int64_t>());
  }
}

TEST_CASE("an overflow on one rank makes all skip") {
  const std::int64_t without = train({.recipe = "amp-fp16"}).skipped;  // while the first scale falls
  const Outcome one = train({.recipe = "amp-fp16", .huge_input = 3e5});
  CHECK(one.skipped == without + 1);
  check_same_bits(train({.recipe = "amp-fp16", .ranks = 4, .huge_input = 3e5}), one);
  // also where the exchange has no Inf
  const Outcome emulated = train({.recipe = "amp-fp16", .exchange = "e4m3fn", .emulated = 4, .huge_input = 3e5});
  CHECK(emulated.skipped == without + 1);
  check_same_bits(train({.recipe = "amp-fp16", .exchange = "e4m3fn", .ranks = 4, .huge_input = 3e5}), emulated);
}

// f32 loses nothing that could be fed back, and neither f32 nor signs are rounded at random.
static bool is_exchange(const std::string& name) {
  const bool lossless = name.starts_with("f32");
  const bool sign = name.starts_with("sign");
  if (lossless && name.find("feedback") != std::string::npos) return false;
  return !(lossless || sign) || name.find("stochastic") == std::string::npos;
}

TEST_CASE("an emulation has the bits of real ranks, with every exchange" * doctest::test_suite("long")) {
  for (const char* what : {"f32", "bf16", "f16", "e5m2", "e4m3fn", "int8", "mxfp8", "mxfp4", "nvfp4", "sign"})
    for (const char* how :
         {"/gather", "/ring", "/tree", "/ring/stochastic/after", "/gather/feedback/f32-result", "/tree/feedback"}) {
      const std::string exchange = std::string(what) + how;
      if (!is_exchange(exchange)) continue;
      CAPTURE(exchange);
      const Outcome emulated = train({.exchange = exchange, .emulated = 3, .steps = 3});
      check_same_bits(train({.exchange = exchange, .ranks = 3, .steps = 3}), emulated);
    }
}

TEST_CASE("buckets change no bit and no byte of an exchange in low precision, nor what it keeps after an overflow" *
          doctest::test_suite("long")) {
  for (const char* what : {"f32", "bf16", "e4m3fn", "int8", "mxfp8", "nvfp4", "sign"})
    for (const char* how : {"/gather", "/ring/after", "/tree/stochastic", "/gather/feedback/f32-result"}) {
      const std::string exchange = std::string(what) + how;
      if (!is_exchange(exchange)) continue;
      CAPTURE(exchange);
      Setting s{.recipe = "amp-fp16", .exchange = exchange, .ranks = 3, .huge_input = 3e5, .bucket_bytes = 0};
      const Outcome one = train(s);
      CHECK(one.skipped > 0);
      for (const std::int64_t bytes : {1, 300, 3000}) {
        CAPTURE(bytes);
        s.bucket_bytes = bytes;
        check_same_bits(train(s), one);
      }
    }
  const Setting s{.exchange = "bf16/ring", .ranks = 3, .steps = 3, .synchronized = true, .bucket_bytes = 1};
  check_same_bits(train(s), train({.exchange = "bf16/ring", .emulated = 3, .steps = 3, .synchronized = true}));
}

TEST_CASE("the bytes of an exchange are those of its codes and scales") {
  const auto sent = [](const char* exchange) { return train({.exchange = exchange, .ranks = 3, .steps = 2}).bytes; };
  constexpr std::uint64_t kNumbers = 64 * 32 + 32 + 2 * 32 + 32 * 10 + 10;
  constexpr std::uint64_t kParameters = 6;
  constexpr std::uint64_t kSteps = 2;
  CHECK(train({.ranks = 3, .steps = 2}).bytes == 0);  // without an exchange nothing is counted
  // Each number goes to its owner from two ranks, and its sum goes to two.
  CHECK(sent("f32/gather") == kSteps * 4 * kNumbers * 4);
  CHECK(sent("bf16/gather") == kSteps * 4 * kNumbers * 2);
  CHECK(sent("bf16/gather/f32-result") == kSteps * 2 * kNumbers * (2 + 4));
  CHECK(sent("bf16/ring") == kSteps * 4 * kNumbers * 2);
  CHECK(sent("bf16/tree") == kSteps * 4 * kNumbers * 2);
  // Three ranks send their amaxes to two, before the codes and before the sums.
  CHECK(sent("e4m3fn/gather") == kSteps * (4 * kNumbers + 2 * 6 * kParameters * sizeof(float)));
}

TEST_CASE("what blocks of codes lose does not depend on pieces, down to one number and to zeros") {
  const auto communicator = single();
  for (const char* name : {"mxfp8/gather/f32-result", "mxfp4/gather", "nvfp4/gather/f32-result", "nvfp4/tree"}) {
    const amp::Exchange exchange = amp::exchange_from_name(name);
    for (const int ranks : {1, 5, 40}) {
      CAPTURE(name);
      CAPTURE(ranks);
      RankSum sum(*communicator, exchange, ranks, {1, 7, 0, 64, 3});
      std::vector<float> values(75, 0.0f);
      for (std::size_t i = 30; i < 75; ++i) values[i] = i % 2 ? 0.5f : -1.0f;
      const std::vector<float> mean =
          sum.sum(std::vector(static_cast<std::size_t>(ranks), values), 1.0 / ranks, {.seed = 1});
      for (std::size_t i = 0; i < 75; ++i) CHECK(mean[i] == doctest::Approx(values[i]).epsilon(0.35));
    }
  }
}

TEST_CASE("a loop of one's own, and what is refused") {
  const auto gradient = [](int ranks) {
    Tensor out;
    run_threads(ranks, [&](Communicator& c) {
      nn::Linear layer(64, 10);
      nn::Linear unused(3, 3);
      DataParallel parallel(c, layer);
      const data::Dataset digits = data::digits();
      const data::Batch batch{digits.inputs.narrow(0, 0, 20).reshape({20, 64}), digits.targets.narrow(0, 0, 20)};
      const auto loss = [&](const data::Batch& part) { return cross_entropy(layer(part.inputs), part.targets); };
      parallel.backward(batch, loss);
      parallel.backward(batch, loss);  // adds
      if (c.rank() == 0) out = layer.weight.grad();
    });
    return out;
  };
  const Tensor one = gradient(1);
  CHECK(one.to_vector<float>() == gradient(4).to_vector<float>());
  CHECK(absmax(one) > 0);
  CHECK(message_of([] { train({.exchange = "bf16", .ranks = 2, .emulated = 4}); }) ==
        "data-parallel training: 2 ranks cannot emulate 4; one process can");
  CHECK(message_of([] { train({.ranks = 3, .emulated = 0, .batch = 0}); }).starts_with("DataLoader: batch 0"));
  CHECK(message_of([] {
          run_threads(2, [](Communicator& c) {
            nn::Linear layer(c.rank() + 2, 3);
            DataParallel(c, layer);
          });
        }) ==
        "the ranks differ in their parameters: rank 0 has 'weight f32 [3, 2], bias f32 [3]', rank 1 has 'weight f32 "
        "[3, 3], bias f32 [3]'");
  CHECK(message_of([] { shards_of({.shards = 4}, 8); }) ==
        "data-parallel training: 4 shards for 8 ranks; allowed are 8 to 1024");
}

TEST_CASE("residuals of error feedback are saved and resumed") {
  const auto recipe = [] {
    amp::Recipe r = amp::recipe("fp32");
    r.exchange = amp::exchange_from_name("sign/feedback");
    return r;
  }();
  const data::Dataset digits = data::digits();
  const auto step = [&](DataParallel& parallel, nn::Module& model, std::int64_t k) {
    const data::Batch batch{digits.inputs.narrow(0, 40 * k, 40), digits.targets.narrow(0, 40 * k, 40)};
    return parallel
        .step(batch, [&](const data::Batch& part) { return cross_entropy(model(part.inputs), part.targets); })
        .loss.item();
  };
  run_threads(2, [&](Communicator& c) {
    const auto model = small_net(1);
    const auto copy = small_net(2);
    manual_seed(5);
    amp::RecipeRun run(recipe, *model, optim::SGDOptions{.lr = 0.1});
    amp::RecipeRun resumed(recipe, *copy, optim::SGDOptions{.lr = 0.1});
    DataParallel parallel(c, run);
    DataParallel later(c, resumed);
    for (std::int64_t k = 0; k < 3; ++k) step(parallel, *model, k);
    resumed.load_state_dict(run.state_dict());
    const StateDict residuals = parallel.state_dict();
    later.load_state_dict(residuals);
    const Generator generator = default_generator();
    for (std::int64_t k = 3; k < 5; ++k) step(parallel, *model, k);
    default_generator() = generator;
    for (std::int64_t k = 3; k < 5; ++k) step(later, *copy, k);
    const auto weight = [](nn::Module& m) { return m.named_parameters().front().second.to_vector<float>(); };
    REQUIRE(weight(*model) == weight(*copy));
    StateDict other = residuals;
    other.set("ranks", 4);
    REQUIRE(message_of([&] {
              later.load_state_dict(other);
            }).starts_with("DataParallel: the state is of 4 ranks, here are 2"));
  });
}

namespace {

// What trains on a rank, and what another rank may have otherwise.
struct Settings {
  double lr = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
  bool adam = false;
  double clip_norm = 0;
  bool frozen = false;       // a parameter
  bool own_formula = false;  // an optimizer of the user's own under SGD's name
  std::uint64_t seed = 1;
  std::string recipe = "fp32";
  std::int64_t batch = 40;
  int steps = 1;
};

// Takes twice the step of SGD, which no fact tells.
struct OwnSgd final : optim::Optimizer {
  OwnSgd(std::vector<optim::ParamGroup> groups, const Settings& s)
      : Optimizer("sgd", {}, std::move(groups), {.lr = s.lr, .weight_decay = 0, .momentum = s.momentum, .dampening = 0},
                  {}) {}
  Choices choices() const override { return {{"nesterov", "false"}}; }
  Tensor update(const Update& u) override { return u.weight - u.gradient * (2 * *u.group.lr); }
};

void train_with(Communicator& c, const Settings& s) {
  const data::Dataset digits = data::digits();
  const auto model = small_net(1);
  manual_seed(s.seed);
  const amp::MakeOptimizer sgd = optim::SGDOptions{.lr = s.lr, .momentum = s.momentum, .nesterov = s.nesterov};
  const amp::MakeOptimizer adam = optim::AdamOptions{.lr = s.lr};
  const amp::MakeOptimizer own = [&](std::vector<optim::ParamGroup> groups, const optim::UpdateOptions&) {
    return std::make_unique<OwnSgd>(std::move(groups), s);
  };
  if (s.frozen) model->named_parameters()[0].second.set_requires_grad(false);
  amp::RecipeRun run(amp::recipe(s.recipe), *model, s.own_formula ? own : (s.adam ? adam : sgd),
                     {.clip_norm = s.clip_norm});
  DataParallel parallel(c, run);
  const auto loss = [&](const data::Batch& part) { return cross_entropy((*model)(part.inputs), part.targets); };
  for (int k = 0; k < s.steps; ++k)
    parallel.step({digits.inputs.narrow(0, 0, s.batch), digits.targets.narrow(0, 0, s.batch)}, loss);
}

// What each of three ranks says, of which the last has other settings.
std::vector<std::string> said(const Settings& all, const Settings& last) {
  std::vector<std::string> texts(3);
  static_cast<void>(message_of([&] {
    run_threads(3, [&](Communicator& c) {
      const auto rank = static_cast<std::size_t>(c.rank());
      texts[rank] = message_of([&] { train_with(c, rank == 2 ? last : all); });
    });
  }));
  return texts;
}

}  // namespace

TEST_CASE("ranks that would train otherwise are an error on each of them, which names the option and the values") {
  struct Case {
    Settings last;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{.lr = 0.5}, "the optimizer's groups.0.lr: ranks 0 and 1 have '0.1', rank 2 has '0.5'"},
      {{.momentum = 0.5}, "the optimizer's groups.0.momentum: ranks 0 and 1 have '0.9', rank 2 has '0.5'"},
      {{.adam = true}, "the optimizer's kind: ranks 0 and 1 have 'sgd', rank 2 has 'adam'"},
      {{.seed = 2}, "the seed of the default generator: ranks 0 and 1 have '1', rank 2 has '2'"},
      {{.recipe = "amp-bf16"}, "recipe: ranks 0 and 1 have '"},
      {{.nesterov = true}, "the optimizer's nesterov: ranks 0 and 1 have 'false', rank 2 has 'true'"},
      {{.clip_norm = 1e-3}, "clip_norm: ranks 0 and 1 have '0', rank 2 has '0.001'"},
      {{.frozen = true}, "their parameters: ranks 0 and 1 have '"},
      {{.own_formula = true}, "their parameters after step 1 (a checksum): ranks 0 and 1 have '"},
      {{.batch = 32}, "the number of samples in a batch: ranks 0 and 1 have '40', rank 2 has '32'"}};
  for (const Case& c : cases) {
    CAPTURE(c.message);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::string> texts = said({}, c.last);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    for (const std::string& text : texts) {
      CAPTURE(text);
      CHECK(text.starts_with("the ranks differ in "));
      CHECK(text.find(c.message) != std::string::npos);
    }
  }
  for (const std::string& text : said({.steps = 2}, {.steps = 2})) CHECK(text == "nothing was thrown");
}

TEST_CASE("facts that only some ranks have differ too, and long values are shown from where they differ") {
  const auto differ = [](const std::function<Facts(int)>& facts) {
    return message_of([&] { run_threads(3, [&](Communicator& c) { check_same(c, facts(c.rank())); }); });
  };
  CHECK(differ([](int rank) {
          return rank == 1 ? Facts{} : Facts{{"the data", "digits"}};
        }) == "the ranks differ in the data: ranks 0 and 2 have 'digits', rank 1 has 'nothing'");
  CHECK(differ([](int rank) {
          return Facts{{"a b", std::to_string(rank)}, {"c", "5 x"}, {"d", rank ? "" : " "}};
        }) ==
        "the ranks differ in a b: rank 0 has '0', rank 1 has '1', rank 2 has '2'; in d: rank 0 has ' ', ranks 1 and 2 "
        "have ''");
  const std::string text = differ([](int rank) {
    return Facts{{"it", std::string(1000, 'x') + (rank == 2 ? "here" : "there") + std::string(1000, 'y')}};
  });
  CHECK(text.size() < 400);
  CHECK(text.find("xxthere") != std::string::npos);
  CHECK(text.find("xxhere") != std::string::npos);
}

TEST_CASE("an Inf that a quantiser hides in one shard makes all ranks skip the step") {
  amp::Recipe recipe = amp::recipe("fp8-current");
  recipe.name = "scaled";
  recipe.scaling = optim::GradScalerOptions{.init_scale = 1024};
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks));
    run_threads(ranks, [&](Communicator& c) {
      manual_seed(1);
      nn::Linear layer(4, 4, {.bias = false});
      amp::RecipeRun run(recipe, layer, optim::SGDOptions{.lr = 0.1});
      DataParallel parallel(c, run, {.shards = 4});
      const auto step = [&](double factor) {
        Tensor factors = ones({8, 4});
        factors[7][0].fill_(factor);
        return parallel.step({randn({8, 4}), factors},
                             [&](const data::Batch& part) { return (layer(part.inputs) * part.targets).mean(); });
      };
      CHECK(step(1).result.applied());
      const std::vector<float> before = layer.weight.to_vector<float>();
      const amp::RunStep bad = step(HUGE_VAL);
      CHECK(bad.result.skipped());
      CHECK(bad.result.hidden() > 0);
      CHECK(layer.weight.to_vector<float>() == before);
      CHECK(run.loss_scale() == 512);
      CHECK(step(1).result.applied());
      weights[static_cast<std::size_t>(c.rank())] = layer.weight.to_vector<float>();
    });
    for (const std::vector<float>& w : weights) CHECK(w == weights[0]);
  }
}
