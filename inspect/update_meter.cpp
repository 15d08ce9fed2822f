#include "update_meter.h"

#include <fmt/format.h>

#include "../core/ops/f8_operands.h"
#include "../core/ops/parameter_inputs.h"
#include "../core/quantize/quantizer_call.h"
#include "../core/support/message_text.h"
#include "csv_text.h"

namespace gradual::inspect {
namespace {

constexpr std::int64_t kSampled = 64;
constexpr UpdatePart kStates[] = {UpdatePart::first_moment, UpdatePart::second_moment, UpdatePart::other_state};

const UpdateAttrs& update_of(const OpCall& call) {
  return call.op == OpId::adam_step_ ? call.get<AdamAttrs>().update : call.get<SgdAttrs>().update;
}

// The attributes of an optimizer's op for its k-th parameter, without weight decay; none if there is no decay.
std::optional<Attrs> without_decay(const OpCall& call, int k) {
  const auto edited = [k](auto a) -> std::optional<Attrs> {
    a.update.key.stream += static_cast<std::uint64_t>(k);
    if (std::exchange(a.weight_decay, 0) == 0) return {};
    return a;
  };
  return call.op == OpId::adam_step_ ? edited(call.get<AdamAttrs>()) : edited(call.get<SgdAttrs>());
}

// The inputs after the call in f64. For an optimizer's op the first one is the weight from which the next step starts.
std::vector<Tensor> run_in_f64(const OpCall& call, const Attrs& attrs) {
  std::vector<Tensor> inputs = inputs_of(call, f64_of);
  OpCall one = call;
  one.attrs = &attrs;
  run_exactly(one, inputs);
  return inputs;
}

// The weight after the op itself, run on copies.
Tensor run_again(const OpCall& one, const Attrs& attrs) {
  const Unseen unseen;
  const auto copied = [](const Tensor& t) { return t.defined() ? t.detach().clone() : Tensor(); };
  const std::vector<Tensor> copies = inputs_of(one, copied);
  const std::vector<const Tensor*> refs = pointers_to(copies);
  dispatch(one.op, TensorRefs(refs.data(), one.inputs.size()), attrs, one.where);
  return value_of(copies[kWeight], copies[kMaster], copies[kCompensation]);
}

}  // namespace

UpdateMeter::UpdateMeter(const nn::Module& model) : names_(model) {}

void UpdateMeter::watch_average(const std::string& name, const Tensor& average, const Tensor& of, double decay) {
  averages_.emplace_back(name, average, of, decay);
}

void UpdateMeter::clear() {
  updates_.clear();
  parts_.clear();
  scalars_.clear();
  noise_.clear();
  changes_.clear();
}

void UpdateMeter::next_step() {
  ++step_;
  changes_.clear();
}

std::string_view to_string(UpdatePart part) {
  return enum_name(part, {"update", "gradient step", "weight decay", "first moment", "second moment", "other state",
                          "running mean", "running variance", "average"});
}

Update& Update::operator+=(const Update& o) {
  parameter = o.parameter;
  op = o.op;
  part = o.part;
  step = o.step;
  elements += o.elements;
  intended += o.intended;
  vanished += o.vanished;
  moved += o.moved;
  flipped += o.flipped;
  overflowed += o.overflowed;
  zeroed += o.zeroed;
  weight_squares += o.weight_squares;
  intended_squares += o.intended_squares;
  product += o.product;
  return *this;
}

std::string to_string(const Scalar& s) {
  return fmt::format("{} {:.6g} is {:.6g} in {}", to_string(s.rate), s.value, s.used, to_string(s.dtype));
}

UpdateMeter::Change UpdateMeter::change(std::string_view op, const std::string& name, UpdatePart part,
                                        const Tensor& target, const Tensor& intended) {
  const Tensor before = f64_of(target);
  return {{.parameter = name, .op = std::string(op), .part = part}, target, {}, {}, before, before, intended};
}

bool UpdateMeter::has_changed(UpdatePart part, std::string_view parameter) const {
  return std::ranges::any_of(changes_, [&](const Change& c) {
    return c.row.part == part && (parameter.empty() || c.row.parameter == parameter);
  });
}

void UpdateMeter::begin_update(Update& row, const Tensor& parameter) {
  if (row.parameter.empty()) return;
  if (has_changed(UpdatePart::whole, row.parameter)) next_step();
  Weight& w = weights_[row.parameter];
  if (!w.quantised) w.observe(0, parameter);
  row.moved = std::exchange(w.moved, 0);
  row.flipped = std::exchange(w.flipped, 0);
}

void UpdateMeter::Weight::observe(std::int64_t offset, const Tensor& rounded) {
  const std::vector<double> now = f64_of(rounded).to_vector<double>();
  auto& [last, previous] = values[offset];
  if (last.size() != now.size()) {
    last = now;
    previous = now;
  }
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] == last[i]) continue;
    ++moved;
    flipped += now[i] == previous[i];
    previous[i] = std::exchange(last[i], now[i]);
  }
}

