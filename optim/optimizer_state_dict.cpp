// The state dict of an optimizer: rates, step counts, masters, compensations and moments.
#include <algorithm>
#include <set>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/scoped.h"
#include "../core/support/throwf.h"
#include "optimizer.h"
#include "quantized_moments.h"
#include "rates.h"

namespace gradual::optim {
namespace {

// Copies loaded numbers into the existing tensor, whose address a recorded step uses.
void keep_place(const Tensor& before, Tensor& loaded) {
  if (!before.defined() || !loaded.defined() || before.dtype() != loaded.dtype() || before.device() != loaded.device())
    return;
  before.copy_(loaded);
  loaded = before;
}

void load_group(ParamGroup& group, const StateDict& from) {
  if (const auto n = from.natural("params"); n != group.params.size())
    throwf("load_state_dict: a group of the state has {} parameters, the optimizer's has {}", n, group.params.size());
  group.frozen = from.integer("frozen") != 0;
  for (const Rate& rate : kRates)
    if (from.contains(rate.name)) group.*rate.value = from.real(rate.name);
  check_rates(group);
}

}  // namespace

// Error for an entry of the parameter `name` that is none of `places`, step count, moments or their codes. The others
// may mean nothing without it, as a second moment without the basis in which it is.
void Optimizer::check_kept(const StateDict& from, const std::string& name, std::span<const SavedTensor> places) const {
  std::vector<std::string> kept = {"steps"};
  for (const SavedTensor& place : places) kept.push_back(place.key);
  std::set<std::string> allowed(kept.begin(), kept.end());
  for (std::size_t k = 0; k < update_rule_.moments.size(); ++k) {
    const std::string& moment = update_rule_.moments[k];
    allowed.insert(moment);  // of a group whose rates need none
    if (may_be_codes(k))
      for (const char* part : kKeysOfCodes) allowed.insert(moment + part);
  }
  for (const auto& [key, value] : from)
    if (!allowed.contains(key))
      throwf("load_state_dict: the state of {} has '{}', which {} does not keep for it; it keeps {}", name, key,
             update_rule_.kind, join(kept));
}

// A parameter's entries in the state dict, by key.
std::vector<Optimizer::SavedTensor> Optimizer::saved_tensors(ParamState& s) const {
  const Shape& sizes = s.param.sizes();
  std::vector<SavedTensor> out = {{"master", &s.master, sizes}, {"compensation", &s.compensation, sizes}};
  for (std::size_t k = 0; k < moments(s).size(); ++k) out.push_back({moments(s)[k], &s.moments[k], sizes});
  const std::vector<Statistic> kept = named_statistics(s.param);
  s.statistics.resize(kept.size());
  for (std::size_t k = 0; k < kept.size(); ++k) out.push_back({kept[k].name, &s.statistics[k], kept[k].sizes});
  return out;
}

StateDict Optimizer::state_dict() {
  device_steps_.read();
  StateDict out;
  out.set("kind", update_rule_.kind);
  out.set("seed", options_.seed);
  out.set("groups", groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::string prefix = fmt::format("groups.{}.", g);
    out.set(prefix + "params", groups_[g].params.size());
    out.set(prefix + "frozen", groups_[g].frozen);
    for (const Rate& rate : kRates)
      if (const auto& value = groups_[g].*rate.value) out.set(prefix + rate.name, *value);
  }
  for (ParamState& s : states()) {
    const std::string prefix = fmt::format("params.{}.", s.index);
    out.set(prefix + "steps", s.steps);
    for (const auto& [key, t, sizes] : saved_tensors(s))
      if (t->defined() && (s.is_low() || t != &s.master)) out.set(prefix + key, *t);
    for (std::size_t k = 0; k < std::min(moments(s).size(), std::size(s.codes)); ++k)
      if (s.codes[k]) save_moment(out, prefix + moments(s)[k], *s.codes[k], *moment_quantizer(options_, s.param, k));
  }
  return out;
}

void Optimizer::load_param(ParamState& s, const StateDict& from) const {
  s.steps = static_cast<std::int64_t>(from.natural("steps"));
  // Also those that the loaded rates do not need: other rates may need them later.
  for (Tensor& moment : s.moments) moment = Tensor();
  for (std::optional<QuantizedTensor>& codes : s.codes) codes.reset();
  const std::vector<SavedTensor> places = saved_tensors(s);
  check_kept(from, s.name, places);
  const std::size_t statistics_from = places.size() - s.statistics.size();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& [key, t, sizes] = places[i];
    const bool is_master = t == &s.master;
    if (is_master && !keeps_masters()) continue;
    if (is_master && !from.contains(key)) {
      const CategoryScope scope(Category::masters);
      if (s.is_low()) *t = cast(s.param.detach(), DType::f32);  // nothing of the master of before
      continue;
    }
    *t = Tensor();
    if (!from.contains(key)) {
      if (i >= statistics_from && s.steps > 0)
        throwf("load_state_dict: {} of {} is missing; after {} steps the state has it", key, s.name, s.steps);
      continue;
    }
    const Tensor value = from.tensor(key);
    if (i >= statistics_from && (value.sizes() != sizes || !value.is_floating()))
      throwf("load_state_dict: {} of {} is {}, it should be floating {}", key, s.name, gradual::describe(value),
             gradual::to_string(sizes));
    if (value.sizes() != sizes || !value.is_floating())
      throwf("load_state_dict: {} of {} is {}, the parameter is {}", key, s.name, gradual::describe(value),
             gradual::describe(s.param));
    const CategoryScope scope(is_master ? Category::masters : Category::optimizer);
    *t = value.device() == s.param.device() ? value.clone() : value.to(s.param.device());
  }
  for (std::size_t k = 0; k < std::min(moments(s).size(), std::size(s.codes)); ++k)
    s.codes[k] = load_moment(from, moments(s)[k], s.name, s.param, moment_quantizer(options_, s.param, k));
  s.wide = ParamState::Wide::stale;
  s.written = {};  // the next step compares the master with the parameter
}

