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

std::vector<Optimizer::StatePlace> Optimizer::state_places(const ParamState& s, DType dtype) const {
  std::vector<StatePlace> out;
  for (std::size_t k = 0; k < moments(s).size(); ++k) out.push_back({moments(s)[k], s.moments[k], dtype});
  for (const Tensor& t : s.statistics) out.push_back({"a statistic", t, t.dtype()});
  return out;
}

namespace {

// Writes what an update gave. A result may share memory with another state tensor, which is written next. Results from
// `statistics` on are not rounded.
template <class Places>
void store_state(const Places& places, std::vector<Tensor>& state, std::size_t statistics, Tensor& next) {
  const auto own = [&](Tensor& t, const Tensor& place) {
    for (const auto& other : places)
      if (!other.place.is_same(place) && t.shares_storage(other.place)) t = clone(t);
  };
  own(next, Tensor());
  Interceptor* const rounding = chain().results;
  for (std::size_t k = 0; k < state.size(); ++k) {
    const StageScope results(chain().results, k < statistics ? rounding : nullptr);
    own(state[k], places[k].place);
  }
  for (std::size_t k = 0; k < state.size(); ++k) {
    const StageScope results(chain().results, k < statistics ? rounding : nullptr);
    if (!state[k].is_same(places[k].place)) Tensor(places[k].place).copy_(state[k]);
  }
}

}  // namespace

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
  const std::vector<StatePlace> places = state_places(s, dtype);
  std::vector<Tensor> state;
  state.reserve(places.size());
  for (const StatePlace& place : places) state.push_back(cast(place.place, place.dtype));
  const std::int64_t step = s.steps + 1;
  const std::size_t of_moments = moments(s).size();
  const std::span<Tensor> all(state);
  Tensor next = update({weight, gradient, all.first(of_moments), groups_[s.group], step, all.subspan(of_moments)});
  const auto check = [&](const Tensor& t, std::string_view what, const Shape& sizes, DType wanted) {
    if (!t.defined() || t.sizes() != sizes || t.dtype() != wanted || t.device() != p.device())
      throwf("optimizer: {}: update() gave {} {} for {}; it must be {} {} on {}", update_rule_.kind, what, describe(t),
             s.name, to_string(sizes), to_string(wanted), to_string(p.device()));
  };
  check(next, "a weight", p.sizes(), dtype);
  for (std::size_t k = 0; k < state.size(); ++k)
    check(state[k], places[k].name, places[k].place.sizes(), places[k].dtype);
  store_state(places, state, of_moments, next);
  if (s.master.defined()) s.master.copy_(next);
  if (s.is_low() && options_.update == LowPrecisionUpdate::stochastic)
    p.copy_(fake_quantize(next, format_of(p.dtype()), {RoundingMode::stochastic}, Overflow::ieee,
                          {options_.seed ^ kByOpsRoundingKey, (static_cast<std::uint64_t>(s.steps) << 24) + s.index}));
  else p.copy_(next);
  if (s.compensation.defined()) s.compensation.copy_(next - cast(p, dtype));
  event.next = next;
  event.next_state = all.first(of_moments);
  event.tell_after();
  encode_moments(s, {});
  s.steps = step;
  s.wide = ParamState::Wide::stale;
  s.written = Stamp(p);
}

}  // namespace gradual::optim
