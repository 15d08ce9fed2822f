#include "update_meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "../core/ops/ops.h"
#include "../core/ops/parameter_inputs.h"
#include "../core/quantize/quantizer_call.h"
#include "csv.h"
#include "error_sum.h"
#include "exact.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

// The inputs of one parameter in a row of an optimizer.
enum Input : std::uint8_t { kWeight, kGradient, kMaster, kCompensation, kMoment };
constexpr const char* kStates[] = {"first moment", "second moment", "third state", "fourth state"};

bool is_of(const Tensor& t, Category category) { return t.unsafe_impl()->storage->category == category; }

bool is_row(const OpCall& call) { return call.op == OpId::adam_step_ || call.op == OpId::sgd_step_; }

const UpdateAttrs& update_of(const OpCall& call) {
  return call.op == OpId::adam_step_ ? call.get<AdamAttrs>().update : call.get<SgdAttrs>().update;
}

// f(attributes) on a copy of those of an optimizer's row.
template <class F> Attrs edited(const OpCall& call, const F& f) {
  Attrs attrs = *call.attrs;
  const auto edit = [&](auto a) {
    f(a);
    attrs = a;
  };
  if (call.op == OpId::adam_step_) edit(call.get<AdamAttrs>());
  else edit(call.get<SgdAttrs>());
  return attrs;
}

// What the next step starts from, in f64: the master, or parameter and compensation together.
Tensor value_of(const Tensor& parameter, const Tensor& master, const Tensor& compensation) {
  const Unseen unseen;
  if (master.defined()) return f64_of(master);
  Tensor weight = f64_of(parameter);
  return compensation.defined() ? add(weight, f64_of(compensation)) : weight;
}

// One parameter's inputs after the row in f64, with its weight in the first place.
std::vector<Tensor> run_in_f64(const OpCall& one, const Attrs& attrs) {
  std::vector<Tensor> wide(static_cast<std::size_t>(one.inputs.size()));
  for (int i = 0; i < one.inputs.size(); ++i)
    if (i != kMaster && i != kCompensation) wide[static_cast<std::size_t>(i)] = f64_of(one[i]);
  wide[kWeight] = value_of(one[kWeight], one[kMaster], one[kCompensation]);
  OpCall call = one;
  call.attrs = &attrs;
  run_exactly(call, wide);
  return wide;
}

// The weight after the row itself on copies.
Tensor run_again(const OpCall& one, const Attrs& attrs) {
  const Unseen unseen;
  std::vector<Tensor> copies;
  copies.reserve(static_cast<std::size_t>(one.inputs.size()));
  for (int i = 0; i < one.inputs.size(); ++i) copies.push_back(one[i].defined() ? one[i].detach().clone() : Tensor());
  const std::vector<const Tensor*> refs = pointers_to(copies);
  dispatch(one.op, TensorRefs(refs.data(), one.inputs.size()), attrs, one.where);
  return value_of(copies[kWeight], copies[kMaster], copies[kCompensation]);
}

std::vector<Scalar> scalars_of(const OpCall& one) {
  const DType own = one[kWeight].dtype(), dtype = update_of(one).pure || own == DType::f64 ? own : DType::f32;
  const Unseen unseen;
  std::vector<Scalar> all;
  const auto add = [&](const char* name, double value) {
    all.push_back({std::string(to_string(one.op)), name, value, full({1}, value, dtype).item(), dtype});
  };
  if (one.op == OpId::adam_step_) {
    const auto& a = one.get<AdamAttrs>();
    add("lr", a.lr), add("eps", a.eps), add("weight decay", a.weight_decay);
    add("beta1", a.beta1), add("1 - beta1", 1 - a.beta1), add("beta2", a.beta2), add("1 - beta2", 1 - a.beta2);
    if (a.decoupled) add("1 - lr * weight decay", 1 - a.lr * a.weight_decay);
  } else {
    const auto& a = one.get<SgdAttrs>();
    add("lr", a.lr), add("weight decay", a.weight_decay), add("momentum", a.momentum);
    if (a.momentum != 0) add("1 - dampening", 1 - a.dampening);
  }
  return all;
}

