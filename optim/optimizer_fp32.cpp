// FP32 masters of f16 and bf16 parameters, and the gradients that a step takes: unscaled and clipped, in FP32 where
// these parameters are updated by way of it.
#include "../autograd/autograd.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "optimizer.h"

namespace gradual::optim {

// --- masters ---

// Copies a group's masters into one new buffer.
void Optimizer::flatten_masters(std::size_t g) {
  if (!options_.flat_masters || !keeps_masters()) return;
  flat_masters_[g] = Tensor();
  std::vector<Tensor> parts;
  for (const ParamState& s : states_)
    if (s.group == g && s.master.defined()) parts.push_back(reshape(s.master, {-1}));
  if (parts.empty()) return;
  const CategoryScope scope(Category::masters);
  flat_masters_[g] = cat(parts, 0);
  std::int64_t begin = 0;
  for (ParamState& s : states_) {
    if (s.group != g || !s.master.defined()) continue;
    s.master = as_strided(flat_masters_[g], s.param.sizes(), contiguous_strides(s.param.sizes()), begin);
    begin += s.master.numel();
  }
}

// Brings a parameter's master up to date with the parameter.
void Optimizer::ensure_master(ParamState& s) {
  const Tensor& p = s.param;
  if (!s.master.defined()) {
    need_no_capture(s.name);
    const CategoryScope category(Category::masters);
    s.master = contiguous(cast(p, DType::f32));
    if (s.master.shares_storage(p)) s.master = clone(s.master);
    flat_masters_[s.group] = Tensor();  // rebuilt later
    s.written = Stamp(p);
    return;
  }
  if (s.master.device() != p.device()) {
    const CategoryScope category(Category::masters);
    s.master = s.master.to(p.device());
    flat_masters_[s.group] = Tensor();
  }
  if (s.written != Stamp(p)) {
    if (s.master.sizes() != p.sizes())
      throwf("optimizer: {} became {}, its master is {}", s.name, to_string(p.sizes()), to_string(s.master.sizes()));
    s.master.copy_(where(eq(cast(s.master, p.dtype()), p), s.master, cast(p, DType::f32)));
  }
  s.written = Stamp(p);
}

void Optimizer::settle_masters() {
  if (!keeps_masters()) return;
  for (ParamState& s : states()) {
    if (s.is_low()) {
      ensure_master(s);
    } else if (s.master.defined()) {
      flat_masters_[s.group] = Tensor();
      s.master = Tensor();
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (!flat_masters_[g].defined()) flatten_masters(g);
}

Optimizer::ParamState& Optimizer::state_of(const Tensor& param) {
  for (ParamState& s : states_)
    if (s.param.is_same(param)) return s;
  throwf("optimizer: the tensor {} is not one of its parameters",
         param.defined() ? to_string(param.sizes()) : "(undefined)");
}

Tensor Optimizer::master(const Tensor& param) {
  const NoGrad no_grad;
  ParamState& s = state_of(param);
  if (!keeps_masters() || !s.is_low()) return s.param;
  ensure_master(s);
  return s.master;
}

// --- gradients ---

// True if wide_gradient is valid for `gradient`. One filled by clipping becomes stale with every change of `gradient`.
// One that was unscaled stays valid, even if the scaled gradient changes.
bool Optimizer::ParamState::wide_stands(const Tensor& gradient) const {
  const Stamp now(gradient);
  return (wide == Wide::copied && wide_of == now) || (wide == Wide::unscaled && wide_of.storage == now.storage);
}

Tensor& Optimizer::wide_gradient(ParamState& s) {
  const CategoryScope category(Category::gradients);
  if (!s.wide_gradient.defined() || s.wide_gradient.device() != s.param.device())
    s.wide_gradient = empty(s.param.sizes(), {.dtype = DType::f32, .device = s.param.device()});
  return s.wide_gradient;
}

// One call for gradients whose counts are contiguous.
void Optimizer::unscale_run(std::span<const Live> run, const Tensor& found, const GradientScale& by, bool write) {
  const Tensor none;
  Tensor copy;  // of a gradient alone, row-major
  std::vector<const Tensor*> inputs = {&found};
  inputs.reserve(1 + 2 * run.size());
  for (const Live& l : run) {
    ParamState& s = *l.state;
    const bool clipped = s.wide == ParamState::Wide::copied && s.wide_stands(l.gradient);
    const Tensor& taken = clipped ? s.wide_gradient : l.gradient;
    if (!taken.is_contiguous()) copy = contiguous(taken);
    const Tensor& source = taken.is_contiguous() ? taken : copy;
    const Tensor& read = write ? source : none;
    inputs.push_back(&source);
    inputs.push_back(write && needs_wide(s, l.gradient) ? &wide_gradient(s) : &read);
  }
  const Attrs attrs = UnscaleAttrs{by.inverse, static_cast<std::int64_t>(run[0].state->index) + 1, by.on_device};
  dispatch(OpId::unscale_, TensorRefs(inputs.data(), static_cast<int>(inputs.size())), attrs,
           SourceLocation::current());
  if (!write) return;
  for (const Live& l : run) {
    ParamState& s = *l.state;
    if (needs_wide(s, l.gradient)) {
      s.wide = ParamState::Wide::unscaled;
      s.wide_of = Stamp(l.gradient);
    } else if (copy.defined()) {
      copy.set_category(Category::gradients);
      s.param.set_grad(copy);
    }
  }
}

// A step cannot be undone, so all gradients must be known to be finite before it begins. A pass that only reads them
// precedes the pass that updates.
int Optimizer::unscale(const Tensor& found, const GradientScale& by, bool write) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  const std::vector<Live> live = live_gradients();
  for (const Live& l : live)
    if (l.gradient.dtype() == DType::f16 && !needs_wide(*l.state, l.gradient))
      throwf("attempting to unscale FP16 gradients: {} {} needs .update = LowPrecisionUpdate::masters", l.state->name,
             to_string(l.state->param.sizes()));
  const auto same_call = [&](const Live& a, const Live& b) {
    return a.state->index + 1 == b.state->index && !a.alone && !b.alone;
  };
  for_runs(live, same_call, [&](const auto& run) { unscale_run(run, found, by, write); });
  for (ParamState& s : states_) s.received = autograd::gradients_received(s.param);
  return static_cast<int>(live.size());
}

void Optimizer::check_no_gradient_since_unscale() const {
  for (const ParamState& s : states_)
    if (!groups_[s.group].frozen && s.param.requires_grad() && autograd::gradients_received(s.param) != s.received)
      throwf(
          "GradScaler: a backward after unscale_() changed the gradient of {} {}: that part still has the loss scale "
          "and the step would be too large; call unscale_() after the last backward of a step",
          s.name, to_string(s.param.sizes()));
}

std::vector<Tensor> Optimizer::step_gradients() {
  const NoGrad no_grad;
  std::vector<Tensor> out;
  for (const Live& l : live_gradients()) {
    ParamState& s = *l.state;
    const bool wide = needs_wide(s, l.gradient);
    if (wide && !s.wide_stands(l.gradient)) {
      wide_gradient(s).copy_(l.gradient);
      s.wide = ParamState::Wide::copied;
      s.wide_of = Stamp(l.gradient);
    }
    out.push_back(wide ? s.wide_gradient : l.gradient);
  }
  return out;
}

}  // namespace gradual::optim
