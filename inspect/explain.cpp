#include "explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/support/generator.h"
#include "../core/support/throwf.h"
#include "numbers.h"
#include "step_watch.h"

namespace gradual::inspect {

// What a pass over the loop does and what it has seen.
struct Collector::Impl {
  amp::Recipe recipe;
  std::int64_t sample_every = 0;  // 0: no step is sampled
  std::int64_t first = -1;        // steps under a ledger: `first` to `last`
  std::int64_t last = -2;
  std::int64_t end = -1;         // steps that run; -1: all
  bool check_gradients = false;  // of the first step, which then is not run
  std::vector<Exact> exact = {};
  bool edited = false;  // the recipe is not the one that is explained

  std::vector<std::pair<std::string, Tensor>> start = {};  // parameters and buffers before the first step
  std::vector<double> losses = {};
  std::vector<double> scales = {};
  std::vector<bool> skipped = {};
  std::optional<ObservedStep> observed = {};
  amp::CastStatsTable casts = {};
  std::vector<Update> updates = {};
  std::vector<Scalar> scalars = {};
  std::vector<std::string> layers = {};
  LayerNames names = {};
  std::optional<amp::Quantization> quantization = {};
  std::optional<GradientCheck> gradients = {};

  std::int64_t steps() const { return std::ssize(losses); }
};

namespace {

constexpr double kFalls = 0.95;       // of the first loss: fp32 learns if it ends below
constexpr double kClearErrors = 4;    // standard errors of the paired differences of losses
constexpr double kLeastGap = 0.002;   // of fp32's loss
constexpr double kMostSkipped = 0.5;  // of the steps
constexpr std::int64_t kAfterDivergence = 4;

std::vector<std::pair<std::string, Tensor>> copies_of(const nn::Module& model) {
  const Unseen unseen;
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& tensors : {model.named_parameters(), model.named_buffers()})
    for (const auto& [name, tensor] : tensors) all.emplace_back(name, tensor.detach().clone());
  return all;
}

// Whether both are the same, or one of them is the other's rounding. NaN is equal to NaN.
bool alike(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.dtype() != b.dtype()) {
    if (a.dtype() == DType::f32) return alike(a.to(b.dtype()), b);
    return b.dtype() != DType::f32 || alike(a, b.to(a.dtype()));
  }
  const Tensor differs = ne(a, b).to(DType::i64) * eq(a, a).to(DType::i64);
  return sum(differs).item() == 0 && sum(eq(a, a).to(DType::i64)).item() == sum(eq(b, b).to(DType::i64)).item();
}

// Whether a recipe rounds weights to other numbers than those of their dtype.
bool rounds_weights(const amp::Recipe& r) {
  const auto& q = r.quantization;
  return q && (q->weight || q->master || q->result);
}

// True for zeros and -Inf alone, as a mask has them.
bool is_mask(const Tensor& t) {
  const Unseen unseen;
  const Tensor zeros = eq(t, 0.0).to(DType::i64).sum();
  const Tensor infinities = eq(t, -std::numeric_limits<double>::infinity()).to(DType::i64).sum();
  return zeros.item() + infinities.item() == static_cast<double>(t.numel());
}

// Whether the step reads a NaN or Inf, besides those of masks, that is neither a parameter, a buffer nor the result of
// one of its ops: the data.
class BatchWatch final : public Observer {
 public:
  explicit BatchWatch(const nn::Module& model) {
    for (const auto& tensors : {model.named_parameters(), model.named_buffers()})
      for (const auto& [name, tensor] : tensors) known_.insert(amp::storage_id(tensor));
  }
  bool finite = true;

  void before(const OpCall& call, const CallRecord& record) override {
    if (record.context.phase != Phase::forward) return;
    for (int i = 0; i < call.inputs.size(); ++i)
      if (call[i].defined() && known_.insert(amp::storage_id(call[i])).second && call[i].is_floating())
        finite = finite && (numbers_of(call[i]).finite() || is_mask(call[i]));
  }
  void after(const OpCall&, const Outputs& out, const CallRecord&) override {
    for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) known_.insert(amp::storage_id(out[i]));
  }

 private:
  std::set<std::uint64_t> known_;
};

