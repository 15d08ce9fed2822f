#include "mirror.h"

#include "../core/formats/accumulator.h"
#include "../core/ops/f8_operands.h"
#include "../core/ops/ops.h"
#include "../core/ops/parameter_inputs.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

std::int64_t elements(const Tensor& t) {
  return static_cast<std::int64_t>(t.unsafe_impl()->storage->bytes / size_of(t.dtype()));
}

Tensor copied(const Tensor& flat) {
  const Tensor here = flat.to(Device::cpu());
  if (here.is_floating() && here.dtype() != DType::f64) return cast(here, DType::f64);
  return here.is_same(flat) ? here.clone() : here;
}

// Runs an optimizer's call in f64. The weight starts from the master, or from the sum of parameter and Kahan
// compensation; the result is written to parameter and master.
void run_optimizer(const OpCall& call, const std::vector<Tensor>& inputs) {
  Attrs attrs = *call.attrs;
  const auto exact = [&](auto a) {
    a.update.pure = false;
    a.update.stochastic = false;
    attrs = a;
  };
  if (call.op == OpId::adam_step_) exact(call.get<AdamAttrs>());
  else exact(call.get<SgdAttrs>());
  const ParameterInputs p = parameter_inputs(call);
  for (int k = 0; k < p.count; ++k) {
    const auto first = inputs.begin() + p.first + static_cast<std::ptrdiff_t>(k) * p.each;
    std::vector<Tensor> one(first, first + p.each);
    const Tensor parameter = one[kWeight];
    if (one[kMaster].defined()) one[kWeight] = one[kMaster];
    if (one[kCompensation].defined()) {
      parameter.add_(one[kCompensation]);
      one[kCompensation].fill_(0);
    }
    one[kMaster] = Tensor();
    one[kCompensation] = Tensor();
    const std::vector<const Tensor*> refs = pointers_to(one);
    dispatch(call.op, TensorRefs(refs.data(), p.each), attrs, call.where);
    if (!one[kWeight].is_same(parameter)) parameter.copy_(one[kWeight]);
  }
}

// Inputs: counts of non-finite elements, then pairs of a gradient and its target.
void run_unscale(const OpCall& call, const std::vector<Tensor>& inputs) {
  for (std::size_t i = 1; i + 1 < inputs.size(); i += 2) {
    const Tensor& to = inputs[i + 1];
    if (!to.defined()) continue;  // only a check: the update divides
    if (!to.is_same(inputs[i])) to.copy_(inputs[i]);
    to.mul_(call.get<UnscaleAttrs>().inverse_scale);
  }
}

// y of a product times the scales that its attributes name, which its f64 form does not know.
Tensor times_scales(const Tensor& y, const F8Attrs& f8, Device device) {
  Tensor product = y;
  for (const float* const there : {f8.a_scale, f8.b_scale}) {
    if (!there) continue;
    float scale = 0;
    if (device.is_cpu()) scale = *there;
    else device::copy(&scale, Device::cpu(), there, device, sizeof scale);
    product = mul(product, static_cast<double>(scale));
  }
  return product;
}

}  // namespace

Mirror::Mirror(FreedStorages* freed) : freed_(freed) {}

Tensor f64_of(const Tensor& t) {
  const Unseen unseen;
  return t.defined() ? copied(contiguous(t.detach())) : Tensor();
}

Tensor value_of(const Tensor& parameter, const Tensor& master, const Tensor& compensation) {
  const Unseen unseen;
  if (master.defined()) return f64_of(master);
  return compensation.defined() ? add(f64_of(parameter), f64_of(compensation)) : f64_of(parameter);
}

