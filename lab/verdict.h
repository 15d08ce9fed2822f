// Verdicts: how each run compares with fp32, and what explains the difference.
#pragma once

#include <optional>
#include <vector>

#include "../inspect/diagnosis.h"
#include "decision.h"
#include "lab.h"

namespace gradual::lab {

// Sets the verdict of each run; verdicts.def lists them.
// A run is compared with fp32's of the same seed, in `results` or in `references` (of a comparison without fp32). The
// differences of a recipe are over its seeds (statistics.h), and so is the answer that they give (decision.h). Findings
// stay where a run fails.
void judge(std::vector<Result>& results, const std::vector<Result>& references = {}, const Judging& judging = {});
// What the options say of it.
Judging judging_of(const Options& options);

// True if a run of that verdict has something to explain.
bool fails(const Result& judged);

// fp32's run of the same seed; null: none has ended.
const Result* baseline(const std::vector<Result>& results, const std::vector<Result>& references, const Result& run);

// What went wrong in a run that has ended and was judged. Runs it again to the steps in question: the first, the one
// that was not finite, one that was skipped. None if options.stop ended that; an Error becomes the finding.
std::optional<std::vector<Finding>> explain(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                                            std::uint64_t seed, const Options& options, const Result& result,
                                            const Result* fp32, inspect::Evidence evidence);

}  // namespace gradual::lab
