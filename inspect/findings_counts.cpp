#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "findings.h"

namespace gradual::inspect::rules {
namespace {

using amp::Recipe, amp::Role;

// Powers of two between the largest number and the format's, from which on there is room.
constexpr double kRoomBits = 4;
constexpr double kSomeClipped = 1e-3;
constexpr double kMostArrives = 0.75;  // of the intended update

std::string in_layer(const std::string& path) { return path.empty() ? "ops outside of all layers" : "layer " + path; }

// Whether a quantiser of an operand, in its two products, scales like this.
bool any_scaling(const Evidence& e, Role role, bool (*like)(const Scaling&)) {
  const auto& recipe = e.recipe->quantization;
  return recipe && std::ranges::any_of(amp::kOperandQuantizers[static_cast<int>(role)], [&](const auto field) {
           return *recipe.*field && like((*recipe.*field)->scaling);
         });
}
bool delays(const Evidence& e, Role role) {
  return any_scaling(e, role, [](const Scaling& s) { return s.kind == ScalingKind::delayed; });
}
bool rounds_scales_down(const Evidence& e, Role role) {
  return any_scaling(e, role, [](const Scaling& s) {
    return s.kind == ScalingKind::block && s.scale != ScaleFormat::f32 && s.rule == ScaleRule::floor;
  });
}

// The powers of two between nearly all numbers, as they are rounded, and the largest of their format.
double room(const amp::CastTally& tally, const std::optional<Format>& format) {
  if (!format) return 0;
  std::uint64_t all = 0, above = 0;
  const auto& bins = tally.exponents.bins;
  for (std::size_t i = 0; i + 1 < bins.size(); ++i) all += bins[i];
  std::size_t top = bins.size() - 1;
  while (top > 0 && above <= all / 1000) above += bins[--top];
  return format->max_exponent() - (static_cast<int>(top) - 127);
}

double clipped_share(const CastCounts& c) { return share(c.overflow, c.elements); }

// What a role loses in a layer.
struct Loss {
  Role role;
  std::string layer;
  double small = 0, large = 0;  // shares that become 0, and that exceed the format
  double room = 0;
};

std::vector<Loss> losses(const Evidence& e) {
  std::vector<Loss> all;
  for (const auto& [key, tally] : e.casts) {
    const CastCounts& c = tally.counts;
    if (c.elements > 0)
      all.push_back({key.first, key.second, lost_share(c), clipped_share(c),
                     room(tally, amp::counted_format(*e.recipe, key.first))});
  }
  return all;
}

bool is_gradient(Role role) { return role == Role::error || role == Role::weight_gradient; }

std::vector<Cure> cures_of(const Loss& l, const Evidence& e) {
  const Recipe& r = *e.recipe;
  if (!r.quantization) {
    if (r.dtype != DType::f16) return {};
    if (is_gradient(l.role) && l.small > l.large) return {cures::dynamic_scale(r), cures::bf16(r)};
    return {cures::bf16(r)};
  }
  std::vector<Cure> all = {cures::scales(r), cures::layer_in_f32(r, l.layer), cures::role_in_f32(r, l.role)};
  if (rounds_scales_down(e, l.role)) all.insert(all.begin(), cures::rceil(r));
  return all;
}

// Of numbers that a layer loses, and of the op that loses most.
Finding lost_in(const Loss& l, const Evidence& e, std::string cause, std::string sentence,
                double (*share_of)(const CastCounts&)) {
  Finding f{.cause = std::move(cause), .phase = is_gradient(l.role) ? "backward" : "forward", .site = l.layer};
  Worst worst;
  for (const auto* s : {&e.first, &e.late})
    if (!worst.row)
      worst.take(*s, [&](const LedgerRow& r) {
        return to_string(r.phase) == f.phase && r.module == l.layer ? share_of(r.counts) : 0;
      });
  if (worst.row) f.op = worst.row->op;
  f.sentence = std::move(sentence), f.cures = cures_of(l, e);
  return f;
}

constexpr const char* kEarlier = ": their scale comes from earlier amaxes";

Finding of_large(const Loss& l, const Evidence& e, const std::string& format) {
  const bool delayed = delays(e, l.role), floor = rounds_scales_down(e, l.role);
  Finding f = lost_in(l, e,
                      delayed ? "delayed-scale"
                      : floor ? "floor-clipping"
                              : "clipping",
                      fmt::format("{} of the {}s of {} exceed the largest number of {}{}", percent(l.large),
                                  to_string(l.role), in_layer(l.layer), format,
                                  delayed ? kEarlier
                                  : floor ? ": FLOOR rounds the scales of blocks down"
                                          : ""),
                      clipped_share);
  f.severity = std::min(1.0, 4 * l.large);  // the largest numbers carry most of the signal
  return f;
}

Finding of_small(const Loss& l, const Evidence& e, const std::string& format) {
  const bool gradient = is_gradient(l.role), room = l.room > kRoomBits;
  const bool delayed = delays(e, l.role) && (room || l.large > kSomeClipped);
  const bool low_scale = gradient && e.recipe->scaling && room;
  std::string sentence = fmt::format("{} of the {}s of {} that are not 0 become 0 in {}", percent(l.small),
                                     to_string(l.role), in_layer(l.layer), format);
  if (delayed) sentence += kEarlier;
  if (low_scale) sentence += fmt::format(": the loss scale leaves 2^{:.0f} unused above the largest of them", l.room);
  const char* cause = delayed                  ? "delayed-scale"
                      : low_scale              ? "scale-too-low"
                      : gradient               ? "gradient-underflow"
                      : e.recipe->quantization ? "format-range"
                                               : "activation-underflow";
  Finding f = lost_in(l, e, cause, std::move(sentence), lost_share);
  f.severity = l.small * (gradient ? 0.95 : 1);  // of equals, what comes first in a step
  return f;
}

// How many layers before this one, counted from the loss, get errors of zeros alone.
std::string zeros_before(const Evidence& e, const std::string& layer) {
  for (const std::string& path : e.layers) {
    if (path == layer) break;
    const auto tally = e.casts.find({Role::error, path});
    if (tally == e.casts.end()) continue;
    const CastCounts& c = tally->second.counts;
    if (c.elements && c.zeros + c.underflow >= c.elements) return "; from there on to " + in_layer(path) + " all is 0";
  }
  return "";
}

}  // namespace

std::vector<Finding> of_casts(const Evidence& e) {
  std::vector<Finding> found;
  if (amp::counted_as_if(*e.recipe)) return found;
  const std::string format = e.recipe->quantization ? "its format" : std::string(to_string(e.recipe->dtype));
  std::vector<Loss> all = losses(e);
  // Errors from the loss backwards: what comes after the first place is its consequence.
  const auto place = [&](const Loss& l) {
    const std::string path = l.layer.substr(0, l.layer.find('#'));
    return path.empty() ? e.layers.end() : std::ranges::find(e.layers, path);
  };
  std::ranges::stable_sort(all, [&](const Loss& a, const Loss& b) { return place(a) > place(b); });
  for (const Role role : {Role::error, Role::weight_gradient, Role::activation, Role::weight}) {
    const Loss *small = nullptr, *large = nullptr;
    for (const Loss& l : all) {
      if (l.role != role) continue;
      const double most = rounds_scales_down(e, role) ? kManyClippedByFloor : kManyClipped;
      if (l.large > std::max(most, large ? large->large : 0)) large = &l;
      const bool nearest = small && is_gradient(role);
      if (!nearest && l.small > std::max(kManyVanish, small ? small->small : 0)) small = &l;
    }
    const bool gradients = std::ranges::any_of(found, [](const Finding& f) { return f.phase == "backward"; });
    if (large) found.push_back(of_large(*large, e, format));
    if (!small || (role == Role::weight_gradient && gradients)) continue;
    found.push_back(of_small(*small, e, format));
    if (role == Role::error) found.back().sentence += zeros_before(e, small->layer);
  }
  return found;
}

Found of_updates(const Evidence& e) {
  std::map<std::string, Update> sums;
  for (const Update& u : e.updates) sums[u.parameter] += u;
  const Update* worst = nullptr;
  std::int64_t intended = 0, vanished = 0;
  double wanted = 0, made = 0;
  for (const auto& [name, s] : sums) {
    intended += s.intended, vanished += s.vanished;
    wanted += s.intended_squares, made += s.product;
    if (!worst || s.vanished_percent() > worst->vanished_percent()) worst = &s;
  }
  const double part = share(vanished, intended);
  if (!worst || part < kManyVanish) return {};
  if (made > kMostArrives * wanted) return {};  // stochastic updates: most stay, and the others make up for it
  Finding f{.cause = "update-vanishes", .phase = "optimizer", .op = worst->op, .site = worst->parameter};
  f.sentence = fmt::format(
      "{} of all updates vanish, for they are below half an ulp of the weights in {}; most in {}: {}", percent(part),
      to_string(e.recipe->dtype), worst->parameter, percent(worst->vanished_percent() / 100));
  f.severity = wanted > 0 ? std::clamp(1 - made / wanted, 0.0, 1.0) : part;
  f.cures = {cures::masters(*e.recipe)};
  return f;
}

}  // namespace gradual::inspect::rules
