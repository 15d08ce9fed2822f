#include "optimizer.h"

#include <algorithm>
#include <cmath>

#include "../autograd/grad_mode.h"
#include "../core/dispatch.h"
#include "../core/ops.h"

namespace gradual::optim {
namespace {

// The rates of a group by name: for defaults, checks and state dicts.
struct Rate {
  const char* name;
  double ParamGroup::*value;
  double below;  // valid: 0 <= rate < below
};
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Rate kRates[] = {{"lr", &ParamGroup::lr, kInf},
                           {"weight_decay", &ParamGroup::weight_decay, kInf},
                           {"momentum", &ParamGroup::momentum, kInf},
                           {"dampening", &ParamGroup::dampening, kInf},
                           {"beta1", &ParamGroup::beta1, 1},
                           {"beta2", &ParamGroup::beta2, 1},
                           {"eps", &ParamGroup::eps, kInf}};

// Keeps the streams of stochastic rounding apart from those of a Generator with the same seed.
constexpr std::uint64_t kRoundingKey = 0x6772616475616c21;

std::string group_name(std::size_t g) { return "groups." + std::to_string(g); }

}  // namespace

std::string_view name(LowPrecisionUpdate update) {
  static constexpr std::string_view kNames[] = {"none", "masters", "kahan", "stochastic"};
  return kNames[static_cast<int>(update)];
}

ParamGroup named_group(const std::vector<std::pair<std::string, Tensor>>& named) {
  ParamGroup group;
  for (const auto& [name, tensor] : named) {
    group.names.push_back(name);
    group.params.push_back(tensor);
  }
  return group;
}

Optimizer::Optimizer(std::vector<ParamGroup> groups, const ParamGroup& defaults, const UpdateOptions& options)
    : defaults_(defaults), options_(options) {
  if (options.pure_arithmetic && options.update != LowPrecisionUpdate::none)
    fail(
        "optimizer: pure_arithmetic computes in the parameter's dtype and needs LowPrecisionUpdate::none, "
        "not " +
        std::string(name(options.update)));
  if (options.state_dtype && (!is_floating(*options.state_dtype) || is_f8(*options.state_dtype)))
    fail("optimizer: state_dtype may be f64, f32, f16 or bf16, not " +
         std::string(name(*options.state_dtype)));
  for (ParamGroup& group : groups) add_param_group(std::move(group));
}

void Optimizer::check_group(const ParamGroup& group) const {
  if (!group.names.empty() && group.names.size() != group.params.size())
    fail("optimizer: a group has " + std::to_string(group.params.size()) + " parameters and " +
         std::to_string(group.names.size()) + " names");
  for (const Rate& rate : kRates) {
    const double value = group.*rate.value;
    if (value < 0 || value >= rate.below)
      fail("optimizer: " + std::string(rate.name) + " " + std::to_string(value) +
           " is out of range; it must be " + (rate.below == 1 ? "in [0, 1)" : "at least 0 and finite"));
  }
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const Tensor& p = group.params[i];
    const std::string what = "optimizer: parameter " + std::to_string(i) + " of the group ";
    if (!p.defined() || !p.is_floating() || is_f8(p.dtype()))
      fail(what + "must be f64, f32, f16 or bf16, given " +
           (p.defined() ? std::string(name(p.dtype())) : "none"));
    if (!p.is_leaf()) fail(what + "is the result of an op; only leaves can be optimized");
    const auto same = [&](const Tensor& other) { return other.is_same(p); };
    bool known =
        std::any_of(group.params.begin(), group.params.begin() + static_cast<std::ptrdiff_t>(i), same);
    for (const ParamGroup& other : groups_)
      known = known || std::any_of(other.params.begin(), other.params.end(), same);
    if (known) fail(what + "is in a group already; a parameter belongs to one");
  }
}

