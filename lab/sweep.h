// A sweep: trainings for all combinations of some choices, and which choice matters given which. `gradual-lab sweep`
// trains them (lab/main/sweep.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../amp/recipe.h"
#include "factorial.h"
#include "result.h"
#include "tables.h"

namespace gradual::lab {

// Options of gradual-lab by name, "lr", in their order, with their values; "" for one without a value.
using SweepOptions = std::vector<std::pair<std::string, std::string>>;

// One choice of a factor.
struct SweepLevel {
  std::string name;
  SweepOptions options = {};
  std::string recipe = {};  // a recipe's name, from which the combination's recipe starts; empty: none
  std::string edit = {};    // JSON, merged into the recipe's (docs/sweep.md); empty: none
};

struct SweepFactor {
  std::string name;
  std::vector<SweepLevel> levels = {};
};

// A file of a sweep:
//
//   {
//     "recipe": "mxfp4",                                     or an object, as in a file of recipes
//     "options": {"model": "mlp", "epochs": 2, "seeds": 5},  of gradual-lab, without their dashes
//     "factors": {
//       "lr": [0.001, 0.01],                                 values of an option, or
//       "sums": {"f32": {}, "fp16": {"recipe": {"quantization": {"accumulator": "fp16"}}}}
//     }
//   }
//
// A level's "recipe" is the name of a recipe or edits; its "options" are added to those above, or replace them.
struct Sweep {
  amp::Recipe base = {};
  SweepOptions options = {};
  std::vector<SweepFactor> factors = {};
  std::string text = {};  // the file

  LevelCounts counts() const;
};

// Error naming the file and the key for text that is none, an unknown key or recipe, a factor of fewer than two levels,
// an edit that does not fit, and two recipes of which both start anew.
Sweep sweep_from_json(const std::string& text, const std::string& file);

// Combinations that are trained by one command: all with the same options.
struct SweepPart {
  std::string name = {};      // of its folder: "part-1"
  SweepOptions options = {};  // a level's replace those of the sweep
  // of the same length
  std::vector<amp::Recipe> recipes = {};
  std::vector<std::size_t> combinations = {};
};
std::vector<SweepPart> parts_of(const Sweep& sweep);
// The recipe of a combination: "sums=fp16+scale=e8m0", or the name of the base if no factor changes the recipe.
amp::Recipe recipe_of(const Sweep& sweep, std::size_t combination);

enum class SweepMeasure : std::uint8_t { metric, loss };

struct SweepResult {
  std::vector<std::string> factors = {};
  std::vector<std::vector<std::string>> levels = {};
  SweepMeasure measure = SweepMeasure::metric;
  MetricInfo metric = {};                        // of the measure
  std::vector<std::vector<double>> values = {};  // [combination][seed]
  int diverged = 0;                              // trainings
  int replaced = 0;                              // values that were not finite: the worst finite one stands for them
  Factorial effects = {};
};

// results: of each part, in their order. Error if a run is missing, if parts have different metrics, and if the values
// of half of the runs or more are not finite.
SweepResult sweep_result(const Sweep& sweep, const std::vector<std::vector<Result>>& results, SweepMeasure measure);

// Terms by their share, main effects by level, the interactions that hold, the best combinations.
std::string to_string(const SweepResult& result);
// terms, effects and combinations as tables for other programs.
std::vector<TextTable> tables_of(const SweepResult& result);
// The same as an object: {"factors": .., "terms": .., "combinations": ..}.
std::string to_json(const SweepResult& result);
// The same as a page of its own, which needs no network. parts: of the sweep, for links to their reports in PART/.
std::string sweep_html(const SweepResult& result, const std::vector<SweepPart>& parts);
// " --lr 0.1 --model mlp"
std::string options_text(const SweepPart& part);

}  // namespace gradual::lab
