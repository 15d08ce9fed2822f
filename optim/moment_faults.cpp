// What low precision did to Adam's second moments (Optimizer::moment_faults).
#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "optimizer.h"
#include "quantized_moments.h"
#include "rates.h"

namespace gradual::optim {
namespace {

std::int64_t count(const Tensor& mask) { return sum(mask).item<std::int64_t>(); }

// A moment in f32; undefined before the first step.
Tensor in_f32(const std::optional<QuantizedTensor>& codes, const Tensor& moment) {
  if (codes) return cast(codes->dequantize(), DType::f32);
  return moment.defined() ? cast(moment, DType::f32) : Tensor();
}

}  // namespace

std::string to_string(const MomentFaults& f) {
  if (f.all() == 0) return "";
  return fmt::format(
      "of {} second moments {} overflowed (no more steps), {} vanished (steps of m / eps), {} are stuck (steps too "
      "large); most in {}",
      f.elements, f.overflowed, f.vanished, f.stuck, f.parameter);
}

// The next second moment for the gradient `g`, as the optimizer would store it.
Tensor Optimizer::stored_next(const ParamState& s, const Tensor& v, const Tensor& g, double beta2) const {
  if (const Quantizer* q = moment_quantizer(options_, s.param, 1))
    return fake_quantize(v * beta2 + g * g * (1 - beta2), *q);
  const DType dtype = s.moments[1].dtype();
  const auto stored = [&](const Tensor& t) { return cast(cast(t, dtype), DType::f32); };
  if (options_.pure_arithmetic) return stored(stored(v * beta2) + g * g * (1 - beta2));
  return stored(v * beta2 + g * g * (1 - beta2));
}

MomentFaults Optimizer::moment_faults() {
  MomentFaults faults;
  if (update_rule_.op != OpId::adam_step_) return faults;
  const NoGrad off;
  const StageScope amp(chain().amp, nullptr);
  const StageScope exact(chain().results, nullptr);
  device_steps_.read();
  std::int64_t most = 0;
  for (const ParamState& s : states_) {
    const Quantizer* const q = moment_quantizer(options_, s.param, 1);
    const Tensor m = in_f32(s.codes[0], s.moments[0]);
    const Tensor v = in_f32(s.codes[1], s.moments[1]);
    if (s.steps == 0 || !m.defined() || !v.defined() || (!q && !is_half(s.moments[1].dtype()))) continue;
    const Rates rates = rates_of(groups_[s.group]);
    const Tensor finite = lt(v, HUGE_VAL);  // false for NaN
    const Tensor zero = eq(v, 0.0);
    const double seen1 = 1 - update_rules::whole_power(rates.beta1, s.steps);
    const double seen2 = 1 - update_rules::whole_power(rates.beta2, s.steps);
    const Tensor g = m / seen1;  // the mean gradient
    MomentFaults here{.elements = v.numel()};
    here.overflowed = count(logical_not(finite));
    here.vanished = count(logical_and(zero, ne(m, 0.0)));
    if (!q || q->rounding.mode != RoundingMode::stochastic) {  // which moves on average
      const Tensor low = lt(v / seen2 * 1.44, g * g);
      const Tensor stays = le(stored_next(s, v, g, rates.beta2), v);
      here.stuck = count(logical_and(logical_and(low, stays), logical_and(finite, logical_not(zero))));
    }
    faults.elements += here.elements;
    faults.overflowed += here.overflowed;
    faults.vanished += here.vanished;
    faults.stuck += here.stuck;
    if (here.all() <= most) continue;
    most = here.all();
    faults.parameter = s.name;
  }
  return faults;
}

}  // namespace gradual::optim