// JSON has no NaN: null.
nlohmann::ordered_json json(const Update& u) {
  nlohmann::ordered_json j;
  j["step"] = u.step, j["parameter"] = u.parameter, j["op"] = u.op, j["part"] = u.part;
  j["elements"] = u.elements, j["intended"] = u.intended, j["vanished"] = u.vanished;
  j["ratio"] = u.ratio();
  j["arriving"] = u.intended_squares > 0 ? nlohmann::ordered_json(u.arriving()) : nullptr;
  j["moved"] = u.moved, j["flipped"] = u.flipped;
  j["weight_squares"] = u.weight_squares, j["intended_squares"] = u.intended_squares, j["product"] = u.product;
  return j;
}

}  // namespace

double Update::ratio() const { return weight_squares > 0 ? std::sqrt(intended_squares / weight_squares) : 0; }
double Update::arriving() const {
  return intended_squares > 0 ? product / intended_squares : std::numeric_limits<double>::quiet_NaN();
}
Update& Update::operator+=(const Update& o) {
  parameter = o.parameter, op = o.op, part = o.part, step = o.step;
  elements += o.elements, intended += o.intended, vanished += o.vanished, moved += o.moved, flipped += o.flipped;
  weight_squares += o.weight_squares, intended_squares += o.intended_squares, product += o.product;
  return *this;
}

std::string to_string(const Update& u) {
  std::string text = u.parameter.empty() ? u.op : u.parameter;
  if (u.part != "update") text += ", " + u.part;
  text += fmt::format(": {:.3g}% of the updates vanish", u.vanished_percent());
  if (u.intended) text += fmt::format(", {:.3g}% arrives", 100 * u.arriving());
  if (u.ratio() > 0) text += fmt::format(", |update| / |weight| 2^{:.1f}", std::log2(u.ratio()));
  if (u.flipped) text += fmt::format(", {:.3g}% of the weights flip back", u.flipped_percent());
  return text;
}

std::string to_string(const Scalar& s) {
  return fmt::format("{} {:.6g} is {:.6g} in {}", s.name, s.value, s.used, to_string(s.dtype));
}

UpdateMeter::Change UpdateMeter::change(const OpCall& call, const std::string& name, const char* part,
                                        const Tensor& target, const Tensor& intended) {
  const Tensor before = f64_of(target);
  return {.row = {.parameter = name, .op = std::string(called(call)), .part = part},
          .target = target,
          .before = before,
          .base = before,
          .intended = intended};
}

void UpdateMeter::next_step() {
  ++step_;
  updated_ = false;
  seen_.clear(), changes_.clear();
}

void UpdateMeter::begin_update(Update& row, const Tensor& parameter) {
  if (!row.parameter.empty() && !seen_.insert(row.parameter).second) {
    next_step();
    seen_.insert(row.parameter);
  }
  updated_ = true;
  if (!quantised_.contains(row.parameter)) observe(row.parameter, row.parameter, parameter);
  std::tie(row.moved, row.flipped) = std::exchange(moves_[row.parameter], {});
}

void UpdateMeter::observe(const std::string& name, const std::string& key, const Tensor& rounded) {
  if (name.empty()) return;
  const Tensor now = f64_of(rounded);
  History& h = histories_[key];
  if (!h.last.defined() || h.last.numel() != now.numel()) {
    const Unseen unseen;
    h = {now, full(now.sizes(), std::numeric_limits<double>::quiet_NaN(), DType::f64)};
    return;
  }
  auto *last = h.last.data<double>(), *previous = h.previous.data<double>();
  const auto* p = now.data<double>();
  auto& [moved, flipped] = moves_[name];
  for (std::int64_t i = 0; i < now.numel(); ++i) {
    if (p[i] == last[i]) continue;
    ++moved;
    flipped += p[i] == previous[i];
    previous[i] = std::exchange(last[i], p[i]);
  }
}

void UpdateMeter::fused(const OpCall& one, int k) {
  std::string name = names_.of(one[kWeight]);
  if (name.empty()) name = row_major_[amp::storage_id(one[kWeight])];
  const std::vector<Tensor> exact = run_in_f64(one, *one.attrs);
  Change whole = change(one, name, "update", one[kWeight], exact[kWeight]);
  begin_update(whole.row, one[kWeight]);
  whole.master = one[kMaster], whole.compensation = one[kCompensation];
  whole.before = whole.base = value_of(one[kWeight], one[kMaster], one[kCompensation]);
  bool decays = false;
  const Attrs plain = edited(one, [&](auto& a) {
    decays = std::exchange(a.weight_decay, 0) != 0;
    a.update.key.stream += static_cast<std::uint64_t>(k);
  });
  if (decays) {
    Change step = change(one, name, "gradient step", run_again(one, plain), run_in_f64(one, plain)[kWeight]);
    Change decay = whole;
    decay.row = change(one, name, "weight decay", step.target, {}).row;
    decay.before = step.before, decay.base = step.intended;  // what decay adds to the step without it
    step.before = step.base = whole.before;
    pending_.push_back(std::move(step)), pending_.push_back(std::move(decay));
  }
  for (int i = kMoment; i < one.inputs.size(); ++i)
    if (one[i].defined())
      pending_.push_back(change(one, name, kStates[i - kMoment], one[i], exact[static_cast<std::size_t>(i)]));
  pending_.push_back(std::move(whole));
  for (const Scalar& s : scalars_of(one))
    if (std::ranges::find(scalars_, s) == scalars_.end()) scalars_.push_back(s);
}

