// FP32 masters of f16 and bf16 parameters.
#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../core/tensor/memory.h"
#include "optimizer.h"

namespace gradual::optim {

static Tensor fp32_copy(const Tensor& param) {
  const CategoryScope category(Category::masters);
  const Tensor wide = contiguous(cast(param, DType::f32));
  return wide.shares_storage(param) ? clone(wide) : wide;
}

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
    s.master = fp32_copy(p);
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
      s.master = flat_masters_[s.group] = Tensor();
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

void Optimizer::keep_master(const Tensor& param) {
  ParamState& s = state_of(param);
  s.written = Stamp(s.param);
}

}  // namespace gradual::optim
