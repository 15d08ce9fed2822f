// The precision lab as a function: the same model on the same data in the same order, under one recipe after another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../amp/recipe.h"
#include "../core/tensor/device.h"
#include "models.h"
#include "result.h"
#include "tasks.h"

namespace gradual::lab {

// How far a run is: told after every step.
struct Progress {
  const amp::Recipe& recipe;
  int run = 0, runs = 0;  // this one (from 0), of how many
  std::uint64_t seed = 0;
  std::int64_t step = 0, steps = 0;
  std::int64_t epoch = 0;
  double loss = 0;  // of the last batch; finished after a whole epoch: that epoch's mean
  double scale = 1;
  std::int64_t skipped = 0;
  double accuracy = -1;  // on the test data, after an epoch; -1 before the first
  bool finished = false;
};

struct Options {
  std::string model_name = "model";
  int epochs = 10;
  std::int64_t batch = 64;
  double lr = 0;                    // 0: the optimizer's usual one (adamw, adam 2e-3; sgd 0.05 with momentum 0.9)
  std::string optimizer = "adamw";  // adamw, adam or sgd
  int seeds = 1;                    // seeds 0 to seeds-1
  Device device = Device::cpu();
  int sample_every = 8;      // gradients are looked at on every n-th step
  bool resume = false;       // go on where an earlier run into the same `out` stopped
  std::string trace = {};    // a file (or "-") for one traced step of each recipe
  std::string profile = {};  // a file (or "-") for a profile of each run
  // resume: told of each run that is done anew though it was finished, for its settings were others.
  std::function<void(const std::string&)> note = {};
  std::function<void()> started = {};  // called once, when all is checked and before the first run
  std::function<void(const Progress&)> progress = {};
  std::function<bool()> stop = {};  // asked before every step: true ends the comparison early, keeping what there is
};

// What compare() does before anything runs: Error for options that are out of range, a recipe that is contradictory or
// does not fit the model, and an `out` (made where it is missing) into which no file can be written.
void check(const MakeModel& make_model, const std::vector<amp::Recipe>& recipes, const std::string& out,
           const Options& options);

// Trains make_model() under each recipe and seed. Where `out` is not empty, results.json, curves.csv, report.html and
// checkpoints go there (written whole, after every run). A recipe that diverges is a result. Errors as in check().
std::vector<Result> compare(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                            const std::string& out = "", const Options& options = {});

}  // namespace gradual::lab
