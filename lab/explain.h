// The smallest set of things that must be exact so that a run's failure does not come, found by replaying the run
// (delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "intervention.h"

namespace gradual::lab {

struct Explanation {
  Failure failure = {};
  bool shows = false;   // the failure shows in losses or skipped steps; if not, nothing is tried
  Change change = {};   // the set; empty: nothing that can be made exact averts the failure
  double undone = 0;    // the share of the failure that the set undoes
  bool averts = false;  // it undoes enough: a divergence wholly, another failure by 80%
  // 1-minimal, shown by a trial without each member, in the same steps. False if the budget ended before.
  bool minimal = false;
  bool must_run = false;   // with some member left out no step runs, so that the failure cannot come again
  std::int64_t tried = 0;  // trials
  std::int64_t spent = 0;  // steps of all trials
  std::int64_t budget = 0;
  std::vector<double> losses = {};  // of the replay with the set
};

// The run has ended and fails, fp32's has ended. Error if the run cannot be replayed to the same bits.
Explanation explain_run(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, std::uint64_t seed,
                        const Options& options, const Result& run, const Result& fp32);

std::string to_string(const Explanation& explanation);
// A file from which others get the same bits: the recipe, what is exact in which steps, the losses.
std::string to_json(const Explanation& explanation, const amp::Recipe& recipe, std::uint64_t seed);
// What to_json() wrote. Error naming `file` if it is something else.
struct Replayable {
  std::string recipe = {};  // as JSON
  std::uint64_t seed = 0;
  Change change = {};
  std::vector<double> losses = {};
};
Replayable replayable_from_json(const std::string& text, const std::string& file);
// Error naming both runs if the file is of another recipe or seed than the run that is replayed.
void check_applies(const Replayable& replayable, const std::string& file, const amp::Recipe& recipe,
                   std::uint64_t seed);

}  // namespace gradual::lab
