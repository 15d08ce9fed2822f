#include "histories.h"

#include <algorithm>
#include <bit>
#include <functional>
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

// A history that delayed scaling advances or learned scaling begins with.
struct Staging {
  std::string name;
  AmaxHistory* history;
  std::function<void()> take;  // what was staged
};

void add_attention(std::vector<Staging>& all, QuantizationState::Site& site) {
  const amp::AttentionPrecision* const precision = site.state->attention_of_module(site.name.layer);
  if (!site.attention || !precision) return;
  for (const amp::AttentionField& field : amp::kAttentionFields) {
    const std::optional<Quantizer>& quantizer = (*precision).*field.quantizer;
    if (!quantizer || !is_any<DelayedScale>(quantizer->scaling)) continue;
    amp::AttentionHistories& histories = *site.attention;
    const auto take = [&histories, precision, &field] { histories.take_staged(*precision, field); };
    all.push_back(
        {fmt::format("{}\tattention.{}", to_string(site.name), field.name), &histories.of(field.quantizer), take});
  }
}

std::vector<Staging> stagings(QuantizationState& state) {
  using amp::Role;
  std::vector<Staging> all;
  for (const auto& each : state.sites()) {
    QuantizationState::Site& site = *each;
    add_attention(all, site);
    if (!site.quantization) continue;
    const Quantization& q = *site.quantization;
    const std::string name = to_string(site.name);
    const auto stages = [](const std::optional<Quantizer>& o) {
      return o && is_any<DelayedScale, LearnedScale>(o->scaling);
    };
    const auto add = [&](const char* operand, AmaxHistory& history, Role role) {
      all.push_back({name + operand, &history, [&site, role] { site.take_staged(role); }});
    };
    if (stages(q.forward_x)) add("\tx", site.x, Role::activation);
    if (stages(q.forward_w)) add("\tw", site.w, Role::weight);
    if (stages(q.dgrad_dy) || stages(q.wgrad_dy)) add("\tdy", site.dy, Role::error);
  }
  return all;
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
  const std::vector<Staging> all = stagings(state);
  for (const Staging& one : all)
    if (one.history->is_staged)
      own += fmt::format("{}\n{}\n", one.name, std::bit_cast<std::uint32_t>(one.history->read().staged));
  std::map<std::string, std::vector<float>> staged;  // by site and operand
  for (const std::string& text : ranks.all_gather(own)) {
    std::istringstream lines(text);
    for (std::string name, bits; std::getline(lines, name) && std::getline(lines, bits);)
      staged[name].push_back(std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(bits))));
  }
  std::size_t known = 0;
  for (const Staging& one : all) {
    const auto amaxes = staged.find(one.name);
    if (amaxes == staged.end()) continue;
    ++known;
    for (const float amax : amaxes->second) one.history->stage(amax);
    one.take();
  }
  if (known != staged.size()) refuse_unknown_product();
}

}  // namespace gradual::dist
