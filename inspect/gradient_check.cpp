#include "gradient_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../autograd/autograd.h"
#include "../autograd/function.h"
#include "../core/ops/ops.h"
#include "../core/support/generator.h"
#include "numbers.h"
#include "op_row.h"

namespace gradual::inspect {
namespace {

constexpr std::size_t kMostParameters = 32;
constexpr std::size_t kMostFunctions = 64;
constexpr double kOfParameter = 0.5;    // of the larger slope: a difference beyond it is an error
constexpr double kOfFunction = 0.1;     // the same
constexpr double kAgree = 0.05;         // of two differences with other steps
constexpr int kDirections = 4;          // in which a gradient of zeros is looked at for a kink
constexpr double kKink = 0.25;          // of the slope: a larger change of it from one side to the other is a kink
constexpr double kOverRounding = 1000;  // a difference is this many roundings of the loss, or it is not judged
constexpr double kOfGradient = 1e-4;    // of all gradients: smaller ones are not judged

// Steps relative to the size of what is moved.
double step_of(DType dtype) { return dtype == DType::f64 ? 1e-6 : 3e-3; }
double epsilon_of(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }

double size_of(const Tensor& t) { return t.defined() ? std::sqrt(sum(square(t.to(DType::f64))).item()) : 0; }
double size_of(const std::vector<Tensor>& all) {
  double squares = 0;
  for (const Tensor& t : all) squares += std::pow(size_of(t), 2);
  return std::sqrt(squares);
}

// Normal numbers in place of floating tensors; undefined in place of others.
std::vector<Tensor> random_like(const std::vector<Tensor>& all, Generator& random) {
  std::vector<Tensor> made;
  for (const Tensor& t : all)
    made.push_back(t.defined() && t.is_floating() ? randn(t.sizes(), {.dtype = t.dtype(), .device = t.device()}, random)
                                                  : Tensor());
  return made;
}

// The value after a move by h along one of the directions: the first is that of the gradient.
using ValueAlong = std::function<double(int direction, double h)>;

// Whether the slopes to both sides differ. In one direction they may agree by chance.
bool has_kink(const ValueAlong& value_at, double h) {
  double slope = 0;
  double jump = 0;
  const double here = value_at(0, 0);
  for (int i = 0; i < kDirections; ++i) {
    const double after = value_at(i, h) - here;
    const double before = here - value_at(i, -h);
    slope = std::max(slope, std::abs(after + before) / 2);
    jump = std::max(jump, std::abs(after - before));
  }
  return !(jump <= kKink * slope);
}

// Sets the measured slope and the judgement.
void judge(GradientSlope& slope, const ValueAlong& value_at, double step, double epsilon, double tolerance) {
  const auto difference = [&](double h) { return value_at(0, h) - value_at(0, -h); };
  const double far = difference(step);
  const double near = difference(step / 4);
  const double scale = std::abs(value_at(0, 0));
  slope.measured = far / (2 * step);
  const double again = near / (step / 2);
  const double larger = std::max(std::abs(slope.measured), std::abs(again));
  if (!std::isfinite(larger) || std::abs(slope.measured - again) > kAgree * larger) return;
  if (std::abs(far) <= kOverRounding * epsilon * scale && slope.predicted * step <= kOverRounding * epsilon * scale)
    return;
  if (far == 0 && near == 0) return;
  // At a kink 0 may be a subgradient, as of a ReLU at 0.
  if (slope.predicted == 0 && has_kink(value_at, step / 4)) return;
  const double error = std::abs(slope.measured - slope.predicted);
  const bool wrong = error > tolerance * std::max(std::abs(slope.measured), slope.predicted);
  slope.judgement = wrong ? SlopeJudgement::wrong : SlopeJudgement::right;
}

// A call of a user's function.
struct FunctionCall {
  std::shared_ptr<Function> function;
  std::vector<Tensor> inputs;
  std::string site;
};

class FunctionCalls final : public Observer {
 public:
  std::vector<FunctionCall> calls;