// copy_ writes, in this order: state, the master, the parameter, Kahan's compensation.
void UpdateMeter::written_by_ops(const OpCall& call) {
  const Tensor &to = call[0], &from = call[1];
  const std::uint64_t id = amp::storage_id(from);
  const std::string name = names_.of(to);
  if (!name.empty()) {
    const auto same = [&](const Change& c) { return c.target.shares_storage(from); };
    if (std::ranges::any_of(changes_, same)) return;  // the row-major copy that a fused row has updated
    const bool by_chance = rounded_.first.defined() && rounded_.first.shares_storage(from);
    const Tensor& next = by_chance ? rounded_.second : from;
    Change whole = change(call, name, "update", to, f64_of(next));
    begin_update(whole.row, to);
    if (master_.target.defined() && master_of_ == id)
      whole.before = whole.base = master_.before, whole.master = master_.target;
    for (std::size_t k = 0; k < states_.size(); ++k) {
      states_[k].row.parameter = name, states_[k].row.part = kStates[std::min<std::size_t>(k, 3)];
      pending_.push_back(std::move(states_[k]));
    }
    pending_.push_back(std::move(whole));
    next_ = amp::storage_id(next);
    states_.clear(), master_ = {}, rounded_ = {};
  } else if (is_of(to, Category::masters)) {
    master_ = change(call, name, "update", to, {}), master_of_ = id;
  } else if (id == compensation_) {
    Change& c = changes_.back();
    c.before = c.base = add(c.before, f64_of(to));
    c.compensation = to;
  } else if (is_of(to, Category::optimizer)) {
    states_.push_back(change(call, name, "", to, f64_of(from)));
  }
}

void UpdateMeter::batch_statistics(const OpCall& call) {
  if (updated_) next_step();
  std::vector<Tensor> wide;
  wide.reserve(static_cast<std::size_t>(call.inputs.size()));
  for (int i = 0; i < call.inputs.size(); ++i) wide.push_back(call[i].defined() ? widened(call[i]) : Tensor());
  run_exactly(call, wide);
  pending_ = {change(call, context().module, "running mean", call[0], wide[0]),
              change(call, context().module, "running variance", call[1], wide[1])};
}

void UpdateMeter::before(const OpCall& call) {
  noise_.before(call);
  pending_.clear();
  const Unseen unseen;
  if (context().phase == Phase::backward && updated_) next_step();
  if (is_row(call)) {
    // On a GPU the step's number and rates may stand in its memory alone.
    if (const DeviceStep& there = update_of(call).device; there.steps || there.rates) return;
    const ParameterInputs parameters = parameter_inputs(call);
    for (int k = 0; k < parameters.count; ++k) fused(call_of_parameter(call, parameters, k), k);
  } else if (call.op == OpId::copy_ && context().phase == Phase::optimizer) {
    written_by_ops(call);
  } else if (call.op == OpId::batch_norm_update_) {
    batch_statistics(call);
  }
  if (op_info(call.op).kind != OpKind::InPlace) return;
  for (const Average& a : averages_) {
    const auto same = [&](const Change& c) { return c.row.part == "average" && c.row.parameter == a.name; };
    if (!a.average.shares_storage(call[0]) || std::ranges::any_of(changes_, same)) continue;
    const Tensor intended = add(mul(f64_of(a.average), a.decay), mul(f64_of(a.of), 1 - a.decay));
    pending_.push_back(change(call, a.name, "average", a.average, intended));
  }
}

