#include "anomaly.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../core/ops/parameter_inputs.h"
#include "grad_mode.h"
#include "node.h"

namespace gradual {
namespace {

std::string index_of(std::int64_t element, const Shape& sizes) {
  Shape index = sizes;
  for (int i = sizes.size() - 1; i >= 0; --i) {
    index[i] = element % sizes[i];
    element /= sizes[i];
  }
  return to_string(index);
}

std::string describe(const ValueRange& r) {
  std::string all = kind_of(r.sizes, r.dtype);
  if (numel(r.sizes) > r.non_finite()) all += fmt::format(", {:g} to {:g}", r.min, r.max);
  for (const auto& [n, what] : {std::pair(r.nan, "NaN"), {r.positive_inf, "Inf"}, {r.negative_inf, "-Inf"}})
    if (n) all += fmt::format(", {} {}", n, what);
  return all;
}

}  // namespace

ValueRange value_range(const Tensor& t) {
  const NoGrad off;
  ValueRange r{.sizes = t.sizes(), .dtype = t.dtype(), .min = INFINITY, .max = -INFINITY};
  std::int64_t at = -1;
  for (double v : t.to_vector<double>()) {
    ++at;
    if (std::isfinite(v)) {
      r.min = std::min(r.min, v);
      r.max = std::max(r.max, v);
      continue;
    }
    if (std::isnan(v)) ++r.nan;
    else ++(v > 0 ? r.positive_inf : r.negative_inf);
    if (r.first < 0) r.first = at;
  }
  if (r.min > r.max) {
    r.min = 0;
    r.max = 0;
  }
  return r;
}

std::string Anomaly::to_string() const {
  std::string text = phase == Phase::backward && !backward_of.empty()
                         ? "the backward of " + backward_of + (backward_of == op ? "" : ", in " + op + ",")
                         : op;
  text += fmt::format(" ({})", gradual::to_string(phase));
  if (const std::string at = file_line(where); !at.empty()) text += " at " + at;
  if (!module.empty()) text += " in module " + module;
  if (!cause.empty()) text += " [" + cause + "]";
  text += " gave the first non-finite value, at " + index_of(result.first, result.sizes);
  if (parameter >= 0) text += fmt::format(" of parameter {} of the call", parameter);
  if (output > 0) text += fmt::format(" of output {}", output);
  text += "\n  result:  " + describe(result);
  for (const auto& [index, range] : inputs)
    text += fmt::format("\n  input {}: {}{}", index, describe(range), range.non_finite() ? " (not finite before)" : "");
  return text;
}

void AnomalyMode::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const ParameterInputs parameters = parameter_inputs(call);
  if (parameters.count == 0) return look(call, out, record, -1);
  for (int k = 0; k < parameters.count; ++k) {
    const OpCall one = call_of_parameter(call, parameters, k);
    look(one, {one[parameters.written]}, record, k);
  }
}

void AnomalyMode::look(const OpCall& call, const Outputs& out, const CallRecord& record, int parameter) {
  if (first_ || op_info(call.op).kind == OpKind::View) return;
  for (int i = 0; i < kMaxOutputs; ++i) {
    if (!out[i].defined() || !out[i].is_floating()) continue;
    const ValueRange r = value_range(out[i]);
    if (r.non_finite() == 0) continue;
    std::vector<Anomaly::Input> inputs;
    bool masked = call.attrs->is<ScalarAttrs>() && call.get<ScalarAttrs>().value == -INFINITY;  // where, masked fills
    for (int k = 0; k < call.inputs.size(); ++k) {
      if (!call[k].defined() || !call[k].is_floating()) continue;
      inputs.push_back({k, value_range(call[k])});
      masked = masked || (inputs.back().range.negative_inf > 0 && op_info(call.op).kind != OpKind::InPlace);
    }
    if (masked && r.nan + r.positive_inf == 0) continue;
    const Context& c = record.context;
    std::string op(to_string(call.op));
    first_ = Anomaly{std::move(op),    parameter, c.backward_of, c.phase, c.module, c.cause->text, call.where, i, r,
                     std::move(inputs)};
    if (on_finding_ == OnFinding::raise) throw_error("anomaly: " + first_->to_string());
    return;
  }
}

}  // namespace gradual