void UpdateMeter::begin_decay(const OpCall& one, int k, const Change& whole) {
  const std::optional<Attrs> without = without_decay(one, k);
  if (!without) return;
  const std::string& name = whole.row.parameter;
  Change step = change(called(one), name, UpdatePart::gradient_step, run_again(one, *without),
                       run_in_f64(one, *without)[kWeight]);
  Change decay = whole;
  decay.row.part = UpdatePart::weight_decay;
  decay.before = step.before;
  decay.base = step.intended;
  step.base = whole.before;
  step.before = whole.before;
  pending_.push_back(std::move(step));
  pending_.push_back(std::move(decay));
}

void UpdateMeter::begin_fused(const OpCall& one, int k) {
  const std::string name = names_.of(one[kWeight]);
  const std::vector<Tensor> exact = run_in_f64(one, *one.attrs);
  Change whole = change(called(one), name, UpdatePart::whole, one[kWeight], exact[kWeight]);
  whole.master = one[kMaster];
  whole.compensation = one[kCompensation];
  whole.base = value_of(one[kWeight], one[kMaster], one[kCompensation]);
  whole.before = whole.base;
  begin_decay(one, k, whole);
  begin_update(whole.row, one[kWeight]);
  for (int i = kMoment; i < one.inputs.size(); ++i) {
    if (!one[i].defined()) continue;
    pending_.push_back(change(called(one), name, kStates[i - kMoment], one[i], exact[static_cast<std::size_t>(i)]));
    if (one.op == OpId::adam_step_ && i > kMoment) pending_.back().first_moment = one[kMoment];
  }
  pending_.push_back(std::move(whole));
  add_scalars(one);
}

void UpdateMeter::add_scalars(const OpCall& one) {
  const DType own = one[kWeight].dtype();
  const DType dtype = update_of(one).pure || own == DType::f64 ? own : DType::f32;
  const auto add = [&](Rate rate, double value) {
    const Scalar s{std::string(gradual::to_string(one.op)), rate, value, full({1}, value, dtype).item(), dtype};
    if (std::ranges::find(scalars_, s) == scalars_.end()) scalars_.push_back(s);
  };
  if (one.op == OpId::adam_step_) {
    const auto& a = one.get<AdamAttrs>();
    add(Rate::lr, a.lr);
    add(Rate::eps, a.eps);
    add(Rate::weight_decay, a.weight_decay);
    add(Rate::beta1, a.beta1);
    add(Rate::one_minus_beta1, 1 - a.beta1);
    add(Rate::beta2, a.beta2);
    add(Rate::one_minus_beta2, 1 - a.beta2);
    if (a.decoupled) add(Rate::kept_by_decay, 1 - a.lr * a.weight_decay);
  } else {
    const auto& a = one.get<SgdAttrs>();
    add(Rate::lr, a.lr);
    add(Rate::weight_decay, a.weight_decay);
    add(Rate::momentum, a.momentum);
    add(Rate::one_minus_dampening, 1 - a.dampening);
  }
}

void UpdateMeter::before_update(const UpdateEvent& event) {
  const Unseen unseen;
  by_ops_.clear();
  const std::string name = names_.of(event.parameter);
  if (name.empty()) return;
  names_.add(event.target, name);
  if (event.op) return;  // the op is observed
  for (std::size_t k = 0; k < event.state.size(); ++k)
    by_ops_.push_back(change(event.optimizer, name, kStates[std::min<std::size_t>(k, 2)], event.state[k], {}));
  Change whole = change(event.optimizer, name, UpdatePart::whole, event.parameter, {});
  whole.master = event.master;
  whole.compensation = event.compensation;
  whole.base = value_of(event.parameter, event.master, event.compensation);
  whole.before = whole.base;
  begin_update(whole.row, event.parameter);
  by_ops_.push_back(std::move(whole));
}