void Optimizer::add_param_group(ParamGroup group) {
  for (const Rate& rate : kRates)
    if (std::isnan(group.*rate.value)) group.*rate.value = defaults_.*rate.value;
  check_group(group);
  GroupState added;
  added.first = param_count();
  added.params.resize(group.params.size());
  for (std::size_t i = 0; i < group.params.size(); ++i) places_.push_back({groups_.size(), i});
  groups_.push_back(std::move(group));
  states_.push_back(std::move(added));
  take_masters(groups_.size() - 1);
}

std::size_t Optimizer::param_count() const {
  return states_.empty() ? 0 : states_.back().first + states_.back().params.size();
}

std::string Optimizer::param_name(std::size_t index) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::size_t i = index - states_[g].first;
    if (i < groups_[g].names.size()) return groups_[g].names[i];
    if (i < groups_[g].params.size()) break;
  }
  return "parameter " + std::to_string(index);
}

const std::vector<Optimizer::Place>& Optimizer::places() const {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (groups_[g].params.size() != states_[g].params.size())
      fail("optimizer: group " + std::to_string(g) + " had " + std::to_string(states_[g].params.size()) +
           " parameters when it was added and has " + std::to_string(groups_[g].params.size()) +
           "; add parameters with add_param_group");
  return places_;
}

Tensor Optimizer::live_gradient(Place at) const {
  return groups_[at.group].frozen ? Tensor() : param(at).grad();
}

Optimizer::Place Optimizer::find(const Tensor& wanted) const {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t i = 0; i < groups_[g].params.size(); ++i)
      if (groups_[g].params[i].is_same(wanted)) return {g, i};
  fail("optimizer: the tensor " + (wanted.defined() ? to_string(wanted.sizes()) : "(undefined)") +
       " is none of its parameters");
}

void Optimizer::zero_grad() {
  for (const Place at : places()) param(at).zero_grad();
  forget_unscaled();
}

void Optimizer::forget_unscaled() {
  for (const Place at : places()) state(at).wide = ParamState::Wide::stale;
}

void Optimizer::prepare_state(Place at) {
  const Tensor& p = param(at);
  ParamState& s = state(at);
  const CategoryScope category(Category::optimizer);
  if (options_.update == LowPrecisionUpdate::kahan && is_low(p) && !s.compensation.defined())
    s.compensation = zeros(p.sizes(), {.dtype = p.dtype(), .device = p.device()});
  if (!is_low(p)) s.compensation = Tensor();
  DType dtype = options_.state_dtype.value_or(options_.pure_arithmetic ? p.dtype() : DType::f32);
  if (p.dtype() == DType::f64) dtype = DType::f64;
  const std::size_t n = moments(groups_[at.group]).size();
  for (std::size_t k = 0; k < n; ++k) {
    Tensor& m = s.moments[k];
    if (!m.defined()) m = zeros(p.sizes(), {.dtype = dtype, .device = p.device()});
  }
}

void Optimizer::step_param(Place at, const Tensor& gradient, double inverse_scale, SourceLocation loc) {
  const Tensor& p = param(at);
  ParamState& s = state(at);
  prepare_state(at);
  UpdateAttrs how{.inverse_scale = inverse_scale};
  if (is_low(p)) {
    how.pure = options_.pure_arithmetic;
    how.stochastic = options_.update == LowPrecisionUpdate::stochastic;
    how.key = {options_.seed ^ kRoundingKey, (static_cast<std::uint64_t>(s.steps) << 24) + index(at)};
  }
  const Tensor& source = s.wide_stands(gradient) ? s.wide_gradient : gradient;
  const Tensor written = contiguous(p, loc);
  update(groups_[at.group], s, written, contiguous(source, loc), how, loc);
  if (!written.is_same(p)) p.copy_(written, loc);
  ++s.steps;
  s.wide = ParamState::Wide::stale;
  s.mark_written(p);
}

void Optimizer::step_scaled(double inverse_scale, SourceLocation loc) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  settle_masters();
  for (const Place at : places())
    if (const Tensor gradient = live_gradient(at); gradient.defined())
      step_param(at, gradient, inverse_scale, loc);
}

