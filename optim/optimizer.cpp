#include "optimizer.h"

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
    fail("optimizer: state_dtype may be f64, f32, f16 or bf16, not " + std::string(name(*options.state_dtype)));
  for (ParamGroup& group : groups) add_param_group(std::move(group));
}

void Optimizer::check_rates(const ParamGroup& group) const {
  if (!group.names.empty() && group.names.size() != group.params.size())
    fail("optimizer: a group has " + std::to_string(group.params.size()) + " parameters and " +
         std::to_string(group.names.size()) + " names");
  for (const Rate& rate : kRates) {
    const double value = group.*rate.value;
    if (value < 0 || value >= rate.below)
      fail("optimizer: " + std::string(rate.name) + " " + std::to_string(value) + " is out of range; it must be " +
           (rate.below == 1 ? "in [0, 1)" : "at least 0 and finite"));
  }
}

void Optimizer::check_param(const Tensor& p, const std::vector<ParamState>& others) const {
  const auto bad = [&](const std::string& why) {
    fail("optimizer: a parameter" + (p.defined() ? " " + to_string(p.sizes()) : std::string()) + " " + why);
  };
  if (!p.defined() || !p.is_floating() || is_f8(p.dtype()))
    bad("must be f64, f32, f16 or bf16, given " + (p.defined() ? std::string(name(p.dtype())) : "none"));
  if (!p.is_leaf()) bad("is the result of an op; only leaves can be optimized");
  for (const auto* list : {&states_, &others})
    for (const ParamState& other : *list)
      if (other.param.is_same(p)) bad("is in a group already; a parameter belongs to one");
}

void Optimizer::add_param_group(ParamGroup group) {
  for (const Rate& rate : kRates)
    if (std::isnan(group.*rate.value)) group.*rate.value = defaults_.*rate.value;
  check_rates(group);
  const NoGrad no_grad;
  std::vector<ParamState> added;
  for (const Tensor& p : group.params) {
    check_param(p, added);
    ParamState& s = added.emplace_back();
    s.param = p;
    s.group = groups_.size();
    s.index = states_.size() + added.size() - 1;
    if (keeps_masters() && p.dtype() != DType::f64) ensure_master(s);
  }
  groups_.push_back(std::move(group));
  flat_.emplace_back();
  states_.insert(states_.end(), added.begin(), added.end());
  flatten_masters(groups_.size() - 1);
}

std::string Optimizer::param_name(std::size_t index) const {
  const ParamGroup& group = groups_[states_[index].group];
  std::size_t first = index;
  while (first > 0 && states_[first - 1].group == states_[index].group) --first;
  return group.names.empty() ? "parameter " + std::to_string(index) : group.names[index - first];
}

std::vector<ParamState>& Optimizer::states() {
  std::size_t count = 0;
  for (const ParamGroup& group : groups_) count += group.params.size();
  if (count != states_.size())
    fail("optimizer: " + std::to_string(states_.size()) + " parameters were added, the groups now have " +
         std::to_string(count) + "; add parameters with add_param_group");
  return states_;
}

ParamState& Optimizer::find(const Tensor& param) {
  for (ParamState& s : states_)
    if (s.param.is_same(param)) return s;
  fail("optimizer: the tensor " + (param.defined() ? to_string(param.sizes()) : "(undefined)") +
       " is none of its parameters");
}

Tensor Optimizer::live_gradient(const ParamState& s) const {
  return groups_[s.group].frozen ? Tensor() : s.param.grad();
}

void Optimizer::zero_grad() {
  for (const ParamState& s : states()) s.param.zero_grad();
  forget_unscaled();
}

void Optimizer::forget_unscaled() {
  for (ParamState& s : states_) s.wide = ParamState::Wide::stale;
}

void Optimizer::prepare_state(ParamState& s) {
  const Tensor& p = s.param;
  const CategoryScope category(Category::optimizer);
  if (!s.is_low()) s.compensation = Tensor();
  if (s.is_low() && options_.update == LowPrecisionUpdate::kahan && !s.compensation.defined())
    s.compensation = zeros(p.sizes(), {.dtype = p.dtype(), .device = p.device()});
  DType dtype = options_.state_dtype.value_or(options_.pure_arithmetic ? p.dtype() : DType::f32);
  if (p.dtype() == DType::f64) dtype = DType::f64;
  const std::size_t n = moments(groups_[s.group]).size();
  for (std::size_t k = 0; k < n; ++k)
    if (!s.moments[k].defined()) s.moments[k] = zeros(p.sizes(), {.dtype = dtype, .device = p.device()});
}

