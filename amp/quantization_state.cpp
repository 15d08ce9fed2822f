#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>
#include <utility>

#include "../core/ops/ops.h"
#include "bookkeeping.h"
#include "quantization_parts.h"
#include "recipe.h"

namespace gradual::amp {
namespace {

using Site = QuantizationState::Site;

void advance(AmaxHistory& h, const std::optional<Quantizer>& q) {
  if (const DelayedScale* const scaling = delayed(q); scaling && h.is_staged) h.advance(*scaling, q->format);
}

// Gives a step without a value the staged one.
void begin_step(AmaxHistory& h, const Tensor& step) {
  if (!h.is_staged) return;
  const Bookkeeping unseen;
  const double first = h.staged;
  h.forget_staged();
  if (step.item<double>() == 0) step.fill_(first);
}

void store(StateDict& state, const std::string& name, AmaxHistory& h) {
  if (h.read().amax.empty()) return;
  state.set(name + ".scale", static_cast<double>(h.scale));
  state.set(name + ".amax", from_data(h.amax, {static_cast<std::int64_t>(h.amax.size())}));
}

// h has just been reset, so its fields are newer than what a GPU has.
void restore(const StateDict& state, const std::string& name, AmaxHistory& h) {
  if (!state.contains(name + ".scale")) return;
  h.scale = static_cast<float>(state.real(name + ".scale"));
  h.amax = state.tensor(name + ".amax").to_vector<float>();
}

// The histories of a site's attention, if it has any.
std::span<AmaxHistory> of_attention(const Site& site) {
  return site.attention ? std::span<AmaxHistory>(site.attention->fields) : std::span<AmaxHistory>();
}

std::string name_of(const AttentionField& field) { return fmt::format("attention.{}", field.name); }
std::string name_of(const AttentionHistories& histories, const AmaxHistory& one) {
  return name_of(kAttentionFields[&one - histories.fields.data()]);
}

void restore_attention(const StateDict& state, Site& site) {
  for (const AttentionField& field : kAttentionFields) {
    if (!state.contains(name_of(field) + ".scale")) continue;
    if (!site.attention) site.attention = std::make_shared<AttentionHistories>();
    restore(state, name_of(field), site.attention->of(field.quantizer));
  }
}

void take_attention(const Site& site, bool backward) {
  if (!site.attention) return;
  if (const AttentionPrecision* const precision = site.state->attention_of_module(site.name.layer))
    site.attention->take_staged(*precision, backward);
}

}  // namespace

QuantizationState::QuantizationState(Quantization quantization, std::vector<std::optional<Quantization>> modules)
    : quantization_(std::move(quantization)), overrides_(std::move(modules)) {
  check_valid(quantization_);
  if (!overrides_.empty()) return;
  for (const auto& [module, other] : quantization_.modules) overrides_.push_back(recipe(other).quantization);
}

const Quantization* QuantizationState::of_module(const std::string& path) const {
  const Quantization* found = &quantization_;
  for (std::size_t i = 0; i < overrides_.size(); ++i) {
    const std::string& module = quantization_.modules[i].first;
    if (path == module || path.starts_with(module + ".")) found = overrides_[i] ? &*overrides_[i] : nullptr;
  }
  return found;
}

template <class F> bool QuantizationState::any(const F& has) const {
  return has(quantization_) || std::ranges::any_of(overrides_, [&](const auto& other) { return other && has(*other); });
}

const AttentionPrecision* QuantizationState::attention_of_module(const std::string& path) const {
  const std::optional<AttentionPrecision>& of_model = quantization_.attention;
  if (of_model && of_model->all_modules) return &*of_model;
  const Quantization* const q = of_module(path);
  return q && q->attention ? &*q->attention : nullptr;
}

bool QuantizationState::rounds_attention() const {
  return any([](const Quantization& q) { return q.attention.has_value(); });
}

bool QuantizationState::learns_scales() const {
  return any([](const Quantization& q) { return learned(q.forward_x) || learned(q.forward_w); });
}

QuantizationState::Site& QuantizationState::find(const SiteName& name) {
  for (const auto& s : sites_)
    if (s->name == name) return *s;
  const Quantization* q = of_module(name.layer);
  return *sites_.emplace_back(std::make_unique<Site>(Site{.name = name, .state = this, .quantization = q}));
}

// The quantisation of one product: other modules do not matter to it.
static Quantization alone(Quantization q) {
  q.modules.clear();
  return q;
}

void QuantizationState::set_steps(const Tensor& weight, const Tensor& x_step, const Tensor& w_step) {
  steps_.push_back({weight, x_step, w_step});
}

Tensor QuantizationState::Site::outliers() const {
  return quantization && quantization->outliers ? channels.outliers() : Tensor();
}

void QuantizationState::Site::take_staged(Role role) {
  const bool of_x = role == Role::activation;
  AmaxHistory& history = this->*kHistories[static_cast<int>(role)].second;
  if (role == Role::error) {
    advance(history, quantization->dgrad_dy);
    advance(history, quantization->wgrad_dy);
    return;
  }
  const std::optional<Quantizer>& forward = of_x ? quantization->forward_x : quantization->forward_w;
  if (learned(forward)) begin_step(history, of_x ? x_step : w_step);
  else advance(history, forward);
}

// Histories of attention that computes the same here and there.
static void take_attention_of(Site& mine, const Site& theirs) {
  const AttentionPrecision* const here = mine.state->attention_of_module(mine.name.layer);
  const AttentionPrecision* const there = theirs.state->attention_of_module(theirs.name.layer);
  if (theirs.attention && here && there && *here == *there)
    mine.attention = std::make_shared<AttentionHistories>(*theirs.attention);
}

void QuantizationState::take_histories(const QuantizationState& other) {
  take_steps(other);
  ended_steps_ = other.ended_steps_;
  for (const auto& theirs : other.sites_) {
    Site& mine = find(theirs->name);
    const auto outliers = [](const Site& s) { return s.quantization ? s.quantization->outliers : std::nullopt; };
    mine.channels = theirs->channels;
    if (outliers(mine) != outliers(*theirs)) mine.channels.forget_sizes();
    take_attention_of(mine, *theirs);
    if (!mine.quantization || !theirs->quantization || alone(*mine.quantization) != alone(*theirs->quantization))
      continue;
    for (const auto& [name, history] : kHistories) mine.*history = (*theirs).*history;
  }
}

QuantizationState::Site& QuantizationState::site(const Tensor& weight) {
  const std::string module = context().module;
  if (!is_parameter(weight)) return find({.layer = module, .weight = SiteName::kActivations});
  auto& known = weights_[module];
  auto at = std::find(known.begin(), known.end(), weight.raw());
  if (at == known.end()) at = known.insert(known.end(), weight.raw());
  Site& found = find({.layer = module, .weight = static_cast<int>(at - known.begin()) + 1});
  found.weight = storage_id(weight);
  const auto has = [&](const Tensor& parameter) {
    const auto* const first = static_cast<const char*>(parameter.raw());
    const auto* const here = static_cast<const char*>(weight.raw());
    return storage_id(parameter) == storage_id(weight) && here >= first && here < first + parameter.nbytes();
  };
  for (const Steps& steps : steps_)
    if (!found.x_step.defined() && !found.w_step.defined() && has(steps.weight)) {
      found.x_step = steps.x;
      found.w_step = steps.w;
    }
  return found;
}

std::shared_ptr<AttentionHistories> QuantizationState::attention_histories() {
  Site& site = find({.layer = context().module, .weight = SiteName::kActivations});
  if (!site.attention) site.attention = std::make_shared<AttentionHistories>();
  return site.attention;
}

bool QuantizationState::has_outliers() const {
  return any([](const Quantization& q) { return q.outliers.has_value(); });
}

bool QuantizationState::measures_channels(const Quantization& of_product) const {
  return of_product.outliers && measures_in(*of_product.outliers, ended_steps_);
}

bool QuantizationState::measures_channels() const {
  return any([&](const Quantization& q) { return measures_channels(q); });
}

bool QuantizationState::choose_outliers() {
  bool changed = false;
  for (const auto& s : sites_)
    if (s->quantization && s->quantization->outliers && chooses_after(*s->quantization->outliers, ended_steps_))
      changed = s->channels.choose(*s->quantization->outliers) || changed;
  return changed;
}

void QuantizationState::end_forward() {
  if (purpose == Purpose::part_of_step) return;
  for (const auto& s : sites_) {
    take_attention(*s, false);
    if (!s->quantization) continue;
    s->channels.take_staged();
    s->take_staged(Role::activation);
    s->take_staged(Role::weight);
  }
}

void QuantizationState::end_backward() {
  if (purpose == Purpose::part_of_step) return;
  for (const auto& s : sites_) {
    take_attention(*s, true);
    if (s->quantization) s->take_staged(Role::error);
  }
}

void QuantizationState::forget_staged() {
  for (const auto& s : sites_) {
    s->channels.forget_staged();
    for (const auto& [name, member] : kHistories) ((*s).*member).forget_staged();
    for (AmaxHistory& history : of_attention(*s)) history.forget_staged();
  }
}

bool QuantizationState::hides(const Quantizer& quantizer) {
  auto known = std::ranges::find(hides_, quantizer, &std::pair<Quantizer, bool>::first);
  if (known == hides_.end()) known = hides_.insert(known, {quantizer, hides_nonfinite(quantizer)});
  return known->second;
}

void QuantizationState::look_at(const Tensor& operand, const Quantizer& quantizer) {
  if (!looks_at(quantizer)) return;
  const NoGrad off;
  const CauseScope cause(causes::loss_scale_check);
  const Tensor bad = logical_not(lt(absmax_tensor(operand.detach()), HUGE_VAL));  // NaN is not below Inf either
  const Tensor count = cast(reshape(bad, {1}), DType::i64);
  hidden_ = hidden_.defined() ? hidden_ + count.to(hidden_.device()) : count;
}

StateDict QuantizationState::state_dict() const {
  StateDict state;
  std::string names;
  int number = 0;
  for (const auto& s : sites_) {
    names += to_string(s->name) + "\n";
    StateDict one;
    for (const auto& [name, member] : kHistories) store(one, name, (*s).*member);
    for (AmaxHistory& history : of_attention(*s)) store(one, name_of(*s->attention, history), history);
    s->channels.add_to(one);
    state.add(std::to_string(number++), one);
  }
  state.set("sites", names);
  return state;
}

void QuantizationState::load_state_dict(const StateDict& state) {
  std::istringstream names(state.text("sites"));
  for (const auto& s : sites_) {
    s->channels = {};
    for (const auto& [name, history] : kHistories) (*s).*history = {};
    for (AmaxHistory& history : of_attention(*s)) history = {};
  }
  int number = 0;
  for (std::string name; std::getline(names, name);) {
    Site& site = find(site_name(name));
    const StateDict one = state.sub(std::to_string(number++));
    for (const auto& [part, member] : kHistories) restore(one, part, site.*member);
    restore_attention(one, site);
    site.channels = ChannelSizes::from(one);
  }
}

void QuantizationState::take_steps(const QuantizationState& other) { steps_ = other.steps_; }

void QuantizationState::add_noise(std::uint64_t weight, const GradientNoise& noise) { noise_[weight] += noise; }

NoiseOfGradients QuantizationState::take_noise() { return std::exchange(noise_, {}); }

void QuantizationState::put_noise(NoiseOfGradients noise) { noise_ = std::move(noise); }

}  // namespace gradual::amp
