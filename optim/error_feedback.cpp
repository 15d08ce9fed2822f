// LowPrecisionUpdate::eco: what rounding a weight loses goes into its momentum (ECO, Nikdan et al. 2026, arXiv
// 2601.22101), so that no masters are needed. A part 1 - beta of what the momentum has returns in the next step, beta
// (1 - beta) in the one after, and so on: in all it is the error. A changed learning rate changes what still returns.
#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "optimizer.h"

namespace gradual::optim {
namespace {

constexpr std::size_t kFirst = 0;
constexpr std::size_t kSecond = 1;

// m = momentum m + ..;  w -= lr m, or with Nesterov's look-ahead lr (.. + momentum m).
Tensor fed_to_sgd(const SgdAttrs& a, const Tensor& error) {
  const double ahead = a.nesterov ? a.momentum : 1;
  return error * ((1 - 1 / a.momentum) / (a.lr * ahead));
}

// m = beta1 m + ..;  w -= lr / correction1 m / (sqrt(v) / correction2_root + eps).
Tensor fed_to_adam(const AdamAttrs& a, const Tensor& v, const Tensor& error) {
  const Tensor denominator = sqrt(cast(v, DType::f32)) / a.correction2_root + a.eps;
  return error * denominator * ((1 - 1 / a.beta1) * a.correction1 / a.lr);
}

}  // namespace

void Optimizer::check_feedback() const {
  if (options_.update != LowPrecisionUpdate::eco) return;
  if (update_rule_.op != OpId::sgd_step_ && update_rule_.op != OpId::adam_step_)
    throwf("optimizer: {}: eco updates are for SGD, Adam and AdamW", update_rule_.kind);
  if (options_.moments[kFirst])
    throw_error("optimizer: eco updates add to the first moment, which cannot be kept as codes");
  for (const ParamGroup& group : groups_)
    if (const auto& beta = update_rule_.op == OpId::sgd_step_ ? group.momentum : group.beta1; beta.value_or(0) == 0)
      throwf("optimizer: eco updates add to the momentum; {} of {} is 0",
             update_rule_.op == OpId::sgd_step_ ? "momentum" : "beta1", update_rule_.kind);
}

// steps: those before the one that the error is of.
void Optimizer::add_to_momentum(const ParamState& s, std::int64_t steps, const Tensor& error) const {
  const Tensor& m = s.moments[kFirst];
  const Rates rates = rates_of(groups_[s.group]);
  if (!m.defined() || steps < 0 || rates.lr == 0) return;
  const Attrs attrs = update_rule_.attrs(rates, steps, {});
  const Tensor wide = cast(error, DType::f32);
  const Tensor v =
      s.moments[kSecond].defined() || !s.codes[kSecond] ? s.moments[kSecond] : s.codes[kSecond]->dequantize();
  const Tensor fed = update_rule_.op == OpId::sgd_step_ ? fed_to_sgd(attrs.get<SgdAttrs>(), wide)
                                                        : fed_to_adam(attrs.get<AdamAttrs>(), v, wide);
  Tensor(m).copy_(cast(m, DType::f32) + fed);
}

void Optimizer::feed_back(const Tensor& param, const Tensor& error) {
  if (options_.update != LowPrecisionUpdate::eco) return;
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  const ParamState& s = state_of(param);
  if (error.sizes() != param.sizes())
    throwf("optimizer: the rounding error of {} is {}; its parameter is {}", s.name, to_string(error.sizes()),
           to_string(param.sizes()));
  add_to_momentum(s, s.steps - 1, error);
}

}  // namespace gradual::optim
