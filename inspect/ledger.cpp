#include "ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "../core/formats/accumulator.h"
#include "../core/ops/accumulator_of.h"
#include "../core/ops/parameter_inputs.h"
#include "../core/quantize/quantizer_call.h"
#include "csv_text.h"
#include "mirror.h"

namespace gradual::inspect {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Two tensors with the same strides need no copies.
ErrorSum errors(Tensor wide, Tensor narrow) {
  if (wide.strides() == narrow.strides()) {
    wide = in_any_order(wide);
    narrow = in_any_order(narrow);
  }
  return error_of(narrow, wide);
}

void note_errors(LedgerRow& r, const Tensor& wide, const Tensor& narrow) {
  const ErrorSum e = errors(wide, narrow);
  r.sqnr_db = e.sqnr_db();
  r.bias = e.bias();
  r.bias_interval = e.bias_interval();
  r.gain = e.gain();
  r.gain_interval = e.gain_interval();
}

bool any_nonfinite(const OpCall& call) {
  const std::span inputs(call.inputs.data(), static_cast<std::size_t>(call.inputs.size()));
  return std::ranges::any_of(inputs, [](const Tensor* t) { return !numbers_of(*t).finite(); });
}

// The operand that is a number; 0 if there is none.
double number_of(const OpCall& call) {
  if (!call.attrs->is<ScalarAttrs>()) return call.attrs->is<PadAttrs>() ? call.get<PadAttrs>().value : 0;
  return call.get<ScalarAttrs>().value;
}

// True if non-finite results of a call may be intended: a mask.
bool is_mask(const OpCall& call) {
  return std::isinf(number_of(call)) && (call.op == OpId::where || call.op == OpId::fill_ || call.op == OpId::pad);
}

// The number of second moments that are 0 while the first is not.
std::int64_t lost_moments(const OpCall& one) {
  if (one.op != OpId::adam_step_ || !one[5].defined()) return 0;
  std::int64_t lost = 0;
  in_blocks(std::array{one[4], one[5]}, [&](const auto& p, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) lost += p[0][i] != 0 && p[1][i] == 0;
  });
  return lost;
}

// For a + b = y: counts the added nonzero numbers of a tensor (the smaller of both if both are tensors), and those that
// leave the other operand unchanged.
void count_swamped(LedgerRow& r, const OpCall& call, const Tensor& y) {
  const Unseen unseen;
  const Tensor number = full({}, number_of(call), DType::f64);
  const auto term = [&](int k) { return (call[k].defined() ? call[k].detach() : number).expand(y.sizes()); };
  in_blocks(std::array{term(0), term(1), y}, [&](const auto& p, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const int small = std::abs(p[0][i]) < std::abs(p[1][i]) ? 0 : 1;
      if (!call[small].defined() || p[small][i] == 0) continue;
      ++r.added;
      r.swamped += std::abs(p[2][i]) == std::abs(p[1 - small][i]);
    }
  });
}

// The SQNR of a product or a sum against the same op with f32 sums.
double accumulation_db(const OpCall& call, const Outputs& out) {
  const Unseen unseen;
  const AccumulatorScope exact(std::nullopt);
  return errors(dispatch(call.op, call.inputs, *call.attrs, call.where)[0], out[0]).sqnr_db();
}

