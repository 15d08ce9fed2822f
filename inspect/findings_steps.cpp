#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "../core/quantize/what_if.h"
#include "findings.h"

namespace gradual::inspect::rules {
namespace {

using Rows = std::vector<const LedgerRow*>;

constexpr double kFaintSums = 20, kManySwamped = 0.5, kManyLost = 0.05, kManySkipped = 0.1;

double share(std::int64_t part, std::int64_t whole) {
  return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}
bool is_zero(const LedgerRow& r) { return r.numbers.elements > 0 && r.numbers.zeros == r.numbers.elements; }

// Whether an op of the table made the row; else a user's function did, a quantiser or a product of quantised operands.
bool is_op(const std::string& name) { return std::ranges::find(kOpInfos, name, &OpInfo::name) != std::end(kOpInfos); }
bool is_quantised(const std::string& op) { return op.find("quantiz") != std::string::npos; }
bool is_users(const LedgerRow& r) { return r.kind == OpKind::Custom && !is_quantised(r.op); }
bool is_low(const LedgerRow& r) { return is_half(r.to) || is_f8(r.to) || is_quantised(r.op); }
bool sums_or_exponentials(const LedgerRow& r) {
  using enum OpKind;
  return r.op == "square" || r.kind == Transcendental || r.kind == Reduction || r.kind == Normalization ||
         r.kind == Loss;
}

// What rows of two recipes' steps are compared by.
std::string key(const LedgerRow& r) {
  return fmt::format("{}|{}|{}", to_string(r.phase), r.module, r.op.substr(0, r.op.find(' ')));
}

std::string lost(const Numbers& n) {
  const std::string rest = n.largest > 0 ? fmt::format("; the largest finite one is {:.3g}", n.largest) : "";
  if (n.inf && n.nan) return fmt::format("{} of {} elements are Inf and {} NaN{}", n.inf, n.elements, n.nan, rest);
  return fmt::format("{} of {} elements are {}{}", n.inf + n.nan, n.elements, n.inf ? "Inf" : "NaN", rest);
}

// An observed step and what is known of its run.
struct Look {
  const ObservedStep& s;
  const Evidence& e;

  const LedgerRow& row(std::int64_t number) const { return s.ledger.rows()[static_cast<std::size_t>(number)]; }

  Finding finding(const LedgerRow& r, std::string cause, std::string sentence, std::vector<Cure> cures = {}) const {
    return {.cause = std::move(cause),
            .phase = std::string(to_string(r.phase)),
            .op = r.op.substr(0, r.op.find(" rewritten by ")),
            .site = !r.parameter.empty() ? r.parameter
                    : !r.module.empty()  ? r.module
                                         : r.line,
            .step = s.step,
            .sentence = std::move(sentence),
            .cures = std::move(cures),
            .severity = 1.5};
  }
  Finding innocent(const LedgerRow& r, std::string cause, std::string sentence) const {
    Finding f = finding(r, std::move(cause), std::move(sentence));
    f.precision = false;
    return f;
  }

  // The rows on the way to `r`, in order.
  Rows way(const LedgerRow& r) const {
    std::vector<std::int64_t> all = r.reads;
    for (std::size_t i = 0; i < all.size() && i < 64; ++i)
      for (const std::int64_t before : row(all[i]).reads)
        if (std::ranges::find(all, before) == all.end()) all.push_back(before);
    std::ranges::sort(all);
    Rows rows;
    for (const std::int64_t i : all) rows.push_back(&row(i));
    return rows;
  }

  // The user's function that an op belongs to: in backward by its name, in forward by the row that ends it.
  std::string function_of(const LedgerRow& r) const {
    if (is_users(r)) return r.op;
    if (r.phase == Phase::backward)
      return r.backward_of.empty() || is_op(r.backward_of) || is_quantised(r.backward_of) ? "" : r.backward_of;
    for (const LedgerRow& outer : s.ledger.rows())
      if (outer.number > r.number && is_users(outer) && is_within(r, outer)) return outer.op;
    return "";
  }
  // Whether `r` is a part of the custom op `outer`: it comes after all that this reads.
  static bool is_within(const LedgerRow& r, const LedgerRow& outer) {
    return r.number < outer.number && r.module == outer.module && r.phase == outer.phase &&
           std::ranges::all_of(outer.reads, [&r](std::int64_t i) { return i < r.number; });
  }