amp::RunStep observed_step(Collector::Impl& pass, amp::RecipeRun& run, const std::function<Tensor()>& loss) {
  ObservedStep seen{.step = pass.steps(), .ledger = Ledger(run.model())};
  seen.bad_tensor = first_nonfinite(run.model());
  BatchWatch batch(run.model());
  const StepWatch watch(run.model());
  std::optional<amp::RunStep> done;
  {
    const ObserverScope one(seen.ledger);
    const ObserverScope two(batch);
    done = run.step(loss);
  }
  watch.write_to(seen);
  seen.finite_batch = batch.finite;
  seen.skipped = done->result.skipped();
  seen.nonfinite = !std::isfinite(done->loss.item()) || first_nonfinite(run.model()).has_value();
  // A step that leaves NaN explains more than those after it.
  const bool kept = pass.observed && pass.observed->nonfinite && !pass.observed->skipped;
  if (!kept) pass.observed = std::move(seen);
  return *done;
}

amp::RunStep sampled_step(Collector::Impl& pass, amp::RecipeRun& run, const std::function<Tensor()>& loss) {
  const amp::PrecisionObserver watch(pass.casts, pass.recipe);
  UpdateMeter meter(run.model());
  std::optional<amp::RunStep> done;
  {
    const ObserverScope metering(meter);
    done = run.step(loss);
  }
  for (const auto* rows : {&meter.updates(), &meter.parts()})
    for (const Update& u : *rows) {
      if (!std::isfinite(u.weight_squares) || !std::isfinite(u.intended_squares)) continue;
      const auto known = std::ranges::find_if(
          pass.updates, [&u](const Update& v) { return v.part == u.part && v.parameter == u.parameter; });
      if (known == pass.updates.end()) pass.updates.push_back(u);
      else *known += u;
    }
  pass.scalars = meter.scalars();
  return *done;
}

double mean(const std::vector<double>& values, std::int64_t first, std::int64_t last) {
  double sum = 0;
  for (std::int64_t i = first; i < last; ++i) sum += values[static_cast<std::size_t>(i)];
  return sum / static_cast<double>(std::max<std::int64_t>(1, last - first));
}

// The step from which on no loss is finite; -1: the last one is.
std::int64_t bad_step(const std::vector<double>& losses) {
  auto i = std::ssize(losses);
  while (i > 0 && !std::isfinite(losses[static_cast<std::size_t>(i - 1)])) --i;
  return i == std::ssize(losses) ? -1 : i;
}

// Whether losses lie clearly above others of the same batches, over the second half.
bool clearly_above(const std::vector<double>& losses, const std::vector<double>& others) {
  const std::int64_t n = std::min(std::ssize(losses), std::ssize(others));
  double sum = 0;
  double squares = 0;
  for (std::int64_t i = n / 2; i < n; ++i) {
    const double d = losses[static_cast<std::size_t>(i)] - others[static_cast<std::size_t>(i)];
    sum += d;
    squares += d * d;
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(1, n - n / 2));
  const double gap = sum / count;
  const double error = std::sqrt(std::max(0.0, squares / count - gap * gap) / count);
  return gap > kClearErrors * error && gap > kLeastGap * std::abs(mean(others, n / 2, n));
}

// The last quarter is compared with the first step; a loop of one step has nothing to compare.
bool learns(const std::vector<double>& losses) {
  const std::int64_t n = std::ssize(losses);
  if (bad_step(losses) >= 0) return false;
  const double fall = losses[0] - mean(losses, n - std::max<std::int64_t>(1, n / 4), n);
  return n == 1 || fall > (1 - kFalls) * std::abs(losses[0]);
}

// What the first pass over a loop starts with: the others must start with the same.
class FirstStart {
 public:
  explicit FirstStart(const amp::Recipe& recipe) : recipe_(recipe) {}

  void check(const Collector::Impl& pass) {
    if (pass.start.empty()) return;
    if (first_.empty()) {
      first_ = pass.start;
      return;
    }
    // A recipe that rounds weights starts from other numbers than one that does not.
    const bool rounded = rounds_weights(pass.recipe) || rounds_weights(recipe_);
    if (rounded && (pass.edited || pass.recipe.name != recipe_.name)) return;
    const Unseen unseen;
    for (std::size_t i = 0; i < std::max(first_.size(), pass.start.size()); ++i) {
      const bool same = i < std::min(first_.size(), pass.start.size()) && first_[i].first == pass.start[i].first &&
                        alike(first_[i].second, pass.start[i].second);
      if (same) continue;
      throwf(
          "explain: the loop is called again under {} and starts with another {} than before; it must begin anew: make "
          "the model, the optimizer and the batches inside the loop",
          pass.recipe.name, (i < first_.size() ? first_ : pass.start)[i].first);
    }
  }

