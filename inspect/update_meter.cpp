#include "update_meter.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "../autograd/grad_mode.h"
#include "../core/ops/parameter_inputs.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

// The inputs of one parameter in a row of an optimizer.
enum Input : std::uint8_t { kWeight, kGradient, kMaster, kCompensation };

// What the next step starts from, in f64: the master, or parameter and compensation together.
Tensor weight_of(const OpCall& one) {
  if (one[kMaster].defined()) return f64_of(one[kMaster]);
  Tensor weight = f64_of(one[kWeight]);
  if (!one[kCompensation].defined()) return weight;
  const Tensor rest = f64_of(one[kCompensation]);
  for (std::int64_t i = 0; i < weight.numel(); ++i) weight.data<double>()[i] += rest.data<double>()[i];
  return weight;
}

// The weight after the same row in f64.
Tensor updated(const OpCall& one) {
  const NoGrad no_grad;
  std::vector<Tensor> wide(one.inputs.size());
  for (int i = 0; i < one.inputs.size(); ++i)
    if (i != kMaster && i != kCompensation) wide[i] = i == kWeight ? weight_of(one) : f64_of(one[i]);
  Attrs attrs = *one.attrs;
  const auto exact = [](UpdateAttrs& how) { how.pure = how.stochastic = false; };
  if (one.op == OpId::adam_step_) {
    auto a = attrs.get<AdamAttrs>();
    exact(a.update);
    attrs = a;
  } else {
    auto a = attrs.get<SgdAttrs>();
    exact(a.update);
    attrs = a;
  }
  const std::vector<const Tensor*> inputs = pointers_to(wide);
  dispatch(one.op, TensorRefs(inputs.data(), static_cast<int>(inputs.size())), attrs, one.where);
  return wide[kWeight];
}

Update compare(const Tensor& before, const Tensor& intended, const Tensor& after) {
  Update u{.elements = before.numel()};
  const auto *from = before.data<double>(), *want = intended.data<double>(), *now = after.data<double>();
  for (std::int64_t i = 0; i < u.elements; ++i) {
    const double step = want[i] - from[i], made = now[i] - from[i];
    u.weight_squares += from[i] * from[i];
    if (step == 0 || !std::isfinite(step)) continue;
    ++u.intended;
    u.vanished += made == 0;
    u.intended_squares += step * step;
    if (std::isfinite(made)) u.product += made * step;
  }
  return u;
}

// On a GPU the step's number and rates may stand in its memory alone.
bool known_to_the_host(const OpCall& call) {
  const UpdateAttrs& how = call.op == OpId::adam_step_ ? call.get<AdamAttrs>().update : call.get<SgdAttrs>().update;
  return !how.device.steps && !how.device.rates;
}

}  // namespace

double Update::ratio() const { return weight_squares > 0 ? std::sqrt(intended_squares / weight_squares) : 0; }
double Update::arriving() const {
  return intended_squares > 0 ? product / intended_squares : std::numeric_limits<double>::quiet_NaN();
}
Update& Update::operator+=(const Update& o) {
  parameter = o.parameter, op = o.op;
  elements += o.elements, intended += o.intended, vanished += o.vanished;
  weight_squares += o.weight_squares, intended_squares += o.intended_squares, product += o.product;
  return *this;
}

std::string to_string(const Update& u) {
  std::string text = u.parameter.empty() ? u.op : u.parameter;
  text += fmt::format(": {:.3g}% of the updates vanish", u.vanished_percent());
  if (u.intended) text += fmt::format(", {:.3g}% arrives", 100 * u.arriving());
  if (u.ratio() > 0) text += fmt::format(", |update| / |weight| 2^{:.1f}", std::log2(u.ratio()));
  return text;
}

void UpdateMeter::before(const OpCall& call) {
  before_.clear();
  if (call.op == OpId::adam_step_ || call.op == OpId::sgd_step_) {
    if (!known_to_the_host(call)) return;
    const ParameterInputs parameters = parameter_inputs(call);
    for (int k = 0; k < parameters.count; ++k) {
      const OpCall one = call_of_parameter(call, parameters, k);
      before_.push_back({names_.of(one[kWeight]), weight_of(one), updated(one)});
    }
  } else if (call.op == OpId::copy_ && context().phase == Phase::optimizer && !names_.of(call[0]).empty()) {
    before_.push_back({names_.of(call[0]), f64_of(call[0]), f64_of(call[1])});
  }
}

void UpdateMeter::after(const OpCall& call, const Outputs&, const CallRecord&) {
  const ParameterInputs parameters = parameter_inputs(call);
  for (std::size_t k = 0; k < before_.size(); ++k) {
    const Before& b = before_[k];
    const Tensor now =
        parameters.count ? weight_of(call_of_parameter(call, parameters, static_cast<int>(k))) : f64_of(call[0]);
    Update u = compare(b.weight, b.intended, now);
    u.parameter = b.parameter;
    u.op = called(call);
    updates_.push_back(std::move(u));
  }
  before_.clear();
}

}  // namespace gradual::inspect