void UpdateMeter::after_update(const UpdateEvent& event) {
  if (by_ops_.empty()) return;
  const Unseen unseen;
  for (std::size_t k = 0; k < event.next_state.size(); ++k) by_ops_[k].intended = f64_of(event.next_state[k]);
  by_ops_.back().intended = f64_of(event.next);
  report(std::exchange(by_ops_, {}));
}

void UpdateMeter::before(const OpCall& call, const CallRecord&) {
  if (context().phase == Phase::optimizer) {
    given_ = Mirror();
    exact_ = Mirror();
  }
  pending_.clear();
  const Unseen unseen;
  if (context().phase == Phase::backward && has_changed(UpdatePart::whole)) next_step();
  if (call.op == OpId::adam_step_ || call.op == OpId::sgd_step_) {
    // On a GPU the step count and the rates may be in its memory only.
    if (const DeviceStep& there = update_of(call).device; there.steps || there.rates) return;
    const ParameterInputs parameters = parameter_inputs(call);
    for (int k = 0; k < parameters.count; ++k) begin_fused(call_of_parameter(call, parameters, k), k);
  } else if (call.op == OpId::batch_norm_update_) {
    if (has_changed(UpdatePart::whole)) next_step();
    const std::vector<Tensor> exact = run_in_f64(call, *call.attrs);
    pending_ = {change(called(call), context().module, UpdatePart::running_mean, call[0], exact[0]),
                change(called(call), context().module, UpdatePart::running_variance, call[1], exact[1])};
  }
  if (op_info(call.op).kind != OpKind::InPlace) return;
  for (const auto& [name, average, of, decay] : averages_)
    if (average.shares_storage(call[0]) && !has_changed(UpdatePart::average, name))
      pending_.push_back(change(called(call), name, UpdatePart::average, average,
                                add(mul(f64_of(average), decay), mul(f64_of(of), 1 - decay))));
}

void UpdateMeter::report(std::vector<Change> changes) {
  for (Change& c : changes) {
    c.row.step = step_;
    c.at = rows_of(c).size();
    rows_of(c).push_back(c.row);
    measure(changes_.emplace_back(std::move(c)));
  }
}

void UpdateMeter::after(const OpCall& call, const Outputs&, const CallRecord& record) {
  const OpKind kind = op_info(call.op).kind;
  if (kind == OpKind::Custom) return;
  const Unseen unseen;
  add_noise(call, record);
  report(std::exchange(pending_, {}));
  if (kind != OpKind::InPlace || context().phase == Phase::optimizer) return;
  // Measures again if a later write of the same step changes a quantity: a quantiser rounds a parameter, or a program
  // writes an average. Writes within the optimizer belong to the next step.
  for (const Change& c : changes_)
    for (const Tensor* t : {&c.target, &c.master, &c.compensation})
      if (t->defined() && t->shares_storage(call[0])) measure(c);
}

void UpdateMeter::quantized(const QuantizerCall& call) {
  const Unseen unseen;
  const Phase phase = context().phase;
  if (call.kind == QuantizerCall::values && call.within) {
    given_.set(call.to, call.scale.defined() ? mul(f64_of(call.to), f64_of(call.scale)) : f64_of(call.to));
    exact_.set(call.to, f64_of(call.from));
  }
  if (call.kind == QuantizerCall::values && phase == Phase::forward && *context().module)
    if (const std::string name = names_.of(call.from); !name.empty()) {
      weights_[name].quantised = true;
      weights_[name].observe(call.from.offset(), call.to);
    }
  if (call.kind != QuantizerCall::encode) return;
  for (Change& c : changes_)  // a moment kept as codes; stochastic rounding draws other numbers than the run
    if (c.target.shares_storage(call.from)) {
      c.target = fake_quantize(call.from, *call.quantizer, {.axis = call.axis});
      measure(c);
    }
}

