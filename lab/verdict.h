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
// stay where a run fails; others have what fp32's run shows of the program. Findings of fp32's run are marked: they are
// renewed at each call and decide nothing. "Cannot tell yet" without notes keeps no finding of unknown cause, unless
// that tells of an Error.
void judge(std::vector<Result>& results, const std::vector<Result>& references = {}, const Judging& judging = {});
// What the options say of it.
Judging judging_of(const Options& options);

// True if a run of that verdict has something to explain.
bool fails(const Result& judged);
// True if a judged and explained run says that something is wrong: it has a finding, or its verdict fails. "Cannot tell
// yet" without notes says so by its findings alone.
bool is_alarm(const Result& judged);
// True if one cannot tell yet and more seeds are planned. Such a run is explained when it is decided, or after the
// last.
bool may_be_decided(const Result& judged, const Options& options);
// True if a run is worse and has no finding, so it was never explained: one could not tell when it had ended.
bool lacks_explanation(const Result& judged);
// True if has_to_explain() can be, whatever the evidence is.
bool may_have_to_explain(const Result& judged);
// True if explain() has something to do: the run fails, or parameters of fp32's run may have lost their gradients.
bool has_to_explain(const Result& judged, const inspect::Evidence& evidence);

// fp32's run of the same seed; null: none has ended.
const Result* baseline(const std::vector<Result>& results, const std::vector<Result>& references, const Result& run);

// What went wrong in a run that has ended and was judged. Runs it again to the steps in question: the first, the one
// that was not finite, one that was skipped. None if options.stop ended that; an Error becomes the finding. Of fp32's
// run that does not fail: the gradient that it lost.
std::optional<std::vector<Finding>> explain(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                                            std::uint64_t seed, const Options& options, const Result& result,
                                            const Result* fp32, inspect::Evidence evidence);

}  // namespace gradual::lab
