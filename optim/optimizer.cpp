#include "optimizer.h"

#include <algorithm>
#include <set>

#include "../autograd/autograd.h"
#include "../autograd/grad_mode.h"
#include "../core/observe/update_event.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/fusions.h"
#include "../core/ops/ops.h"
#include "../core/quantize/quantizer_kernels.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "../core/tensor/device_recording.h"
#include "quantized_moments.h"
#include "rates.h"

namespace gradual::optim {

// Keep the streams of stochastic rounding, of parameters and of moments, apart from those of a Generator with the same
// seed.
constexpr std::uint64_t kFusedRoundingKey = 0x6772616475616c21;
constexpr std::uint64_t kMomentKey = 0x6772616475616c22;

void check_rates(const ParamGroup& group) {
  if (!group.names.empty() && group.names.size() != group.params.size())
    throwf("optimizer: a group has {} parameters and {} names", group.params.size(), group.names.size());
  for (const Rate& rate : kRates)
    if (const auto& value = group.*rate.value; value && !(*value >= 0 && *value < rate.below))
      throwf("optimizer: {} {} is out of range; it must be {}", rate.name, *value,
             rate.below == 1 ? "in [0, 1)" : "at least 0 and finite");
}

std::string_view to_string(LowPrecisionUpdate u) {
  return enum_name(u, {"none", "masters", "kahan", "stochastic", "eco"});
}

ParamGroup named_group(const std::vector<std::pair<std::string, Tensor>>& named) {
  ParamGroup group;
  for (const auto& [name, tensor] : named) {
    group.names.push_back(name);
    group.params.push_back(tensor);
  }
  return group;
}

namespace {

// A new name in a parameter's part of a state dict.
void take_name(std::set<std::string>& taken, const std::string& name, std::string_view what, const std::string& kind) {
  if (!taken.insert(name).second)
    throwf(
        "optimizer: {} names a {} '{}'; names differ, and none is '', steps, master or compensation, nor that of a "
        "moment with .quantizer, .codes, .scales or .global_scale",
        kind, what, name);
}

// The names of the state tensors and of what is saved with them.
std::set<std::string> taken_names(const std::vector<std::string>& moments, const std::string& kind) {
  std::set<std::string> taken = {"", "steps", "master", "compensation"};
  for (std::size_t k = 0; k < moments.size(); ++k)
    if (may_be_codes(k))
      for (const char* part : kKeysOfCodes) taken.insert(moments[k] + part);
  for (const std::string& moment : moments) take_name(taken, moment, "state tensor", kind);
  return taken;
}

}  // namespace

Optimizer::Optimizer(UpdateRule rule, std::vector<ParamGroup> groups, const ParamGroup& defaults,
                     const UpdateOptions& options)
    : update_rule_(std::move(rule)), defaults_(defaults), options_(options) {
  if (update_rule_.op) not_null(update_rule_.attrs, "optimizer: the attributes of a fused row");
  if (options.pure_arithmetic && options.update != LowPrecisionUpdate::none)
    throwf("optimizer: pure_arithmetic needs LowPrecisionUpdate::none, not {}", to_string(options.update));
  if (options.state_dtype && (!is_floating(*options.state_dtype) || is_f8(*options.state_dtype)))
    throwf("optimizer: state_dtype may be f64, f32, f16 or bf16, not {}", to_string(*options.state_dtype));
  check_moments(options);
  if (update_rule_.moments.size() > kMaxState)
    throwf("optimizer: {} names {} state tensors; allowed are at most {}", update_rule_.kind,
           update_rule_.moments.size(), kMaxState);
  taken_names(update_rule_.moments, update_rule_.kind);
  for (ParamGroup& group : groups) add_param_group(std::move(group));
  if (states_.empty())
    throwf("optimizer: it was given no parameters; a model lists what register_module and register_parameter took");
  if (std::ranges::none_of(states_, [](const ParamState& s) { return s.param.requires_grad(); }))
    throwf("optimizer: none of its {} parameters requires a gradient; call set_requires_grad() first", states_.size());
}

namespace {

// One past the last element, in elements of the storage; strides are not negative.
std::int64_t end_of(const Tensor& t) {
  std::int64_t end = t.offset() + 1;
  for (int d = 0; d < t.dim(); ++d) end += (t.sizes()[d] - 1) * t.strides()[d];
  return end;
}

// True if an update of one would change the other. The elements of two views of one storage may interleave; then their
// elements are marked in a separate buffer.
bool overlap(const Tensor& a, const Tensor& b) {
  if (!a.shares_storage(b) || a.numel() == 0 || b.numel() == 0) return false;
  if (end_of(a) <= b.offset() || end_of(b) <= a.offset()) return false;
  const std::int64_t begin = std::min(a.offset(), b.offset());
  const Tensor marks = zeros({std::max(end_of(a), end_of(b)) - begin});
  const auto distinct = [](Shape sizes, const Shape& strides) {  // an expanded dim has one entry
    for (int d = 0; d < sizes.size(); ++d) sizes[d] = strides[d] == 0 ? 1 : sizes[d];
    return sizes;
  };
  as_strided(marks, distinct(a.sizes(), a.strides()), a.strides(), a.offset() - begin).fill_(1);
  return max(as_strided(marks, b.sizes(), b.strides(), b.offset() - begin)).item() > 0;
}

// On a GPU codes keep their address, which a recorded step uses; a skipped step leaves them unchanged.
bool overwritten(const std::optional<QuantizedTensor>& codes, const Tensor& param) {
  return codes && param.device().is_cuda() && codes->device() == param.device();
}

}  // namespace

void Optimizer::check_param(const Tensor& p, const std::vector<ParamState>& others) const {
  if (!p.defined() || !p.is_floating() || is_f8(p.dtype()))
    throwf("optimizer: a parameter must be f64, f32, f16 or bf16, given {}",
           p.defined() ? to_string(p.dtype()) : "none");
  const std::string who = "optimizer: a parameter " + to_string(p.sizes());
  if (!p.is_leaf()) throw_error(who + " is the result of an op; only leaves can be optimized");
  for (const auto* list : {&states_, &others})
    for (const ParamState& other : *list)
      if (other.param.is_same(p)) throw_error(who + " is in a group already; a parameter belongs to one");
      else if (overlap(other.param, p))
        throw_error(who + " shares memory with '" + other.name + "' " + to_string(other.param.sizes()) +
                    ": both would be updated at once; pass the tensor that they are views of");
}

void Optimizer::add_param_group(ParamGroup group) {
  for (const Rate& rate : kRates)
    if (!(group.*rate.value)) group.*rate.value = defaults_.*rate.value;
  check_rates(group);
  const NoGrad no_grad;
  device_steps_.leave();
  device_rates_ = Tensor();
  flat_masters_.resize(groups_.size() + 1);
  std::vector<ParamState> added;
  for (const Tensor& p : group.params) {
    check_param(p, added);
    const std::size_t index = states_.size() + added.size();
    const auto name = group.names.empty() ? fmt::format("parameter {}", index) : group.names[added.size()];
    ParamState& s = added.emplace_back(ParamState{.param = p, .group = groups_.size(), .index = index, .name = name});
    if (!keeps_masters() || p.dtype() == DType::f64) continue;
    ensure_master(s);
    autograd::set_gradient_sums(p, autograd::GradientSums::f32);
  }
  groups_.push_back(std::move(group));
  states_.insert(states_.end(), added.begin(), added.end());
  flatten_masters(groups_.size() - 1);
}

std::vector<Optimizer::ParamState>& Optimizer::states() {
  std::size_t count = 0;
  for (const ParamGroup& group : groups_) count += group.params.size();
  if (count != states_.size())
    throwf("optimizer: {} parameters were added, the groups now have {}; add parameters with add_param_group",
           states_.size(), count);
  return states_;
}

std::vector<Optimizer::Live> Optimizer::live_gradients() {
  settle_masters();
  std::vector<Live> out;
  out.reserve(states().size());
  for (ParamState& s : states_) {
    if (groups_[s.group].frozen || !s.param.requires_grad()) continue;
    Tensor g = s.param.grad();
    if (!g.defined()) continue;
    // Alone: parameters whose update needs temporary tensors, so that those of only one parameter exist at a time.
    const bool coded = moment_quantizer(options_, s.param, 0) || moment_quantizer(options_, s.param, 1);
    const bool fed = s.is_low() && options_.update == LowPrecisionUpdate::eco;
    const bool alone = !fused_rows() || coded || fed || !s.param.is_contiguous() || !g.is_contiguous();
    out.push_back({&s, std::move(g), alone});
  }
  return out;
}

std::vector<Optimizer::Statistic> Optimizer::named_statistics(const Tensor& param) const {
  std::vector<Statistic> all = statistics(param);
  if (all.empty()) return all;
  std::set<std::string> taken = taken_names(update_rule_.moments, update_rule_.kind);
  for (const Statistic& statistic : all) take_name(taken, statistic.name, "statistic", update_rule_.kind);
  return all;
}

void Optimizer::prepare_state(ParamState& s) {
  const Tensor& p = s.param;
  const CategoryScope category(Category::optimizer);
  const auto make = [&](Tensor& t, DType dtype, const Shape& sizes) {
    if (!t.defined()) {
      need_no_capture(s.name);
      t = zeros(sizes, {.dtype = dtype, .device = p.device()});
    }
    t = t.to(p.device(), dtype);  // follows the parameter
  };
  // A loaded state may have one that this update would add in each step.
  if (s.is_low() && options_.update == LowPrecisionUpdate::kahan) make(s.compensation, p.dtype(), p.sizes());
  else s.compensation = Tensor();
  DType dtype = options_.state_dtype.value_or(options_.pure_arithmetic ? p.dtype() : DType::f32);
  if (p.dtype() == DType::f64) dtype = DType::f64;
  const std::size_t kept = moments(s).size();
  // As a run that was saved and loaded here: a state dict has no moments that the rates do not need.
  for (std::size_t k = kept; k < std::size(s.moments); ++k) s.moments[k] = Tensor();
  for (std::size_t k = kept; k < std::size(s.codes); ++k) s.codes[k].reset();
  for (std::size_t k = 0; k < kept; ++k) {
    const bool coded = moment_quantizer(options_, s.param, k) != nullptr;
    const CategoryScope here(coded ? Category::workspace : Category::optimizer);
    if (k < std::size(s.codes) && s.codes[k]) {
      s.moments[k] = s.codes[k]->dequantize();
      if (!overwritten(s.codes[k], s.param)) s.codes[k].reset();
    }
    make(s.moments[k], coded ? DType::f32 : dtype, p.sizes());
  }
  const std::vector<Statistic> wanted = named_statistics(p);
  s.statistics.resize(wanted.size());
  const StageScope exact(chain().results, nullptr);
  for (std::size_t k = 0; k < wanted.size(); ++k)
    make(s.statistics[k], p.dtype() == DType::f64 ? DType::f64 : DType::f32, wanted[k].sizes);
}

void Optimizer::encode_moments(ParamState& s, const DeviceStep& there) const {
  for (std::size_t k = 0; k < std::size(s.codes); ++k) {
    const Quantizer* q = moment_quantizer(options_, s.param, k);
    if (!q || k >= moments(s).size()) continue;
    const CategoryScope category(Category::optimizer);
    // A step count in GPU memory includes this step already. The key must not: -1 is added to that count.
    const std::uint64_t steps = there.steps ? ~std::uint64_t{0} : static_cast<std::uint64_t>(s.steps);
    const RandomKey key = {options_.seed ^ kMomentKey, (steps << 25) + 2 * s.index + k};
    QuantizedTensor codes = quantize(s.moments[k], *q, {.key = key, .steps = there.steps});
    if (overwritten(s.codes[k], s.param)) {
      for (const auto part : kPartsOfCodes)
        if (((*s.codes[k]).*part).defined()) device::copy_unless(there.found, (*s.codes[k]).*part, codes.*part);
    } else {
      s.codes[k] = std::move(codes);
    }
    s.moments[k] = Tensor();
  }
}

// The updates by one call with these inputs, for observers; none if nothing observes.
std::vector<UpdateEvent> Optimizer::events_of(std::span<const Live> run, std::span<const Tensor* const> inputs) const {
  std::vector<UpdateEvent> events;
  if (!chain().observe) return events;
  const std::size_t each = inputs.size() / run.size();
  for (std::size_t k = 0; k < run.size(); ++k) {
    const ParamState& s = *run[k].state;
    const Tensor* const* const of = &inputs[k * each];
    events.push_back({.optimizer = update_rule_.kind,
                      .op = update_rule_.op,
                      .parameter = s.param,
                      .target = *of[0],
                      .gradient = *of[1],
                      .master = s.master,
                      .compensation = s.compensation,
                      .state = std::span<const Tensor>(s.moments, moments(s).size())});
  }
  return events;
}

// One call updates all these parameters: those of one group with one step count (or counted by the GPU).
void Optimizer::step_run(std::span<const Live> run, const GradientScale& by, bool counts_there, SourceLocation loc) {
  const ParamState& first = *run[0].state;
  const std::size_t kept = moments(first).size();
  const Tensor none;
  Tensor copies[2];  // of a parameter alone, row-major
  Tensor error;      // eco: of a parameter alone, what the call loses by rounding
  if (first.is_low() && options_.update == LowPrecisionUpdate::eco)
    error = zeros(first.param.sizes(), {.device = first.param.device()});
  const auto row_major = [&](const Tensor& t, Tensor& copy) {
    return t.is_contiguous() ? &t : &(copy = contiguous(t, loc));
  };
  std::vector<const Tensor*> inputs;
  inputs.reserve(run.size() * (4 + update_rule_.moments.size()));
  for (const Live& l : run) {
    ParamState& s = *l.state;
    prepare_state(s);
    const Tensor& gradient = s.wide_stands(l.gradient) ? s.wide_gradient : l.gradient;
    inputs.insert(inputs.end(), {row_major(s.param, copies[0]), row_major(gradient, copies[1]), &s.master,
                                 error.defined() ? &error : &s.compensation});
    for (std::size_t k = 0; k < update_rule_.moments.size(); ++k) inputs.push_back(k < kept ? &s.moments[k] : &none);
  }
  const std::int64_t steps = counts_there ? 0 : first.steps;
  UpdateAttrs how{.inverse_scale = by.inverse,
                  .pure = options_.pure_arithmetic,
                  .stochastic = options_.update == LowPrecisionUpdate::stochastic,
                  .key = {options_.seed ^ kFusedRoundingKey, (static_cast<std::uint64_t>(steps) << 24) + first.index}};
  if (counts_there)
    how.device = {
        .inverse_scale = by.on_device,
        .found = by.found.defined() ? static_cast<const std::int64_t*>(by.found.raw()) : nullptr,
        .steps = static_cast<std::int64_t*>(device_steps_.raw()) + first.index,
        .rates = device::capturing() ? static_cast<const Rates*>(device_rates_.raw()) + first.group : nullptr};
  std::vector<UpdateEvent> events = events_of(run, inputs);
  for (const UpdateEvent& event : events) event.tell_before();
  dispatch(*update_rule_.op, TensorRefs(inputs.data(), static_cast<int>(inputs.size())),
           update_rule_.attrs(rates_of(groups_[first.group]), counts_there ? 1 : steps, how), loc);
  if (copies[0].defined()) first.param.copy_(copies[0], loc);
  for (const UpdateEvent& event : events) event.tell_after();
  for (const Live& l : run) {
    ParamState& s = *l.state;
    if (error.defined()) add_to_momentum(s, s.steps, error);
    encode_moments(s, how.device);
    if (!counts_there) ++s.steps;
    s.wide = ParamState::Wide::stale;
    s.written = Stamp(s.param);
  }
}

void Optimizer::step_scaled(const GradientScale& by, SourceLocation loc) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  for (const ParamGroup& group : groups_) check_rates(group);
  for (const Rate& rate : kRates)
    for (std::size_t g = 0; g < groups_.size(); ++g)
      if (defaults_.*rate.value && !(groups_[g].*rate.value))
        throwf("optimizer: {} of group {} is unset; assign a number", rate.name, g);
  check_feedback();
  if (!update_rule_.op) {
    count_on_device(false);  // an Error where a step is recorded
    for (const Live& l : live_gradients()) step_by_ops(l, by);
    return;
  }
  const bool counts_there = count_on_device(by.found.defined());
  if (counts_there && options_.update == LowPrecisionUpdate::eco)
    throw_error("optimizer: eco updates count steps on the host, not under a GPU's loss scale nor in a recorded step");
  // The counts on a GPU are adjacent, and stochastic rounding numbers its streams through the call.
  const bool in_order = counts_there || options_.update == LowPrecisionUpdate::stochastic;
  const auto same_call = [&](const Live& a, const Live& b) {
    return a.state->group == b.state->group && !a.alone && !b.alone &&
           (counts_there || a.state->steps == b.state->steps) && (!in_order || a.state->index + 1 == b.state->index) &&
           a.state->param.device() == b.state->param.device();
  };
  for_runs(live_gradients(), same_call, [&](const auto& run) { step_run(run, by, counts_there, loc); });
}

std::vector<ParamGroup> Optimizer::one_group(const std::vector<Tensor>& params) { return {{.params = params}}; }

}  // namespace gradual::optim
