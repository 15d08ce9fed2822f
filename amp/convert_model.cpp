#include "convert_model.h"

#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../nn/norm.h"
#include "autocast.h"

namespace gradual::amp {

static void convert(nn::Module& model, DType dtype, const char* who, bool norms) {
  if (!is_half(dtype))
    throwf("{}: converts to f16 or bf16, not to {}; use Module::to for other dtypes", who, to_string(dtype));
  model.to(dtype, [norms](const nn::Module& m) { return norms || dynamic_cast<const nn::Norm*>(&m) == nullptr; });
}
void to_half(nn::Module& model, DType dtype) { convert(model, dtype, "to_half", false); }
void to_pure(nn::Module& model, DType dtype) { convert(model, dtype, "to_pure", true); }

StateDict master_state_dict(const nn::Module& model, optim::Optimizer& optimizer) {
  const NoGrad off;
  std::unordered_map<std::uint64_t, Tensor> masters;  // by the parameter's storage
  for (const optim::ParamGroup& group : optimizer.param_groups())
    for (const Tensor& p : group.params)
      if (const Tensor master = optimizer.master(p); !master.is_same(p)) masters[p.unsafe_impl()->storage->id] = master;
  StateDict wide;
  for (const auto& [name, value] : model.state_dict()) {
    const Tensor& stored = std::get<Tensor>(value);
    const auto found = masters.find(stored.unsafe_impl()->storage->id);
    const bool has_master = found != masters.end() && found->second.sizes() == stored.sizes();
    wide.set(name, has_master ? found->second : is_half(stored.dtype()) ? cast(stored, DType::f32) : stored);
  }
  return wide;
}

void set_override(nn::Module& module, const Override& what) {
  if (what.dtype && !is_half(*what.dtype))
    throwf("set_override on {}: the dtype is f16 or bf16, not {}; {{.enabled = false}} computes in f32", module.kind(),
           to_string(*what.dtype));
  module.set_hook([what](nn::Module&) -> std::shared_ptr<void> {
    const AutocastOptions* around = current_autocast();
    if (!around) return nullptr;
    AutocastOptions options = *around;
    options.enabled = what.enabled.value_or(options.enabled);
    if (what.dtype) options.dtype = what.dtype;
    if (what.table) options.table = *what.table;
    return std::make_shared<Autocast>(options);
  });
}

}  // namespace gradual::amp
