// Ranks that compare recipes with other options: an error on each of them before anything is trained.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "dist/thread_ranks.h"
#include "support/files.h"

using namespace gradual;
using test::message_of;

namespace {

data::Split few_digits(std::int64_t samples) {
  data::Dataset few = data::digits();
  few.inputs = few.inputs.narrow(0, 0, samples);
  few.targets = few.targets.narrow(0, 0, samples);
  return data::split(few, samples * 4 / 5, 0);
}

struct Call {
  std::vector<std::string> recipes = {"fp32"};
  lab::Options options = {.epochs = 1, .batch = 16};
  std::int64_t samples = 60;
  std::int64_t width = 8;
};

void compare(dist::Communicator& ranks, Call call, std::atomic<bool>& started) {
  std::vector<amp::Recipe> recipes;
  for (const std::string& name : call.recipes) recipes.push_back(amp::recipe(name));
  call.options.ranks = &ranks;
  call.options.progress = [&](const lab::Progress&) { started = true; };
  const auto model = [&] {
    return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(64, call.width), nn::Linear(call.width, 10));
  };
  lab::compare(model, {"digits", [&](std::uint64_t) { return few_digits(call.samples); }}, recipes, "", call.options);
}

}  // namespace

TEST_CASE("ranks that compare with other options are an error on each of them, before a step") {
  struct Case {
    std::function<void(Call&)> change;  // of rank 1
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](Call& c) { c.options.epochs = 2; }, "the ranks differ in epochs: rank 0 has '1', rank 1 has '2'"},
      {[](Call& c) { c.options.batch = 8; }, "the ranks differ in batch: rank 0 has '16', rank 1 has '8'"},
      {[](Call& c) { c.options.lr = 0.5; }, "the ranks differ in lr: rank 0 has '0', rank 1 has '0.5'"},
      {[](Call& c) { c.options.optimizer = "sgd"; },
       "the ranks differ in optimizer: rank 0 has 'adamw', rank 1 has 'sgd'"},
      {[](Call& c) { c.options.seeds = 2; }, "the ranks differ in seeds: rank 0 has '1', rank 1 has '2'"},
      {[](Call& c) { c.options.sample_every = 2; }, "the ranks differ in sample_every: rank 0 has '8', rank 1 has '2'"},
      {[](Call& c) { c.options.cure = true; }, "the ranks differ in cure: rank 0 has 'no', rank 1 has 'yes'"},
      {[](Call& c) { c.samples = 80; }, "the ranks differ in the training samples: rank 0 has '"},
      {[](Call& c) {
         c.recipes = {"fp32", "tf32"};
       },
       "the ranks differ in the recipes: rank 0 has 'fp32', rank 1 has 'fp32, tf32'"},
      {[](Call& c) { c.width = 9; }, "their parameters: rank 0 has '1.weight f32 [8, 64]"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.message);
    std::vector<std::string> texts(2);
    std::atomic<bool> started = false;
    static_cast<void>(message_of([&] {
      dist::run_threads(2, [&](dist::Communicator& ranks) {
        Call call;
        if (ranks.rank() == 1) c.change(call);
        texts[static_cast<std::size_t>(ranks.rank())] = message_of([&] { compare(ranks, call, started); });
      });
    }));
    CHECK_FALSE(started);
    for (const std::string& text : texts) {
      CAPTURE(text);
      CHECK(text.find(c.message) != std::string::npos);
    }
  }
}