void Optimizer::load_state_dict(const StateDict& from) {
  const NoGrad no_grad;
  if (const std::string& kind = from.text("kind"); kind != update_rule_.kind)
    throwf("load_state_dict: the state of '{}' does not fit '{}'", kind, update_rule_.kind);
  if (const auto n = from.natural("groups"); n != groups_.size())
    throwf("load_state_dict: the state has {} groups, the optimizer {}", n, groups_.size());
  const std::uint64_t seed = from.natural("seed");
  std::vector<ParamGroup> groups = groups_;
  for (std::size_t g = 0; g < groups.size(); ++g) load_group(groups[g], from.sub(fmt::format("groups.{}", g)));
  std::vector<ParamState> loaded = states();
  {
    const Scoped rates(groups_, groups);  // they say which moments there are
    for (ParamState& s : loaded) load_param(s, from.sub(fmt::format("params.{}", s.index)));
  }
  options_.seed = seed;
  groups_ = std::move(groups);
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const auto before = saved_tensors(states_[i]);
    const auto after = saved_tensors(loaded[i]);
    for (std::size_t k = 0; k < after.size(); ++k) keep_place(*before[k].place, *after[k].place);
    for (std::size_t k = 0; k < std::size(loaded[i].codes); ++k)
      if (auto &was = states_[i].codes[k], &now = loaded[i].codes[k]; was && now)
        for (const auto part : kPartsOfCodes) keep_place((*was).*part, (*now).*part);
  }
  states_ = std::move(loaded);
  device_steps_.host_changed();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const bool laid_out = std::ranges::all_of(states_, [&](const ParamState& s) {
      return s.group != g || !s.master.defined() ||
             (flat_masters_[g].defined() && s.master.shares_storage(flat_masters_[g]));
    });
    if (!laid_out) flatten_masters(g);
  }
}

}  // namespace gradual::optim