Mirror::Entry& Mirror::entry_of(const Tensor& t, bool fresh) {
  const Storage& storage = *t.unsafe_impl()->storage;
  const auto* begin = static_cast<const char*>(storage.data);
  if (knows(t) && (fresh || storages_[begin].version == storage.version.load())) return storages_[begin];
  // Older storages at overlapping addresses no longer exist.
  const char* end = begin + storage.bytes;
  auto at = storages_.lower_bound(begin);
  if (at != storages_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != storages_.end() && at->first < end) at = storages_.erase(at);
  if (freed_) freed_->watch(t);
  Entry& entry = storages_[begin];
  entry = {.id = storage.id, .version = storage.version.load(), .end = end};
  if (!fresh) entry.numbers = copied(as_strided(t, {elements(t)}, {1}, 0));
  return entry;
}

void Mirror::own(const Tensor& t) {
  if (!t.defined() || t.numel() == 0) return;
  const Unseen unseen;
  Tensor& numbers = entry_of(t, false).numbers;
  if (numbers.unsafe_impl()->storage->refs.load() > 1) numbers = numbers.clone();
}

void Mirror::forget(const Tensor& t) {
  if (knows(t)) storages_.erase(static_cast<const char*>(t.unsafe_impl()->storage->data));
}

void Mirror::forget(const FreedStorage& storage) {
  const auto found = storages_.find(static_cast<const char*>(storage.address));
  if (found != storages_.end() && found->second.id == storage.id) storages_.erase(found);
}

bool Mirror::knows(const Tensor& t) const {
  const auto found = storages_.find(static_cast<const char*>(t.unsafe_impl()->storage->data));
  return found != storages_.end() && found->second.id == t.unsafe_impl()->storage->id;
}

Tensor Mirror::of(const Tensor& t) {
  if (!t.defined()) return {};
  if (t.numel() == 0) return empty(t.sizes(), {.dtype = t.is_floating() ? DType::f64 : t.dtype()});
  const Unseen unseen;
  return as_strided(entry_of(t, false).numbers, t.sizes(), t.strides(), t.offset());
}

void Mirror::set(const Tensor& t, const Tensor& numbers) {
  if (!t.defined() || t.numel() == 0) return;
  const Unseen unseen;
  const std::int64_t n = elements(t);
  const bool whole = t.numel() == n && numbers.strides() == t.strides() && elements(numbers) == n;
  if (whole) entry_of(t, true).numbers = as_strided(numbers, {n}, {1}, 0);
  else {
    own(t);
    of(t).copy_(numbers);
  }
  written(t);
}

void Mirror::written(const Tensor& t) {
  if (!t.defined() || t.numel() == 0 || !knows(t)) return;
  const Storage& storage = *t.unsafe_impl()->storage;
  storages_[static_cast<const char*>(storage.data)].version = storage.version.load();
}

Outputs run_exactly(const OpCall& call, const std::vector<Tensor>& inputs) {
  const Unseen unseen;
  const AccumulatorScope exact(std::nullopt);
  Outputs out;
  switch (call.op) {
    case OpId::cast:
      if (is_floating(call.get<DType>())) {
        out[0] = inputs[0].to(DType::f64);
        return out;
      }
      break;
    case OpId::to_device: out[0] = inputs[0]; return out;
    case OpId::adam_step_:
    case OpId::sgd_step_:
      run_optimizer(call, inputs);
      out[0] = inputs[0];
      return out;
    case OpId::unscale_:
      run_unscale(call, inputs);
      out[0] = inputs[0];
      return out;
    default: break;
  }
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  if (call.attrs->is<F8Attrs>()) {
    const Tensor y = dispatch(call.op, TensorRefs(refs.data(), call.inputs.size()), {}, call.where)[0];
    return {{times_scales(y, call.get<F8Attrs>(), call[0].device())}};
  }
  Attrs attrs = *call.attrs;
  if (call.op == OpId::cross_entropy || call.op == OpId::cross_entropy_backward) {
    auto a = call.get<CrossEntropyAttrs>();
    a.narrow = DType::f32;
    attrs = a;
  }
  return dispatch(call.op, TensorRefs(refs.data(), call.inputs.size()), attrs, call.where);
}

}  // namespace gradual::inspect
