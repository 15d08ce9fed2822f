#include "histories.h"

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

using amp::Quantization, amp::QuantizationState;

// Calls f(name, history, quantizer) for the histories that delayed scaling advances.
template <class F> void for_delayed(QuantizationState& state, const F& f) {
  for (const auto& site : state.sites()) {
    if (!site->quantization) continue;
    const auto visit = [&](const char* operand, AmaxHistory& h, std::initializer_list<std::optional<Quantizer>> of) {
      for (const std::optional<Quantizer>& q : of)
        if (q && q->scaling.kind == ScalingKind::delayed) return f(site->name + "\t" + operand, h, *q);
    };
    const Quantization& q = *site->quantization;
    visit("x", site->x, {q.forward_x});
    visit("w", site->w, {q.forward_w});
    visit("dy", site->dy, {q.dgrad_dy, q.wgrad_dy});
  }
}

}  // namespace

void advance_histories(QuantizationState& state, Communicator& ranks) {
  std::string own;
  for_delayed(state, [&](const std::string& name, AmaxHistory& h, const Quantizer&) {
    if (h.is_staged) own += fmt::format("{}\t{}\n", name, std::bit_cast<std::uint32_t>(h.read().staged));
  });
  std::map<std::string, std::vector<float>> staged;  // by site and operand
  for (const std::string& text : ranks.all_gather(own)) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t tab = line.rfind('\t');
      const auto bits = static_cast<std::uint32_t>(std::stoul(line.substr(tab + 1)));
      staged[line.substr(0, tab)].push_back(std::bit_cast<float>(bits));
    }
  }
  std::size_t known = 0;
  for_delayed(state, [&](const std::string& name, AmaxHistory& h, const Quantizer& q) {
    const auto amaxes = staged.find(name);
    if (amaxes == staged.end()) return;
    ++known;
    for (const float amax : amaxes->second) h.stage(amax);
    h.advance(q.scaling, q.format);
  });
  if (known != staged.size())
    throw_error(
        "data-parallel training: another rank ran a product that this rank has not met; a first batch must have "
        "a sample for each rank");
}

}  // namespace gradual::dist