// The columns of the files, in order. null stands for NaN and Inf.
nlohmann::ordered_json json(const LedgerRow& r) {
  nlohmann::ordered_json state = nlohmann::ordered_json::array();
  for (const Numbers& n : r.state) state.push_back(to_string(n));
  nlohmann::ordered_json j;
  j["number"] = r.number;
  j["phase"] = to_string(r.phase);
  j["op"] = r.op;
  j["parameter"] = r.parameter;
  j["backward_of"] = r.backward_of;
  j["module"] = r.module;
  j["line"] = r.line;
  j["cause"] = r.cause;
  j["inputs"] = r.inputs;
  j["results"] = r.results;
  j["from"] = to_string(r.from);
  j["to"] = to_string(r.to);
  const CastCounts& c = r.counts;
  j["rounded"] = c.elements;
  j["zero_before"] = c.zeros;
  j["underflow"] = c.underflow;
  j["to_subnormal"] = c.subnormal;
  j["overflow"] = c.overflow;
  j["nan_before"] = c.nan;
  j["inf_before"] = c.inf;
  const Numbers& n = r.numbers;
  j["elements"] = n.elements;
  j["zeros"] = n.zeros;
  j["subnormal"] = n.subnormal;
  j["nan"] = n.nan;
  j["inf"] = n.inf;
  j["least"] = n.largest > 0 ? n.least : kNone;
  j["largest"] = n.largest > 0 ? n.largest : kNone;
  j["nonfinite_inputs"] = r.nonfinite_inputs;
  j["reads"] = r.reads;
  j["sqnr_db"] = r.sqnr_db;
  j["bias"] = r.bias;
  j["bias_interval"] = r.bias_interval;
  j["gain"] = r.gain;
  j["gain_interval"] = r.gain_interval;
  j["accumulator"] = r.accumulator;
  j["accumulation_db"] = r.accumulation_db;
  j["added"] = r.added;
  j["swamped"] = r.swamped;
  j["state"] = state;
  j["state_dtype"] = r.state.empty() ? "" : to_string(r.state_dtype);
  j["eps"] = r.state.size() == 2 ? r.eps : kNone;
  j["eps_is_zero"] = r.eps_is_zero;
  j["lost_moments"] = r.lost_moments;
  return j;
}

}  // namespace

void Ledger::before(const OpCall& call, const CallRecord&) {
  nonfinite_.clear();
  const ParameterInputs p = parameter_inputs(call);
  for (int k = 0; k < p.count; ++k) nonfinite_.push_back(any_nonfinite(call_of_parameter(call, p, k)));
  // Inputs that an op does not overwrite can be read afterwards.
  if (!p.count && op_info(call.op).kind == OpKind::InPlace) nonfinite_ = {any_nonfinite(call)};
}

std::int64_t Ledger::writer_of(const Tensor& t) const {
  const auto writer = t.defined() ? made_by_.find(amp::storage_id(t)) : made_by_.end();
  return writer == made_by_.end() ? -1 : writer->second;
}

void Ledger::add(LedgerRow row, const Tensor& result) {
  if (result.defined()) made_by_[amp::storage_id(result)] = row.number;
  rows_.push_back(std::move(row));
}

LedgerRow Ledger::row(const OpCall& call, const CallRecord& record) const {
  LedgerRow r{{rows_.size(), call, record}, op_info(call.op).kind};
  r.inputs = describe_inputs(call);
  r.counts = record.counts;
  r.nonfinite_number = !std::isfinite(number_of(call));
  for (int i = 0; i < call.inputs.size(); ++i) {
    const std::int64_t writer = writer_of(call[i]);
    if (writer >= 0) r.reads.push_back(writer);
    r.operands.push_back(writer);
  }
  return r;
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
    r.from = one[0].dtype();
    r.to = written.dtype();
    r.counts = i < record.counts_by_parameter.size() ? record.counts_by_parameter[i] : CastCounts{};
    r.numbers = numbers_of(written);
    r.nonfinite_inputs = nonfinite_[i];
    for (int s = kMoment; parameters.written == 0 && s < one.inputs.size(); ++s)
      if (one[s].defined()) {
        r.state.push_back(numbers_of(one[s]));
        r.state_dtype = one[s].dtype();
      }
    r.lost_moments = lost_moments(one);
    if (call.op == OpId::adam_step_) {
      const auto& adam = call.get<AdamAttrs>();
      r.eps = adam.eps;
      r.eps_is_zero = adam.update.pure && full({1}, adam.eps, r.from).item() == 0;
    }
    add(std::move(r), written);
  }
}

