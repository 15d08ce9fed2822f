// The part of Optimizer that knows FP32 masters and FP32 gradients.
#include "optimizer.h"

#include "../autograd/grad_mode.h"
#include "../core/dispatch.h"
#include "../core/ops.h"

namespace gradual::optim {
namespace {

std::uint64_t storage_id(const Tensor& t) { return t.unsafe_impl()->storage->id; }

Tensor fp32_copy(const Tensor& param) {
  const CategoryScope category(Category::masters);
  const Tensor wide = contiguous(cast(param, DType::f32));
  return wide.shares_storage(param) ? clone(wide) : wide;
}

}  // namespace

void ParamState::mark_written() {
  written_id = storage_id(param);
  written_version = param.version();
}

void ParamState::mark_wide(Wide kind, const Tensor& gradient) {
  wide = kind;
  gradient_id = storage_id(gradient);
  gradient_version = gradient.version();
}

bool ParamState::wide_stands(const Tensor& gradient) const {
  if (wide == Wide::stale || gradient_id != storage_id(gradient)) return false;
  return wide == Wide::unscaled || gradient_version == gradient.version();
}

// Lays a group's masters out in one new buffer.
void Optimizer::flatten_masters(std::size_t g) {
  if (!options_.flat_masters || !keeps_masters()) return;
  flat_[g] = {};
  std::int64_t total = 0;
  for (const ParamState& s : states_)
    if (s.group == g && s.master.defined()) total += s.master.numel();
  const CategoryScope scope(Category::masters);
  std::int64_t begin = 0;
  for (ParamState& s : states_) {
    if (s.group != g || !s.master.defined()) continue;
    Tensor& flat = flat_[g].masters;
    if (!flat.defined()) flat = empty({total}, {.dtype = DType::f32, .device = s.param.device()});
    const Tensor part = as_strided(flat, s.param.sizes(), contiguous_strides(s.param.sizes()), begin);
    part.copy_(s.master);
    begin += part.numel();
    s.master = part;
    s.wide_gradient = Tensor();
    s.wide = ParamState::Wide::stale;
  }
}

// Gives a parameter a master that says what the parameter says.
void Optimizer::ensure_master(ParamState& s) {
  const Tensor& p = s.param;
  if (!s.master.defined()) {
    s.master = fp32_copy(p);
    if (s.group < flat_.size()) flat_[s.group].masters = Tensor();  // to be laid out anew
  } else if (s.written_id != storage_id(p) || s.written_version != p.version()) {
    if (s.master.sizes() != p.sizes())
      fail("optimizer: " + param_name(s.index) + " became " + to_string(p.sizes()) + ", its master is " +
           to_string(s.master.sizes()));
    s.master.copy_(where(eq(cast(s.master, p.dtype()), p), s.master, cast(p, DType::f32)));
  }
  s.mark_written();
}

void Optimizer::settle_masters() {
  if (!keeps_masters()) return;
  for (ParamState& s : states()) {
    if (s.is_low()) {
      ensure_master(s);
    } else if (s.master.defined()) {
      s.master = Tensor();
      flat_[s.group].masters = Tensor();
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (!flat_[g].masters.defined()) flatten_masters(g);
}

Tensor Optimizer::master(const Tensor& param) {
  const NoGrad no_grad;
  ParamState& s = find(param);
  if (!keeps_masters() || !s.is_low()) return s.param;
  ensure_master(s);
  return s.master;
}

void Optimizer::set_master(const Tensor& param, const Tensor& values) {
  ParamState& s = find(param);
  if (!keeps_masters())
    fail("set_master: the optimizer keeps no masters; give it .update = LowPrecisionUpdate::masters");
  if (values.sizes() != param.sizes() || !values.is_floating())
    fail("set_master: the values must be floating and " + to_string(param.sizes()) + ", given " +
         to_string(values.sizes()));
  const NoGrad no_grad;
  ensure_master(s);
  s.master.copy_(values);
  s.param.copy_(values);
  s.mark_written();
}

StateDict Optimizer::master_state_dict() {
  const NoGrad no_grad;
  StateDict out;
  for (const ParamState& s : states()) {
    const Tensor m = master(s.param);
    out.set(param_name(s.index), m.dtype() == DType::f64 ? m : cast(m, DType::f32));
  }
  return out;
}

bool Optimizer::needs_wide(const ParamState& s, const Tensor& gradient) const {
  const bool low = gradient.dtype() == DType::f16 || gradient.dtype() == DType::bf16;
  return low && s.is_low() && options_.update != LowPrecisionUpdate::none;
}

Tensor& Optimizer::wide_gradient(ParamState& s) {
  Flat& flat = flat_[s.group];
  if (s.wide_gradient.defined()) return s.wide_gradient;
  const CategoryScope category(Category::gradients);
  if (!flat.masters.defined())
    return s.wide_gradient = empty(s.param.sizes(), {.dtype = DType::f32, .device = s.param.device()});
  if (!flat.gradients.defined()) flat.gradients = empty_like(flat.masters);  // and they lie as their masters do
  return s.wide_gradient = as_strided(flat.gradients, s.master.sizes(), s.master.strides(), s.master.offset());
}

int Optimizer::unscale(const Tensor& found, double inverse_scale, bool write) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  settle_masters();
  for (const ParamState& s : states_)
    if (const Tensor g = live_gradient(s); g.defined() && g.dtype() == DType::f16 && !needs_wide(s, g))
      fail("attempting to unscale FP16 gradients: " + param_name(s.index) + " " + to_string(s.param.sizes()) +
           " is updated without FP32 values; give the optimizer .update = LowPrecisionUpdate::masters");
  int count = 0;
  for (ParamState& s : states_) {
    const Tensor gradient = live_gradient(s);
    if (!gradient.defined()) continue;
    const bool wide = needs_wide(s, gradient);
    const bool clipped = s.wide == ParamState::Wide::copied && s.wide_stands(gradient);
    const Tensor source = contiguous(clipped ? s.wide_gradient : gradient);
    const Tensor target = !write ? Tensor() : wide ? wide_gradient(s) : source;
    const Attrs attrs = UnscaleAttrs{inverse_scale, static_cast<std::int64_t>(s.index) + 1};
    const Tensor* inputs[] = {&found, &source, &target};
    dispatch(OpId::unscale_, TensorRefs(inputs, 3), attrs, SourceLocation::current());
    ++count;
    if (write && wide) s.mark_wide(ParamState::Wide::unscaled, gradient);
    if (target.defined() && !wide && !source.is_same(gradient)) {
      source.set_category(Category::gradients);
      s.param.set_grad(source);
    }
  }
  return count;
}

std::vector<Tensor> Optimizer::step_gradients() {
  const NoGrad no_grad;
  settle_masters();
  std::vector<Tensor> out;
  for (ParamState& s : states()) {
    const Tensor gradient = live_gradient(s);
    if (!gradient.defined()) continue;
    const bool wide = needs_wide(s, gradient);
    if (wide && !s.wide_stands(gradient)) {
      wide_gradient(s).copy_(gradient);
      s.mark_wide(ParamState::Wide::copied, gradient);
    }
    out.push_back(wide ? s.wide_gradient : gradient);
  }
  return out;
}

}  // namespace gradual::optim
