// The result of a run of the lab, and the files made from it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../amp/rewrite.h"
#include "../core/tensor/memory.h"
#include "../inspect/cause.h"
#include "../inspect/number_role.h"
#include "launch.h"
#include "metric.h"
#include "monitors.h"
#include "outcome.h"
#include "paired.h"
#include "sample_scores.h"
#include "step_errors.h"

namespace gradual::lab {

// One entry per step, for the curves.
struct Curve {
  std::vector<std::int64_t> step;
  std::vector<double> loss;
  std::vector<double> scale;  // 1 without a scaler
  std::vector<bool> skipped;
  std::vector<double> underflow_percent;  // NaN if the step was not sampled or rounded nothing
  std::vector<std::int64_t> phase = {};   // of the recipe's schedule: how many have begun; empty in earlier versions
};

// A phase of the recipe's schedule that has begun.
struct PhaseEntry {
  std::int64_t step = 0;  // its first one
  std::string recipe = {};
  std::vector<std::string> modules = {};  // empty: all
  std::string quantity = {};              // that it was waiting for, as recipes name it; empty: its step was given
  double value = std::numeric_limits<double>::quiet_NaN();  // of the quantity, in the step before
  double below = std::numeric_limits<double>::quiet_NaN();  // its threshold
};
// "from step 312 on as fp32: gradient_to_noise was 1.7, below 1.73".
std::string to_string(const PhaseEntry& phase);

// The effect of rounding on the elements of one role in one layer.
struct CastRow {
  amp::Role role = amp::Role::activation;
  std::string layer = {};  // a module's path, empty outside of all
  std::string kind = {};   // the module's: "Linear"
  std::int64_t elements = 0;
  std::int64_t nan = 0;
  // overflow includes saturation
  double underflow_percent = 0;
  double overflow_percent = 0;
};

// Where rounding to a format loses bits. Values below 2^zero_below_exponent become zero when rounded to nearest.
struct Zones {
  std::string name = {};  // "fp16"
  int zero_below_exponent = 0;
  int min_normal_exponent = 0;
  int max_exponent = 0;
};

// Counts of one role's elements by binary exponent (frexp's minus one: 1.0 is in bin 0), after multiplication by the
// scales that apply before rounding.
struct Histogram {
  amp::Role role = amp::Role::activation;
  int first_exponent = 0;
  std::vector<std::int64_t> counts = {};
  std::vector<Zones> formats = {};  // that its products round the role to; several: by product or module
  bool as_if = false;               // the recipe is all f32; counted as if cast to the format
};

// Where a finding comes from. run: what was observed of this run; fp32: fp32's run of the same seed has it; error: an
// Error ended the replays that were to explain the run.
enum class FindingSource : std::uint8_t { run, fp32, error, count_ };
std::string_view to_string(FindingSource source);  // "run", "fp32", "error"

// Why a run went wrong, and what the edited recipe gave if that was tried.
struct Finding {
  inspect::Cause cause = inspect::Cause::unknown;
  std::optional<Phase> phase = {};
  std::string op = {};
  std::string site = {};
  inspect::NumberRole role = inspect::NumberRole::none;
  std::vector<std::string> operands = {};  // of quantised products, as recipes name them: "forward_x", "wgrad_dy"
  std::int64_t step = -1;                  // -1: of many steps
  std::string sentence = {};
  std::string cure = {};    // a JSON merge patch of the recipe; empty: none is known
  std::string remedy = {};  // the same in words
  struct Cure {
    std::string edit = {};
    std::string remedy = {};
  };
  // All that may help, in the order in which --cure trains with them: the smallest edit first, then those that would
  // cure anything, then those that undid little. `cure` is the one that undid most in trials of some steps, or the one
  // that `tried` tells of.
  std::vector<Cure> cures = {};
  struct Tried {
    double accuracy = 0;
    double loss = 0;
    Verdict verdict = {};
    double metric = std::numeric_limits<double>::quiet_NaN();  // the run's (MetricInfo); the accuracy if it is that
  };
  std::optional<Tried> tried = {};
  bool precision = true;  // false: the cause lies in data, learning rate or code
  FindingSource source = FindingSource::run;
  // The share of the failure that a trial undoes in which this is exact (lab/intervention.h); none: not tried.
  std::optional<double> undone = {};
};

// A mean difference from fp32 over the seeds of a recipe, and half its interval: of 95%, or of the error that each look
// of a sequential test may make (sequential.h).
struct Difference {
  double mean = 0;
  double half = 0;
  double error = 0.05;     // the chance that the true difference is not in the interval
  Estimate estimate = {};  // files have none
};

// Recipes are known by their names. This one is what the others are compared with.
inline constexpr std::string_view kBaseline = "fp32";

struct Result {
  std::string recipe, model, data;
  std::int64_t seed = 0;
  std::int64_t epochs = 0;  // completed
  std::int64_t steps = 0;
  std::int64_t skipped_steps = 0;
  double final_scale = 1;
  // NaN (null in JSON) before the end of the first epoch.
  double train_loss = std::numeric_limits<double>::quiet_NaN();  // mean of the last epoch
  double test_loss = std::numeric_limits<double>::quiet_NaN();
  double test_accuracy = std::numeric_limits<double>::quiet_NaN();  // 0 to 1
  // What the run is measured by. The accuracy is test_accuracy, another metric test_metric: metric_of() in objective.h.
  MetricInfo metric = {};
  double test_metric = std::numeric_limits<double>::quiet_NaN();
  double constant_metric = std::numeric_limits<double>::quiet_NaN();  // of the best constant output; NaN: unknown
  std::int64_t test_samples = 0;  // that the accuracy is of; 0 in files of earlier versions
  double ms_per_step = 0;         // median over the steps that were not sampled; NaN: all were
  std::array<std::int64_t, kCategories> peak_bytes{};
  std::int64_t peak_total = 0;
  std::int64_t bytes_sent = 0;  // by all ranks of a recipe's exchange in all steps, with scales
  // Of errors and weight gradients; NaN: none was rounded. zero_percent counts zeros after rounding, including values
  // that were zero before. It is near 100 if the last layers lose everything; underflow is small then, because earlier
  // layers receive only zeros.
  double underflow_percent = 0;
  double overflow_percent = 0;
  double zero_percent = 0;
  std::vector<CastRow> casts = {};  // by layer, in the order of the model, then by role
  std::string settings = {};        // what --resume compares
  std::string device = {};          // "cpu", "cuda:0 (NVIDIA H200)"
  // The settings of the run, and the recipe as JSON; empty in files of earlier versions.
  std::int64_t batch = 0;
  double lr = 0;
  std::string optimizer = {};
  std::string definition = {};
  Origin origin = {};
  // Of a number that enters a product (amp::operand_bits); NaN in files of earlier versions.
  double operand_bits = std::numeric_limits<double>::quiet_NaN();
  Status status = Status::none;
  // How the run compares with fp32 (lab/verdict.h), and why; unjudged and empty in files of earlier versions.
  Verdict verdict = {};
  std::vector<Finding> findings = {};
  // Of the metric (accuracy: 0 to 1) and of the test loss, over all seeds of the recipe (statistics.h). None for fp32,
  // and without it.
  std::optional<Difference> difference = {};
  std::optional<Difference> loss_difference = {};
  std::vector<PhaseEntry> phases = {};  // in the order in which they began; empty in files of earlier versions
  SampleScores samples = {};            // of the test set after the last epoch; empty in files of earlier versions
  Curve curve = {};
  std::vector<Histogram> histograms = {};   // one a role
  std::optional<StepErrors> errors = {};    // of a step after the last one, of a recipe's first seed
  std::vector<BlockMap> blocks = {};        // of the same step
  std::vector<UpdateCurve> updates = {};    // of a recipe's first seed
  std::vector<MonitorCurve> monitors = {};  // the same
  std::string what_if = {};  // JSON for the report (GradientSample in run.h), of one run of a comparison; empty: none
};

// {"runs": [..], "machine": {..}, "version": ".."}; with_curves adds each run's curve, histograms and samples.
std::string results_json(const std::vector<Result>& results, bool with_curves);
// The reverse of results_json(.., true); Error naming `file` and what is wrong.
std::vector<Result> results_from_json(const std::string& text, const std::string& file);
// recipe, seed, step, loss, scale, skipped, underflow_percent, phase
std::string curves_csv(const std::vector<Result>& results);
// One self-contained page.
std::string report_html(const std::vector<Result>& results);
// recipe, seed, .., one line per run, with all that results.json has of it in one number
std::string runs_csv(const std::vector<Result>& results);

}  // namespace gradual::lab
