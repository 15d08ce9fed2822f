// diagnose(), and findings from counts over the sampled steps.
#include "diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "../amp/quantized_run.h"
#include "../amp/site_name.h"
#include "../core/support/message_text.h"
#include "findings.h"
#include "shadow.h"

namespace gradual::inspect {
namespace rules {
namespace {

using amp::Role;

constexpr double kManyClipped = 0.01;
constexpr double kManyClippedByFloor = 0.005;
constexpr double kSomeClipped = 0.001;
constexpr double kRises = 2;
constexpr double kManyLost = 0.1;
constexpr double kMostStays = 0.5;
constexpr double kWeak = 0.01;  // times the severity of a weak finding: a sure one with an equal trial comes first
constexpr double kDecayCounts = 0.02;  // of an update; less decay does no harm if it is lost
constexpr double kFaint = 0.4;         // of a signal's energy
constexpr double kNominates = 0.02;    // a share that becomes 0, for a trial to decide

std::string in_layer(const std::string& path, const Evidence& e) {
  return path.empty() ? "ops outside of all layers" : "layer " + e.names(path);
}
bool is_gradient(Role role) { return role == Role::error || role == Role::weight_gradient; }
double clipped_share(const CastCounts& c) { return static_cast<double>(c.overflow) / static_cast<double>(c.elements); }

bool is_delayed(const Quantizer& q) { return is_any<DelayedScale>(q.scaling); }
bool is_floor(const Quantizer& q) { return rule_of(q.scaling) == ScaleRule::floor; }
bool is_coded(const Quantizer& q) { return is_any<CodedBlocks, CodedParts>(q.scaling); }
// True if `is` holds for a quantiser of this operand in one of its two products.
bool any_quantizer(const Evidence& e, Role role, bool (*is)(const Quantizer&)) {
  return e.recipe->quantization &&
         std::ranges::any_of(amp::kOperandQuantizers[static_cast<int>(role)], [&](auto field) {
           const auto& q = *e.recipe->quantization.*field;
           return q && is(*q);
         });
}

std::string name_of(std::optional<Quantizer> amp::Quantization::*field) {
  return std::ranges::find(amp::kQuantizerFields, field, &amp::QuantizerField::quantizer)->name;
}

// The powers of two between nearly all rounded numbers and the largest value of their format.
double room(const amp::CastTally& tally, const std::optional<Format>& format) {
  const auto& bins = tally.exponents.bins;
  std::uint64_t all = 0;
  std::uint64_t above = 0;
  for (std::size_t i = 0; i + 1 < bins.size(); ++i) all += bins[i];
  std::size_t top = bins.size() - 1;
  while (top > 0 && above <= all / 1000) above += bins[--top];
  return format ? format->max_exponent() - (static_cast<int>(top) - 127) : 0;
}

// What rounding loses of a role's numbers at a site: in a layer, or in its products with one weight.
struct LostNumbers {
  Role role;
  std::string site;    // the text of an amp::SiteName
  std::string layer;   // its layer
  double zeroed = 0;   // the share that becomes 0
  double clipped = 0;  // the share that exceeds the format
  double room = 0;     // see room()
};
enum class LostBy : std::uint8_t { zeroing, clipping };

std::vector<Cure> cures_of(const LostNumbers& l, const Evidence& e, LostBy by) {
  const bool clipping = by == LostBy::clipping;
  const amp::Recipe& r = *e.recipe;
  std::vector<Cure> all;
  if (r.quantization) {
    if (any_quantizer(e, l.role, is_coded)) all.push_back(cures::wide_scales(r));
    if (clipping && any_quantizer(e, l.role, is_floor)) all.push_back(cures::rceil(r));
    const Cure own_amax = cures::scales(r);
    all.insert(all.end(), {cures::signed_format(r, l.role), own_amax});
    for (const int size : {32, 8, 4}) {
      if (clipping) continue;
      all.push_back(cures::smaller_blocks(r, size));
      all.push_back(cures::finer_scales(own_amax.recipe, l.role, size));
    }
    if (is_gradient(l.role)) {
      constexpr int kSmall = 8;
      all.push_back(cures::stochastic(r, l.role));
      const amp::Recipe fine = cures::smaller_blocks(cures::finer_scales(r, l.role, kSmall).recipe, kSmall).recipe;
      all.push_back(cures::stochastic(fine, l.role));
      all.back().remedy += fmt::format(" and blocks of {}", kSmall);
    }
    all.insert(all.end(), {cures::layer_in_f32(r, l.site, e.names), cures::fp8(r)});
  } else if (r.dtype == DType::f16) {
    const bool vanish = is_gradient(l.role) && l.zeroed > l.clipped;
    if (vanish && r.scaling && !r.scaling->dynamic && l.room > kRoomBits)
      all.push_back(cures::static_scale(r, static_cast<int>(l.room - kRoomBits / 2)));
    if (vanish) all.push_back(cures::dynamic_scale(r));
    all.push_back(cures::bf16(r));
  }
  return all;
}

// The op that loses most in a layer; null if only quantisers lose.
const LedgerRow* op_of(const LostNumbers& l, const Evidence& e, double (*share)(const CastCounts&)) {
  const auto loss_of = [&](const LedgerRow& r) {
    const bool here = (r.phase == Phase::backward) == is_gradient(l.role) && r.module == l.layer;
    return here && r.counts.elements ? share(r.counts) : 0;
  };
  return std::get<1>(worst_of({&e.first, &e.late}, loss_of));
}

// The share of its signal that a quantiser of this role's operands loses; 0 for another row.
double lost_signal(const LedgerRow& r, Role role) {
  const bool fits = (r.phase == Phase::backward) == is_gradient(role) && r.parameter.empty() != (role == Role::weight);
  if (r.source != Source::quantizer || !fits || std::isnan(r.sqnr_db)) return 0;
  return 1 / (1 + std::pow(10.0, r.sqnr_db / 10));
}

// Of a layer's quantisers of this role the one that loses most of its signal; null if none runs in the observed steps.
const LedgerRow* quantizer_of(const LostNumbers& l, const Evidence& e) {
  const auto lost_here = [&](const LedgerRow& r) { return r.module == l.layer ? lost_signal(r, l.role) : 0; };
  return std::get<1>(worst_of({&e.first, &e.late}, lost_here));
}

// Tells up to which layer all errors are zero.
std::string zeros_after(const Evidence& e, const std::string& layer) {
  for (const std::string& path : e.layers) {
    const auto tally = e.casts.find({Role::error, path});
    if (path == layer || tally == e.casts.end()) continue;
    const CastCounts& c = tally->second.counts;
    if (c.elements && c.zeros + c.underflow >= c.elements)
      return "; from there on to " + in_layer(path, e) + " all is 0";
  }
  return "";
}

// Why a role loses numbers in a layer: the cause, and what made it, as the end of a sentence.
std::pair<Cause, std::string> cause_of_loss(const LostNumbers& l, const Evidence& e, LostBy by) {
  const bool clipping = by == LostBy::clipping;
  const bool gradient = is_gradient(l.role);
  const bool room = l.room > kRoomBits;
  if (any_quantizer(e, l.role, is_delayed) && (clipping || room || l.clipped > kSomeClipped))
    return {Cause::delayed_scale, ": their scale comes from earlier amaxes"};
  if (clipping && any_quantizer(e, l.role, is_coded))
    return {Cause::scale_range, ": the format of the scales of blocks ends before them"};
  if (clipping && any_quantizer(e, l.role, is_floor))
    return {Cause::floor_clipping, ": FLOOR rounds the scales of blocks down"};
  if (clipping) return {Cause::clipping, ""};
  if (gradient && e.recipe->scaling && room)
    return {Cause::scale_too_low,
            fmt::format(": the loss scale leaves 2^{:.0f} unused above the largest of them", l.room)};
  if (gradient) return {Cause::gradient_underflow, ""};
  return {e.recipe->quantization ? Cause::format_range : Cause::activation_underflow, ""};
}

NumberRole number_role(Role role) {
  constexpr NumberRole kRoles[amp::kRoles] = {NumberRole::activation, NumberRole::weight, NumberRole::error,
                                              NumberRole::weight_gradient};
  return kRoles[static_cast<int>(role)];
}

// The operands of a role that the recipe quantises, each once.
std::vector<std::string> quantised_operands(const amp::Recipe& recipe, Role role) {
  std::vector<std::string> names;
  if (!recipe.quantization) return names;
  for (const auto field : amp::kOperandQuantizers[static_cast<int>(role)]) {
    const std::string name = name_of(field);
    if (*recipe.quantization.*field && std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

Finding of_lost(const LostNumbers& l, const Evidence& e, LostBy by) {
  const bool clipping = by == LostBy::clipping;
  const bool gradient = is_gradient(l.role);
  const auto [cause, why] = cause_of_loss(l, e, by);
  Finding f{.cause = cause, .phase = gradient ? Phase::backward : Phase::forward, .site = l.site};
  f.role = number_role(l.role);
  f.operands = quantised_operands(*e.recipe, l.role);
  if (const LedgerRow* r = op_of(l, e, clipping ? clipped_share : lost_share)) {
    f.op = r->op;
    f.site = r->place();
    f.line = r->own_line ? "" : r->line;
  } else if (const LedgerRow* q = quantizer_of(l, e)) {
    f.line = q->line;
    if (l.layer.empty()) f.site = q->place();
  }
  f.sentence =
      fmt::format("{} of the {}s of {} {} {}{}", percent(clipping ? l.clipped : l.zeroed), to_string(l.role),
                  in_layer(l.site, e), clipping ? "exceed the largest number of" : "that are not 0 become 0 in",
                  e.recipe->quantization ? "its format" : to_string(e.recipe->dtype), why);
  if (!clipping && l.role == Role::error) f.sentence += zeros_after(e, l.layer);
  // The largest numbers carry most of the signal. Of equal findings the first in a step counts.
  f.severity = clipping ? std::min(1.0, 4 * l.clipped) : l.zeroed * (gradient ? 0.95 : 1);
  f.cures = cures_of(l, e, by);
  if (e.recipe->quantization && l.role != Role::weight_gradient)
    for (const auto field : amp::kOperandQuantizers[static_cast<int>(l.role)])
      f.exact.push_back(
          {.part = clipping ? ExactPart::clipped : ExactPart::zeroed, .site = l.site, .operand = name_of(field)});
  return f;
}

// The same loss as the work of the scales: a trial with other scales decides whether they are its cause.
Found of_scales(const LostNumbers& l, const Evidence& e, const Finding& lost) {
  const bool delayed = any_quantizer(e, l.role, is_delayed);
  const bool coded = any_quantizer(e, l.role, is_coded);
  if (!delayed && !coded) return {};
  Finding f = lost;
  f.cause = delayed ? Cause::delayed_scale : Cause::scale_range;
  if (f.cause == lost.cause) return {};
  f.sentence += delayed ? ": their scale comes from earlier amaxes" : ": the format of the scales of blocks ends there";
  f.exact.clear();
  const Cure first = delayed ? cures::scales(*e.recipe) : cures::wide_scales(*e.recipe);
  f.cures.insert(f.cures.begin(), first);
  return f;
}

// Blocks whose coded scale is 0 are 0 before anything is rounded, so no count has them; their signal is lost. A trial
// with wider scales decides.
Found of_zero_scales(const Evidence& e, Role role) {
  if (!any_quantizer(e, role, is_coded)) return {};
  const auto lost_by_zeros = [role](const LedgerRow& r) {
    const double lost = lost_signal(r, role);
    return lost > kFaint && r.numbers.zeros > 0 ? lost : 0;
  };
  const auto [s, worst, most] = worst_of({&e.late, &e.first}, lost_by_zeros);
  if (!s) return {};
  Finding f{.cause = Cause::scale_range, .phase = worst->phase, .op = worst->op, .site = worst->place()};
  f.role = number_role(role);
  f.operands = quantised_operands(*e.recipe, role);
  f.line = worst->own_line ? "" : worst->line;
  f.sentence = fmt::format(
      "{}: {} of {} numbers are 0 after rounding, for the scales of their blocks are: their format "
      "ends above them",
      site_of(*worst, e), worst->numbers.zeros, worst->numbers.elements);
  f.severity = most;
  f.cures = {cures::wide_scales(*e.recipe), cures::layer_in_f32(*e.recipe, worst->module, e.names)};
  return f;
}

// The layer of a role with the largest share above a threshold, or the first one; null if there is none.
const LostNumbers* most_lost(const std::vector<LostNumbers>& all, Role role, double LostNumbers::*share,
                             double threshold, bool first) {
  const LostNumbers* found = nullptr;
  for (const LostNumbers& l : all)
    if (l.role == role && !(found && first) && l.*share > (found ? found->*share : threshold)) found = &l;
  return found;
}

std::vector<Finding> of_casts(const Evidence& e) {
  std::vector<Finding> found;
  if (amp::counted_as_if(*e.recipe)) return found;
  std::vector<LostNumbers> all;
  for (const auto& [key, tally] : e.casts)
    if (tally.counts.elements)
      all.push_back({key.first, key.second, amp::site_name(key.second).layer, lost_share(tally.counts),
                     clipped_share(tally.counts), room(tally, amp::counted_format(*e.recipe, key.first))});
  // Errors in the order from the loss backwards: what follows the first place is its consequence.
  const auto place = [&e](const LostNumbers& l) {
    return l.layer.empty() ? e.layers.end() : std::ranges::find(e.layers, l.layer);
  };
  std::ranges::stable_sort(all, std::greater(), place);
  for (const Role role : {Role::error, Role::weight_gradient, Role::activation, Role::weight}) {
    const double most = any_quantizer(e, role, is_floor) ? kManyClippedByFloor : kManyClipped;
    const LostNumbers* clipped = most_lost(all, role, &LostNumbers::clipped, most, false);
    const LostNumbers* zeroed = most_lost(all, role, &LostNumbers::zeroed, kManyVanish, is_gradient(role));
    const bool as_errors = role == Role::weight_gradient && !found.empty();  // the errors' finding says it already
    const auto add = [&](const LostNumbers& l, LostBy by) {
      const Finding lost = of_lost(l, e, by);
      if (const Found scales = of_scales(l, e, lost)) found.push_back(*scales);
      found.push_back(lost);
    };
    if (clipped) add(*clipped, LostBy::clipping);
    if (zeroed && !as_errors) add(*zeroed, LostBy::zeroing);
    if (!clipped && !zeroed)
      if (const Found zero = of_zero_scales(e, role)) found.push_back(*zero);
    if (zeroed || as_errors || !e.recipe->quantization) continue;
    const LostNumbers* const few = most_lost(all, role, &LostNumbers::zeroed, kNominates, false);
    if (!few) continue;
    found.push_back(of_lost(*few, e, LostBy::zeroing));
    found.back().weak = true;
  }
  return found;
}

// The quantities whose updates are judged together.
enum class Updated : std::uint8_t { statistics, second_moment, decay, average, gradient_steps, weights };

bool belongs(const Update& u, Updated what) {
  if (what == Updated::weights) return u.part == UpdatePart::whole;
  if (what == Updated::second_moment) return u.part == UpdatePart::second_moment;
  if (what == Updated::decay) return u.part == UpdatePart::weight_decay;
  if (what == Updated::average) return u.part == UpdatePart::average;
  if (what == Updated::gradient_steps) return u.part == UpdatePart::gradient_step;
  return u.part == UpdatePart::running_mean || u.part == UpdatePart::running_variance;
}

struct UpdateRule {
  Updated what;
  Cause cause;
  Phase phase;
  std::string_view of_site;  // follows the site's name
  Cure (*cure)(amp::Recipe r);
  Cure (*alone)(amp::Recipe r) = nullptr;
  Cure (*smaller)(amp::Recipe r) = nullptr;  // of the mechanism: it comes before `cure`
};
constexpr UpdateRule kUpdateRules[] = {
    {Updated::statistics, Cause::batch_statistics, Phase::forward, ", running statistics", cures::norms_in_f32},
    {Updated::second_moment, Cause::second_moment, Phase::optimizer, ", second moment", cures::masters,
     cures::state_in_f32, cures::state_in_f32},
    {Updated::decay, Cause::decay_vanishes, Phase::optimizer, ", weight decay", cures::masters, cures::kahan_update},
    {Updated::average, Cause::average_vanishes, Phase::optimizer, ", moving average", cures::averages_in_f32},
    {Updated::weights, Cause::update_vanishes, Phase::optimizer, "", cures::masters, cures::kahan_update}};

// Whether an element that does not move counts as lost, even if its update is small: each second moment divides an
// update of its own, and an average is far from its weights before its updates arrive.
bool counts_stays(Updated what) { return what == Updated::second_moment || what == Updated::average; }

// The share of weight decay in what a step intends for this parameter.
double share_of_decay(const Evidence& e, const Update& decay) {
  const auto is_whole = [&](const Update& u) { return u.part == UpdatePart::whole && u.parameter == decay.parameter; };
  const auto whole = std::ranges::find_if(e.updates, is_whole);
  if (whole == e.updates.end() || whole->intended_squares == 0) return 1;
  return std::min(1.0, std::sqrt(decay.intended_squares / whole->intended_squares));
}

// Updates of an average or of moments do less harm than those of weights, and decay as much as it adds to them.
double harm_of_update(const Evidence& e, const Update& u, Updated what) {
  constexpr double kOfState = 0.3;
  if (what == Updated::weights) return 1;
  return what == Updated::decay ? kOfState * share_of_decay(e, u) : kOfState;
}

// How many elements of an update do not get what was intended.
double lost_elements(const Update& u, Updated what) {
  const auto intended = static_cast<double>(u.intended);
  const double lost = u.arriving() < kMostArrives ? (1 - std::max(0.0, u.arriving())) * intended : 0;
  const double stays = u.vanished_percent() / 100;
  return counts_stays(what) && stays > kMostStays ? std::max(lost, stays * intended) : lost;
}
double still_elements(const Update& u, Updated) { return static_cast<double>(u.vanished); }

struct LostUpdates {
  const Update* worst = nullptr;
  double share = 0;  // of all elements
};
LostUpdates lost_updates(const Evidence& e, Updated what, double (*count)(const Update&, Updated)) {
  LostUpdates found;
  double lost = 0;
  double all = 0;
  double most = 0;
  for (const Update& u : e.updates) {
    if (!belongs(u, what) || (what == Updated::decay && share_of_decay(e, u) < kDecayCounts)) continue;
    const double here = count(u, what);
    lost += here;
    all += static_cast<double>(u.intended);
    if (here > most) {
      most = here;
      found.worst = &u;
    }
  }
  if (all > 0) found.share = lost / all;
  return found;
}

std::string sentence_of(const Update& u, std::string_view of_site) {
  const std::string stays = percent(u.vanished_percent() / 100);
  if (u.arriving() < kMostArrives)
    return fmt::format(
        "{}{}: {} of its updates arrives, for they are below half an ulp; {} of the elements do not move at all",
        u.parameter, of_site, percent(u.arriving()), stays);
  return fmt::format("{}{}: {} of the updates of its elements are below half an ulp and do not move them", u.parameter,
                     of_site, stays);
}

Found of_updates(const Evidence& e, const UpdateRule& rule) {
  LostUpdates lost = lost_updates(e, rule.what, lost_elements);
  bool weak = false;
  // Weights that stand still in some steps alone may do harm too; with stochastic updates the others compensate.
  if (rule.what == Updated::weights && lost.share < kManyLost && e.recipe->update == optim::LowPrecisionUpdate::none) {
    // where decay is a part of the updates, it has a finding of its own
    const bool decays = std::ranges::any_of(e.updates, [](const Update& u) { return belongs(u, Updated::decay); });
    lost = lost_updates(e, decays ? Updated::gradient_steps : Updated::weights, still_elements);
    weak = true;
  }
  if (!lost.worst || lost.share < kManyLost) return {};
  const Update& worst = *lost.worst;
  Finding f{.cause = rule.cause, .phase = rule.phase, .op = worst.op, .site = worst.parameter};
  f.sentence = sentence_of(worst, rule.of_site);
  f.weak = weak;
  // If training is as good as in fp32, only evaluation is worse, which alone uses the statistics.
  const bool spoils_evaluation = rule.what == Updated::statistics && e.trains;
  f.severity = spoils_evaluation ? 2 : lost.share * harm_of_update(e, worst, rule.what);
  if (weak) f.severity *= kWeak;
  if (rule.alone) f.alone = rule.alone(*e.recipe);
  const bool of_program = rule.what == Updated::average && e.recipe->averages != amp::Averages::storage;
  if (of_program) f.sentence += "; a copy of it in f32 gets them";
  else f.cures = {rule.cure(*e.recipe)};
  if (rule.smaller) f.cures.insert(f.cures.begin(), rule.smaller(*e.recipe));
  return f;
}

// A rate of the optimizer that is 0 or 1 in the dtype of its arithmetic. eps matters with second moments of 0 alone.
Found of_rates(const Evidence& e) {
  for (const Scalar& s : e.scalars) {
    if (!s.lost() || s.rate == Rate::eps) continue;
    Finding f{.cause = Cause::rate_lost, .phase = Phase::optimizer, .op = s.op, .site = "the optimizer"};
    f.sentence = fmt::format("{}: {}", s.op, to_string(s));
    f.severity = 0.2;
    f.cures = {cures::state_in_f32(*e.recipe), cures::masters(*e.recipe)};
    f.alone = cures::state_in_f32(*e.recipe);
    return f;
  }
  return {};
}

Found of_statistics(const Evidence& e) {
  const auto bad = e.late ? e.late->bad_tensor : std::nullopt;
  if (!bad || bad->kind != ModelTensorKind::running_statistic) return {};
  Finding f{.cause = Cause::batch_statistics,
            .op = std::string(gradual::to_string(OpId::batch_norm_update_)),
            .site = bad->name};
  f.sentence = fmt::format("{} overflows {}: evaluation uses it", f.site, to_string(e.recipe->dtype));
  f.cures = {cures::norms_in_f32(*e.recipe), cures::bf16(cures::norms_in_f32(*e.recipe).recipe)};
  f.severity = 2;
  return f;
}

Found of_rate(const Evidence& e) {
  const Update all = all_updates(e);
  if (!e.fp32_fails || e.bad || all.elements == 0) return {};
  const bool slow = all.ratio() < kSlow;
  if (!slow && all.ratio() <= kFast && e.rise <= kRises) return {};
  Finding f{.cause = slow ? Cause::small_rate : Cause::learning_rate, .phase = Phase::optimizer, .op = all.op};
  f.sentence = fmt::format("updates are {:.2g} of the weights, and the loss rises to {:.2g} times its first value",
                           all.ratio(), e.rise);
  f.precision = blames_recipe(f.cause, e.fp32_fails);
  f.severity = slow ? 0.5 : 2.5;
  return f;
}

}  // namespace

Update all_updates(const Evidence& e) {
  Update all;
  for (const Update& u : e.updates)
    if (u.part == UpdatePart::whole) all += u;
  return all;
}

}  // namespace rules

std::string cause_text(Cause cause, const std::vector<std::string>& operands) {
  const std::string name(to_string(cause));
  return operands.empty() ? name : name + " of " + join(operands);
}

TrialChange Finding::trial() const {
  TrialChange change{.exact = exact};
  for (Exact& e : change.exact) e.site.clear();
  if (!change.exact.empty()) return change;
  if (alone) change.edit = &*alone;
  else if (!cures.empty()) change.edit = &cures.front();
  return change;
}

std::vector<LossShare> loss_shares(const Shadow& shadow) {
  std::vector<LossShare> all;
  double sum = 0;
  const auto add = [&](const ShadowRow& r, ErrorSource source, double share) {
    all.push_back({r.phase, r.op, r.module, r.line, source, std::abs(share)});
    sum += std::abs(share);
  };
  for (const ShadowRow* r : shadow.attribution().rows) {
    const auto outside = [](const ErrorPart& part) { return is_before(part.source); };
    const bool whole = std::ranges::all_of(r->parts, outside);  // the local error has no parts
    double rest = r->share;
    for (const ErrorPart& part : r->parts) rest -= part.share;
    if (whole) add(*r, ErrorSource::whole, rest);
    for (const ErrorPart& part : r->parts) add(*r, part.source, part.share);
  }
  for (LossShare& s : all) s.share = sum > 0 ? s.share / sum : 0;
  return all;
}

std::optional<amp::Quantization> resolved_quantization(const amp::Recipe& recipe, nn::Module& model) {
  std::optional<amp::Quantization> resolved = recipe.quantization;
  if (resolved) amp::name_layers(*resolved, model);
  return resolved;
}

std::vector<Finding> diagnose(const Evidence& e) {
  constexpr double kConsequence = 0.01;  // a severity
  std::vector<Finding> all;
  const auto add = [&all](std::initializer_list<rules::Found> some) {
    for (const rules::Found& f : some)
      if (f) all.push_back(*f);
  };
  // Non-finite numbers and skipped steps explain all later findings.
  add({rules::of_zeros(e), rules::of_moments(e), e.bad ? rules::of_nonfinite(*e.bad, e) : rules::of_skips(e)});
  // But numbers beyond f32 are a consequence: something else made them grow.
  const bool beyond_f32 = std::ranges::all_of(
      all, [](const Finding& f) { return f.cause == Cause::arithmetic || f.cause == Cause::learning_rate; });
  if (beyond_f32)
    for (Finding& f : all) f.severity = f.precision ? kConsequence : f.severity;
  if (beyond_f32 || !e.bad) {
    add({rules::of_overflow(e), rules::of_sums(e), rules::of_rate(e)});
    for (const rules::UpdateRule& rule : rules::kUpdateRules) add({rules::of_updates(e, rule)});
    add({rules::of_statistics(e), rules::of_rates(e)});
    const std::vector<Finding> casts = rules::of_casts(e);
    all.insert(all.end(), casts.begin(), casts.end());
    const std::vector<Finding> monitors = rules::of_monitors(e);
    all.insert(all.end(), monitors.begin(), monitors.end());
  }
  std::ranges::stable_sort(all, std::greater(), &Finding::severity);
  for (Finding& f : all) {
    if (const NumberRole role = cause_info(f.cause).role; role != NumberRole::none) f.role = role;
    f.cures = f.precision ? cures::valid(*e.recipe, f.cures) : std::vector<Cure>{};
    if (f.alone && cures::valid(*e.recipe, {*f.alone}).empty()) f.alone.reset();
    auto line = e.lines.find(f.line);
    if (line == e.lines.end()) line = e.lines.find(amp::site_name(f.site).layer);
    if (line != e.lines.end()) f.sentence += " (" + line->second + ")";
  }
  return all;
}

}  // namespace gradual::inspect
