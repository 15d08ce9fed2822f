#include "result_check.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "../amp/rewrite.h"
#include "json/fields.h"

namespace gradual::lab {
namespace {

constexpr double kPercent = 100;
constexpr double kAny = std::numeric_limits<double>::max();

struct Whole {
  const char* name;
  std::int64_t Result::*value;
};
constexpr std::array kCounts = {Whole{"seed", &Result::seed},
                                Whole{"epochs", &Result::epochs},
                                Whole{"steps", &Result::steps},
                                Whole{"skipped_steps", &Result::skipped_steps},
                                Whole{"test_samples", &Result::test_samples},
                                Whole{"batch", &Result::batch},
                                Whole{"bytes_sent", &Result::bytes_sent},
                                Whole{"peak_bytes.total", &Result::peak_total}};

struct Real {
  const char* name;
  double Result::*value;  // NaN where there is none
  double least, most;
};
constexpr std::array kReals = {Real{"final_scale", &Result::final_scale, 0, kAny},
                               Real{"test_accuracy", &Result::test_accuracy, 0, 1},
                               Real{"ms_per_step", &Result::ms_per_step, 0, kAny},
                               Real{"underflow_percent", &Result::underflow_percent, 0, kPercent},
                               Real{"overflow_percent", &Result::overflow_percent, 0, kPercent},
                               Real{"zero_percent", &Result::zero_percent, 0, kPercent},
                               Real{"lr", &Result::lr, 0, kAny}};

[[noreturn]] void refuse_at(const std::string& path, const std::string& problem) {
  FieldError e(problem);
  e.path = "." + path;
  throw e;
}

void in_range(const std::string& path, double value, double least, double most) {
  if (std::isnan(value) || (value >= least && value <= most)) return;
  const std::string allowed =
      most == kAny ? fmt::format("at least {}", least) : fmt::format("{} to {}, or null", least, most);
  refuse_at(path, fmt::format("is {}; it must be {}", value, allowed));
}

void at_least(const std::string& path, std::int64_t value, std::int64_t least) {
  if (value < least) refuse_at(path, fmt::format("is {}; it must be at least {}", value, least));
}

void all_in_range(const std::string& path, const std::vector<double>& values, double least, double most) {
  for (std::size_t i = 0; i < values.size(); ++i) in_range(fmt::format("{}[{}]", path, i), values[i], least, most);
}

void same_length(const std::string& path, std::size_t length, std::size_t expected) {
  if (length != expected) refuse_at(path, fmt::format("has {} values; its steps are {}", length, expected));
}

void ascending(const std::string& path, const std::vector<std::int64_t>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i)
    at_least(fmt::format("{}[{}]", path, i), steps[i], i == 0 ? 0 : steps[i - 1] + 1);
}

void check_curve(const Curve& c) {
  const std::size_t steps = c.step.size();
  ascending("curve.step", c.step);
  same_length("curve.loss", c.loss.size(), steps);
  same_length("curve.scale", c.scale.size(), steps);
  same_length("curve.skipped", c.skipped.size(), steps);
  same_length("curve.underflow_percent", c.underflow_percent.size(), steps);
  if (!c.phase.empty()) same_length("curve.phase", c.phase.size(), steps);
  all_in_range("curve.scale", c.scale, 0, kAny);
  all_in_range("curve.underflow_percent", c.underflow_percent, 0, kPercent);
}

void check_samples(const SampleScores& s) {
  const auto check = [&](const char* name, std::size_t length) {
    if (length != s.size())
      refuse_at(fmt::format("samples.{}", name), fmt::format("has {} values; its samples are {}", length, s.size()));
  };
  check("counted", s.counted.size());
  check("loss", s.loss.size());
  check("score", s.score.size());
  for (std::size_t i = 0; i < s.size(); ++i)
    if (!(s.counted[i] >= 0))
      refuse_at(fmt::format("samples.counted[{}]", i), fmt::format("is {}; it must be at least 0", s.counted[i]));
}

void check_casts(const std::vector<CastRow>& casts) {
  for (std::size_t i = 0; i < casts.size(); ++i) {
    const std::string path = fmt::format("casts[{}].", i);
    const CastRow& c = casts[i];
    at_least(path + "elements", c.elements, 0);
    at_least(path + "nan", c.nan, 0);
    in_range(path + "underflow_percent", c.underflow_percent, 0, kPercent);
    in_range(path + "overflow_percent", c.overflow_percent, 0, kPercent);
  }
}

void check_histograms(const std::vector<Histogram>& histograms) {
  for (std::size_t i = 0; i < histograms.size(); ++i) {
    const std::string path = fmt::format("histograms[{}].", i);
    for (std::size_t k = 0; k < histograms[i].counts.size(); ++k)
      at_least(fmt::format("{}counts[{}]", path, k), histograms[i].counts[k], 0);
  }
}

void check_blocks(const std::vector<BlockMap>& blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string path = fmt::format("blocks[{}].", i);
    const BlockMap& b = blocks[i];
    at_least(path + "block", b.block, 1);
    at_least(path + "columns", b.columns, 1);
    all_in_range(path + "clipped_percent", b.clipped_percent, 0, kPercent);
    if (b.regret_percent.size() != b.clipped_percent.size())
      refuse_at(path + "regret_percent", fmt::format("has {} values; clipped_percent has {}", b.regret_percent.size(),
                                                     b.clipped_percent.size()));
  }
}