void Ledger::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  if (parameter_inputs(call).count) return add_parameters(call, record);
  const OpKind kind = op_info(call.op).kind;
  LedgerRow r = row(call, record);
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) {
    r.results += (i ? ", " : "") + describe(out[i]);
    if (kind != OpKind::View) r.numbers += numbers_of(out[i]);
  }
  if (call.inputs.size() > 0 && call[0].defined()) r.from = call[0].dtype();
  r.to = out[0].defined() ? out[0].dtype() : r.from;
  // Non-finite inputs matter only if results are not finite.
  if (!r.numbers.finite())
    r.nonfinite_inputs = is_mask(call) || (kind == OpKind::InPlace ? nonfinite_[0] : any_nonfinite(call));
  if (call.op == OpId::cast && r.counts.elements) note_errors(r, call[0], out[0]);
  if ((call.op == OpId::add || call.op == OpId::sub) && is_half(r.to)) count_swamped(r, call, out[0]);
  if (const auto sums = accumulator_of(call.op); sums && *sums != Accumulator()) {
    r.accumulator = gradual::to_string(*sums);
    r.accumulation_db = inspect::accumulation_db(call, out);
  }
  if (kind != OpKind::View && call.inputs.size() > 0) r.parameter = names_.of(call[0]);
  for (int i = 1; i < kMaxOutputs && out[i].defined(); ++i) made_by_[amp::storage_id(out[i])] = r.number;
  add(std::move(r), kind == OpKind::View ? Tensor() : out[0]);
}

void Ledger::quantized(const QuantizerCall& call) {
  if (call.kind != QuantizerCall::values) return;  // codes are stored values, or were rounded before
  const Unseen unseen;
  LedgerRow r{OpRow::of_quantizer(rows_.size()), OpKind::Custom};
  r.parameter = names_.of(call.from);
  r.inputs = describe(call.from);
  r.results = gradual::to_string(call.quantizer->format);
  r.from = call.from.dtype();
  r.to = call.to.dtype();
  r.numbers = numbers_of(call.to);
  if (!r.numbers.finite()) r.nonfinite_inputs = !numbers_of(call.from).finite();
  if (const std::int64_t writer = writer_of(call.from); writer >= 0) r.reads.push_back(writer);
  note_errors(r, call.from, call.scale.defined() ? mul(call.to, call.scale) : call.to);
  add(std::move(r), call.to);
}

const LedgerRow* Ledger::first_nonfinite() const {
  const auto found = std::ranges::find_if(rows_, [](const LedgerRow& r) { return !r.nonfinite_inputs && !r.finite(); });
  return found == rows_.end() ? nullptr : &*found;
}

const LedgerRow* Ledger::origin(const LedgerRow& row) const {
  const LedgerRow* first = nullptr;
  std::vector<bool> led(rows_.size());  // to `row`; a row reads earlier ones
  led[static_cast<std::size_t>(row.number)] = true;
  for (auto i = static_cast<std::size_t>(row.number) + 1; i-- > 0;) {
    const LedgerRow& r = rows_[i];
    if (!led[i] || r.finite()) continue;
    bool inherits = false;
    for (const auto number : r.reads) {
      const auto made = static_cast<std::size_t>(number);
      if (rows_[made].finite()) continue;
      led[made] = true;
      inherits = true;
    }
    if ((!r.nonfinite_inputs || !inherits) && (!first || r.nonfinite_inputs <= first->nonfinite_inputs)) first = &r;
  }
  return first;
}

std::string Ledger::to_string() const {
  std::string text = fmt::format("{:>5}  {:<9}  {:<36}  {:<11}  {:<40}  {:<40}  {}\n", "row", "phase", "op", "dtypes",
                                 "results hold", "rounding lost", "line, cause");
  for (const LedgerRow& r : rows_) {
    std::string lost = r.counts.elements ? "nothing" : "-";
    if (const CastCounts& c = r.counts; c.underflow + c.overflow + c.subnormal)
      lost = fmt::format("{} underflow, {} overflow, {} subnormal", c.underflow, c.overflow, c.subnormal);
    if (std::isfinite(r.gain) && std::abs(r.gain) > r.gain_interval)
      lost += fmt::format("{}size {}", lost == "-" ? "" : ", ", with_interval(r.gain, r.gain_interval));
    if (std::isfinite(r.bias) && std::abs(r.bias) > r.bias_interval)
      lost += fmt::format("{}mean {}", lost == "-" ? "" : ", ", with_interval(r.bias, r.bias_interval));
    text += fmt::format("{:>5}  {:<9}  {:<36}  {:<11}  {:<40}  {:<40}  {}{}{}\n", r.number, gradual::to_string(r.phase),
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

std::string Ledger::to_csv() const { return csv_of(json({}).dump() + "\n" + to_jsonl()); }

}  // namespace gradual::inspect
