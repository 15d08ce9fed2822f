#include "histories.h"

#include <bit>
#include <map>
#include <sstream>
#include <variant>

#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

using amp::Quantization, amp::QuantizationState;

// Calls f(name, history, quantizer) for the histories that delayed scaling advances.
template <class F> void for_delayed(QuantizationState& state, const F& f) {
  for (const auto& site : state.sites()) {
    if (!site->quantization) continue;
    const Quantization& q = *site->quantization;
    const auto delayed = [](const std::optional<Quantizer>& o) { return o && is_any<DelayedScale>(o->scaling); };
    if (delayed(q.forward_x)) f(site->name + "\tx", site->x, *q.forward_x);
    if (delayed(q.forward_w)) f(site->name + "\tw", site->w, *q.forward_w);
    const auto& dy = delayed(q.dgrad_dy) ? q.dgrad_dy : q.wgrad_dy;
    if (delayed(dy)) f(site->name + "\tdy", site->dy, *dy);
  }
}

}  // namespace

void advance_histories(QuantizationState& state, Communicator& ranks) {
  std::string own;
  for_delayed(state, [&](const std::string& name, AmaxHistory& h, const Quantizer&) {
    if (h.is_staged) own += fmt::format("{}\n{}\n", name, std::bit_cast<std::uint32_t>(h.read().staged));
  });
  std::map<std::string, std::vector<float>> staged;  // by site and operand
  for (const std::string& text : ranks.all_gather(own)) {
    std::istringstream lines(text);
    for (std::string name, bits; std::getline(lines, name) && std::getline(lines, bits);)
      staged[name].push_back(std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(bits))));
  }
  std::size_t known = 0;
  for_delayed(state, [&](const std::string& name, AmaxHistory& h, const Quantizer& q) {
    const auto amaxes = staged.find(name);
    if (amaxes == staged.end()) return;
    ++known;
    for (const float amax : amaxes->second) h.stage(amax);
    h.advance(std::get<DelayedScale>(q.scaling), q.format);
  });
  if (known != staged.size())
    throw_error(
        "data-parallel training: another rank ran a product that this rank has not met; a first batch must have "
        "a sample for each rank");
}

}  // namespace gradual::dist
