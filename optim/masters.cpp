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

// Hands each present tensor of a group its part of one flat FP32 buffer: at(i) gives the i-th (it may be undefined).
template <class F> Tensor flatten(std::size_t n, Category category, const F& at) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < n; ++i)
    if (at(i).defined()) total += at(i).numel();
  if (total == 0) return {};
  const CategoryScope scope(category);
  Tensor flat;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Tensor& t = at(i);
    if (!t.defined()) continue;
    if (!flat.defined()) flat = empty({total}, {.dtype = DType::f32, .device = t.device()});
    const Tensor part = as_strided(flat, t.sizes(), contiguous_strides(t.sizes()), begin);
    part.copy_(t);
    begin += t.numel();
    t = part;
  }
  return flat;
}

}  // namespace

void ParamState::mark_written(const Tensor& param) {
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

// Copies of what will need masters, or may after a cast.
void Optimizer::take_masters(std::size_t g) {
  if (options_.update != LowPrecisionUpdate::masters) return;
  const NoGrad no_grad;
  for (std::size_t i = 0; i < groups_[g].params.size(); ++i) {
    const Tensor& p = param({g, i});
    if (p.dtype() == DType::f64) continue;
    state({g, i}).master = fp32_copy(p);
    state({g, i}).mark_written(p);
  }
  flatten_masters(g);
}

void Optimizer::flatten_masters(std::size_t g) {
  if (!options_.flat_masters) return;
  GroupState& group = states_[g];
  group.masters = flatten(group.params.size(), Category::masters,
                          [&](std::size_t i) -> Tensor& { return group.params[i].master; });
  group.gradients = Tensor();
  for (ParamState& s : group.params) {
    s.wide_gradient = Tensor();
    s.wide = ParamState::Wide::stale;
  }
}

// Makes sure that a f16 or bf16 parameter has a master that says what the parameter says.
void Optimizer::ensure_master(Place at) {
  const Tensor& p = param(at);
  ParamState& s = state(at);
  if (!s.master.defined()) {
    s.master = fp32_copy(p);
    flatten_masters(at.group);
  } else if (s.written_id != storage_id(p) || s.written_version != p.version()) {
    if (s.master.sizes() != p.sizes())
      fail("optimizer: " + param_name(index(at)) + " became " + to_string(p.sizes()) + ", its master is " +
           to_string(s.master.sizes()));
    s.master.copy_(where(eq(cast(s.master, p.dtype()), p), s.master, cast(p, DType::f32)));
  }
  s.mark_written(p);
}

void Optimizer::settle_masters() {
  if (options_.update != LowPrecisionUpdate::masters) return;
  for (const Place at : places()) {
    if (is_low(param(at))) {
      ensure_master(at);
    } else if (state(at).master.defined()) {
      state(at).master = Tensor();
      states_[at.group].masters = Tensor();  // to be laid out anew
    }
  }
  for (std::size_t g = 0; g < states_.size(); ++g)
    if (!states_[g].masters.defined()) flatten_masters(g);
}

Tensor Optimizer::master(const Tensor& wanted) {
  const NoGrad no_grad;
  const Place at = find(wanted);
  if (options_.update != LowPrecisionUpdate::masters || !is_low(wanted)) return param(at);
  ensure_master(at);
  return state(at).master;
}

void Optimizer::set_master(const Tensor& wanted, const Tensor& values) {
  const Place at = find(wanted);
  if (options_.update != LowPrecisionUpdate::masters)
    fail(
        "set_master: the optimizer keeps no masters; construct it with .update = "
        "LowPrecisionUpdate::masters");
  if (values.sizes() != wanted.sizes() || !values.is_floating())
    fail("set_master: the values must be floating and " + to_string(wanted.sizes()) + ", given " +
         to_string(values.sizes()));
  const NoGrad no_grad;
  assign_master(at, values);
  wanted.copy_(values);
  state(at).mark_written(wanted);
}

void Optimizer::assign_master(Place at, const Tensor& values) {
  ParamState& s = state(at);
  if (s.master.defined()) {
    s.master.copy_(values);
  } else {
    s.master = fp32_copy(values);
    flatten_masters(at.group);
  }
}

StateDict Optimizer::master_state_dict() {
  const NoGrad no_grad;
  StateDict out;
  for (const Place at : places()) {
    const Tensor m = master(param(at));
    out.set(param_name(index(at)), is_low(m) ? cast(m, DType::f32) : m);
  }
  return out;
}

bool Optimizer::needs_wide(const Tensor& p, const Tensor& gradient) const {
  return is_low(gradient) && is_low(p) && options_.update != LowPrecisionUpdate::none;
}

Tensor& Optimizer::wide_gradient(Place at) {
  GroupState& group = states_[at.group];
  ParamState& s = state(at);
  if (s.wide_gradient.defined()) return s.wide_gradient;
  const CategoryScope category(Category::gradients);
  if (!group.masters.defined())
    return s.wide_gradient = empty(param(at).sizes(), {.dtype = DType::f32, .device = param(at).device()});
  // The gradients lie as their masters do.
  if (!group.gradients.defined()) group.gradients = empty_like(group.masters);
  return s.wide_gradient =
             as_strided(group.gradients, s.master.sizes(), s.master.strides(), s.master.offset());
}

int Optimizer::unscale(const Tensor& found, double inverse_scale, bool write) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  settle_masters();
  int count = 0;
  for (const Place at : places()) {
    const Tensor gradient = live_gradient(at);
    if (!gradient.defined()) continue;
    const Tensor& p = param(at);
    ParamState& s = state(at);
    const bool wide = needs_wide(p, gradient);
    if (gradient.dtype() == DType::f16 && !wide)
      fail("attempting to unscale FP16 gradients: " + param_name(index(at)) + " " + to_string(p.sizes()) +
           " is f16 and is updated without FP32 values; give the optimizer masters "
           "(.update = LowPrecisionUpdate::masters)");
    const Tensor source = contiguous(
        s.wide_stands(gradient) && s.wide == ParamState::Wide::copied ? s.wide_gradient : gradient);
    Tensor target;
    if (write) target = wide ? wide_gradient(at) : source;
    const Attrs attrs = UnscaleAttrs{inverse_scale, static_cast<std::int64_t>(index(at)) + 1};
    const Tensor* inputs[] = {&found, &source, &target};
    dispatch(OpId::unscale_, TensorRefs(inputs, 3), attrs, SourceLocation::current());
    ++count;
    if (!write) continue;
    if (wide) {
      s.mark_wide(ParamState::Wide::unscaled, gradient);
    } else if (!source.is_same(gradient)) {
      source.set_category(Category::gradients);
      p.set_grad(source);
    }
  }
  return count;
}

std::vector<Tensor> Optimizer::step_gradients() {
  const NoGrad no_grad;
  settle_masters();
  std::vector<Tensor> out;
  for (const Place at : places()) {
    const Tensor gradient = live_gradient(at);
    if (!gradient.defined()) continue;
    if (!needs_wide(param(at), gradient)) {
      out.push_back(gradient);
      continue;
    }
    ParamState& s = state(at);
    if (!s.wide_stands(gradient)) {
      wide_gradient(at).copy_(gradient);
      s.mark_wide(ParamState::Wide::copied, gradient);
    }
    out.push_back(s.wide_gradient);
  }
  return out;
}

}  // namespace gradual::optim