  void before(const OpCall& call, const CallRecord& record) override {
    if (call.op != OpId::custom || record.replaced || record.context.phase != Phase::forward) return;
    Function& function = *call.get<CustomAttrs>().function;
    if (function.records_in_backward() || calls.size() >= kMostFunctions) return;
    const Unseen unseen;
    FunctionCall seen{function.shared_from_this(), {}, OpRow(0, call, record).place()};
    for (int i = 0; i < call.inputs.size(); ++i)
      seen.inputs.push_back(call[i].defined() ? call[i].detach().clone() : Tensor());
    calls.push_back(std::move(seen));
  }
};

// A parameter that gets its values back.
struct Moved : Pinned {
  Tensor parameter;
  Tensor before;
  explicit Moved(const Tensor& p) : parameter(p.detach()), before(parameter.clone()) {}
  ~Moved() { parameter.copy_(before); }
};

// Restores buffers and the generator, which a forward may change.
class Restored : Pinned {
 public:
  explicit Restored(nn::Module& model) {
    for (const auto& [name, t] : model.named_buffers()) kept_.emplace_back(t, t.detach().clone());
  }
  ~Restored() { again(); }
  void again() const {
    const Unseen unseen;
    for (const auto& [t, before] : kept_) t.detach().copy_(before);
    default_generator().set_state(key_);
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> kept_;
  RandomKey key_ = default_generator().state();
};

// The slopes of <u, f(x)> for random u, along the gradient that f's backward gives for them.
GradientSlope slope_of(const FunctionCall& call) {
  GradientSlope slope{.name = call.function->name(), .site = call.site};
  const RandomKey key = default_generator().state();
  const auto outputs_at = [&](const std::vector<Tensor>& inputs) {
    default_generator().set_state(key);
    return call.function->forward(inputs);
  };
  const std::vector<Tensor> y = outputs_at(call.inputs);
  Generator random(7);
  const std::vector<Tensor> weights = random_like(y, random);
  const std::vector<Tensor> gradients = call.function->backward(weights);
  double sizes = 0;
  for (std::size_t i = 0; i < std::min(gradients.size(), call.inputs.size()); ++i)
    if (gradients[i].defined()) sizes += std::pow(size_of(call.inputs[i]), 2);
  slope.predicted = size_of(gradients);
  if (!std::isfinite(slope.predicted)) return slope;
  // Where the backward gives zeros alone, any direction must be level.
  std::vector<std::vector<Tensor>> directions = {gradients};
  if (slope.predicted == 0) {
    directions.clear();
    for (int i = 0; i < kDirections; ++i) directions.push_back(random_like(gradients, random));
  }
  if (!(size_of(directions[0]) > 0)) return slope;
  const auto value_at = [&](int direction, double h) {
    const std::vector<Tensor>& along = directions[static_cast<std::size_t>(direction)];
    const double length = size_of(along);
    std::vector<Tensor> moved = call.inputs;
    for (std::size_t i = 0; i < std::min(gradients.size(), moved.size()); ++i)
      if (along[i].defined()) moved[i] = moved[i] + along[i].to(moved[i].dtype()) * (h / length);
    const std::vector<Tensor> at = outputs_at(moved);
    double value = 0;
    for (std::size_t i = 0; i < std::min(at.size(), weights.size()); ++i)
      if (weights[i].defined()) value += sum(at[i].to(DType::f64) * weights[i].to(DType::f64)).item();
    return value;
  };
  const DType dtype = y[0].dtype();
  judge(slope, value_at, step_of(dtype) * (sizes > 0 ? std::sqrt(sizes) : 1), epsilon_of(dtype), kOfFunction);
  return slope;
}

// The named ones; without names evenly spaced ones if there are many.
std::vector<std::pair<std::string, Tensor>> checked_parameters(nn::Module& model,
                                                               const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& [name, p] : model.named_parameters())
    if (p.requires_grad() && (names.empty() || std::ranges::find(names, name) != names.end()))
      all.emplace_back(name, p);
  if (!names.empty() || all.size() <= kMostParameters) return all;
  std::vector<std::pair<std::string, Tensor>> some;
  for (std::size_t i = 0; i < kMostParameters; ++i) some.push_back(all[i * all.size() / kMostParameters]);
  return some;
}

GradientSlope slope_of(const std::string& name, const Tensor& parameter, const Tensor& gradient,
                       const std::function<double()>& loss) {
  GradientSlope slope{.name = name, .predicted = size_of(gradient)};
  const Moved moved(parameter);
  const Tensor& before = moved.before;
  Generator random(7);
  std::vector<Tensor> directions = {gradient};
  if (slope.predicted == 0) directions = random_like(std::vector<Tensor>(kDirections, gradient), random);
  for (Tensor& d : directions) d = d.to(before.dtype()) / size_of(d);
  const auto value_at = [&](int direction, double h) {
    parameter.detach().copy_(before + directions[static_cast<std::size_t>(direction)] * h);
    return loss();
  };
  const double size = size_of(before);
  judge(slope, value_at, step_of(before.dtype()) * (size > 0 ? size : 1), epsilon_of(before.dtype()), kOfParameter);
  return slope;
}

}  // namespace

bool GradientCheck::any_wrong() const { return wrong_parameter() != nullptr; }

const GradientSlope* GradientCheck::wrong_function() const {
  const auto found = std::ranges::find(functions, SlopeJudgement::wrong, &GradientSlope::judgement);
  return found == functions.end() ? nullptr : &*found;
}

const GradientSlope* GradientCheck::wrong_parameter() const {
  const GradientSlope* last = nullptr;
  for (const GradientSlope& s : parameters)
    if (s.judgement == SlopeJudgement::wrong) last = &s;
  return last;
}

GradientCheck check_gradients(nn::Module& model, const std::function<Tensor()>& loss,
                              const std::vector<std::string>& names) {
  const Restored restored(model);
  const auto parameters = checked_parameters(model, names);
  std::vector<Tensor> leaves;
  for (const auto& [name, p] : parameters) leaves.push_back(p);
  FunctionCalls watched;
  Tensor value;
  {
    const ObserverScope scope(watched);
    value = loss();
  }
  const std::vector<Tensor> gradients = autograd::grad({value}, leaves, {}, {.allow_unused = true});
  value = {};
  const Unseen unseen;
  const double all = size_of(gradients);
  const auto loss_now = [&] {
    restored.again();
    return loss().item();
  };
  GradientCheck check;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double size = size_of(gradients[i]);
    // A gradient of 0 is judged, small ones are not; without a gradient nothing is said of the slope.
    const bool is_zero = gradients[i].defined() && gradients[i].numel() > 0 && size == 0;
    if (!(is_zero || size > kOfGradient * all) || !std::isfinite(size)) continue;
    check.parameters.push_back(slope_of(parameters[i].first, parameters[i].second, gradients[i], loss_now));
  }
  if (!check.any_wrong()) return check;
  for (const FunctionCall& call : watched.calls) check.functions.push_back(slope_of(call));
  return check;
}

std::string to_string(const GradientCheck& check) {
  const auto row = [](const GradientSlope& s) {
    constexpr const char* kWords[] = {"not judged", "right", "wrong"};
    return fmt::format("  {:<28}  {:<24}  {:>12.4g}  {:>12.4g}  {}\n", s.name, s.site, s.predicted, s.measured,
                       kWords[static_cast<int>(s.judgement)]);
  };
  std::string text = fmt::format("  {:<28}  {:<24}  {:>12}  {:>12}\n", "gradient of", "at", "slope", "measured");
  for (const GradientSlope& s : check.parameters) text += row(s);
  for (const GradientSlope& s : check.functions) text += row(s);
  return text;
}

}  // namespace gradual::inspect