void UpdateMeter::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  noise_.after(call, out, record);
  const Unseen unseen;
  for (Change& c : pending_) {
    auto& rows = c.row.part == "update" ? updates_ : parts_;
    c.row.step = step_, c.at = rows.size();
    rows.push_back(c.row);
    measure(changes_.emplace_back(std::move(c)));
  }
  pending_.clear();
  if (context().phase == Phase::optimizer && call.inputs.size() > 0 && call[0].defined()) {
    if (call.op == OpId::clone) row_major_[amp::storage_id(out[0])] = names_.of(call[0]);
    if (call.op == OpId::sub && amp::storage_id(call[0]) == next_) compensation_ = amp::storage_id(out[0]);
  }
  if (op_info(call.op).kind != OpKind::InPlace) return;
  // What is written again in the same step: a parameter that a quantiser rounds, an average; in the optimizer itself
  // only the compensation, for other writes are the next step's.
  for (const Change& c : changes_)
    for (const Tensor* t : {&c.target, &c.master, &c.compensation})
      if (t->defined() && t->shares_storage(call[0]) && (t == &c.compensation || context().phase != Phase::optimizer))
        measure(c);
}

void UpdateMeter::quantized(const QuantizerCall& call) {
  noise_.quantized(call);
  const Unseen unseen;
  const Phase phase = context().phase;
  if (call.kind == QuantizerCall::values && phase == Phase::optimizer) rounded_ = {call.to, call.from};
  if (call.kind == QuantizerCall::values && phase == Phase::forward && *context().module)
    if (const std::string name = names_.of(call.from); !name.empty()) {
      quantised_.insert(name);
      observe(name, fmt::format("{}@{}", name, call.from.offset()), call.to);
    }
  if (call.kind != QuantizerCall::encode) return;
  for (Change& c : changes_)  // a moment that is kept as codes; with stochastic rounding, other draws than the run's
    if (c.target.shares_storage(call.from)) {
      c.target = fake_quantize(call.from, *call.quantizer, {.axis = call.axis});
      measure(c);
    }
}

void UpdateMeter::measure(const Change& c) {
  Update u = c.row;
  const Tensor after = value_of(c.target, c.master, c.compensation);
  const auto *before = c.before.data<double>(), *now = after.data<double>();
  const auto *base = c.base.data<double>(), *want = c.intended.data<double>();
  u.elements = after.numel();
  for (std::int64_t i = 0; i < u.elements; ++i) {
    const double step = want[i] - base[i], made = now[i] - before[i];
    u.weight_squares += before[i] * before[i];
    if (step == 0 || !std::isfinite(step)) continue;
    ++u.intended;
    u.vanished += made == 0;
    u.intended_squares += step * step;
    if (std::isfinite(made)) u.product += made * step;
  }
  (c.row.part == "update" ? updates_ : parts_)[c.at] = std::move(u);
}

void UpdateMeter::clear() {
  updates_.clear(), parts_.clear(), scalars_.clear(), changes_.clear();
  noise_.clear();
}

std::string UpdateMeter::to_string() const {
  std::vector<Update> sums;
  for (const auto* rows : {&updates_, &parts_})
    for (const Update& u : *rows) {
      const auto same =
          std::ranges::find_if(sums, [&](const Update& s) { return s.parameter == u.parameter && s.part == u.part; });
      if (same == sums.end()) sums.push_back(u);
      else *same += u;
    }
  std::string text = fmt::format("{:<28} {:<16} {:>9} {:>9} {:>18} {:>7} {:>9}\n", "parameter", "part", "vanish",
                                 "arrive", "|update|/|weight|", "move", "flip back");
  for (const Update& u : sums)
    text += fmt::format("{:<28} {:<16} {:>8.3g}% {:>8.3g}% {:>18} {:>6.3g}% {:>8.3g}%\n",
                        u.parameter.empty() ? u.op : u.parameter, u.part, u.vanished_percent(), 100 * u.arriving(),
                        u.ratio() > 0 ? fmt::format("2^{:.1f}", std::log2(u.ratio())) : "0",
                        percent_of(u.moved, u.elements), u.flipped_percent());
  for (const Scalar& s : scalars_)
    if (s.lost()) text += s.op + ": " + inspect::to_string(s) + "\n";
  for (const GradientNoise& n : noise_.layers()) text += inspect::to_string(n) + "\n";
  return text;
}

std::string UpdateMeter::to_jsonl() const {
  std::string text;
  for (const auto* rows : {&updates_, &parts_})
    for (const Update& u : *rows)
      text += json(u).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return text;
}

std::string UpdateMeter::to_csv() const { return csv_of(json({}).dump() + "\n" + to_jsonl()); }

}  // namespace gradual::inspect