void UpdateMeter::measure(const Change& c) {
  Update u = c.row;
  const Tensor after = value_of(c.target, c.master, c.compensation);
  const auto* before = c.before.data<double>();
  const auto* now = after.data<double>();
  const auto* base = c.base.data<double>();
  const auto* want = c.intended.data<double>();
  u.elements = after.numel();
  u.dtype = (c.master.defined() ? c.master : c.target).dtype();
  const std::int64_t every = (u.elements + kSampled - 1) / kSampled;
  for (std::int64_t i = 0; i < u.elements; ++i) {
    const double step = want[i] - base[i];
    const double made = now[i] - before[i];
    if (i % every == 0) u.sample.push_back({before[i], step, made});
    u.weight_squares += before[i] * before[i];
    if (step == 0 || !std::isfinite(step)) continue;
    ++u.intended;
    u.vanished += made == 0;
    u.intended_squares += step * step;
    if (std::isfinite(made)) u.product += made * step;
  }
  if (c.first_moment.defined()) {
    const Tensor first = f64_of(c.first_moment);
    for (std::int64_t i = 0; i < u.elements; ++i) {
      u.overflowed += std::isfinite(now[i]) ? 0 : 1;
      u.zeroed += now[i] == 0 && first.data<double>()[i] != 0 ? 1 : 0;
    }
  }
  rows_of(c)[c.at] = std::move(u);
}

void UpdateMeter::add_noise(const OpCall& call, const CallRecord& record) {
  if (!record.within || !record.within->replaces || op_info(call.op).kind != OpKind::Contraction) return;
  if (!given_.knows(call[0]) && !given_.knows(call[1])) return;
  if (product_of(*record.within->replaces) != Product::wgrad) return;
  // The operands here include their scales.
  OpCall product = call;
  const Attrs none{};
  if (call.attrs->is<F8Attrs>()) product.attrs = &none;
  const Tensor gradient = run_exactly(product, {exact_.of(call[0]), exact_.of(call[1])})[0];
  const Tensor noise = minus(run_exactly(product, {given_.of(call[0]), given_.of(call[1])})[0], gradient);
  auto layer = std::ranges::find(noise_, context().module, &GradientNoise::layer);
  if (layer == noise_.end()) layer = noise_.insert(layer, {.layer = context().module});
  layer->gradient_squares += squares(gradient);
  layer->noise_squares += squares(noise);
}

std::string UpdateMeter::to_string(const LayerNames& name) const {
  std::map<std::pair<std::string, std::string>, Update> sums;
  for (const auto* rows : {&updates_, &parts_})
    for (const Update& u : *rows)
      sums[{u.parameter.empty() ? u.op : u.parameter, std::string(inspect::to_string(u.part))}] += u;
  constexpr const char* kLine = "{:<28} {:<16} {:>8} {:>8} {:>8} {:>8} {:>9}\n";
  std::string text = fmt::format(kLine, "parameter", "part", "vanish", "arrive", "ratio", "move", "flips");
  const auto percent = [](double v) { return std::isnan(v) ? "-" : fmt::format("{:.{}g}%", v, v < 0.01 ? 1 : 3); };
  for (const auto& [site, u] : sums)
    text +=
        fmt::format(kLine, name(site.first), site.second, percent(u.vanished_percent()), percent(100 * u.arriving()),
                    u.ratio() > 0 ? fmt::format("2^{:.1f}", std::log2(u.ratio())) : "0",
                    percent(percent_of(u.moved, u.elements)), percent(u.flipped_percent()));
  text +=
      "ratio: |update| / |weight|. move: rounded weights that change. flips: those that return\n"
      "to what they were before their last change\n";
  for (const auto& [site, u] : sums)
    if (u.overflowed + u.zeroed > 0)
      text += fmt::format("{}: of {} second moments {} are Inf or NaN (no more steps), {} are 0 (steps of m / eps)\n",
                          name(site.first), u.elements, u.overflowed, u.zeroed);
  for (const Scalar& s : scalars_)
    if (s.lost()) text += s.op + ": " + inspect::to_string(s) + "\n";
  for (const GradientNoise& n : noise_)
    text += fmt::format("{}: |gradient| is {:.3g} times its quantisation noise{}\n", name(n.layer), n.ratio(),
                        n.drowns() ? ", below sqrt(3)" : "");
  return text;
}

std::string UpdateMeter::to_csv() const {
  std::string text = "step,parameter,op,part,elements,intended,vanished,ratio,arriving,moved,flipped\n";
  for (const auto* rows : {&updates_, &parts_})
    for (const Update& u : *rows)
      text += fmt::format("{},{},{},{},{},{},{},{:.6g},{},{},{}\n", u.step, csv_field(u.parameter), csv_field(u.op),
                          inspect::to_string(u.part), u.elements, u.intended, u.vanished, u.ratio(),
                          std::isnan(u.arriving()) ? "" : fmt::format("{:.6g}", u.arriving()), u.moved, u.flipped);
  return text;
}

}  // namespace gradual::inspect
