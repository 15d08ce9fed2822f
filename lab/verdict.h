// Verdicts: how each run compares with fp32, and what explains the difference.
#pragma once

#include <vector>

#include "../inspect/diagnosis.h"
#include "lab.h"

namespace gradual::lab {

// Sets the verdict of each run. Its first words are one of
//   baseline         the recipe fp32 itself
//   matches          within the interval of the difference from fp32
//   worse            by more points than the interval
//   no learning      its training loss fell by less than a tenth of what fp32's fell
//   mostly skipped   half of its steps or more were skipped
//   diverged         its loss or its parameters are not finite
//   not precision    it fails, and fp32 fails likewise, or the data or the code is to blame
//   interrupted      it was stopped
//   not judged       fp32 is not among the runs, or diverges
// The interval is that of 95%: of the paired differences where there are several seeds (Student), else of the
// difference of two shares of as many test samples (normal approximation). Findings stay where a run fails, and go
// elsewhere.
void judge(std::vector<Result>& results);

// What went wrong in a run that has ended (run.h). Runs it again, to its first step that was not finite or was skipped,
// where the evidence of the run itself does not say.
std::vector<Finding> explain(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                             std::uint64_t seed, const Options& options, const Result& result,
                             inspect::Evidence evidence);

}  // namespace gradual::lab
