#include "training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "../optim/adam.h"
#include "../optim/sgd.h"
#include "../optim/soap.h"

namespace gradual::lab {
namespace {

constexpr std::string_view kScheduleNames[] = {"constant", "cosine", "linear", "step", "one-cycle"};
static_assert(std::size(kScheduleNames) == static_cast<std::size_t>(ScheduleKind::count_));

struct RateField {
  const char* name;
  std::optional<double> Rates::*value;
};
constexpr RateField kRateFields[] = {{"weight_decay", &Rates::weight_decay},
                                     {"momentum", &Rates::momentum},
                                     {"beta1", &Rates::beta1},
                                     {"beta2", &Rates::beta2},
                                     {"eps", &Rates::eps}};

template <class Options> Options adam_options(double lr, const Rates& r) {
  Options o{.lr = lr};
  o.beta1 = r.beta1.value_or(o.beta1);
  o.beta2 = r.beta2.value_or(o.beta2);
  o.eps = r.eps.value_or(o.eps);
  o.weight_decay = r.weight_decay.value_or(o.weight_decay);
  return o;
}

amp::MakeOptimizer soap(double lr, const Rates& r) {
  return [options = adam_options<optim::SoapOptions>(lr, r)](std::vector<optim::ParamGroup> groups,
                                                             const optim::UpdateOptions& precision) mutable {
    options.precision = precision;
    return std::make_unique<optim::Soap>(std::move(groups), options);
  };
}

std::vector<OptimizerInfo>& optimizers() {
  static std::vector<OptimizerInfo> all{
      {"adamw",
       2e-3,
       {"weight_decay", "beta1", "beta2", "eps"},
       [](double lr, const Rates& r) -> amp::MakeOptimizer { return adam_options<optim::AdamWOptions>(lr, r); }},
      {"adam",
       2e-3,
       {"weight_decay", "beta1", "beta2", "eps"},
       [](double lr, const Rates& r) -> amp::MakeOptimizer { return adam_options<optim::AdamOptions>(lr, r); }},
      {"sgd",
       0.05,
       {"weight_decay", "momentum"},
       [](double lr, const Rates& r) -> amp::MakeOptimizer {
         return optim::SGDOptions{
             .lr = lr, .momentum = r.momentum.value_or(0.9), .weight_decay = r.weight_decay.value_or(0)};
       }},
      {"soap", 3e-3, {"weight_decay", "beta1", "beta2", "eps"}, soap}};
  return all;
}

double half_cosine(double from, double to, double way) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * way));
}

double one_cycle(double way) {
  constexpr double kRise = 0.3;
  constexpr double kFirst = 1 / 25.0;
  constexpr double kLast = kFirst * 1e-4;
  if (way < kRise) return half_cosine(kFirst, 1, way / kRise);
  return half_cosine(1, kLast, (way - kRise) / (1 - kRise));
}

// By the share of the training that is over.
optim::Schedule by_way(std::int64_t steps, double (*factor)(double way)) {
  return [steps, factor](std::int64_t step) {
    return factor(std::min(1.0, static_cast<double>(step) / static_cast<double>(steps)));
  };
}

optim::Schedule plain_schedule(ScheduleKind kind, std::int64_t steps) {
  switch (kind) {
    case ScheduleKind::constant: return [](std::int64_t) { return 1.0; };
    case ScheduleKind::cosine: return optim::cosine(steps);
    case ScheduleKind::linear: return by_way(steps, [](double way) { return 1 - way; });
    case ScheduleKind::step: return by_way(steps, [](double way) { return way < 0.5 ? 1 : way < 0.75 ? 0.1 : 0.01; });
    case ScheduleKind::one_cycle: return by_way(steps, one_cycle);
    default: throwf("lab: schedule {} is none", static_cast<int>(kind));
  }
}

}  // namespace

std::string_view to_string(ScheduleKind kind) { return kScheduleNames[static_cast<std::size_t>(kind)]; }

