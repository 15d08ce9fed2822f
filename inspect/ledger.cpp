#include "ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "../core/ops/parameter_inputs.h"
#include "csv.h"

namespace gradual::inspect {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

void add(Numbers& to, const Numbers& n) {
  to.elements += n.elements, to.zeros += n.zeros, to.subnormal += n.subnormal, to.nan += n.nan, to.inf += n.inf;
  if (n.largest > 0) to.least = to.largest > 0 ? std::min(to.least, n.least) : n.least;
  to.largest = std::max(to.largest, n.largest);
}

// 10 log10(sum x^2 / sum (x - y)^2) over the elements that are finite in both.
double sqnr_db(const Tensor& x, const Tensor& y) {
  const Tensor wide = f64_of(x), narrow = f64_of(y);
  const auto *a = wide.data<double>(), *b = narrow.data<double>();
  double signal = 0, noise = 0;
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) continue;
    signal += a[i] * a[i];
    noise += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

bool any_nonfinite(const OpCall& call) {
  for (int i = 0; i < call.inputs.size(); ++i)
    if (!numbers_of(call[i]).finite()) return true;
  return false;
}

// The columns of the files, in order; JSON has no NaN and no Inf, null stands for both.
nlohmann::ordered_json json(const LedgerRow& r) {
  const auto number = [](double v) { return std::isfinite(v) ? nlohmann::ordered_json(v) : nlohmann::ordered_json(); };
  return {{"number", r.number},
          {"phase", to_string(r.phase)},
          {"op", r.op},
          {"parameter", r.parameter},
          {"backward_of", r.backward_of},
          {"module", r.module},
          {"line", r.line},
          {"cause", r.cause},
          {"inputs", r.inputs},
          {"results", r.results},
          {"from", to_string(r.from)},
          {"to", to_string(r.to)},
          {"rounded", r.counts.elements},
          {"zero_before", r.counts.zeros},
          {"underflow", r.counts.underflow},
          {"to_subnormal", r.counts.subnormal},
          {"overflow", r.counts.overflow},
          {"nan_before", r.counts.nan},
          {"inf_before", r.counts.inf},
          {"elements", r.numbers.elements},
          {"zeros", r.numbers.zeros},
          {"subnormal", r.numbers.subnormal},
          {"nan", r.numbers.nan},
          {"inf", r.numbers.inf},
          {"least", number(r.numbers.largest > 0 ? r.numbers.least : kNone)},
          {"largest", number(r.numbers.largest > 0 ? r.numbers.largest : kNone)},
          {"nonfinite_inputs", r.nonfinite_inputs},
          {"sqnr_db", number(r.sqnr_db)}};
}

}  // namespace

std::string LedgerRow::site() const {
  if (!parameter.empty()) return op + " of " + parameter;
  const std::string what = backward_of.empty() || backward_of == op ? op : op + " (backward of " + backward_of + ")";
  return module.empty() ? what : what + " in layer " + module;
}

void Ledger::before(const OpCall& call) {
  nonfinite_parameters_.clear();
  const ParameterInputs parameters = parameter_inputs(call);
  for (int k = 0; k < parameters.count; ++k)
    nonfinite_parameters_.push_back(any_nonfinite(call_of_parameter(call, parameters, k)));
  // What an op leaves alone can be read afterwards.
  if (!parameters.count && op_info(call.op).kind == OpKind::InPlace) nonfinite_inputs_ = any_nonfinite(call);
}

LedgerRow Ledger::row(const OpCall& call, const CallRecord& record) {
  const Context& c = record.context;
  return {.number = static_cast<std::int64_t>(rows_.size()),
          .phase = c.phase,
          .kind = op_info(call.op).kind,
          .op = std::string(called(call)),
          .backward_of = c.backward_of,
          .module = c.module,
          .line = file_line(call.where),
          .cause = c.cause,
          .inputs = describe_inputs(call),
          .counts = record.counts,
          .sqnr_db = kNone};
}

