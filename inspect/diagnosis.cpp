// diagnose(), and findings from counts over the sampled steps.
#include "diagnosis.h"

#include <fmt/format.h>

#include "findings.h"

namespace gradual::inspect {
namespace rules {
namespace {

using amp::Role;

constexpr double kManyClipped = 0.01, kManyClippedByFloor = 0.005, kSomeClipped = 0.001;
constexpr double kRises = 2, kManyLost = 0.1;
constexpr double kRoomBits = 4;  // powers of two above the largest number that leave room for a larger scale

std::string in_layer(const std::string& path) { return path.empty() ? "ops outside of all layers" : "layer " + path; }
bool is_gradient(Role role) { return role == Role::error || role == Role::weight_gradient; }
double clipped_share(const CastCounts& c) { return static_cast<double>(c.overflow) / static_cast<double>(c.elements); }

bool is_delayed(const Quantizer& q) { return q.scaling.kind == ScalingKind::delayed; }
bool is_floor(const Quantizer& q) {
  return q.scaling.kind == ScalingKind::block && q.scaling.scale != ScaleFormat::f32 &&
         q.scaling.rule == ScaleRule::floor;
}
// True if `is` holds for a quantiser of this operand in one of its two products.
bool any_quantizer(const Evidence& e, Role role, bool (*is)(const Quantizer&)) {
  return e.recipe->quantization &&
         std::ranges::any_of(amp::kOperandQuantizers[static_cast<int>(role)], [&](auto field) {
           const auto& q = *e.recipe->quantization.*field;
           return q && is(*q);
         });
}

// The powers of two between nearly all rounded numbers and the largest value of their format.
double room(const amp::CastTally& tally, const std::optional<Format>& format) {
  const auto& bins = tally.exponents.bins;
  std::uint64_t all = 0, above = 0;
  for (std::size_t i = 0; i + 1 < bins.size(); ++i) all += bins[i];
  std::size_t top = bins.size() - 1;
  while (top > 0 && above <= all / 1000) above += bins[--top];
  return format ? format->max_exponent() - (static_cast<int>(top) - 127) : 0;
}

// The loss of a role in a layer: the shares that become 0, and that exceed the format.
struct Loss {
  Role role;
  std::string layer;
  double small = 0, large = 0, room = 0;
};

std::vector<Cure> cures_of(const Loss& l, const Evidence& e) {
  const amp::Recipe& r = *e.recipe;
  std::vector<Cure> all;
  if (r.quantization) {
    if (any_quantizer(e, l.role, is_floor)) all.push_back(cures::rceil(r));
    all.insert(all.end(), {cures::scales(r), cures::layer_in_f32(r, l.layer), cures::fp8(r)});
  } else if (r.dtype == DType::f16) {
    if (is_gradient(l.role) && l.small > l.large) all.push_back(cures::dynamic_scale(r));
    all.push_back(cures::bf16(r));
  }
  return all;
}

// The op that loses most in a layer; null if only quantisers lose.
const LedgerRow* op_of(const Loss& l, const Evidence& e, double (*share)(const CastCounts&)) {
  const auto loss_of = [&](const LedgerRow& r) {
    const bool here = (r.phase == Phase::backward) == is_gradient(l.role) && r.module == l.layer;
    return here && r.counts.elements ? share(r.counts) : 0;
  };
  return std::get<1>(worst_of({&e.first, &e.late}, loss_of));
}

// Tells up to which layer all errors are zero.
std::string zeros_after(const Evidence& e, const std::string& layer) {
  for (const std::string& path : e.layers) {
    const auto tally = e.casts.find({Role::error, path});
    if (path == layer || tally == e.casts.end()) continue;
    const CastCounts& c = tally->second.counts;
    if (c.elements && c.zeros + c.underflow >= c.elements) return "; from there on to " + in_layer(path) + " all is 0";
  }
  return "";
}

Finding of_loss(const Loss& l, const Evidence& e, bool large) {
  const bool gradient = is_gradient(l.role), quantised = e.recipe->quantization.has_value(), room = l.room > kRoomBits;
  const bool delayed = any_quantizer(e, l.role, is_delayed) && (large || room || l.large > kSomeClipped);
  const bool floor = large && any_quantizer(e, l.role, is_floor),
             scale = !large && gradient && e.recipe->scaling && room;
  Finding f{.phase = gradient ? "backward" : "forward", .site = l.layer};
  if (const LedgerRow* r = op_of(l, e, large ? clipped_share : lost_share))
    f.op = r->op, f.site = l.layer.empty() ? r->line : l.layer;
  using Cause = std::pair<const char*, std::string>;  // and what made it
  const auto [cause, why] =
      delayed     ? Cause("delayed-scale", ": their scale comes from earlier amaxes")
      : floor     ? Cause("floor-clipping", ": FLOOR rounds the scales of blocks down")
      : large     ? Cause("clipping", "")
      : scale     ? Cause("scale-too-low",
                          fmt::format(": the loss scale leaves 2^{:.0f} unused above the largest of them", l.room))
      : gradient  ? Cause("gradient-underflow", "")
      : quantised ? Cause("format-range", "")
                  : Cause("activation-underflow", "");
  f.cause = cause;
  f.sentence = fmt::format("{} of the {}s of {} {} {}{}", percent(large ? l.large : l.small), to_string(l.role),
                           in_layer(l.layer), large ? "exceed the largest number of" : "that are not 0 become 0 in",
                           quantised ? "its format" : to_string(e.recipe->dtype), why);
  if (!large && l.role == Role::error) f.sentence += zeros_after(e, l.layer);
  // The largest numbers carry most of the signal. Of equal findings the first in a step counts.
  f.severity = large ? std::min(1.0, 4 * l.large) : l.small * (gradient ? 0.95 : 1), f.cures = cures_of(l, e);
  return f;
}

std::vector<Finding> of_casts(const Evidence& e) {
  std::vector<Finding> found;
  if (amp::counted_as_if(*e.recipe)) return found;
  std::vector<Loss> all;
  for (const auto& [key, tally] : e.casts)
    if (tally.counts.elements)
      all.push_back({key.first, key.second, lost_share(tally.counts), clipped_share(tally.counts),
                     room(tally, amp::counted_format(*e.recipe, key.first))});
  // Errors in the order from the loss backwards: what follows the first place is its consequence.
  const auto place = [&e](const Loss& l) {
    return l.layer.empty() ? e.layers.end() : std::ranges::find(e.layers, l.layer.substr(0, l.layer.find('#')));
  };
  std::ranges::stable_sort(all, std::greater(), place);
  for (const Role role : {Role::error, Role::weight_gradient, Role::activation, Role::weight}) {
    const Loss *small = nullptr, *large = nullptr;
    const double most = any_quantizer(e, role, is_floor) ? kManyClippedByFloor : kManyClipped;
    for (const Loss& l : all) {
      if (l.role != role) continue;
      if (l.large > (large ? large->large : most)) large = &l;
      if (!(small && is_gradient(role)) && l.small > (small ? small->small : kManyVanish)) small = &l;
    }
    const bool told = role == Role::weight_gradient && !found.empty();  // reported as errors already
    if (large) found.push_back(of_loss(*large, e, true));
    if (small && !told) found.push_back(of_loss(*small, e, false));
  }
  return found;
}

std::vector<Finding> of_updates(const Evidence& e) {
  std::map<std::string, std::vector<const Update*>> parts;
  for (const Update& u : e.updates) parts[u.part.starts_with("running") ? "running statistics" : u.part].push_back(&u);
  std::vector<Finding> found;
  for (const auto& [part, updates] : parts) {
    const bool running = part == "running statistics", weights = part == "update";
    if (!running && !weights && part != "second moment") continue;
    const Update* worst = nullptr;
    double lost = 0, all = 0, most = 0;
    for (const Update* u : updates) {
      // With stochastic updates most elements stay, and the others compensate.
      const auto intended = static_cast<double>(u->intended);
      const double here = u->arriving() < kMostArrives ? (1 - std::max(0.0, u->arriving())) * intended : 0;
      lost += here, all += intended;
      if (here > most) most = here, worst = u;
    }
    if (!worst || lost < kManyLost * all) continue;
    Finding f{.phase = running ? "forward" : "optimizer", .op = worst->op, .site = worst->parameter};
    f.cause = weights ? "update-vanishes" : running ? "batch-statistics" : "second-moment";
    f.sentence = fmt::format(
        "{}: {} of its updates arrives, for they are below half an ulp; {} of the elements do not move at all",
        weights ? f.site : f.site + ", " + part, percent(worst->arriving()), percent(worst->vanished_percent() / 100));
    // If training is as good as in fp32, only evaluation is worse, which alone uses the statistics.
    f.severity = running && e.trains ? 2 : lost / all * (weights ? 1 : 0.3);
    f.cures = {running ? cures::norms_in_f32(*e.recipe) : cures::masters(*e.recipe)};
    found.push_back(std::move(f));
  }
  if (e.late && e.late->bad_tensor.find("running_") != std::string::npos) {
    Finding f{.cause = "batch-statistics", .phase = "forward", .op = "batch_norm_update_", .site = e.late->bad_tensor};
    f.sentence = fmt::format("{} overflows {}: evaluation uses it", f.site, to_string(e.recipe->dtype));
    f.cures = {cures::norms_in_f32(*e.recipe), cures::bf16(cures::norms_in_f32(*e.recipe).recipe)}, f.severity = 2;
    found.push_back(std::move(f));
  }
  return found;
}

Found of_rate(const Evidence& e) {
  const Update all = all_updates(e);
  if (!e.fp32_fails || e.bad || all.elements == 0) return {};
  const bool slow = all.ratio() < kSlow;
  if (!slow && all.ratio() <= kFast && e.rise <= kRises) return {};
  Finding f{.cause = "learning-rate", .phase = "optimizer", .op = all.op};
  f.sentence = fmt::format("updates are {:.2g} of the weights, and the loss rises to {:.2g} times its first value",
                           all.ratio(), e.rise);
  f.precision = false, f.severity = slow ? 0.5 : 2.5;
  return f;
}

}  // namespace

Update all_updates(const Evidence& e) {
  Update all;
  for (const Update& u : e.updates)
    if (u.part == "update") all += u;
  return all;
}

}  // namespace rules

std::vector<Finding> diagnose(const Evidence& e) {
  std::vector<Finding> all;
  const auto add = [&all](std::initializer_list<rules::Found> some) {
    for (const rules::Found& f : some)
      if (f) all.push_back(*f);
  };
  // Non-finite numbers and skipped steps explain all later findings.
  add({rules::of_zeros(e), rules::of_moments(e), e.bad ? rules::of_nonfinite(*e.bad, e) : rules::of_skips(e)});
  if (all.empty() || !e.bad) {
    add({rules::of_overflow(e), rules::of_sums(e), rules::of_rate(e)});
    for (const auto& found : {rules::of_updates(e), rules::of_casts(e)})
      all.insert(all.end(), found.begin(), found.end());
  }
  std::ranges::stable_sort(all, std::greater(), &Finding::severity);
  for (Finding& f : all) {
    f.cures = f.precision ? cures::valid(*e.recipe, f.cures) : std::vector<Cure>{};
    const auto line = e.lines.find(f.site.substr(0, f.site.find('#')));
    if (line != e.lines.end()) f.sentence += " (" + line->second + ")";
  }
  return all;
}

}  // namespace gradual::inspect
