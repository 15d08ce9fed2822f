#include "histories.h"

#include <algorithm>
#include <bit>
#include <map>
#include <sstream>
#include <variant>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

using amp::Quantization, amp::QuantizationState;

[[noreturn]] void refuse_unknown_product() {
  throw_error(
      "data-parallel training: another rank ran a product that this rank has not met; a first batch must have "
      "a sample for each rank");
}

// Calls f(name, history, site, role) for the histories that delayed scaling advances and learned scaling begins with.
template <class F> void for_staged(QuantizationState& state, const F& f) {
  using amp::Role;
  for (const auto& site : state.sites()) {
    if (!site->quantization) continue;
    const Quantization& q = *site->quantization;
    const std::string name = to_string(site->name);
    const auto stages = [](const std::optional<Quantizer>& o) {
      return o && is_any<DelayedScale, LearnedScale>(o->scaling);
    };
    if (stages(q.forward_x)) f(name + "\tx", site->x, *site, Role::activation);
    if (stages(q.forward_w)) f(name + "\tw", site->w, *site, Role::weight);
    if (stages(q.dgrad_dy) || stages(q.wgrad_dy)) f(name + "\tdy", site->dy, *site, Role::error);
  }
}

// Adds up the sizes of channels of all shards, of each rank in order.
void take_sizes(QuantizationState& state, Communicator& ranks) {
  if (!state.measures_channels()) return;
  std::string own;
  for (const auto& site : state.sites())
    if (const Tensor& sizes = site->channels.staged(); sizes.defined()) {
      own += to_string(site->name) + "\n";
      for (const double size : sizes.to_vector<double>()) own += fmt::format("{} ", std::bit_cast<std::uint64_t>(size));
      own += "\n";
    }
  const std::vector<std::string> all = ranks.all_gather(own);
  for (const auto& site : state.sites()) site->channels.forget_staged();
  for (const std::string& text : all) {
    std::istringstream lines(text);
    for (std::string name, sizes; std::getline(lines, name) && std::getline(lines, sizes);) {
      std::istringstream words(sizes);
      std::vector<double> values;
      for (std::uint64_t bits = 0; words >> bits;) values.push_back(std::bit_cast<double>(bits));
      const auto site = std::ranges::find(state.sites(), name, [](const auto& s) { return to_string(s->name); });
      if (site == state.sites().end()) refuse_unknown_product();
      (*site)->channels.stage(from_data(values, {std::ssize(values)}));
    }
  }
  for (const auto& site : state.sites()) site->channels.take_staged();
}

}  // namespace

void advance_histories(QuantizationState& state, Communicator& ranks) {
  take_sizes(state, ranks);
  std::string own;
  using Site = QuantizationState::Site;
  for_staged(state, [&](const std::string& name, AmaxHistory& h, const Site&, amp::Role) {
    if (h.is_staged) own += fmt::format("{}\n{}\n", name, std::bit_cast<std::uint32_t>(h.read().staged));
  });
  std::map<std::string, std::vector<float>> staged;  // by site and operand
  for (const std::string& text : ranks.all_gather(own)) {
    std::istringstream lines(text);
    for (std::string name, bits; std::getline(lines, name) && std::getline(lines, bits);)
      staged[name].push_back(std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(bits))));
  }
  std::size_t known = 0;
  for_staged(state, [&](const std::string& name, AmaxHistory& h, Site& site, amp::Role role) {
    const auto amaxes = staged.find(name);
    if (amaxes == staged.end()) return;
    ++known;
    for (const float amax : amaxes->second) h.stage(amax);
    site.take_staged(role);
  });
  if (known != staged.size()) refuse_unknown_product();
}

}  // namespace gradual::dist