void Ledger::add_parameters(const OpCall& call, const CallRecord& record) {
  const ParameterInputs parameters = parameter_inputs(call);
  for (int k = 0; k < parameters.count; ++k) {
    const OpCall one = call_of_parameter(call, parameters, k);
    const auto i = static_cast<std::size_t>(k);
    LedgerRow r = row(one, record);
    const Tensor& written = one[parameters.written].defined() ? one[parameters.written] : one[0];
    r.parameter = names_.of(one[0]);
    r.results = describe(written);
    r.from = one[0].dtype(), r.to = written.dtype();
    r.counts = i < record.counts_by_parameter.size() ? record.counts_by_parameter[i] : CastCounts{};
    r.numbers = numbers_of(written);
    r.nonfinite_inputs = nonfinite_parameters_[i];
    for (int s = 4; parameters.written == 0 && s < one.inputs.size();
         ++s)  // behind parameter, gradient, master, compensation
      if (one[s].defined()) r.state.push_back(numbers_of(one[s]));
    if (call.op == OpId::adam_step_) {
      const auto& adam = call.get<AdamAttrs>();
      r.eps = adam.eps;
      r.eps_is_zero = adam.update.pure && full({1}, adam.eps, r.from).item() == 0;
    }
    rows_.push_back(std::move(r));
  }
}

void Ledger::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  if (parameter_inputs(call).count) return add_parameters(call, record);
  const OpKind kind = op_info(call.op).kind;
  LedgerRow r = row(call, record);
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) {
    r.results += (i ? ", " : "") + describe(out[i]);
    if (kind != OpKind::View) add(r.numbers, numbers_of(out[i]));
  }
  if (call.inputs.size() > 0 && call[0].defined()) r.from = call[0].dtype();
  r.to = out[0].defined() ? out[0].dtype() : r.from;
  // Whether inputs were finite matters where results are not.
  if (!r.numbers.finite()) r.nonfinite_inputs = kind == OpKind::InPlace ? nonfinite_inputs_ : any_nonfinite(call);
  if (call.op == OpId::cast && r.counts.elements) r.sqnr_db = sqnr_db(call[0], out[0]);
  if (kind != OpKind::View && call.inputs.size() > 0) r.parameter = names_.of(call[0]);
  rows_.push_back(std::move(r));
}

const LedgerRow* Ledger::first_nonfinite() const {
  const auto found = std::ranges::find_if(rows_, [](const LedgerRow& r) {
    return !r.nonfinite_inputs &&
           (!r.numbers.finite() || std::ranges::any_of(r.state, [](const Numbers& n) { return !n.finite(); }));
  });
  return found == rows_.end() ? nullptr : &*found;
}

std::string Ledger::to_string() const {
  std::string text = fmt::format("{:>5}  {:<9}  {:<36}  {:<11}  {:<40}  {:<24}  {}\n", "row", "phase", "op", "dtypes",
                                 "results hold", "rounding lost", "line, cause");
  for (const LedgerRow& r : rows_) {
    std::string lost;
    const std::pair<std::uint64_t, const char*> all[] = {
        {r.counts.underflow, "underflow"}, {r.counts.overflow, "overflow"}, {r.counts.subnormal, "subnormal"}};
    for (const auto& [n, what] : all)
      if (n) lost += fmt::format("{}{} {}", lost.empty() ? "" : ", ", n, what);
    if (lost.empty()) lost = r.counts.elements ? "nothing" : "-";
    text += fmt::format("{:>5}  {:<9}  {:<36}  {:<11}  {:<40}  {:<24}  {}{}{}\n", r.number, gradual::to_string(r.phase),
                        r.site(), fmt::format("{}->{}", gradual::to_string(r.from), gradual::to_string(r.to)),
                        r.numbers.elements ? inspect::to_string(r.numbers) : "-", lost, r.line,
                        r.cause.empty() ? "" : "  # ", r.cause);
  }
  return text;
}

std::string Ledger::to_jsonl() const {
  std::string text;
  for (const LedgerRow& r : rows_)
    text += json(r).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return text;
}

std::string Ledger::to_csv() const {
  std::string text;
  const auto add = [&text](const nlohmann::ordered_json& fields, bool keys) {
    std::string line;
    for (const auto& [key, value] : fields.items())
      line += (line.empty() ? "" : ",") + csv_field(keys                ? key
                                                    : value.is_null()   ? ""
                                                    : value.is_string() ? value.get<std::string>()
                                                                        : value.dump());
    text += line + "\n";
  };
  add(json({}), true);
  for (const LedgerRow& r : rows_) add(json(r), false);
  return text;
}

}  // namespace gradual::inspect
