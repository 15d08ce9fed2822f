// The precision lab as a function: trains the same model on the same data in the same order under each recipe.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "../amp/recipe.h"
#include "../core/tensor/device.h"
#include "launch.h"
#include "loss.h"
#include "metric.h"
#include "models.h"
#include "result.h"
#include "table.h"
#include "tasks.h"
#include "training.h"

namespace gradual::dist {
class Communicator;
}

namespace gradual::lab {

// The progress of a run, reported after every step.
struct Progress {
  const amp::Recipe& recipe;
  int run = 0;   // number of this run (from 0)
  int runs = 0;  // and of all
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t steps = 0;
  std::int64_t epoch = 0;
  double loss = 0;  // of the last batch; at the end of an epoch its mean
  double scale = 1;
  std::int64_t skipped = 0;
  double accuracy = -1;  // on the test data, after an epoch; -1 before the first, and where there is none
  MetricInfo metric = {};
  double value = std::numeric_limits<double>::quiet_NaN();  // of the metric on the test data; NaN before an epoch ends
  bool finished = false;
};

struct Options {
  std::string model_name = "model";
  int epochs = 10;
  std::int64_t batch = 64;
  double lr = 0;                    // 0: the optimizer's default (adamw, adam 2e-3; sgd 0.05 with momentum 0.9)
  std::string optimizer = "adamw";  // one of optimizer_names()
  Loss loss = {};                   // loss.h; by default that of the data
  Metric metric = {};               // metric.h; by default that of the loss or of the data
  Training training = {};           // rates of the optimizer, schedule, warmup, clipping, accumulation, averaging
  int seeds = 1;                    // seeds 0 to seeds-1
  Device device = Device::cpu();
  int sample_every = 8;      // counts gradients on every n-th step
  bool cure = false;         // try the cures of each recipe's first findings, with its first seed, until one helps
  double margin = 0.5;       // points of test accuracy that a recipe may differ from fp32 and match it
  double loss_margin = 10;   // the same of test loss, in percent of fp32's
  double metric_margin = 5;  // the same of a metric that is no share, such as rmse, in percent of fp32's value
  int until = 0;             // more seeds for recipes that are undecided, up to so many (sequential.h); 0: no more
  bool resume = false;       // continue an earlier comparison in the same `out`
  bool overwrite = false;    // replace the results of an earlier comparison in `out`, which is an Error otherwise
  // Data-parallel training of each run over these ranks, which all make the same calls (`out` of one alone). A recipe
  // with an exchange needs `ranks` or `ranks_emulated`: so many ranks in one process.
  dist::Communicator* ranks = nullptr;
  int ranks_emulated = 0;
  bool synchronized_batch_norm = false;  // of data-parallel training (dist::DataParallelOptions)
  // Steps of trials that explain a run of a recipe's first seed: it is replayed with one thing exact. -1: as many as
  // the run has.
  std::int64_t explain_steps = -1;
  Launch launch = {};        // by the program: how its command began this comparison
  std::string save = {};     // a folder for the final parameters of each run in f32, RECIPE-seedN.safetensors
  std::string trace = {};    // a file (or "-") for one traced step of each recipe
  std::string profile = {};  // a file (or "-") for a profile of each run
  // With resume: called for each finished run that is repeated because its settings differed.
  std::function<void(const std::string&)> note = {};
  std::function<void()> started = {};  // called once, after all checks and before the first run
  std::function<void(const Progress&)> progress = {};
  std::function<bool()> stop = {};  // called before every step; true ends the comparison and keeps its results so far
};

// The checks of compare() before it runs: Error for options out of range, a recipe that is contradictory or does not
// fit the model, a name with control characters or too long for a file, and an `out` folder (created if missing) that
// is not writable.
void check(const MakeModel& make_model, const std::vector<amp::Recipe>& recipes, const std::string& out,
           const Options& options);

// Error on every rank if the data, the recipes or the options differ between ranks: it names the option, the ranks and
// their values. compare() calls it where options.ranks are several.
void check_same(dist::Communicator& ranks, const LabData& data, const std::vector<amp::Recipe>& recipes,
                const Options& options);

// Trains make_model() under each recipe and seed. If `out` is not empty, writes results.json, curves.csv, report.html
// and checkpoints there (atomically, after every run). A kill at any moment loses nothing that `resume` does not make
// again with the same bits. Error if another process writes there (folder_lock.h). Divergence of a recipe is a result,
// not an Error. Verdicts compare with fp32: where the recipes lack it, it is trained after them, and left out of the
// results. Errors as in check().
std::vector<Result> compare(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                            const std::string& out = "", const Options& options = {});

}  // namespace gradual::lab
