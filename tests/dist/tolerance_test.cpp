// Data-parallel steps within the bounds of the step of one process.
#include <doctest/doctest.h>
#include <gradual/dist/data_parallel.h>
#include <gradual/gradual.h>
#include <gradual/lab/models.h>
#include <gradual/lab/recorded_ops.h>
#include <gradual/lab/tolerance.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/thread_ranks.h"

using namespace gradual;
using namespace gradual::dist;

namespace {

// A GPT of 4 layers before its first step, and a batch of 8 sequences.
struct Step {
  Step() {
    manual_seed(5);
    model = lab::make_gpt({.vocabulary = 16, .context = 8, .width = 32, .layers = 4});
    run.emplace(amp::recipe("fp32"), *model, optim::AdamWOptions{.lr = 1e-3});
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = 0; i < 72; ++i) tokens.push_back(i * i % 16);
    batch.inputs = from_data(std::vector<std::int64_t>(tokens.begin(), tokens.begin() + 64), {8, 8});
    batch.targets = from_data(std::vector<std::int64_t>(tokens.begin() + 8, tokens.end()), {8, 8});
  }
  Tensor loss(const data::Batch& part) const {
    return cross_entropy((*model)(part.inputs).reshape({-1, 16}), part.targets.reshape({-1}));
  }
  StateDict parameters() const {
    StateDict all;
    for (const auto& [name, parameter] : model->named_parameters())
      all.set("after:" + name, parameter.detach().clone());
    return all;
  }

  std::shared_ptr<nn::Module> model;
  std::optional<amp::RecipeRun> run;
  data::Batch batch;
};

}  // namespace

TEST_CASE("a data-parallel step of a GPT has the same bits on 1, 2, 4 and 8 ranks, within the bound of one process") {
  Step whole;
  lab::RecordedOps ops(*whole.model);
  {
    const UnfusedScope parts;
    const ObserverScope scope(ops);
    whole.run->step([&] { return whole.loss(whole.batch); });
  }
  const lab::Tolerances t = lab::tolerance_of(ops, {.orders = 1});
  std::vector<StateDict> all;
  for (const int ranks : {1, 2, 4, 8}) {
    StateDict& first = all.emplace_back();
    run_threads(ranks, [&](Communicator& c) {
      Step mine;
      DataParallel parallel(c, *mine.run);
      parallel.step(mine.batch, [&](const data::Batch& part) { return mine.loss(part); });
      if (c.rank() == 0) first = mine.parameters();
    });
  }
  for (const StateDict& one : all)
    for (const StateDict::Entry& entry : one) {
      CAPTURE(entry.name);
      CHECK(max(abs(sub(one.tensor(entry.name), all[0].tensor(entry.name)))).item() == 0);
    }
  CHECK(all[0].size() > 50);
  for (const lab::Exceeded& e : t.exceeded(all[0])) {
    CAPTURE(e.name);
    CHECK(!e.always);
  }
  // not the bits of one process: the test could see a difference
  const std::string name = all[0].begin()->name;
  CHECK(max(abs(sub(all[0].tensor(name), whole.parameters().tensor(name)))).item() > 0);
}
