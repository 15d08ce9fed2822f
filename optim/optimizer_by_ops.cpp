// The update of a parameter by an optimizer that is written with ops (Optimizer::update).
#include "../core/observe/update_event.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "optimizer.h"

namespace gradual::optim {

// Keeps these streams of stochastic rounding apart from those of the fused ops (kFusedRoundingKey).
constexpr std::uint64_t kByOpsRoundingKey = 0x6772616475616c23;

Tensor Optimizer::update(const Update&) {
  throwf("optimizer: {} has neither a fused row nor an update(); override update(const Update&)", update_rule_.kind);
}

void Optimizer::step_by_ops(const Live& live, const GradientScale& by) {
  const StageScope amp(chain().amp, nullptr);
  ParamState& s = *live.state;
  const Tensor& p = s.param;
  prepare_state(s);
  const DType dtype = p.dtype() == DType::f64 || options_.pure_arithmetic ? p.dtype() : DType::f32;
  Tensor gradient = cast(s.wide_stands(live.gradient) ? s.wide_gradient : live.gradient, dtype);
  if (by.inverse != 1) gradient = gradient * by.inverse;
  Tensor weight = s.master.defined() ? s.master : cast(p, dtype);
  if (s.compensation.defined()) weight = weight + cast(s.compensation, dtype);

  UpdateEvent event{.optimizer = update_rule_.kind,
                    .op = {},
                    .parameter = p,
                    .target = p,
                    .gradient = gradient,
                    .master = s.master,
                    .compensation = s.compensation,
                    .state = std::span<const Tensor>(s.moments, moments(s).size())};
  event.tell_before();
  std::vector<Tensor> state;
  for (std::size_t k = 0; k < moments(s).size(); ++k) state.push_back(cast(s.moments[k], dtype));
  const std::int64_t step = s.steps + 1;
  Tensor next = update({weight, gradient, state, groups_[s.group], step});
  const auto check = [&](const Tensor& t, std::string_view what) {
    if (!t.defined() || t.sizes() != p.sizes() || t.dtype() != dtype || t.device() != p.device())
      throwf("optimizer: {}: update() gave {} {} for {}; it must be {} {} on {}", update_rule_.kind, what, describe(t),
             s.name, to_string(p.sizes()), to_string(dtype), to_string(p.device()));
  };
  check(next, "a weight");
  for (std::size_t k = 0; k < state.size(); ++k) check(state[k], moments(s)[k]);

  // A result may share memory with another state tensor, which is written next.
  const auto own = [&](Tensor& t, const Tensor& place) {
    for (std::size_t k = 0; k < state.size(); ++k)
      if (!s.moments[k].is_same(place) && t.shares_storage(s.moments[k])) t = clone(t);
  };
  own(next, Tensor());
  for (std::size_t k = 0; k < state.size(); ++k) own(state[k], s.moments[k]);
  for (std::size_t k = 0; k < state.size(); ++k)
    if (!state[k].is_same(s.moments[k])) s.moments[k].copy_(state[k]);
  if (s.master.defined()) s.master.copy_(next);
  if (s.is_low() && options_.update == LowPrecisionUpdate::stochastic)
    p.copy_(fake_quantize(next, format_of(p.dtype()), {RoundingMode::stochastic}, Overflow::ieee,
                          {options_.seed ^ kByOpsRoundingKey, (static_cast<std::uint64_t>(s.steps) << 24) + s.index}));
  else p.copy_(next);
  if (s.compensation.defined()) s.compensation.copy_(next - cast(p, dtype));
  event.next = next;
  event.next_state = state;
  event.tell_after();
  encode_moments(s, {});
  s.steps = step;
  s.wide = ParamState::Wide::stale;
  s.written = Stamp(p);
}

}  // namespace gradual::optim
