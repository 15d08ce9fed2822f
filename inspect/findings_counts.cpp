#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "findings.h"

namespace gradual::inspect::rules {
namespace {

using amp::Recipe, amp::Role;

constexpr double kRoomBits =
    4;  // powers of two between the largest number and the format's, from which on there is room
constexpr double kSomeClipped = 1e-3;
constexpr double kMostArrives = 0.75;  // of the intended update

std::string in_layer(const std::string& path) { return path.empty() ? "ops outside of all layers" : "layer " + path; }

// The quantisers of an operand in its two products.
std::vector<const Quantizer*> quantizers_of(const Evidence& e, Role role) {
  std::vector<const Quantizer*> found;
  if (e.recipe->quantization)
    for (const auto field : amp::kOperandQuantizers[static_cast<int>(role)])
      if (const auto& q = *e.recipe->quantization.*field) found.push_back(&*q);
  return found;
}
bool any_scaling(const std::vector<const Quantizer*>& all, ScalingKind kind) {
  return std::ranges::any_of(all, [kind](const Quantizer* q) { return q->scaling.kind == kind; });
}
bool rounds_scales_down(const std::vector<const Quantizer*>& all) {
  return std::ranges::any_of(all, [](const Quantizer* q) {
    const Scaling& s = q->scaling;
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

double clipped_share(const CastCounts& c) { return static_cast<double>(c.overflow) / static_cast<double>(c.elements); }

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
  const std::vector<const Quantizer*> quantizers = quantizers_of(e, l.role);
  std::vector<Cure> all;
  if (any_scaling(quantizers, ScalingKind::delayed)) all.push_back(cures::current_scales(r));
  if (rounds_scales_down(quantizers)) all.push_back(cures::rceil(r));
  all.push_back(cures::scales(r));
  all.push_back(cures::layer_in_f32(r, l.layer));
  all.push_back(cures::role_in_f32(r, l.role));
  return all;
}

// The op that loses most in a layer, and the phase.
void name_op(Finding& f, const Loss& l, const Evidence& e, double (*share)(const CastCounts&)) {
  f.phase = is_gradient(l.role) ? "backward" : "forward";
  for (const auto* s : {&e.first, &e.late}) {
    const LedgerRow* worst = nullptr;
    if (*s)
      for (const LedgerRow& r : (*s)->ledger.rows())
        if (to_string(r.phase) == f.phase && r.module == l.layer && r.counts.elements &&
            share(r.counts) > (worst ? share(worst->counts) : 0))
          worst = &r;
    if (worst && f.op.empty()) f.op = worst->op;
  }
}

Finding of_large(const Loss& l, const Evidence& e, const std::string& format) {
  const auto quantizers = quantizers_of(e, l.role);
  const bool delayed = any_scaling(quantizers, ScalingKind::delayed), floor = rounds_scales_down(quantizers);
  Finding f{.cause = delayed ? "delayed-scale" : floor ? "floor-clipping" : "clipping", .site = l.layer};
  f.sentence = fmt::format("{} of the {}s of {} exceed the largest number of {}{}", percent(l.large), to_string(l.role),
                           in_layer(l.layer), format,
                           delayed ? ": their scale comes from earlier amaxes"
                           : floor ? ": FLOOR rounds the scales of blocks down"
                                   : "");
  f.severity = std::min(1.0, 4 * l.large);  // the largest numbers carry most of the signal
  f.cures = cures_of(l, e);
  name_op(f, l, e, clipped_share);
  return f;
}

Finding of_small(const Loss& l, const Evidence& e, const std::string& format) {
  const bool delayed =
      any_scaling(quantizers_of(e, l.role), ScalingKind::delayed) && (l.room > kRoomBits || l.large > kSomeClipped);
  const bool low_scale = is_gradient(l.role) && e.recipe->scaling && l.room > kRoomBits;
  Finding f{.cause = delayed                  ? "delayed-scale"
                     : low_scale              ? "scale-too-low"
                     : is_gradient(l.role)    ? "gradient-underflow"
                     : e.recipe->quantization ? "format-range"
                                              : "activation-underflow",
            .site = l.layer};
  f.sentence = fmt::format("{} of the {}s of {} that are not 0 become 0 in {}", percent(l.small), to_string(l.role),
                           in_layer(l.layer), format);
  if (delayed) f.sentence += ": their scale comes from earlier amaxes";
  if (low_scale) f.sentence += fmt::format(": the loss scale leaves 2^{:.0f} unused above the largest of them", l.room);
  f.severity = l.small * (is_gradient(l.role) ? 0.95 : 1);  // of equals, what comes first in a step
  f.cures = cures_of(l, e);
  name_op(f, l, e, lost_share);
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
      const double most = rounds_scales_down(quantizers_of(e, role)) ? kManyClippedByFloor : kManyClipped;
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
  const double share = intended ? static_cast<double>(vanished) / static_cast<double>(intended) : 0;
  if (!worst || share < kManyVanish) return {};
  if (made > kMostArrives * wanted) return {};  // stochastic updates: most stay, and the others make up for it
  Finding f{.cause = "update-vanishes", .phase = "optimizer", .op = worst->op, .site = worst->parameter};
  f.sentence = fmt::format(
      "{} of all updates vanish, for they are below half an ulp of the weights in {}; most in {}: {}", percent(share),
      to_string(e.recipe->dtype), worst->parameter, percent(worst->vanished_percent() / 100));
  f.severity = wanted > 0 ? std::clamp(1 - made / wanted, 0.0, 1.0) : share;
  f.cures = {cures::masters(*e.recipe)};
  return f;
}

}  // namespace gradual::inspect::rules