void Optimizer::step_param(ParamState& s, const Tensor& gradient, double inverse_scale, SourceLocation loc) {
  prepare_state(s);
  UpdateAttrs how{.inverse_scale = inverse_scale};
  if (s.is_low()) {
    how.pure = options_.pure_arithmetic;
    how.stochastic = options_.update == LowPrecisionUpdate::stochastic;
    how.key = {options_.seed ^ kRoundingKey, (static_cast<std::uint64_t>(s.steps) << 24) + s.index};
  }
  const Tensor& source = s.wide_stands(gradient) ? s.wide_gradient : gradient;
  const Tensor written = contiguous(s.param, loc);
  update(groups_[s.group], s, written, contiguous(source, loc), how, loc);
  if (!written.is_same(s.param)) s.param.copy_(written, loc);
  ++s.steps;
  s.wide = ParamState::Wide::stale;
  s.mark_written();
}

void Optimizer::step_scaled(double inverse_scale, SourceLocation loc) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  settle_masters();
  for (ParamState& s : states())
    if (const Tensor gradient = live_gradient(s); gradient.defined()) step_param(s, gradient, inverse_scale, loc);
}

StateDict Optimizer::state_dict() {
  StateDict out;
  out.set("kind", std::string(kind()));
  out.set("seed", options_.seed);
  out.set("groups", groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::string prefix = "groups." + std::to_string(g) + ".";
    out.set(prefix + "params", groups_[g].params.size());
    out.set(prefix + "frozen", groups_[g].frozen);
    for (const Rate& rate : kRates)
      if (const double value = groups_[g].*rate.value; !std::isnan(value)) out.set(prefix + rate.name, value);
  }
  for (const ParamState& s : states()) {
    const std::string prefix = "params." + std::to_string(s.index) + ".";
    const auto set = [&](std::string_view key, const Tensor& t) {
      if (t.defined()) out.set(prefix + std::string(key), t);
    };
    out.set(prefix + "steps", s.steps);
    set("master", s.is_low() ? s.master : Tensor());
    set("compensation", s.compensation);
    const auto names = moments(groups_[s.group]);
    for (std::size_t k = 0; k < names.size(); ++k) set(names[k], s.moments[k]);
  }
  return out;
}

void Optimizer::load_group(ParamGroup& group, const StateDict& from) const {
  if (from.natural("params") != group.params.size())
    fail("load_state_dict: a group of the state has " + std::to_string(from.natural("params")) +
         " parameters, the optimizer's has " + std::to_string(group.params.size()));
  group.frozen = from.integer("frozen") != 0;
  for (const Rate& rate : kRates)
    if (from.contains(rate.name)) group.*rate.value = from.real(rate.name);
  check_rates(group);
}

void Optimizer::load_param(ParamState& s, const StateDict& from) const {
  const auto copy_of = [&](std::string_view key, Category category) {
    if (!from.contains(key)) return Tensor();
    const Tensor t = from.tensor(std::string(key));
    if (t.sizes() != s.param.sizes())
      fail("load_state_dict: " + std::string(key) + " of " + param_name(s.index) + " is " + to_string(t.sizes()) +
           ", the parameter is " + to_string(s.param.sizes()));
    const CategoryScope scope(category);
    return t.clone();
  };
  s.steps = from.integer("steps");
  if (keeps_masters() && from.contains("master")) s.master = copy_of("master", Category::masters);
  s.compensation = copy_of("compensation", Category::optimizer);
  const auto names = moments(groups_[s.group]);
  for (std::size_t k = 0; k < names.size(); ++k) s.moments[k] = copy_of(names[k], Category::optimizer);
  s.wide = ParamState::Wide::stale;
  s.written_id = 0;  // the next step compares the master with whatever the parameter is by then
}

void Optimizer::load_state_dict(const StateDict& from) {
  const NoGrad no_grad;
  if (from.text("kind") != kind())
    fail("load_state_dict: the state of '" + from.text("kind") + "' does not fit '" + std::string(kind()) + "'");
  if (from.natural("groups") != groups_.size())
    fail("load_state_dict: the state has " + std::to_string(from.natural("groups")) + " groups, the optimizer " +
         std::to_string(groups_.size()));
  const std::uint64_t seed = from.natural("seed");
  std::vector<ParamGroup> groups = groups_;
  for (std::size_t g = 0; g < groups.size(); ++g) load_group(groups[g], from.sub("groups." + std::to_string(g)));
  std::vector<ParamState> loaded = states();
  for (ParamState& s : loaded) load_param(s, from.sub("params." + std::to_string(s.index)));
  options_.seed = seed;
  groups_ = std::move(groups);
  states_ = std::move(loaded);
  for (std::size_t g = 0; g < groups_.size(); ++g) flatten_masters(g);
}

}  // namespace gradual::optim
