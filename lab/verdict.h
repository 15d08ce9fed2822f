// Verdicts: how each run compares with fp32, and what explains the difference.
#pragma once

#include <optional>
#include <vector>

#include "../inspect/diagnosis.h"
#include "lab.h"

namespace gradual::lab {

// Sets the verdict of each run. Its first words are one of
//   baseline         the recipe fp32 itself
//   matches          within the interval of the difference from fp32, or better
//   worse            by more points than the interval
//   no learning      its training loss fell by less than a tenth of what fp32's fell
//   mostly skipped   half of its steps or more were skipped
//   diverged         its loss or its parameters are not finite; the step is the first from which on they stay so
//   not precision    it fails, and fp32 fails too, or the data or the code is to blame
//   interrupted      it was stopped, or before fp32 was trained
// A run is compared with fp32's of the same seed, in `results` or in `references` (of a comparison without fp32), and
// the difference is set; the interval is that of accuracy_difference() in statistics.h. Findings stay where a run
// fails.
void judge(std::vector<Result>& results, const std::vector<Result>& references = {});

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