void check_updates(const std::vector<UpdateCurve>& updates) {
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const std::string path = fmt::format("updates[{}].", i);
    const UpdateCurve& u = updates[i];
    ascending(path + "step", u.step);
    same_length(path + "vanished_percent", u.vanished_percent.size(), u.step.size());
    same_length(path + "ratio", u.ratio.size(), u.step.size());
    same_length(path + "arriving", u.arriving.size(), u.step.size());
    all_in_range(path + "vanished_percent", u.vanished_percent, 0, kPercent);
  }
}

void check_monitors(const std::vector<MonitorCurve>& monitors) {
  for (std::size_t i = 0; i < monitors.size(); ++i) {
    const std::string path = fmt::format("monitors[{}].", i);
    ascending(path + "step", monitors[i].step);
    same_length(path + "value", monitors[i].value.size(), monitors[i].step.size());
  }
}

void check_findings(const std::vector<Finding>& findings) {
  for (std::size_t i = 0; i < findings.size(); ++i)
    if (const auto& tried = findings[i].tried)
      in_range(fmt::format("findings[{}].tried.accuracy", i), tried->accuracy, 0, 1);
}

}  // namespace

void check_values(const Result& r) {
  for (const Whole& w : kCounts) at_least(w.name, r.*w.value, 0);
  for (std::size_t i = 0; i < r.peak_bytes.size(); ++i)
    at_least("peak_bytes." + std::string(to_string(static_cast<Category>(i))), r.peak_bytes[i], 0);
  if (r.skipped_steps > r.steps)
    refuse_at("skipped_steps", fmt::format("is {}; it must be at most {}, the steps", r.skipped_steps, r.steps));
  for (const Real& v : kReals) in_range(v.name, r.*v.value, v.least, v.most);
  const double most = r.metric.is_share() ? 1 : kAny;
  if (r.difference) in_range("difference.mean", r.difference->mean, -most, most);
  if (r.difference) in_range("difference.half_interval", r.difference->half, 0, kAny);
  if (r.loss_difference) in_range("loss_difference.half_interval", r.loss_difference->half, 0, kAny);
  check_findings(r.findings);
  check_casts(r.casts);
  check_samples(r.samples);
  check_curve(r.curve);
  for (std::size_t i = 0; i < r.phases.size(); ++i) at_least(fmt::format("phases[{}].step", i), r.phases[i].step, 0);
  check_histograms(r.histograms);
  check_blocks(r.blocks);
  check_updates(r.updates);
  check_monitors(r.monitors);
}

}  // namespace gradual::lab