 private:
  const amp::Recipe& recipe_;
  std::vector<std::pair<std::string, Tensor>> first_;
};

// again: it ran under its own recipe. If it throws now, its model mostly is the one that the first pass made half.
void call(const std::function<void(Collector&)>& loop, Collector::Impl& pass, bool again) {
  Collector collector(pass);
  if (!again) return loop(collector);
  try {
    loop(collector);
  } catch (const Error& e) {
    throwf(
        "{} (thrown as explain called the loop again, under {}; if the model was made outside of the loop, make it "
        "inside)",
        e.what(), pass.recipe.name);
  }
}

// Error if a call of the loop has another loss at a step than the first call had.
void check_same_losses(const std::vector<double>& now, const std::vector<double>& first) {
  for (std::size_t i = 0; i < std::min(now.size(), first.size()); ++i) {
    if (same_number(now[i], first[i])) continue;
    throwf(
        "explain: the loop is called again and has loss {:.9g} at step {}, not {:.9g} as before; it must begin anew "
        "with the same model, batches and random numbers",
        now[i], i, first[i]);
  }
}

class Explanation {
 public:
  Explanation(const amp::Recipe& recipe, const std::function<void(Collector&)>& loop, const ExplainOptions& options)
      : recipe_(recipe), loop_(loop), options_(options), start_(recipe) {}

  Explained run() {
    result_.recipe = recipe_.name;
    first_pass_ = run_loop({.recipe = recipe_, .sample_every = options_.sample_every});
    result_.losses = first_pass_.losses;
    result_.step = bad_step(first_pass_.losses);
    result_.skipped = std::ranges::count(first_pass_.skipped, true);
    const Collector::Impl exact =
        amp::is_plain_f32(recipe_) ? first_pass_ : run_loop({.recipe = amp::recipe("fp32"), .first = 0, .last = 0});
    result_.fp32_losses = exact.losses;
    result_.fp32_fails = !learns(result_.fp32_losses);
    result_.fails = result_.step >= 0 ||
                    static_cast<double>(result_.skipped) >= kMostSkipped * static_cast<double>(steps()) ||
                    clearly_above(result_.losses, result_.fp32_losses) || result_.fp32_fails;
    if (!result_.fails) return std::move(result_);
    Evidence e = evidence();
    e.first_in_fp32 = exact.observed;
    result_.findings = diagnose(e);
    if (e.fp32_fails) check_gradients();
    weigh();
    return std::move(result_);
  }

 private:
  std::int64_t steps() const { return std::ssize(result_.losses); }

  Collector::Impl run_loop(Collector::Impl pass) {
    const bool replays = !pass.edited && pass.recipe.name == recipe_.name && !result_.losses.empty();
    default_generator().set_state(key_);
    {
      Intervention intervention(pass.exact);
      std::optional<InterventionScope> scope;
      if (!pass.exact.empty()) scope.emplace(intervention);
      call(loop_, pass, result_.runs > 0 && !pass.edited);
    }
    ++result_.runs;
    if (pass.losses.empty() && !pass.gradients) throw_error("explain: the loop made no step with its Collector");
    start_.check(pass);
    if (replays) check_same_losses(pass.losses, result_.losses);
    return pass;
  }

  std::optional<ObservedStep> observed(std::int64_t first, std::int64_t last) {
    return run_loop({.recipe = recipe_, .first = std::max<std::int64_t>(0, first), .last = last, .end = last + 1})
        .observed;
  }