  std::vector<Cure> cures_of(const LedgerRow& r) const {
    const amp::Recipe& own = *e.recipe;
    if (is_quantised(r.op)) return {cures::scales(own), cures::layer_in_f32(own, r.module)};
    std::vector<Cure> all;
    const bool backward = r.phase == Phase::backward;
    if (backward && r.to == DType::f16 && !own.scaling) all.push_back(cures::dynamic_scale(own));
    if (sums_or_exponentials(r) && is_op(r.op) && !backward)
      all.push_back(cures::ops_in_f32(own, {op_from_name(r.op)}));
    if (r.to == DType::f16) all.push_back(cures::bf16(own));
    Rows rows = way(r);
    rows.push_back(&r);
    std::vector<OpId> ops;
    for (const LedgerRow* x : rows) {
      const bool simple = x->kind == OpKind::Elementwise || sums_or_exponentials(*x);
      if (!simple || !is_op(x->op) || x->module != r.module || x->phase != Phase::forward) continue;
      if (const OpId op = op_from_name(x->op); std::ranges::find(ops, op) == ops.end()) ops.push_back(op);
    }
    if (!ops.empty()) all.push_back(cures::ops_in_f32(own, ops));
    all.push_back(cures::autocast(own));
    return all;
  }

  Finding of_optimizer(const LedgerRow& r) const {
    const bool adam = r.state.size() == 2, half = is_half(r.from) || is_half(r.state_dtype);
    const std::string became = r.numbers.finite() ? "" : fmt::format(", and in {} {}", r.parameter, lost(r.numbers));
    Finding f = finding(r, "update-overflow", fmt::format("{} gives numbers beyond {}", r.site(), to_string(r.from)),
                        {cures::masters(*e.recipe)});
    if (adam && r.eps_is_zero && r.state[1].zeros > 0) {
      f.cause = "adam-eps";
      f.sentence = fmt::format("{}: {} of its second moments and eps {} are 0 in {}", r.site(),
                               percent(share(r.state[1].zeros, r.state[1].elements)), r.eps, to_string(r.from));
    } else if (adam && !r.state[1].finite()) {
      f.cause = "second-moment";
      f.sentence = fmt::format("{}: its second moment, a square of the gradient, overflows {}: {}", r.site(),
                               to_string(r.state_dtype), lost(r.state[1]));
    }
    if (!half) f.cause = "arithmetic", f.precision = !e.fp32_fails;
    f.sentence += became;
    return f;
  }

  // f32 itself overflows: the learning rate where updates are as large as the weights.
  Finding of_f32(const LedgerRow& r) const {
    Finding f = finding(r, "arithmetic",
                        fmt::format("{} gives numbers beyond {}: {}", r.site(), to_string(r.to), lost(r.numbers)),
                        {cures::masters(*e.recipe), cures::role_in_f32(*e.recipe, amp::Role::error)});
    if (all_updates(e).ratio() > kFast && s.step > 0)
      f.cause = "learning-rate", f.sentence += "; updates are as large as the weights";
    f.precision = !e.fp32_fails;
    return f;
  }

  // Of a row in low precision that makes NaN or Inf although nothing exceeds the dtype: what became 0 or negative before.
  Found of_argument(const LedgerRow& r) const {
    const LedgerRow *zero = nullptr, *difference = nullptr;
    for (const LedgerRow* x : way(r)) {
      if (!is_low(*x)) continue;
      if (x->op == "sub") difference = x;
      if (x->counts.underflow && !(zero && lost_share(zero->counts) > kManyVanish)) zero = x;
    }
    if (zero)
      return finding(*zero,
                     zero->phase == Phase::backward ? "gradient-underflow"
                     : sums_or_exponentials(*zero)  ? "reduction-underflow"
                                                    : "activation-underflow",
                     fmt::format("{}: {} of its results become 0 in {}, and {} makes NaN or Inf of them", zero->site(),
                                 percent(lost_share(zero->counts)), to_string(zero->to), r.site()),
                     cures_of(*zero));
    if (!difference || r.numbers.nan == 0 || r.kind != OpKind::Transcendental) return {};
    return finding(*difference, "cancellation",
                   fmt::format("{}: the terms agree in all bits that {} has, and {} makes NaN of what is left",
                               difference->site(), to_string(difference->to), r.site()),
                   cures_of(*difference));
  }