std::vector<std::string> schedule_names() { return {std::begin(kScheduleNames), std::end(kScheduleNames)}; }

ScheduleKind schedule_from_name(const std::string& name) {
  const auto* const found = std::ranges::find(kScheduleNames, name);
  if (found != std::end(kScheduleNames)) return static_cast<ScheduleKind>(found - std::begin(kScheduleNames));
  throwf("no schedule '{}'{}; allowed are {}", name, did_you_mean(name, schedule_names()), join(schedule_names()));
}

void check(const Training& t) {
  const auto within = [](const char* what, double value, double least, double below) {
    if (!(value >= least && value < below)) {
      if (std::isinf(below)) throwf("lab: {} is {}; it must be at least {} and finite", what, value, least);
      throwf("lab: {} is {}; it must be at least {} and below {}", what, value, least, below);
    }
  };
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const Rates& r = t.rates;
  if (r.weight_decay) within("weight_decay", *r.weight_decay, 0, kAny);
  if (r.eps) within("eps", *r.eps, 0, kAny);
  for (const auto& [name, value] : {std::pair("momentum", r.momentum), {"beta1", r.beta1}, {"beta2", r.beta2}})
    if (value) within(name, *value, 0, 1);
  within("clip", t.clip, 0, kAny);
  within("average", t.average, 0, 1);
  within("warmup", static_cast<double>(t.warmup), 0, kAny);
  if (t.accumulate < 1) throwf("lab: accumulate is {}; it must be at least 1", t.accumulate);
}

void add_optimizer(OptimizerInfo optimizer) {
  not_null(optimizer.make, "add_optimizer: the function that makes the optimizer");
  std::erase_if(optimizers(), [&](const OptimizerInfo& known) { return known.name == optimizer.name; });
  optimizers().push_back(std::move(optimizer));
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerInfo& o : optimizers()) names.push_back(o.name);
  return names;
}

const OptimizerInfo& optimizer_info(const std::string& name) {
  const auto found = std::ranges::find(optimizers(), name, &OptimizerInfo::name);
  if (found != optimizers().end()) return *found;
  throwf("lab: no optimizer '{}'{}; allowed are {}", name, did_you_mean(name, optimizer_names()),
         join(optimizer_names()));
}

amp::MakeOptimizer make_optimizer(const std::string& name, double lr, const Rates& rates) {
  const OptimizerInfo& info = optimizer_info(name);
  for (const RateField& field : kRateFields)
    if (rates.*field.value && std::ranges::find(info.rates, field.name) == info.rates.end())
      throwf("lab: {} of {} is given; optimizer {} has {}", field.name, *(rates.*field.value), name, join(info.rates));
  return info.make(lr != 0 ? lr : info.lr, rates);
}

// The targets that a loss divides by: of classes those that are not ignored, else the samples.
static double weight_of(const data::Batch& part) {
  if (!part.fields.empty() || part.targets.dtype() != DType::i64) return static_cast<double>(part.size());
  const std::vector<std::int64_t> classes = part.targets.to_vector<std::int64_t>();
  return static_cast<double>(std::ranges::count_if(classes, [](std::int64_t c) { return c != -100; }));
}

amp::RunStep accumulated_step(amp::RecipeRun& run, const data::Batch& batch, int parts,
                              const std::function<Tensor(const data::Batch& part)>& loss) {
  const std::int64_t each = (batch.size() + parts - 1) / parts;
  const double all = weight_of(batch);
  Tensor sum;
  for (std::int64_t at = 0; at < batch.size(); at += each) {
    const std::int64_t size = std::min(each, batch.size() - at);
    data::Batch part{batch.inputs.narrow(0, at, size), batch.targets.narrow(0, at, size)};
    for (const auto& [name, values] : batch.fields) part.fields.emplace_back(name, values.narrow(0, at, size));
    const double weight = weight_of(part);
    if (weight == 0) continue;
    const Tensor value = mul(run.forward([&] { return loss(part); }), weight / all);
    run.backward(value);
    const NoGrad off;
    sum = sum.defined() ? add(sum, value.detach()) : value.detach();
  }
  if (!sum.defined()) sum = full({}, std::numeric_limits<double>::quiet_NaN());
  return {sum, run.update()};
}