  Evidence evidence() {
    Evidence e{.recipe = &recipe_, .steps = steps(), .skipped = result_.skipped};
    e.fp32_fails = result_.fp32_fails && (result_.step < 0 || bad_step(result_.fp32_losses) >= 0);
    e.last_scale = first_pass_.scales.back();
    for (std::size_t i = 1; i < first_pass_.scales.size(); ++i)
      e.growths += first_pass_.scales[i] > first_pass_.scales[i - 1];
    for (const double loss : result_.losses)
      if (std::isfinite(loss) && result_.losses[0] > 0) e.rise = std::max(e.rise, loss / result_.losses[0]);
    e.casts = first_pass_.casts;
    e.updates = first_pass_.updates;
    e.scalars = first_pass_.scalars;
    e.layers = first_pass_.layers;
    e.names = first_pass_.names;
    e.quantization = first_pass_.quantization;
    e.first = observed(0, 0);
    const auto skip = std::ranges::find(first_pass_.skipped, true);
    if (result_.step >= 0) e.bad = observed(result_.step - 1, result_.step);
    else if (skip != first_pass_.skipped.end())
      e.skip = observed(skip - first_pass_.skipped.begin(), skip - first_pass_.skipped.begin());
    if (result_.step < 0) e.late = observed(steps() - 1, steps() - 1);
    return e;
  }

  // A loop whose gradients cannot be checked keeps the findings so far.
  void check_gradients() {
    try {
      const Collector::Impl pass = run_loop({.recipe = amp::recipe("fp32"), .check_gradients = true});
      const std::optional<Finding> wrong = pass.gradients ? finding_of(*pass.gradients) : std::nullopt;
      if (wrong) result_.findings = {*wrong};
    } catch (const Error&) { return; }
  }

  // Of a pass with fewer steps too: the share of finite losses at the end, or the mean loss of the second half.
  double measure(const std::vector<double>& losses) const {
    const std::int64_t n = trial_steps();
    if (result_.step < 0) return std::ssize(losses) < n ? std::nan("") : mean(losses, n / 2, n);
    double finite = 0;
    for (std::int64_t i = std::max<std::int64_t>(0, n - kAfterDivergence); i < std::min(n, std::ssize(losses)); ++i)
      finite += std::isfinite(losses[static_cast<std::size_t>(i)]);
    return finite / static_cast<double>(std::min(n, kAfterDivergence));
  }
  std::int64_t trial_steps() const {
    return result_.step < 0 ? steps() : std::min(steps(), result_.step + kAfterDivergence);
  }

  // The share of the failure that is undone with this; none if it cannot run.
  std::optional<double> undone(const amp::Recipe& recipe, const std::vector<Exact>& exact) try {
    ++trials_;
    amp::Recipe changed = recipe;
    // What is exact in forward shall not be rounded again by codes kept for backward.
    if (changed.quantization) changed.quantization->save_codes = false;
    const Collector::Impl pass = run_loop({.recipe = changed, .end = trial_steps(), .exact = exact, .edited = true});
    const double run = measure(result_.losses);
    const double fp32 = measure(result_.fp32_losses);
    const double got = measure(pass.losses);
    if (!std::isfinite(got)) return -1;
    if (!std::isfinite(run)) return 1;
    return fp32 == run ? 0 : std::clamp((got - run) / (fp32 - run), -1.0, 1.0);
  } catch (const Error&) { return {}; }

  // Whether a step can be trained with it.
  bool runs(const amp::Recipe& recipe) try {
    return run_loop({.recipe = recipe, .end = 1, .edited = true}).steps() == 1;
  } catch (const Error&) { return false; }

  void weigh() {
    for (Finding& f : result_.findings) {
      std::erase_if(f.cures, [this](const Cure& c) { return !runs(c.recipe); });
      if (f.alone && !runs(f.alone->recipe)) f.alone.reset();
    }
    const bool measurable =
        std::isfinite(measure(result_.fp32_losses)) && measure(result_.fp32_losses) != measure(result_.losses);
    for (Finding& f : result_.findings) {
      if (!measurable || trials_ >= options_.trials || !f.can_be_tried()) continue;
      const TrialChange change = f.trial();
      f.undone = undone(change.edit ? change.edit->recipe : recipe_, change.exact);
    }
    std::erase_if(result_.findings, [](const Finding& f) { return f.is_unproven(); });
    std::ranges::stable_sort(result_.findings, std::greater(), [](const Finding& f) {
      if (!f.precision && f.severity >= kClearlyTheProgram) return 2.0;
      if (!f.precision || !f.undone) return 0.0;
      return *f.undone < kDoesHarm ? -1.0 : *f.undone;
    });
  }