  // A row that makes NaN or Inf of finite numbers.
  Finding of_maker(const LedgerRow& r) const {
    if (r.phase == Phase::optimizer && !r.parameter.empty()) return of_optimizer(r);
    const std::string function = function_of(r), prefix = function.empty() || is_users(r) ? "" : function + ": ";
    if (r.nonfinite_number) return innocent(r, "bug", prefix + r.site() + " is given a number that is NaN or Inf");
    const auto& rows = s.ledger.rows();
    const auto inner = std::ranges::find_if(rows, [&r](const LedgerRow& x) {
      return r.kind == OpKind::Custom && !x.finite() && !x.nonfinite_inputs && x.kind != OpKind::Custom &&
             is_within(x, r);
    });
    if (inner != rows.end() && !inner->accumulator.empty())
      return finding(*inner, "accumulator",
                     fmt::format("{}: the sums leave the range of the accumulator {}: {}", inner->site(),
                                 inner->accumulator, lost(inner->numbers)),
                     {cures::f32_sums(*e.recipe)});
    if (is_users(r) && inner != rows.end()) return of_maker(*inner);
    if (is_users(r)) return innocent(r, "bug", fmt::format("{}: of finite inputs {}", r.site(), lost(r.numbers)));
    if (!is_low(r) && e.fp32_fails && s.step == 0 && !function.empty())
      return innocent(
          r, "bug",
          fmt::format("{}{} gives numbers beyond {}: {}", prefix, r.site(), to_string(r.to), lost(r.numbers)));
    if (!is_low(r)) return of_f32(r);
    if (r.counts.overflow == 0 && !is_quantised(r.op))
      if (Found f = of_argument(r)) return *f;
    return finding(r,
                   r.phase == Phase::backward               ? "gradient-overflow"
                   : r.op == "cast" && !r.parameter.empty() ? "weight-overflow"
                   : sums_or_exponentials(r)                ? "reduction-overflow"
                                                            : "activation-overflow",
                   fmt::format("{} gives numbers beyond {}: {}", r.site(),
                               is_quantised(r.op) ? "the format of its operands" : to_string(r.to), lost(r.numbers)),
                   cures_of(r));
  }

  // A row that reads NaN or Inf which no op made.
  Finding of_reader(const LedgerRow& r) const {
    if (!s.bad_tensor.empty()) {
      Finding f = finding(r, "batch-statistics", s.bad_tensor + " is not finite, and evaluation uses it",
                          {cures::norms_in_f32(*e.recipe)});
      f.site = s.bad_tensor;
      if (s.bad_tensor.find("running_") != std::string::npos) return f;
      f.cause = "weight-overflow", f.cures = {cures::bf16(*e.recipe)};
      f.sentence = s.bad_tensor + " is not finite before this step";
      if (!e.first_in_fp32 || !e.first_in_fp32->bad_tensor.empty()) f.cause = "data", f.precision = false;
      return f;
    }
    if (!s.finite_batch)
      return innocent(r, "data", fmt::format("the batch holds NaN or Inf: {} is the first op that reads it", r.site()));
    if (r.numbers.nan == 0) return innocent(r, "arithmetic", r.site() + ": a mask of Inf reaches the loss");
    const std::string function = function_of(r);
    return innocent(r, "bug",
                    fmt::format("{} reads NaN or Inf that no op made{}{}: code that writes memory itself", r.site(),
                                function.empty() ? "" : ", in ", function));
  }