// State dicts.

StateDict Optimizer::state_dict() {
  StateDict out;
  out.set("kind", std::string(kind()));
  out.set("seed", options_.seed);
  out.set("groups", groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    out.set(group_name(g) + ".params", groups_[g].params.size());
    out.set(group_name(g) + ".frozen", groups_[g].frozen);
    for (const Rate& rate : kRates)
      if (const double value = groups_[g].*rate.value; !std::isnan(value))
        out.set(group_name(g) + "." + rate.name, value);
  }
  for (const Place at : places()) {
    const ParamState& s = state(at);
    const std::string prefix = "params." + std::to_string(index(at)) + ".";
    out.set(prefix + "steps", s.steps);
    if (s.master.defined() && is_low(param(at))) out.set(prefix + "master", s.master);
    if (s.compensation.defined()) out.set(prefix + "compensation", s.compensation);
    const auto names = moments(groups_[at.group]);
    for (std::size_t k = 0; k < names.size(); ++k)
      if (s.moments[k].defined()) out.set(prefix + std::string(names[k]), s.moments[k]);
  }
  return out;
}

// Takes one parameter's state, or only checks that it fits.
void Optimizer::load_param(const StateDict& from, Place at, bool check_only) {
  const Tensor& p = param(at);
  ParamState& s = state(at);
  const auto load = [&](const std::string& key, Category category, const auto& take) {
    if (!from.contains(key)) return check_only ? void() : take(Tensor());
    const Tensor t = from.tensor(key);
    if (t.sizes() != p.sizes())
      fail("load_state_dict: " + key + " of " + param_name(index(at)) + " is " + to_string(t.sizes()) +
           ", the parameter is " + to_string(p.sizes()));
    if (check_only) return;
    const CategoryScope scope(category);
    take(t.clone());
  };
  const std::int64_t steps = from.integer("steps");
  if (!check_only) s.steps = steps;
  load("master", Category::workspace, [&](const Tensor& t) {
    if (t.defined() && options_.update == LowPrecisionUpdate::masters) assign_master(at, t);
  });
  load("compensation", Category::optimizer, [&](const Tensor& t) { s.compensation = t; });
  const auto names = moments(groups_[at.group]);
  for (std::size_t k = 0; k < names.size(); ++k)
    load(std::string(names[k]), Category::optimizer, [&](const Tensor& t) { s.moments[k] = t; });
  if (!check_only)
    s.written_id = 0;  // the next step compares the master with whatever the parameter is by then
}

void Optimizer::load_state_dict(const StateDict& from) {
  const NoGrad no_grad;
  if (from.text("kind") != kind())
    fail("load_state_dict: the state of '" + from.text("kind") + "' does not fit '" + std::string(kind()) +
         "'");
  if (from.natural("groups") != groups_.size())
    fail("load_state_dict: the state has " + std::to_string(from.natural("groups")) +
         " groups, the optimizer " + std::to_string(groups_.size()));
  std::vector<ParamGroup> loaded = groups_;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const StateDict group = from.sub(group_name(g));
    if (group.natural("params") != groups_[g].params.size())
      fail("load_state_dict: group " + std::to_string(g) + " of the state has " +
           std::to_string(group.natural("params")) + " parameters, the optimizer's has " +
           std::to_string(groups_[g].params.size()));
    loaded[g].frozen = group.integer("frozen") != 0;
    for (const Rate& rate : kRates)
      if (group.contains(rate.name)) loaded[g].*rate.value = group.real(rate.name);
  }
  const std::uint64_t seed = from.natural("seed");
  const auto part = [&](Place at) { return from.sub("params." + std::to_string(index(at))); };
  for (const Place at : places()) load_param(part(at), at, true);
  groups_ = std::move(loaded);
  options_.seed = seed;
  for (const Place at : places()) load_param(part(at), at, false);
  forget_unscaled();
}

}  // namespace gradual::optim