  const amp::Recipe& recipe_;
  const std::function<void(Collector&)>& loop_;
  ExplainOptions options_;
  RandomKey key_ = default_generator().state();
  Collector::Impl first_pass_;
  FirstStart start_;
  Explained result_;
  int trials_ = 0;
};

}  // namespace

const amp::Recipe& Collector::recipe() const { return impl_.recipe; }

bool Collector::step(amp::RecipeRun& run, const std::function<Tensor()>& loss) {
  Impl& pass = impl_;
  const std::int64_t step = pass.steps();
  if (pass.start.empty()) pass.start = copies_of(run.model());
  if (pass.check_gradients) {
    if (!pass.gradients) pass.gradients = inspect::check_gradients(run.model(), loss);
    return false;
  }
  if (pass.end >= 0 && step >= pass.end) return false;
  if (step == 0) {
    for (const auto& [path, module] : run.model().named_modules()) pass.layers.push_back(path);
    pass.names = LayerNames(run.model());
    pass.quantization = resolved_quantization(pass.recipe, run.model());
  }
  pass.scales.push_back(run.loss_scale());
  std::optional<amp::RunStep> done;
  if (step >= pass.first && step <= pass.last) done = observed_step(pass, run, loss);
  else if (pass.sample_every > 0 && step % pass.sample_every == 0) done = sampled_step(pass, run, loss);
  else done = run.step(loss);
  pass.losses.push_back(done->loss.item());
  pass.skipped.push_back(done->result.skipped());
  return pass.end < 0 || pass.steps() < pass.end;
}

Explained explain(const amp::Recipe& recipe, const std::function<void(Collector&)>& loop, ExplainOptions options) {
  if (!loop) throw_error("explain: the loop is null");
  if (options.sample_every < 1) throwf("explain: sample_every is {}; it must be at least 1", options.sample_every);
  return Explanation(recipe, loop, options).run();
}

std::optional<Finding> finding_of(const GradientCheck& check) {
  const GradientSlope* const parameter = check.wrong_parameter();
  if (!parameter) return {};
  Finding f{.cause = Cause::wrong_gradient, .phase = Phase::backward, .site = parameter->name};
  f.precision = false;
  f.severity = 3;
  const bool is_zero = parameter->predicted == 0;
  const std::string along =
      is_zero ? fmt::format("the gradient of {} is 0, and along a random direction the loss changes by {:.3g} per unit",
                            parameter->name, parameter->measured)
              : fmt::format("along the gradient of {} the loss changes by {:.3g} per unit, not by {:.3g}",
                            parameter->name, parameter->measured, parameter->predicted);
  f.sentence = along + "; the fault lies after it in forward";
  if (const GradientSlope* function = check.wrong_function()) {
    f.op = function->name;
    f.site = function->site;
    f.sentence = fmt::format(
        "the backward of {} at {} is not the gradient of its forward ({:.3g} where differences give {:.3g}): {}",
        function->name, function->site, function->predicted, function->measured, along);
  }
  return f;
}

std::string to_string(const Explained& e) {
  const auto last = [](const std::vector<double>& losses) {
    return losses.empty() || std::isnan(losses.back()) ? std::nan("") : losses.back();  // without a sign
  };
  std::string text = fmt::format("{}: {} steps, loss {:.4g}", e.recipe, e.losses.size(), last(e.losses));
  if (e.step >= 0) text += fmt::format(", diverged at step {}", e.step);
  if (e.skipped > 0) text += fmt::format(", {} steps skipped", e.skipped);
  text += fmt::format("; fp32: {:.4g}{}\n", last(e.fp32_losses), e.fp32_fails ? ", it fails too" : "");
  if (!e.fails) return text + "  the loss is not clearly above that of fp32\n";
  for (const Finding& f : e.findings) {
    text += fmt::format("  {}{} [{}]", f.step >= 0 ? fmt::format("step {}: ", f.step) : "", f.sentence,
                        cause_text(f.cause, f.operands));
    if (f.undone) text += fmt::format(". Undone in a trial: {:.0f}% of the failure", 100 * std::max(0.0, *f.undone));
    if (!f.cures.empty()) text += ". Cure: " + f.cures[0].remedy;
    text += "\n";
  }
  if (e.findings.empty()) text += "  " + std::string(cause_info(Cause::unknown).sentence) + "\n";
  return text;
}

}  // namespace gradual::inspect