  // Of a tensor that is 0 throughout although what it is made of is not: a bug where rounding does not make it so.
  Found of_zero(const LedgerRow& r) const {
    const double least = r.op == "cast" && is_half(r.to) ? format_of(r.to).min_positive() : 0;
    const double largest = r.reads.empty() ? 0 : row(r.reads[0]).numbers.largest;
    const std::string function = function_of(r);
    if (function.empty() && least > 0 && largest >= 2 * least)
      return innocent(r, "bug",
                      fmt::format("{}: all of its results are 0, though its inputs reach {:.3g}", r.site(), largest));
    const Rows before = way(r);
    const bool underflows =
        r.counts.underflow > 0 || r.op == "quantize" ||
        std::ranges::any_of(before, [](const LedgerRow* x) { return is_low(*x) && x->counts.underflow > 0; });
    if (function.empty() || underflows) return {};
    return innocent(r, "bug",
                    fmt::format("{}{}: all of its results are 0, and its inputs are not",
                                is_users(r) ? "" : function + ": ", r.site()));
  }
};

// By phase, layer and op: the share of results that are 0.
std::map<std::string, double> zero_shares(const ObservedStep& s) {
  std::map<std::string, Numbers> sums;
  for (const LedgerRow& r : s.ledger.rows())
    sums[key(r)].elements += r.numbers.elements, sums[key(r)].zeros += r.numbers.zeros;
  std::map<std::string, double> shares;
  for (const auto& [key, n] : sums) shares[key] = share(n.zeros, n.elements);
  return shares;
}

// The row of the given steps with the largest badness above 0, and its step; a null step: none.
template <class F>
std::pair<const ObservedStep*, const LedgerRow*> worst_of(
    std::initializer_list<const std::optional<ObservedStep>*> steps, double& most, const F& badness) {
  std::pair<const ObservedStep*, const LedgerRow*> worst = {};
  most = 0;
  for (const auto* s : steps)
    if (*s)
      for (const LedgerRow& r : (*s)->ledger.rows())
        if (const double bad = badness(r); bad > most) most = bad, worst = {&**s, &r};
  return worst;
}

}  // namespace

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

Found of_nonfinite(const ObservedStep& s, const Evidence& e) {
  const Look look{s, e};
  const LedgerRow *from = nullptr, *first = nullptr, *last = nullptr;
  const auto take = [&](const LedgerRow& target) {
    const LedgerRow* o = s.ledger.origin(target);
    if (o && (!from || std::pair(o->nonfinite_inputs, o->number) < std::pair(from->nonfinite_inputs, from->number)))
      from = o;
  };
  for (const LedgerRow& r : s.ledger.rows()) {
    if (r.finite()) continue;
    if (!first) first = &r;
    last = &r;
    if (r.phase == Phase::optimizer) take(r);
  }
  if (!from && last) take(*last);
  if (!from) return {};
  if (!s.bad_tensor.empty()) return look.of_reader(*first);
  return from->nonfinite_inputs ? look.of_reader(*from) : look.of_maker(*from);
}

Found of_skips(const Evidence& e) {
  if (!e.skip || static_cast<double>(e.skipped) < kManySkipped * static_cast<double>(e.steps)) return {};
  Found f = of_nonfinite(*e.skip, e);
  if (!f || f->phase == "forward" || !f->precision || e.last_scale <= 1) return f;
  const bool dynamic = e.recipe->scaling && e.recipe->scaling->dynamic, grows = dynamic && e.growths > 1;
  f->cause = grows ? "scale-grows" : "scale-too-high";
  f->sentence = fmt::format("{} of {} steps are skipped at the {} loss scale {}{}: {}", e.skipped, e.steps,
                            dynamic ? "dynamic" : "static", scale_text(e.last_scale),
                            grows ? fmt::format(", which grew {} times", e.growths) : "", f->sentence);
  f->cures = {cures::dynamic_scale(*e.recipe), cures::bf16(*e.recipe)};
  return f;
}

Found of_zeros(const Evidence& e) {
  for (const auto* s : {&e.first, &e.late}) {
    if (!*s) continue;
    const Look look{**s, e};
    for (const LedgerRow& r : (*s)->ledger.rows()) {
      if (!is_zero(r) || r.phase == Phase::optimizer || r.kind == OpKind::InPlace || r.reads.empty()) continue;
      if (std::ranges::any_of(r.reads, [&look](std::int64_t i) { return is_zero(look.row(i)); })) continue;
      Found f = s == &e.first ? look.of_zero(r) : Found();
      if (!f && e.fp32_fails && r.phase == Phase::forward && r.counts.underflow == 0)
        f = look.innocent(r, "dead-units", r.site() + " gives 0 for every input: nothing before it learns");
      if (f) return f->severity = 2, f;  // all that follows is lost
    }
  }
  return {};
}

Found of_overflow(const Evidence& e) {
  if (!e.first || !e.first_in_fp32) return {};
  const Look look{*e.first, e};
  const LedgerRow* worst = nullptr;
  double most = kManyLost;
  auto here = zero_shares(*e.first), there = zero_shares(*e.first_in_fp32);
  for (const LedgerRow& reader : e.first->ledger.rows()) {
    // What is 0 here and not in fp32; all that a mask makes 0 is 0 there too.
    const double gone =
        reader.phase == Phase::forward && there.contains(key(reader)) ? here[key(reader)] - there[key(reader)] : 0;
    if (gone <= most || !reader.finite()) continue;
    for (const std::int64_t i : reader.reads)
      if (const LedgerRow* made = e.first->ledger.origin(look.row(i)); made && !made->nonfinite_inputs)
        most = gone, worst = made;
  }
  if (!worst) return {};
  Finding f = look.of_maker(*worst);
  f.severity = 1 + most;
  return f;
}

Found of_moments(const Evidence& e) {
  const bool coded = e.recipe->quantization && e.recipe->quantization->moment2;
  double most = 0;
  const auto [s, worst] = worst_of({&e.first, &e.late, &e.bad}, most, [&](const LedgerRow& r) {
    if (r.state.size() != 2 || r.eps_is_zero || !(is_half(r.state_dtype) || coded) || r.nonfinite_inputs) return 0.0;
    if (!r.state[1].finite() && is_half(r.state_dtype)) return 1.0;
    const double zero = share(r.lost_moments, r.state[1].elements);
    return zero > kManyLost ? zero : 0;
  });
  if (!s) return {};
  const Look look{*s, e};
  Finding f = look.of_optimizer(*worst);
  f.cause = "second-moment", f.precision = true;
  if (worst->state[1].finite() || coded)
    f.sentence = fmt::format(
        "{}: {} of its second moments, squares of gradients, are 0 in {} while the first are not: "
        "their updates are divided by eps {} alone",
        worst->site(), percent(most),
        coded ? to_string(e.recipe->quantization->moment2->format) : to_string(worst->state_dtype), worst->eps);
  // Huge updates end in an overflow elsewhere, some steps later.
  f.severity = (e.bad && e.bad->step == 0 ? 0 : 1.6) + most / 10;
  return f;
}

Found of_sums(const Evidence& e) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    double most = 0;
    const auto [s, worst] = worst_of({&e.late, &e.first}, most, [phase](const LedgerRow& r) {
      if (r.phase != phase) return 0.0;
      const double swamped = phase == Phase::forward ? share(r.swamped, r.added) : 0;
      if (swamped > kManySwamped) return swamped / 2;
      return r.accumulation_db < kFaintSums ? std::pow(10, -r.accumulation_db / 10) : 0;
    });
    if (!s) continue;
    const bool named = !worst->accumulator.empty();
    Finding f = Look{*s, e}.finding(
        *worst, "accumulator",
        named ? fmt::format("{}: sums in the accumulator {} differ from sums in f32 by {} of their magnitude: terms "
                            "are below half an ulp of the sum",
                            worst->site(), worst->accumulator, percent(std::pow(10, -worst->accumulation_db / 20)))
              : fmt::format("{}: {} of what it adds leaves no trace, for it is below half an ulp of the sum in {}",
                            worst->site(), percent(share(worst->swamped, worst->added)), to_string(worst->to)),
        named ? std::vector{cures::f32_sums(*e.recipe)}
              : std::vector{cures::ops_in_f32(*e.recipe, {op_from_name(worst->op)}), cures::autocast(*e.recipe)});
    f.step = -1, f.severity = std::min(1.0, most);
    return f;
  }
  return {};
}

Found of_rounding(const Evidence& e) {
  double most = 0;
  const auto [s, worst] = worst_of({e.late ? &e.late : &e.first}, most, [](const LedgerRow& r) {
    return std::isfinite(r.sqnr_db) ? std::pow(10, -r.sqnr_db / 20) : 0;
  });
  if (!s) return {};
  Finding f = Look{*s, e}.finding(
      *worst, "rounding",
      fmt::format("nothing overflows, underflows or vanishes to speak of: the rounding itself is too coarse, most in "
                  "{}, with an error of {} of the magnitude",
                  worst->site(), percent(most)),
      {cures::layer_in_f32(*e.recipe, worst->module), cures::masters(*e.recipe), cures::autocast(*e.recipe)});
  f.step = -1, f.severity = 0;
  return f;
}

}  // namespace gradual::inspect::rules
