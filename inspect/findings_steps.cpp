#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "../core/quantize/what_if.h"
#include "findings.h"

namespace gradual::inspect::rules {
namespace {

using Rows = std::vector<LedgerRow>;

constexpr double kFaintSums = 20, kManySwamped = 0.5, kStale = 0.25, kManyLost = 0.05, kManySkipped = 0.1;
constexpr double kSlow = 1e-6, kFast = 0.5;  // updates in units of the weights

const LedgerRow& row(const ObservedStep& s, std::int64_t number) {
  return s.ledger.rows()[static_cast<std::size_t>(number)];
}

bool is_zero(const LedgerRow& r) { return r.numbers.elements > 0 && r.numbers.zeros == r.numbers.elements; }
double share(std::int64_t part, std::int64_t whole) {
  return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// Whether an op of the table made the row; else a user's function did, a quantiser or a product of quantised operands.
bool is_op(const std::string& name) {
  return std::ranges::any_of(kOpInfos, [&](const OpInfo& i) { return i.name == name; });
}
bool is_quantised(const LedgerRow& r) { return r.op.find("quantiz") != std::string::npos; }
bool is_users(const LedgerRow& r) { return r.kind == OpKind::Custom && !is_quantised(r); }
bool is_low(const LedgerRow& r) { return is_half(r.to) || is_f8(r.to) || is_quantised(r); }

bool sums_or_exponentials(const LedgerRow& r) {
  using enum OpKind;
  return r.op == "square" || r.kind == Transcendental || r.kind == Reduction || r.kind == Normalization ||
         r.kind == Loss;
}

// The user's function that an op belongs to: in backward by its name, in forward by the rows that follow.
std::string function_of(const LedgerRow& r, const ObservedStep& s) {
  if (r.phase == Phase::backward)
    return r.backward_of.empty() || is_op(r.backward_of) || r.backward_of.find("quantiz") != std::string::npos
               ? ""
               : r.backward_of;
  for (const LedgerRow& outer : s.ledger.rows())
    if (outer.number >= r.number && is_users(outer) && outer.module == r.module &&
        std::ranges::all_of(outer.reads, [&](std::int64_t i) { return i < r.number; }))
      return outer.op;
  return "";
}

std::string lost(const Numbers& n) {
  std::string text;
  if (n.inf) text = fmt::format("{} of {} elements are Inf", n.inf, n.elements);
  if (n.nan) text += fmt::format("{}{} NaN", text.empty() ? "" : " and ", n.nan);
  return text + (n.inf == 0 ? fmt::format(" of {} elements", n.elements) : "");
}

// The first row on the way to `r` where much underflows, or the last where anything does; null: none.
const LedgerRow* underflow_before(const LedgerRow& r, const ObservedStep& s) {
  std::vector<std::int64_t> way = r.reads;
  for (std::size_t i = 0; i < way.size() && i < 64; ++i)
    for (const std::int64_t before : row(s, way[i]).reads)
      if (std::ranges::find(way, before) == way.end()) way.push_back(before);
  std::ranges::sort(way);
  const LedgerRow* any = nullptr;
  for (const std::int64_t i : way) {
    const LedgerRow& before = row(s, i);
    if (!is_low(before) || before.counts.underflow == 0) continue;
    if (lost_share(before.counts) > kManyVanish) return &before;
    any = &before;
  }
  return any;
}

std::vector<Cure> cures_of(const LedgerRow& r, const Evidence& e) {
  const amp::Recipe& own = *e.recipe;
  if (is_quantised(r)) return {cures::scales(own), cures::layer_in_f32(own, r.module)};
  std::vector<Cure> all;
  if (sums_or_exponentials(r) && is_op(r.op)) all.push_back(cures::op_in_f32(own, op_from_name(r.op)));
  if (r.to == DType::f16) {
    if (r.phase == Phase::backward && !own.scaling) all.push_back(cures::dynamic_scale(own));
    all.push_back(cures::bf16(own));
  }
  return all;
}

Finding not_precision(Finding f, const char* cause, std::string sentence) {
  f.cause = cause, f.sentence = std::move(sentence), f.precision = false;
  return f;
}

Finding of_optimizer(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  Finding f = at(r, s.step, "update-overflow");
  const bool adam = r.state.size() == 2;
  const std::string became = r.numbers.finite() ? "" : fmt::format(", and in {} {}", r.parameter, lost(r.numbers));
  if (adam && r.eps_is_zero && r.state[1].zeros > 0) {
    f.cause = "adam-eps";
    f.sentence = fmt::format("{}: {} of its second moments and eps {} are 0 in {}{}", r.site(),
                             percent(share(r.state[1].zeros, r.state[1].elements)), r.eps, to_string(r.from), became);
  } else if (adam && !r.state[1].finite()) {
    f.cause = "second-moment";
    f.sentence = fmt::format("{}: its second moment, a square of the gradient, overflows {}: {}", r.site(),
                             to_string(r.state_dtype), lost(r.state[1]));
  } else {
    f.sentence = fmt::format("{} gives numbers beyond {}{}", r.site(), to_string(r.from), became);
  }
  if (!is_half(r.from) && !is_half(r.state_dtype)) f.cause = "arithmetic", f.precision = !e.fp32_fails;
  f.cures = {cures::masters(*e.recipe)};
  return f;
}

// f32 itself overflows: the learning rate where updates are as large as the weights.
Finding of_f32(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  Finding f = at(r, s.step, "arithmetic");
  const bool fast = std::ranges::any_of(e.updates, [](const Update& u) { return u.ratio() > kFast; });
  f.sentence = fmt::format("{} gives numbers beyond {}: {}", r.site(), to_string(r.to), lost(r.numbers));
  if (fast && s.step > 0) f.cause = "learning-rate", f.sentence += "; updates are as large as the weights";
  f.precision = !e.fp32_fails;
  f.cures = {cures::masters(*e.recipe), cures::role_in_f32(*e.recipe, amp::Role::error)};
  return f;
}

// A row that makes NaN or Inf of finite numbers.
Finding of_maker(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  if (r.phase == Phase::optimizer && !r.parameter.empty()) return of_optimizer(r, s, e);
  const std::string function = function_of(r, s);
  if (r.nonfinite_number)
    return not_precision(
        at(r, s.step, ""), "bug",
        fmt::format("{}{} is given a number that is NaN or Inf", function.empty() ? "" : function + ": ", r.site()));
  // Within a rewritten product and a user's function the row that began.
  const LedgerRow* inner = nullptr;
  if (r.kind == OpKind::Custom)
    for (const LedgerRow& x : s.ledger.rows())
      if (x.number < r.number && x.phase == r.phase && x.module == r.module && !x.finite() &&
          x.kind != OpKind::Custom && !x.nonfinite_inputs &&
          std::ranges::all_of(r.reads, [&](std::int64_t i) { return i < x.number; })) {
        inner = &x;
        break;
      }
  if (inner && !inner->accumulator.empty() && inner->accumulation_db == inner->accumulation_db) {
    Finding f = at(*inner, s.step, "accumulator");
    f.sentence = fmt::format("{}: the sums leave the range of the accumulator {}: {}", inner->site(),
                             inner->accumulator, lost(inner->numbers));
    f.cures = {cures::f32_sums(*e.recipe)};
    return f;
  }
  if (is_users(r)) {
    if (inner) return of_maker(*inner, s, e);
    return not_precision(at(r, s.step, ""), "bug",
                         fmt::format("the function {} gives {} of finite inputs", r.site(), lost(r.numbers)));
  }
  if (!is_low(r)) return of_f32(r, s, e);
  const bool divides = r.counts.overflow == 0 && !is_quantised(r);
  if (const LedgerRow* zero = divides ? underflow_before(r, s) : nullptr) {
    Finding f = at(*zero, s.step,
                   zero->phase == Phase::backward ? "gradient-underflow"
                   : sums_or_exponentials(*zero)  ? "reduction-underflow"
                                                  : "activation-underflow");
    f.sentence = fmt::format("{}: {} of its results become 0 in {}, and {} makes NaN or Inf of them", zero->site(),
                             percent(lost_share(zero->counts)), to_string(zero->to), r.site());
    f.cures = cures_of(*zero, e);
    return f;
  }
  Finding f = at(r, s.step,
                 r.phase == Phase::backward               ? "gradient-overflow"
                 : r.op == "cast" && !r.parameter.empty() ? "weight-overflow"
                 : sums_or_exponentials(r)                ? "reduction-overflow"
                                                          : "activation-overflow");
  f.sentence =
      fmt::format("{} gives numbers beyond {}: {}{}", r.site(),
                  is_quantised(r) ? "the format of its operands" : to_string(r.to), lost(r.numbers),
                  r.numbers.largest > 0 ? fmt::format("; the largest finite one is {:.3g}", r.numbers.largest) : "");
  f.cures = cures_of(r, e);
  return f;
}

// A row that reads NaN or Inf which no op made.
Finding of_reader(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  Finding f = at(r, s.step, "");
  if (!s.bad_tensor.empty()) {
    f.site = s.bad_tensor;
    if (s.evaluation || s.bad_tensor.find("running_") != std::string::npos) {
      f.cause = "batch-statistics", f.cures = {cures::norms_in_f32(*e.recipe)};
      f.sentence = s.bad_tensor + " is not finite, and evaluation divides by it";
      return f;
    }
    const bool born = e.first_in_fp32 && e.first_in_fp32->bad_tensor.empty();
    if (!born) return not_precision(f, "data", s.bad_tensor + " is not finite before the first step");
    f.cause = "weight-overflow", f.cures = {cures::bf16(*e.recipe)};
    f.sentence = fmt::format("{} is beyond {} before the first step", s.bad_tensor, to_string(e.recipe->dtype));
    return f;
  }
  if (!s.finite_batch)
    return not_precision(f, "data",
                         fmt::format("the batch holds NaN or Inf: {} is the first op that reads it", r.site()));
  if (r.numbers.nan == 0)
    return not_precision(f, "arithmetic", fmt::format("{}: a mask of Inf reaches the loss", r.site()));
  const std::string function = function_of(r, s);
  return not_precision(f, "bug",
                       fmt::format("{} reads NaN or Inf that no op made{}{}: code that writes memory itself", r.site(),
                                   function.empty() ? "" : ", in ", function));
}

// The rows of a step beside those of the same step in fp32: by phase, layer, op and how often it came before.
class Beside {
 public:
  Beside(const ObservedStep& step, const ObservedStep& fp32) {
    std::map<std::string, std::vector<const LedgerRow*>> here, there;
    for (const LedgerRow& r : step.ledger.rows()) here[key(r)].push_back(&r);
    for (const LedgerRow& r : fp32.ledger.rows()) there[key(r)].push_back(&r);
    for (const auto& [key, rows] : here)
      if (const auto& same = there[key]; same.size() == rows.size())
        for (std::size_t i = 0; i < rows.size(); ++i) in_fp32_[rows[i]->number] = same[i];
  }
  const LedgerRow* of(const LedgerRow& r) const {  // null: it has none
    const auto found = in_fp32_.find(r.number);
    return found == in_fp32_.end() ? nullptr : found->second;
  }

 private:
  static std::string key(const LedgerRow& r) {
    return fmt::format("{}|{}|{}", to_string(r.phase), r.module, r.op.substr(0, r.op.find(' ')));
  }
  std::map<std::int64_t, const LedgerRow*> in_fp32_;
};

// Of a tensor that is 0 throughout although what it is made of is not: why, or none where rounding does not.
Found of_zero(const LedgerRow& r, const ObservedStep& s) {
  const LedgerRow* from = r.reads.empty() ? nullptr : &row(s, r.reads[0]);
  Finding f = at(r, s.step, "");
  f.severity = 2;  // all that follows is lost
  const double least = r.op == "cast" && is_half(r.to) ? format_of(r.to).min_positive() : 0;
  const bool rounds = r.op == "cast" || r.op == "quantize";
  const std::string function = is_users(r) ? r.op : function_of(r, s);
  const bool underflows = r.counts.underflow > 0 || (r.op == "quantize" && !(from && least > 0));
  if (rounds && function.empty() && from && least > 0 && from->numbers.largest >= 2 * least)
    return not_precision(
        f, "bug",
        fmt::format("{}: all of its results are 0, though its inputs reach {:.3g}", r.site(), from->numbers.largest));
  if (!function.empty() && !underflows && !underflow_before(r, s))
    return not_precision(f, "bug",
                         fmt::format("{}{}: all of its results are 0, and its inputs are not",
                                     is_users(r) ? "" : function + ": ", r.site()));
  return {};
}

}  // namespace

Finding at(const LedgerRow& r, std::int64_t step, std::string cause) {
  return {.cause = std::move(cause),
          .phase = std::string(to_string(r.phase)),
          .op = r.op.substr(0, r.op.find(" rewritten by ")),
          .site = !r.parameter.empty() ? r.parameter
                  : !r.module.empty()  ? r.module
                                       : r.line,
          .step = step};
}

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

Found of_nonfinite(const ObservedStep& s, const Evidence& e) {
  const LedgerRow* from = nullptr;
  const auto take = [&](const LedgerRow& target) {
    const LedgerRow* o = s.ledger.origin(target);
    if (o && (!from || std::pair(o->nonfinite_inputs, o->number) < std::pair(from->nonfinite_inputs, from->number)))
      from = o;
  };
  const LedgerRow* last = nullptr;
  for (const LedgerRow& r : s.ledger.rows()) {
    if (r.finite()) continue;
    last = &r;
    if (r.phase == Phase::optimizer) take(r);
  }
  if (!from && last) take(*last);
  if (!from) return {};
  if (!s.bad_tensor.empty())
    from = &*std::ranges::find_if(s.ledger.rows(), [](const LedgerRow& r) { return !r.finite(); });
  const bool reads = from->nonfinite_inputs || !s.bad_tensor.empty();
  Finding f = reads ? of_reader(*from, s, e) : of_maker(*from, s, e);
  f.severity = 1.5;
  return f;
}

Found of_skips(const Evidence& e) {
  if (!e.skip || e.steps == 0 || static_cast<double>(e.skipped) < kManySkipped * static_cast<double>(e.steps))
    return {};
  Found origin = of_nonfinite(*e.skip, e);
  if (origin && (origin->phase == "forward" || !origin->precision || e.last_scale <= 1)) return origin;
  if (!origin) origin = Finding{.phase = "backward"};
  const bool dynamic = e.recipe->scaling && e.recipe->scaling->dynamic;
  const bool grows = dynamic && e.growths > 1;
  origin->cause = grows ? "scale-grows" : "scale-too-high";
  origin->sentence = fmt::format("{} of {} steps are skipped at the {} loss scale {}{}{}", e.skipped, e.steps,
                                 dynamic ? "dynamic" : "static", scale_text(e.last_scale),
                                 grows ? fmt::format(", which grew {} times", e.growths) : "",
                                 origin->sentence.empty() ? "" : ": " + origin->sentence);
  origin->cures = {cures::dynamic_scale(*e.recipe), cures::bf16(*e.recipe)};
  origin->severity = 1.5;
  return origin;
}

Found of_zeros(const Evidence& e) {
  if (!e.first) return {};
  const Beside beside(*e.first, e.first_in_fp32 ? *e.first_in_fp32 : *e.first);
  for (const LedgerRow& r : e.first->ledger.rows()) {
    if (!is_zero(r) || r.phase == Phase::optimizer || r.kind == OpKind::InPlace) continue;
    if (std::ranges::any_of(r.reads, [&](std::int64_t i) { return is_zero(row(*e.first, i)); })) continue;
    if (Found f = of_zero(r, *e.first)) return f;
    const LedgerRow* there = beside.of(r);
    if (!e.fp32_fails || !there || !is_zero(*there) || r.reads.empty() || r.phase != Phase::forward) continue;
    Finding f = at(r, e.first->step, "");
    f.severity = 2;
    return not_precision(f, "dead-units",
                         fmt::format("{} gives 0 for every input: nothing before it learns", r.site()));
  }
  return {};
}

Found of_overflow(const Evidence& e) {
  if (!e.first || !e.first_in_fp32) return {};
  const Beside beside(*e.first, *e.first_in_fp32);
  const LedgerRow* worst = nullptr;
  double most = kManyLost;
  for (const LedgerRow& reader : e.first->ledger.rows()) {
    // What is 0 here and not in fp32; all that a mask makes 0 is 0 there too.
    const LedgerRow* there = reader.finite() && reader.phase == Phase::forward ? beside.of(reader) : nullptr;
    const double gone = there ? share(reader.numbers.zeros - there->numbers.zeros, reader.numbers.elements) : 0;
    for (const std::int64_t i : reader.reads)
      if (const LedgerRow* made = gone > most ? e.first->ledger.origin(row(*e.first, i)) : nullptr;
          made && !made->nonfinite_inputs)
        most = gone, worst = made;
  }
  if (!worst) return {};
  Finding f = of_maker(*worst, *e.first, e);
  f.severity = 1 + most;
  return f;
}

Found of_moments(const Evidence& e) {
  const LedgerRow* worst = nullptr;
  const auto lost_of = [](const LedgerRow& r) {
    return !r.state[1].finite() ? 1 : share(r.lost_moments, r.state[1].elements);
  };
  const bool coded = e.recipe->quantization && e.recipe->quantization->moment2;
  std::int64_t step = -1;
  for (const auto* s : {&e.first, &e.late, &e.bad}) {
    if (!*s) continue;
    for (const LedgerRow& r : (*s)->ledger.rows())
      if (r.state.size() == 2 && !r.eps_is_zero && (is_half(r.state_dtype) || coded) && !r.nonfinite_inputs &&
          lost_of(r) > kManyLost && (!worst || lost_of(r) > lost_of(*worst)))
        worst = &r, step = (*s)->step;
  }
  if (!worst) return {};
  Finding f = at(*worst, step, "second-moment");
  // Huge updates end in an overflow elsewhere, some steps later.
  f.severity = (e.bad && e.bad->step <= step ? 0 : 1.6) + lost_of(*worst) / 10;
  const std::string format =
      coded ? to_string(e.recipe->quantization->moment2->format) : std::string(to_string(worst->state_dtype));
  f.sentence = worst->state[1].finite()
                   ? fmt::format(
                         "{}: {} of its second moments, squares of gradients, are 0 in {} while the first are "
                         "not: their updates are divided by eps {} alone",
                         worst->site(), percent(lost_of(*worst)), format, worst->eps)
                   : fmt::format("{}: its second moment, a square of the gradient, overflows {}: {}", worst->site(),
                                 format, lost(worst->state[1]));
  f.cures = {cures::masters(*e.recipe)};
  return f;
}

Found of_statistics(const Evidence& e) {
  const LedgerRow* worst = nullptr;
  if (e.late)
    for (const LedgerRow& r : e.late->ledger.rows())
      if (r.op == "batch_norm_update_" && !r.nonfinite_inputs && is_half(r.to) &&
          (!r.finite() || (share(r.swamped, r.added) > kManyVanish && r.stale > kStale)) &&
          (!worst || r.stale > worst->stale))
        worst = &r;
  if (!worst) return {};
  Finding f = at(*worst, -1, "batch-statistics");
  f.severity = e.trains ? 2 : std::min(1.0, worst->stale);
  f.sentence =
      worst->finite()
          ? fmt::format(
                "{} of the running statistics of layer {} stand still in {}, {:.2g} standard deviations "
                "from the batch's: evaluation uses them",
                percent(share(worst->swamped, worst->added)), worst->module, to_string(worst->to), worst->stale)
          : fmt::format("the running statistics of layer {} overflow {}: {}", worst->module, to_string(worst->to),
                        lost(worst->numbers));
  f.cures = {cures::norms_in_f32(*e.recipe), cures::bf16(cures::norms_in_f32(*e.recipe).recipe)};
  return f;
}

Found of_sums(const Evidence& e) {
  const LedgerRow* worst = nullptr;
  double most = 0;
  for (const Phase phase : {Phase::forward, Phase::backward})
    for (const auto* s : {&e.late, &e.first}) {
      if (worst || !*s) continue;
      for (const LedgerRow& r : (*s)->ledger.rows()) {
        if (r.phase != phase || r.op == "batch_norm_update_") continue;
        const double noise = r.accumulation_db < kFaintSums ? std::pow(10, -r.accumulation_db / 10) : 0;
        const double swamped = phase == Phase::forward ? share(r.swamped, r.added) : 0;
        const double bad = std::max(noise, swamped > kManySwamped ? swamped / 2 : 0);
        if (bad > most) most = bad, worst = &r;
      }
    }
  if (!worst) return {};
  Finding f = at(*worst, -1, "accumulator");
  f.severity = std::min(1.0, most);
  if (!worst->accumulator.empty()) {
    f.sentence = fmt::format(
        "{}: sums in the accumulator {} differ from sums in f32 by {} of their magnitude: terms are "
        "below half an ulp of the sum",
        worst->site(), worst->accumulator, percent(std::pow(10, -worst->accumulation_db / 20)));
    f.cures = {cures::f32_sums(*e.recipe)};
  } else {
    f.sentence = fmt::format("{}: {} of what it adds leaves no trace, for it is below half an ulp of the sum in {}",
                             worst->site(), percent(share(worst->swamped, worst->added)), to_string(worst->to));
    f.cures = {cures::op_in_f32(*e.recipe, op_from_name(worst->op))};
  }
  return f;
}

Found of_rate(const Evidence& e) {
  if (!e.fp32_fails || e.bad || e.updates.empty()) return {};
  const auto fastest = std::ranges::max_element(e.updates, {}, &Update::ratio);
  if (fastest->ratio() > kSlow && fastest->ratio() < kFast) return {};
  Finding f{.phase = "optimizer", .op = fastest->op, .site = fastest->parameter, .severity = 0.5};
  return not_precision(
      f, "learning-rate",
      fmt::format("updates are at most {:.2g} of the weights, in {}", fastest->ratio(), fastest->parameter));
}

Found of_rounding(const Evidence& e) {
  const LedgerRow* worst = nullptr;
  for (const auto* s : {&e.late, &e.first})
    if (*s && !worst)
      for (const LedgerRow& r : (*s)->ledger.rows())
        if (std::isfinite(r.sqnr_db) && (!worst || r.sqnr_db < worst->sqnr_db)) worst = &r;
  if (!worst) return {};
  Finding f = at(*worst, -1, "rounding");
  f.sentence = fmt::format(
      "no number overflows, underflows or vanishes to speak of: the rounding itself is too coarse, "
      "most in {}, with an error of {} of the magnitude",
      worst->site(), percent(std::pow(10, -worst->sqnr_db / 20)));
  f.cures = {cures::layer_in_f32(*e.recipe, worst->module), cures::masters(*e.recipe)};
  return f;
}

}  // namespace gradual::inspect::rules
