#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "../core/quantize/what_if.h"
#include "findings.h"

namespace gradual::inspect::rules {
namespace {

constexpr double kFaintSums = 20, kManySwamped = 0.5, kStale = 0.25, kManyLost = 0.05, kManySkipped = 0.1;
constexpr double kAllLost = 2, kStopped = 1.5;  // severities
constexpr double kSlow = 1e-6, kFast = 0.5;     // updates in units of the weights

const LedgerRow& row(const ObservedStep& s, std::int64_t number) {
  return s.ledger.rows()[static_cast<std::size_t>(number)];
}

bool is_zero(const LedgerRow& r) { return r.numbers.elements > 0 && r.numbers.zeros == r.numbers.elements; }

// Whether an op of the table made the row; else a user's function did, a quantiser or a product of quantised operands.
bool is_op(const std::string& name) {
  return std::ranges::any_of(kOpInfos, [&](const OpInfo& i) { return i.name == name; });
}
bool is_quantised(const std::string& op) { return op.find("quantiz") != std::string::npos; }
bool is_quantised(const LedgerRow& r) { return is_quantised(r.op); }
bool is_users(const LedgerRow& r) { return r.kind == OpKind::Custom && !is_quantised(r); }
bool is_low(const LedgerRow& r) { return is_half(r.to) || is_f8(r.to) || is_quantised(r); }

bool sums_or_exponentials(const LedgerRow& r) {
  using enum OpKind;
  return r.op == "square" || r.kind == Transcendental || r.kind == Reduction || r.kind == Normalization ||
         r.kind == Loss;
}

// The user's function that an op belongs to: in backward by its name, in forward by the rows that follow.
std::string function_of(const LedgerRow& r, const ObservedStep& s) {
  if (r.phase == Phase::backward) return is_op(r.backward_of) || is_quantised(r.backward_of) ? "" : r.backward_of;
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

Finding innocent(Finding f) {
  f.precision = false;
  return f;
}

std::string overflowed_moment(const LedgerRow& r, std::string_view format) {
  return fmt::format("{}: its second moment, a square of the gradient, overflows {}: {}", r.site(), format,
                     lost(r.state[1]));
}

Finding of_optimizer(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  const bool adam = r.state.size() == 2;
  const std::string became = r.numbers.finite() ? "" : fmt::format(", and in {} {}", r.parameter, lost(r.numbers));
  Finding f =
      at(r, s.step, "update-overflow", fmt::format("{} gives numbers beyond {}{}", r.site(), to_string(r.from), became),
         {cures::masters(*e.recipe)});
  if (adam && r.eps_is_zero && r.state[1].zeros > 0) {
    f.cause = "adam-eps";
    f.sentence = fmt::format("{}: {} of its second moments and eps {} are 0 in {}{}", r.site(),
                             percent(share(r.state[1].zeros, r.state[1].elements)), r.eps, to_string(r.from), became);
  } else if (adam && !r.state[1].finite()) {
    f.cause = "second-moment", f.sentence = overflowed_moment(r, to_string(r.state_dtype));
  }
  if (!is_half(r.from) && !is_half(r.state_dtype)) f.cause = "arithmetic", f.precision = !e.fp32_fails;
  return f;
}

// f32 itself overflows: the learning rate where updates are as large as the weights.
Finding of_f32(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  const bool fast = s.step > 0 && std::ranges::any_of(e.updates, [](const Update& u) { return u.ratio() > kFast; });
  Finding f = at(r, s.step, fast ? "learning-rate" : "arithmetic",
                 fmt::format("{} gives numbers beyond {}: {}{}", r.site(), to_string(r.to), lost(r.numbers),
                             fast ? "; updates are as large as the weights" : ""),
                 {cures::masters(*e.recipe), cures::role_in_f32(*e.recipe, amp::Role::error)});
  f.precision = !e.fp32_fails;
  return f;
}

// A row that makes NaN or Inf of finite numbers.
Finding of_maker(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  if (r.phase == Phase::optimizer && !r.parameter.empty()) return of_optimizer(r, s, e);
  const std::string function = function_of(r, s);
  if (r.nonfinite_number)
    return innocent(at(
        r, s.step, "bug",
        fmt::format("{}{} is given a number that is NaN or Inf", function.empty() ? "" : function + ": ", r.site())));
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
  if (inner && !inner->accumulator.empty() && !std::isnan(inner->accumulation_db))
    return at(*inner, s.step, "accumulator",
              fmt::format("{}: the sums leave the range of the accumulator {}: {}", inner->site(), inner->accumulator,
                          lost(inner->numbers)),
              {cures::f32_sums(*e.recipe)});
  if (is_users(r))
    return inner ? of_maker(*inner, s, e)
                 : innocent(at(r, s.step, "bug",
                               fmt::format("the function {} gives {} of finite inputs", r.site(), lost(r.numbers))));
  if (!is_low(r)) return of_f32(r, s, e);
  const bool divides = r.counts.overflow == 0 && !is_quantised(r);
  if (const LedgerRow* zero = divides ? underflow_before(r, s) : nullptr)
    return at(*zero, s.step,
              zero->phase == Phase::backward ? "gradient-underflow"
              : sums_or_exponentials(*zero)  ? "reduction-underflow"
                                             : "activation-underflow",
              fmt::format("{}: {} of its results become 0 in {}, and {} makes NaN or Inf of them", zero->site(),
                          percent(lost_share(zero->counts)), to_string(zero->to), r.site()),
              cures_of(*zero, e));
  return at(
      r, s.step,
      r.phase == Phase::backward               ? "gradient-overflow"
      : r.op == "cast" && !r.parameter.empty() ? "weight-overflow"
      : sums_or_exponentials(r)                ? "reduction-overflow"
                                               : "activation-overflow",
      fmt::format("{} gives numbers beyond {}: {}{}", r.site(),
                  is_quantised(r) ? "the format of its operands" : to_string(r.to), lost(r.numbers),
                  r.numbers.largest > 0 ? fmt::format("; the largest finite one is {:.3g}", r.numbers.largest) : ""),
      cures_of(r, e));
}

// A row that reads NaN or Inf which no op made.
Finding of_reader(const LedgerRow& r, const ObservedStep& s, const Evidence& e) {
  const auto finding = [&](const char* cause, std::string sentence, std::vector<Cure> cures = {}) {
    Finding f = at(r, s.step, cause, std::move(sentence), std::move(cures));
    if (!s.bad_tensor.empty()) f.site = s.bad_tensor;
    return f;
  };
  if (!s.bad_tensor.empty()) {
    if (s.evaluation || s.bad_tensor.find("running_") != std::string::npos)
      return finding("batch-statistics", s.bad_tensor + " is not finite, and evaluation divides by it",
                     {cures::norms_in_f32(*e.recipe)});
    if (!e.first_in_fp32 || !e.first_in_fp32->bad_tensor.empty())
      return innocent(finding("data", s.bad_tensor + " is not finite before the first step"));
    return finding("weight-overflow",
                   fmt::format("{} is beyond {} before the first step", s.bad_tensor, to_string(e.recipe->dtype)),
                   {cures::bf16(*e.recipe)});
  }
  if (!s.finite_batch)
    return innocent(
        finding("data", fmt::format("the batch holds NaN or Inf: {} is the first op that reads it", r.site())));
  if (r.numbers.nan == 0)
    return innocent(finding("arithmetic", fmt::format("{}: a mask of Inf reaches the loss", r.site())));
  const std::string function = function_of(r, s);
  return innocent(finding("bug", fmt::format("{} reads NaN or Inf that no op made{}{}: code that writes memory itself",
                                             r.site(), function.empty() ? "" : ", in ", function)));
}

// The rows of a step by number, each with the same of the step in fp32: by phase, layer, op and how often it came
// before. Null where fp32 has other rows.
std::vector<const LedgerRow*> beside(const ObservedStep& step, const ObservedStep& fp32) {
  const auto key = [](const LedgerRow& r) {
    return fmt::format("{}|{}|{}", to_string(r.phase), r.module, r.op.substr(0, r.op.find(' ')));
  };
  std::map<std::string, std::vector<const LedgerRow*>> here, there;
  for (const LedgerRow& r : step.ledger.rows()) here[key(r)].push_back(&r);
  for (const LedgerRow& r : fp32.ledger.rows()) there[key(r)].push_back(&r);
  std::vector<const LedgerRow*> same(step.ledger.rows().size());
  for (const auto& [name, rows] : here)
    for (std::size_t i = 0; rows.size() == there[name].size() && i < rows.size(); ++i)
      same[static_cast<std::size_t>(rows[i]->number)] = there[name][i];
  return same;
}

// Of a tensor that is 0 throughout although what it is made of is not: why, or none where rounding does that.
Found of_zero(const LedgerRow& r, const ObservedStep& s) {
  const LedgerRow* from = r.reads.empty() ? nullptr : &row(s, r.reads[0]);
  const double least = from && r.op == "cast" && is_half(r.to) ? format_of(r.to).min_positive() : 0;
  const std::string function = is_users(r) ? r.op : function_of(r, s);
  std::string sentence;
  if (function.empty() && least > 0 && from->numbers.largest >= 2 * least)
    sentence =
        fmt::format("{}: all of its results are 0, though its inputs reach {:.3g}", r.site(), from->numbers.largest);
  else if (!function.empty() && r.counts.underflow == 0 && r.op != "quantize" && !underflow_before(r, s))
    sentence = fmt::format("{}{}: all of its results are 0, and its inputs are not", is_users(r) ? "" : function + ": ",
                           r.site());
  if (sentence.empty()) return {};
  return innocent(at(r, s.step, "bug", sentence, {}, kAllLost));
}

}  // namespace

Finding at(const LedgerRow& r, std::int64_t step, std::string cause, std::string sentence, std::vector<Cure> cures,
           double severity) {
  return {.cause = std::move(cause),
          .phase = std::string(to_string(r.phase)),
          .op = r.op.substr(0, r.op.find(" rewritten by ")),
          .site = !r.parameter.empty() ? r.parameter
                  : !r.module.empty()  ? r.module
                                       : r.line,
          .step = step,
          .sentence = std::move(sentence),
          .cures = std::move(cures),
          .severity = severity};
}

void Worst::take(const std::optional<ObservedStep>& s, const std::function<double(const LedgerRow&)>& score_of) {
  if (!s) return;
  for (const LedgerRow& r : s->ledger.rows())
    if (const double now = score_of(r); now > score) score = now, row = &r, step = s->step;
}

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

Found of_nonfinite(const ObservedStep& s, const Evidence& e) {
  const LedgerRow *from = nullptr, *first = nullptr, *last = nullptr;
  const auto take = [&](const LedgerRow& target) {
    const LedgerRow* o = s.ledger.origin(target);
    if (o && (!from || std::pair(o->nonfinite_inputs, o->number) < std::pair(from->nonfinite_inputs, from->number)))
      from = o;
  };
  for (const LedgerRow& r : s.ledger.rows()) {
    if (r.finite()) continue;
    last = &r;
    if (!first) first = &r;
    if (r.phase == Phase::optimizer) take(r);
  }
  if (!from && last) take(*last);
  if (!from) return {};
  if (!s.bad_tensor.empty()) from = first;
  Finding f = from->nonfinite_inputs || !s.bad_tensor.empty() ? of_reader(*from, s, e) : of_maker(*from, s, e);
  f.severity = kStopped;
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
  origin->severity = kStopped;
  return origin;
}

Found of_zeros(const Evidence& e) {
  if (!e.first) return {};
  const auto same = beside(*e.first, e.first_in_fp32 ? *e.first_in_fp32 : *e.first);
  for (const LedgerRow& r : e.first->ledger.rows()) {
    if (!is_zero(r) || r.phase == Phase::optimizer || r.kind == OpKind::InPlace) continue;
    if (std::ranges::any_of(r.reads, [&](std::int64_t i) { return is_zero(row(*e.first, i)); })) continue;
    if (Found f = of_zero(r, *e.first)) return f;
    const LedgerRow* there = same[static_cast<std::size_t>(r.number)];
    if (e.fp32_fails && there && is_zero(*there) && !r.reads.empty() && r.phase == Phase::forward)
      return innocent(at(r, e.first->step, "dead-units",
                         fmt::format("{} gives 0 for every input: nothing before it learns", r.site()), {}, kAllLost));
  }
  return {};
}

Found of_overflow(const Evidence& e) {
  if (!e.first || !e.first_in_fp32) return {};
  const auto same = beside(*e.first, *e.first_in_fp32);
  const LedgerRow* worst = nullptr;
  double most = kManyLost;
  for (const LedgerRow& reader : e.first->ledger.rows()) {
    // What is 0 here and not in fp32; all that a mask makes 0 is 0 there too.
    const LedgerRow* there = same[static_cast<std::size_t>(reader.number)];
    const bool counts = there && reader.finite() && reader.phase == Phase::forward;
    const double gone = counts ? share(reader.numbers.zeros - there->numbers.zeros, reader.numbers.elements) : 0;
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
  const bool coded = e.recipe->quantization && e.recipe->quantization->moment2;
  Worst worst{.score = kManyLost};
  for (const auto* s : {&e.first, &e.late, &e.bad})
    worst.take(*s, [&](const LedgerRow& r) {
      if (r.state.size() != 2 || r.eps_is_zero || !(is_half(r.state_dtype) || coded) || r.nonfinite_inputs) return 0.0;
      return r.state[1].finite() ? share(r.lost_moments, r.state[1].elements) : 1;
    });
  if (!worst.row) return {};
  const LedgerRow& r = *worst.row;
  const std::string format =
      coded ? to_string(e.recipe->quantization->moment2->format) : std::string(to_string(r.state_dtype));
  // Huge updates end in an overflow elsewhere, some steps later.
  return at(r, worst.step, "second-moment",
            r.state[1].finite()
                ? fmt::format("{}: {} of its second moments, squares of gradients, are 0 in {} while the first are "
                              "not: their updates are divided by eps {} alone",
                              r.site(), percent(worst.score), format, r.eps)
                : overflowed_moment(r, format),
            {cures::masters(*e.recipe)}, (e.bad && e.bad->step <= worst.step ? 0 : 1.6) + worst.score / 10);
}

Found of_statistics(const Evidence& e) {
  Worst worst;
  worst.take(e.late, [](const LedgerRow& r) {
    if (r.op != "batch_norm_update_" || r.nonfinite_inputs || !is_half(r.to)) return 0.0;
    if (!r.finite()) return std::numeric_limits<double>::infinity();
    return share(r.swamped, r.added) > kManyVanish && r.stale > kStale ? r.stale : 0;
  });
  if (!worst.row) return {};
  const LedgerRow& r = *worst.row;
  const Cure norms = cures::norms_in_f32(*e.recipe);
  return at(r, -1, "batch-statistics",
            r.finite() ? fmt::format("{} of the running statistics of layer {} stand still in {}, {:.2g} standard "
                                     "deviations from the batch's: evaluation uses them",
                                     percent(share(r.swamped, r.added)), r.module, to_string(r.to), r.stale)
                       : fmt::format("the running statistics of layer {} overflow {}: {}", r.module, to_string(r.to),
                                     lost(r.numbers)),
            {norms, cures::bf16(norms.recipe)}, e.trains ? kAllLost : std::min(1.0, worst.score));
}

Found of_sums(const Evidence& e) {
  Worst worst;
  for (const Phase phase : {Phase::forward, Phase::backward})
    for (const auto* s : {&e.late, &e.first})
      if (!worst.row)
        worst.take(*s, [&](const LedgerRow& r) {
          if (r.phase != phase || r.op == "batch_norm_update_") return 0.0;
          const double noise = r.accumulation_db < kFaintSums ? std::pow(10, -r.accumulation_db / 10) : 0;
          const double swamped = phase == Phase::forward ? share(r.swamped, r.added) : 0;
          return std::max(noise, swamped > kManySwamped ? swamped / 2 : 0);
        });
  if (!worst.row) return {};
  const LedgerRow& r = *worst.row;
  const double severity = std::min(1.0, worst.score);
  if (!r.accumulator.empty())
    return at(r, -1, "accumulator",
              fmt::format("{}: sums in the accumulator {} differ from sums in f32 by {} of their magnitude: terms are "
                          "below half an ulp of the sum",
                          r.site(), r.accumulator, percent(std::pow(10, -r.accumulation_db / 20))),
              {cures::f32_sums(*e.recipe)}, severity);
  return at(r, -1, "accumulator",
            fmt::format("{}: {} of what it adds leaves no trace, for it is below half an ulp of the sum in {}",
                        r.site(), percent(share(r.swamped, r.added)), to_string(r.to)),
            {cures::op_in_f32(*e.recipe, op_from_name(r.op))}, severity);
}

Found of_rate(const Evidence& e) {
  if (!e.fp32_fails || e.bad || e.updates.empty()) return {};
  const auto fastest = std::ranges::max_element(e.updates, {}, &Update::ratio);
  if (fastest->ratio() > kSlow && fastest->ratio() < kFast) return {};
  return Finding{
      .cause = "learning-rate",
      .phase = "optimizer",
      .op = fastest->op,
      .site = fastest->parameter,
      .sentence = fmt::format("updates are at most {:.2g} of the weights, in {}", fastest->ratio(), fastest->parameter),
      .precision = false,
      .severity = 0.5};
}

Found of_rounding(const Evidence& e) {
  Worst worst;
  for (const auto* s : {&e.late, &e.first})
    if (!worst.row)
      worst.take(*s, [](const LedgerRow& r) { return std::isnan(r.sqnr_db) ? 0 : std::pow(10, -r.sqnr_db / 20); });
  if (!worst.row) return {};
  return at(*worst.row, -1, "rounding",
            fmt::format("no number overflows, underflows or vanishes to speak of: the rounding itself is too coarse, "
                        "most in {}, with an error of {} of the magnitude",
                        worst.row->site(), percent(worst.score)),
            {cures::layer_in_f32(*e.recipe, worst.row->module), cures::masters(*e.recipe)});
}

}  // namespace gradual::inspect::rules
