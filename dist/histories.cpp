#include "histories.h"

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>

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

// An empty history: its first amax is the shard's.
void SharedHistories::begin_shard() {
  if (!state_) return;
  for_delayed(*state_, [&](const std::string& name, AmaxHistory& h, const Quantizer&) {
    const AmaxHistory& start = before_.try_emplace(name, h).first->second;
    h = start;
    h.amax.clear();
  });
}

void SharedHistories::end_shard() {
  if (!state_) return;
  for_delayed(*state_, [&](const std::string& name, AmaxHistory& h, const Quantizer&) {
    before_.try_emplace(name);  // a site that this shard was the first to meet
    if (h.read().amax.empty()) return;
    float& most = amax_.try_emplace(name, 0.0f).first->second;
    const float seen = h.amax.front();
    if (!(seen <= most)) most = seen;  // NaN stays
  });
}

void SharedHistories::end_step(Communicator& ranks) {
  if (!state_) return;
  std::string own;
  for (const auto& [name, amax] : amax_) own += fmt::format("{}\t{}\n", name, std::bit_cast<std::uint32_t>(amax));
  for (const std::string& text : ranks.all_gather(own)) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t tab = line.rfind('\t');
      const auto seen = std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(line.substr(tab + 1))));
      float& most = amax_.try_emplace(line.substr(0, tab), 0.0f).first->second;
      if (!(seen <= most)) most = seen;
    }
  }
  std::size_t known = 0;
  for_delayed(*state_, [&](const std::string& name, AmaxHistory& h, const Quantizer& q) {
    const auto start = before_.find(name);
    if (start != before_.end()) h = start->second;
    const auto amax = amax_.find(name);
    if (amax == amax_.end()) return;
    ++known;
    h.stage(amax->second);
    h.advance(q.scaling, q.format);
  });
  if (known != amax_.size())
    throw_error(
        "data-parallel training: another rank ran a product that this rank has not met; a first batch must have "
        "a sample for each rank");
  before_.clear(), amax_.clear();
}

}  // namespace gradual::dist