optim::Schedule schedule_for(const Training& t, std::int64_t steps) {
  if (t.warmup == 0) return plain_schedule(t.schedule, steps);
  if (t.warmup >= steps)
    throwf("lab: warmup is {} steps, and the training has {}; it must be shorter", t.warmup, steps);
  return optim::chain(optim::linear_warmup(t.warmup), t.warmup, plain_schedule(t.schedule, steps - t.warmup));
}

std::string settings_of(const Training& t) {
  std::string text;
  for (const RateField& field : kRateFields)
    if (t.rates.*field.value) text += fmt::format(", {} {}", field.name, *(t.rates.*field.value));
  if (t.schedule != ScheduleKind::cosine) text += fmt::format(", schedule {}", to_string(t.schedule));
  if (t.warmup != 0) text += fmt::format(", warmup {}", t.warmup);
  if (t.clip != 0) text += fmt::format(", clip {}", t.clip);
  if (t.accumulate != 1) text += fmt::format(", accumulate {}", t.accumulate);
  if (t.average != 0) text += fmt::format(", average {}", t.average);
  return text;
}

Average::Average(amp::RecipeRun& run, double factor)
    : run_(run), factor_(factor), parameters_(run.model().named_parameters()) {
  const Scoped<Chain> bare(chain(), {});
  for (const auto& [name, parameter] : parameters_) averages_.push_back(averaged_value(parameter).clone());
}

bool Average::in_f32() const { return run_.recipe().averages != amp::Averages::storage; }

Tensor Average::averaged_value(const Tensor& parameter) const {
  if (in_f32()) return run_.optimizer().master(parameter).detach().to(DType::f32);
  return parameter.detach();
}

void Average::update(inspect::UpdateMeter* meter) {
  const Scoped<Chain> bare(chain(), {});  // observers see the training alone, but where a meter looks
  const auto t = static_cast<double>(steps_++);
  const double d = std::min(factor_, (1 + t) / (10 + t));
  std::optional<ObserverScope> metering;
  if (meter) metering.emplace(*meter);
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    const Tensor now = averaged_value(parameter);
    if (in_f32()) {
      averages_[i] = averages_[i] * d + now * (1 - d);
      continue;
    }
    if (meter) meter->watch_average(name, averages_[i], now, d);
    averages_[i].mul_(d);
    averages_[i].add_(now, 1 - d);
  }
}

Average::Scope::Scope(Average& average) : average_(average) {
  const Scoped<Chain> bare(chain(), {});
  for (std::size_t i = 0; i < average.averages_.size(); ++i) {
    const Tensor parameter = average.parameters_[i].second.detach();
    kept_.push_back(parameter.clone());
    parameter.copy_(average.averages_[i]);
  }
}

Average::Scope::~Scope() {
  const Scoped<Chain> bare(chain(), {});
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const Tensor& parameter = average_.parameters_[i].second;
    parameter.detach().copy_(kept_[i]);
    average_.run_.optimizer().keep_master(parameter);  // the same values as before
  }
}

StateDict Average::state_dict(const StateDict& all) const {
  StateDict state = all;
  for (std::size_t i = 0; i < averages_.size(); ++i) state.set(parameters_[i].first, averages_[i]);
  if (all.empty()) state.set(" steps", steps_);
  return state;
}

void Average::load_state_dict(const StateDict& state) {
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    const Tensor saved = state.tensor(parameters_[i].first);
    if (saved.sizes() != averages_[i].sizes())
      throwf("the average of {} is {} in a checkpoint and {} here", parameters_[i].first, to_string(saved.sizes()),
             to_string(averages_[i].sizes()));
    averages_[i] = saved.to(averages_[i].device());
  }
  steps_ = state.integer(" steps");
}

}  // namespace gradual::lab
