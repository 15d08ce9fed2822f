#include "monitors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../core/support/message_text.h"
#include "../inspect/csv_text.h"
#include "result.h"

namespace gradual::lab {
namespace {

void add_value(std::vector<MonitorCurve>& curves, const MonitorCurve& site, std::int64_t step, double value) {
  const auto is = [&](const MonitorCurve& c) {
    return c.monitor == site.monitor && c.layer == site.layer && c.operand == site.operand;
  };
  auto curve = std::ranges::find_if(curves, is);
  if (curve == curves.end()) curve = curves.insert(curve, site);
  curve->step.push_back(step);
  curve->value.push_back(value);
}

void add_activations(std::vector<MonitorCurve>& curves, const inspect::ActivationMonitor& seen, std::int64_t step) {
  for (const inspect::ActivationRow& r : seen.activations()) {
    add_value(curves, {Monitor::kurtosis, r.layer, r.operand, {}, {}}, step, r.kurtosis());
    add_value(curves, {Monitor::feature_kurtosis, r.layer, r.operand, {}, {}}, step, r.feature_kurtosis());
    add_value(curves, {Monitor::largest, r.layer, r.operand, {}, {}}, step, r.largest);
  }
  for (const inspect::ProbabilityRow& r : seen.probabilities()) {
    const char* const of = r.attention ? "attention" : "softmax";
    add_value(curves, {Monitor::largest_logit, r.layer, of, {}, {}}, step, r.largest_logit);
    add_value(curves, {Monitor::entropy, r.layer, of, {}, {}}, step, r.entropy());
    add_value(curves, {Monitor::lowest_entropy, r.layer, of, {}, {}}, step, r.lowest_entropy());
  }
}

void add_routes(std::vector<MonitorCurve>& curves, const inspect::RouteObserver& routes, std::int64_t step) {
  for (const inspect::RouteObserver::Layer& layer : routes.layers()) {
    if (layer.chosen.empty()) continue;
    const double changed = 100 * layer.changed_by_rounding().changed_share();
    add_value(curves, {Monitor::changed_routes, layer.path, "router", {}, {}}, step, changed);
    add_value(curves, {Monitor::busiest_expert, layer.path, "router", {}, {}}, step, 100 * layer.busiest_share());
  }
}

}  // namespace

std::string_view to_string(Monitor monitor) {
  return enum_name(monitor, {"kurtosis", "feature kurtosis", "largest", "largest logit", "entropy", "lowest entropy",
                             "changed routes", "busiest expert"});
}

void add_to(std::vector<MonitorCurve>& curves, const inspect::StepWatch& seen, std::int64_t step) {
  add_activations(curves, seen.activations(), step);
  add_routes(curves, seen.routes(), step);
}

std::string monitors_csv(const std::vector<Result>& results) {
  std::string text = "recipe,seed,monitor,layer,operand,step,value\n";
  for (const Result& r : results)
    for (const MonitorCurve& c : r.monitors)
      for (std::size_t i = 0; i < c.step.size(); ++i) {
        const std::string value = std::isfinite(c.value[i]) ? fmt::format("{:.9g}", c.value[i]) : "";
        text += fmt::format("{},{},{},{},{},{},{}\n", inspect::csv_field(r.recipe), r.seed, to_string(c.monitor),
                            inspect::csv_field(c.layer), inspect::csv_field(c.operand), c.step[i], value);
      }
  return text;
}

}  // namespace gradual::lab
