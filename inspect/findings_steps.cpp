#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/quantize/what_if.h"
#include "findings.h"

namespace gradual::inspect::rules {
namespace {

using Rows = std::vector<const LedgerRow*>;

constexpr double kFaintSums = 20;
constexpr double kManySwamped = 0.5;
constexpr double kManyLost = 0.05;
constexpr double kManySkipped = 0.1;
constexpr double kMuchOfLoss = 0.25;

double share(std::int64_t part, std::int64_t whole) { return percent_of(part, whole) / 100; }
bool is_zero(const LedgerRow& r) { return r.numbers.elements > 0 && r.numbers.zeros == r.numbers.elements; }

bool is_op(const LedgerRow& r) { return r.source == Source::op; }
bool is_users(const LedgerRow& r) { return r.source == Source::function; }
// A quantiser, or a product of quantised operands.
bool is_quantised(const LedgerRow& r) { return r.source == Source::quantizer || r.source == Source::rewritten; }
// A product of quantised operands that stores f32 overflows f32 alone: their own rows have what their formats lose.
bool is_low(const LedgerRow& r) {
  if (is_half(r.to) || is_f8(r.to)) return true;
  return r.source == Source::quantizer || (r.source == Source::rewritten && r.numbers.nan > 0);
}
bool underflows(const LedgerRow* r) { return is_low(*r) && r->counts.underflow > 0; }
bool reduces(const LedgerRow& r) {  // also exponentials, roots, squares
  using enum OpKind;
  return r.id == OpId::square || r.kind == Transcendental || r.kind == Reduction || r.kind == Normalization ||
         r.kind == Loss;
}

std::string lost(const Numbers& n) {
  std::string what = n.inf ? "Inf" : "NaN";
  if (n.inf && n.nan) what = fmt::format("Inf and {} NaN", n.nan);
  const std::string rest = n.largest > 0 ? fmt::format("; the largest finite one is {:.3g}", n.largest) : "";
  return fmt::format("{} of {} elements are {}{}", n.inf ? n.inf : n.nan, n.elements, what, rest);
}

// The cause if a row's results exceed the dtype, and if they become 0.
Cause overflow_of(const LedgerRow& r) {
  if (r.phase == Phase::backward) return Cause::gradient_overflow;
  return reduces(r) ? Cause::reduction_overflow : Cause::activation_overflow;
}
Cause underflow_of(const LedgerRow& r) {
  if (r.phase == Phase::backward) return Cause::gradient_underflow;
  return reduces(r) ? Cause::reduction_underflow : Cause::activation_underflow;
}

// Of a row's results. A quantiser of backward rounds a weight, if it names a parameter, or else an error; another op of
// backward that names one makes its gradient.
NumberRole role_of_row(const LedgerRow& r) {
  if (r.phase == Phase::optimizer) return NumberRole::update;
  const bool of_parameter = !r.parameter.empty();
  if (of_parameter && (r.phase == Phase::forward || r.source == Source::quantizer)) return NumberRole::weight;
  if (r.phase == Phase::forward) return NumberRole::activation;
  return of_parameter ? NumberRole::weight_gradient : NumberRole::error;
}

// An observed step and the evidence from its run, with what the rules ask of its rows.
struct StepView {
  const ObservedStep& s;
  const Evidence& e;

  const LedgerRow& row(std::int64_t number) const { return s.ledger.rows()[static_cast<std::size_t>(number)]; }

  template <class... A>
  Finding finding(const LedgerRow& r, Cause cause, std::vector<Cure> cures, fmt::format_string<A...> text,
                  A&&... values) const {
    Finding f{.cause = cause, .phase = r.phase, .op = r.name()};
    f.site = r.place();
    f.line = r.own_line ? "" : r.line;
    if (!r.parameter.empty()) f.site = r.parameter;
    f.role = role_of_row(r);
    f.step = s.step;
    f.severity = 1.5;
    f.precision = blames_recipe(cause, e.fp32_fails);
    f.sentence = fmt::format(text, std::forward<A>(values)...);
    f.cures = std::move(cures);
    return f;
  }

  // The rows that `r` follows from, directly or through others, in order: at most kMostFollowed of them and what they
  // read.
  Rows sources_of(const LedgerRow& r) const {
    constexpr std::size_t kMostFollowed = 64;
    std::vector<std::int64_t> all = r.reads;
    for (std::size_t i = 0; i < std::min(all.size(), kMostFollowed); ++i)
      for (const std::int64_t before : row(all[i]).reads)
        if (std::ranges::find(all, before) == all.end()) all.push_back(before);
    std::ranges::sort(all);
    Rows rows;
    for (const std::int64_t i : all) rows.push_back(&row(i));
    return rows;
  }

  // True if `r` is a part of the custom op `outer`: it comes after everything that `outer` reads.
  static bool is_within(const LedgerRow& r, const LedgerRow& outer) {
    return r.number < outer.number && r.module == outer.module && r.phase == outer.phase &&
           std::ranges::all_of(outer.reads, [&r](std::int64_t i) { return i < r.number; });
  }
  // The user's function that an op belongs to, as "name: "; empty if there is none. In backward it is found by name.
  std::string function_of(const LedgerRow& r) const {
    if (r.phase == Phase::backward) {
      const auto made_it = [&r](const LedgerRow& x) { return is_users(x) && x.op == r.backward_of; };
      return std::ranges::any_of(s.ledger.rows(), made_it) ? r.backward_of + ": " : "";
    }
    for (const LedgerRow& outer : s.ledger.rows())
      if (is_users(outer) && is_within(r, outer)) return outer.op + ": ";
    return "";
  }
};

// Edits of the recipe that may cure what a row shows.
struct Remedies {
  const StepView& view;

  // The simple ops of a row's layer in forward, each once: those among `rows`.
  static std::vector<std::string> simple_ops(const LedgerRow& r, const Rows& rows) {
    std::vector<std::string> ops;
    for (const LedgerRow* x : rows)
      if ((x->kind == OpKind::Elementwise || reduces(*x)) && is_op(*x) && x->module == r.module &&
          x->phase == Phase::forward && std::ranges::find(ops, x->op) == ops.end())
        ops.push_back(x->op);
    return ops;
  }

  // Cures for a row, the smallest first: a smaller loss scale, its own op in f32, the simple ops of the layer that led
  // to it, all simple ops of the layer, bf16.
  std::vector<Cure> cures_of(const LedgerRow& r) const {
    const amp::Recipe& own = *view.e.recipe;
    if (is_quantised(r)) return {cures::scales(own), cures::layer_in_f32(own, r.module, view.e.names), cures::fp8(own)};
    std::vector<Cure> all;
    const bool forward = r.phase == Phase::forward;
    const auto in_f32 = [&](const std::vector<std::string>& ops) {
      if (ops.empty()) return;
      all.push_back(cures::ops_in_f32(own, ops));
      all.push_back(cures::ops_and_norms_in_f32(own, ops));
    };
    const std::vector<std::string> own_op = forward ? simple_ops(r, {&r}) : std::vector<std::string>{};
    if (!own_op.empty()) all.push_back(cures::ops_in_f32(own, own_op));
    Rows step;
    for (const LedgerRow& x : view.s.ledger.rows()) step.push_back(&x);
    const std::vector<std::string> of_layer = simple_ops(r, step);
    Rows leading = view.sources_of(r);
    leading.push_back(&r);
    std::vector<std::string> that_led = simple_ops(r, leading);
    // The gradient of a simple op in f16 leaves the range where that op's result does.
    const bool of_simple = !forward && std::ranges::find(of_layer, r.backward_of) != of_layer.end();
    if (of_simple && std::ranges::find(that_led, r.backward_of) == that_led.end()) that_led.push_back(r.backward_of);
    if (of_simple) in_f32(that_led);
    if (!forward && r.to == DType::f16 && !own.scaling) {
      for (const int bits : {8, 16}) all.push_back(cures::static_scale(own, -bits));
      all.push_back(cures::dynamic_scale(own));
    }
    if (that_led != own_op && !of_simple) in_f32(that_led);
    if (of_layer.size() > that_led.size()) in_f32(of_layer);
    if (r.to == DType::f16) all.push_back(cures::bf16(own));
    return all;
  }
};

// NaN or Inf of numbers within the dtype's range: an argument of the op became 0 or negative before.
struct ArgumentRule {
  const StepView& view;

  // The operand whose 0 makes NaN or Inf of an op: the divisor, or the argument of a log, a root, a power. -1: any.
  static int divisor_of(const LedgerRow& r) {
    switch (r.id) {
      case OpId::div: return 1;
      case OpId::log:
      case OpId::rsqrt:
      case OpId::reciprocal:
      case OpId::pow: return 0;
      default: return -1;
    }
  }

  // The row where the zeros of the divisor of `r` were made. Of the rows with zeros that lead to it: the first one
  // that rounds a quarter to 0, or the one that rounds most, or else the first one. Null if `r` divides by nothing.
  const LedgerRow* maker_of_zero(const LedgerRow& r) const {
    const int divisor = divisor_of(r);
    if (divisor < 0 || divisor >= std::ssize(r.operands)) return nullptr;
    std::int64_t at = r.operands[static_cast<std::size_t>(divisor)];
    const LedgerRow* first = nullptr;
    const LedgerRow* most = nullptr;  // of those that round to 0
    const auto rounds_many = [](const LedgerRow& x) { return lost_share(x.counts) > kManyVanish; };
    while (at >= 0 && view.row(at).numbers.zeros > 0) {
      const LedgerRow& x = view.row(at);
      first = &x;
      if (underflows(&x) && (!most || rounds_many(x) || lost_share(x.counts) > lost_share(most->counts))) most = &x;
      at = -1;
      for (const std::int64_t before : x.operands)
        if (before >= 0 && before < x.number && view.row(before).numbers.zeros > 0) at = std::max(at, before);
    }
    return most ? most : first;
  }

  Found of(const LedgerRow& r) const {
    const Remedies remedies{view};
    const LedgerRow* const made = maker_of_zero(r);
    const LedgerRow* zero = made && underflows(made) ? made : nullptr;
    const LedgerRow* difference = nullptr;
    for (const LedgerRow* x : view.sources_of(r)) {
      if (is_low(*x) && x->id == OpId::sub) difference = x;
      if (!made && underflows(x) && !(zero && lost_share(zero->counts) > kManyVanish)) zero = x;
    }
    if (zero)
      return view.finding(*zero, underflow_of(*zero), remedies.cures_of(*zero),
                          "{}: {} of its results become 0 in {}, and {} makes NaN or Inf of them",
                          site_of(*zero, view.e), percent(lost_share(zero->counts)), to_string(zero->to),
                          site_of(r, view.e));
    if (made && !is_low(*made))
      return view.finding(*made, Cause::arithmetic, {},
                          "{}: {} of its results are 0 in {}, and {} makes NaN or Inf of them", site_of(*made, view.e),
                          percent(share(made->numbers.zeros, made->numbers.elements)), to_string(made->to),
                          site_of(r, view.e));
    if (!difference || r.numbers.nan == 0 || r.kind != OpKind::Transcendental) return {};
    return view.finding(*difference, Cause::cancellation, remedies.cures_of(*difference),
                        "{}: the terms agree in all bits of {}, and {} makes NaN of what is left",
                        site_of(*difference, view.e), to_string(difference->to), site_of(r, view.e));
  }
};

// What a row shows that makes, reads or loses numbers.
struct RowRules {
  const StepView& view;
  const ObservedStep& s = view.s;
  const Evidence& e = view.e;

  Finding of_optimizer(const LedgerRow& r) const {
    const bool adam = r.state.size() == 2;
    const bool eps = adam && r.eps_is_zero && r.state[1].zeros > 0;
    const bool moment = adam && !r.state[1].finite();
    Cause cause = Cause::update_overflow;
    if (moment) cause = Cause::second_moment;
    if (eps) cause = Cause::adam_eps;
    // No rounding of the state or of the arithmetic can be the cause in f32.
    if (!is_half(r.from) && !is_half(r.state_dtype)) cause = Cause::arithmetic;
    std::vector<Cure> remedies = {cures::masters(*e.recipe)};
    if (eps || moment) remedies.insert(remedies.begin(), cures::state_in_f32(*e.recipe));
    Finding f = view.finding(r, cause, remedies, "{} gives numbers beyond {}", site_of(r, e), to_string(r.from));
    if (eps)
      f.sentence = fmt::format("{}: {} of its second moments and eps {} are 0 in {}", site_of(r, e),
                               percent(share(r.state[1].zeros, r.state[1].elements)), r.eps, to_string(r.from));
    else if (moment)
      f.sentence = fmt::format("{}: its second moment, a square of the gradient, overflows {}: {}", site_of(r, e),
                               to_string(r.state_dtype), lost(r.state[1]));
    if (!r.numbers.finite()) f.sentence += fmt::format(", and in {} {}", r.parameter, lost(r.numbers));
    return f;
  }

  // The first operand of a rewritten op that has a site of its own within it (attention's) and whose rounding makes NaN
  // or Inf; null: none.
  const LedgerRow* operand_of(const LedgerRow& r) const {
    if (r.source != Source::rewritten) return nullptr;
    const auto found = std::ranges::find_if(s.ledger.rows(), [&r](const LedgerRow& x) {
      return x.source == Source::quantizer && x.number < r.number && x.phase == r.phase && !x.finite() &&
             !x.nonfinite_inputs && x.module.starts_with(r.module + ".");
    });
    return found == s.ledger.rows().end() ? nullptr : &*found;
  }

  // The first part of a custom op that makes NaN or Inf from finite numbers; null: none.
  const LedgerRow* part_of(const LedgerRow& r) const {
    if (r.kind != OpKind::Custom) return nullptr;
    const auto found = std::ranges::find_if(s.ledger.rows(), [&r](const LedgerRow& x) {
      return x.kind != OpKind::Custom && !x.finite() && !x.nonfinite_inputs && StepView::is_within(x, r);
    });
    return found == s.ledger.rows().end() ? nullptr : &*found;
  }

  std::string beyond_range(const LedgerRow& r) const {
    return fmt::format("{} gives numbers beyond {}: {}", site_of(r, e),
                       is_quantised(r) ? "the format of its operands" : to_string(r.to), lost(r.numbers));
  }

  // A row that makes NaN or Inf from finite numbers.
  Finding of_maker(const LedgerRow& r) const {
    if (r.phase == Phase::optimizer && !r.parameter.empty()) return of_optimizer(r);
    if (r.nonfinite_number)
      return view.finding(r, Cause::bug, {}, "{}{} is given a number that is NaN or Inf", view.function_of(r),
                          site_of(r, e));
    if (const LedgerRow* const operand = operand_of(r)) return of_maker(*operand);
    const LedgerRow* const part = part_of(r);
    if (part && !part->accumulator.empty())
      return view.finding(*part, Cause::accumulator, {cures::f32_sums(*e.recipe)},
                          "{}: the sums leave the range of the accumulator {}: {}", site_of(*part, e),
                          part->accumulator, lost(part->numbers));
    if (is_users(r) && part) return of_maker(*part);
    if (is_users(r)) return view.finding(r, Cause::bug, {}, "{}: of finite inputs {}", site_of(r, e), lost(r.numbers));
    return is_low(r) ? of_low_maker(r) : of_wide_maker(r);
  }

  // The same where f32 itself overflows: in a function, or by the learning rate if updates are as large as the weights.
  Finding of_wide_maker(const LedgerRow& r) const {
    const std::string function = view.function_of(r);
    if (e.fp32_fails && s.step == 0 && !function.empty())
      return view.finding(r, Cause::bug, {}, "{}{}", function, beyond_range(r));
    const bool fast = all_updates(e).ratio() > kFast && s.step > 0;
    if (const Found made = fast ? Found() : ArgumentRule{view}.of(r)) return *made;
    return view.finding(r, fast ? Cause::learning_rate : Cause::arithmetic, {cures::masters(*e.recipe)}, "{}{}",
                        beyond_range(r), fast ? "; updates are as large as the weights" : "");
  }

  // The same in a dtype or a format of a smaller range.
  Finding of_low_maker(const LedgerRow& r) const {
    if (r.counts.overflow == 0 && !is_quantised(r))
      if (Found f = ArgumentRule{view}.of(r)) return *f;
    const bool weight = r.id == OpId::cast && !r.parameter.empty() && r.phase != Phase::backward;
    // A mask with a number: no edit of the recipe is as small as another number.
    const bool mask = (r.id == OpId::where || r.id == OpId::fill_ || r.id == OpId::pad) && r.counts.overflow > 0;
    const std::string finite = mask ? fmt::format("; a mask of -{:.4g} stays finite", format_of(r.to).max() / 2) : "";
    return view.finding(r, weight ? Cause::weight_overflow : overflow_of(r), Remedies{view}.cures_of(r), "{}{}",
                        beyond_range(r), finite);
  }

  // A row that reads a NaN or Inf which no op made.
  Finding of_reader(const LedgerRow& r) const {
    const std::optional<BadTensor>& bad = s.bad_tensor;
    if (bad && bad->kind == ModelTensorKind::running_statistic)
      return view.finding(r, Cause::batch_statistics, {cures::norms_in_f32(*e.recipe)},
                          "{} is not finite, and evaluation uses it", bad->name);
    if (bad) {
      const bool born = e.first_in_fp32 && !e.first_in_fp32->bad_tensor;
      Finding f = view.finding(r, born ? Cause::weight_overflow : Cause::data, {cures::bf16(*e.recipe)},
                               "{} is not finite before this step", bad->name);
      f.site = bad->name;
      return f;
    }
    // An earlier step made it, and this one only divides by its root.
    if (r.phase == Phase::optimizer && is_half(r.state_dtype) && !std::ranges::all_of(r.state, &Numbers::finite))
      return of_optimizer(r);
    if (!s.finite_batch)
      return view.finding(r, Cause::data, {}, "the batch holds NaN or Inf: {} is the first op that reads it",
                          site_of(r, e));
    if (r.numbers.nan == 0) {
      Finding f = view.finding(r, Cause::arithmetic, {}, "{}: a mask of Inf reaches the loss", site_of(r, e));
      f.precision = false;
      return f;
    }
    return view.finding(r, Cause::bug, {}, "{}{} reads NaN or Inf that no op made: code that writes memory itself",
                        view.function_of(r), site_of(r, e));
  }

  // A tensor of zeros made from inputs that are not all 0: a bug unless rounding explains it.
  Found of_zero(const LedgerRow& r) const {
    const double least = r.id == OpId::cast && is_half(r.to) ? format_of(r.to).min_positive() : 0;
    const double largest = view.row(r.reads[0]).numbers.largest;
    const std::string function = is_users(r) ? r.op : view.function_of(r);
    const bool in_range = least > 0 && largest >= 2 * least;
    const bool rounded =
        underflows(&r) || r.source == Source::quantizer || std::ranges::any_of(view.sources_of(r), underflows);
    if (!in_range && (function.empty() || rounded)) return {};
    return view.finding(r, Cause::bug, {}, "{}{}: all of its results are 0, though its inputs reach {:.3g}",
                        view.function_of(r), site_of(r, e), largest);
  }
};

}  // namespace

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

Found of_nonfinite(const ObservedStep& s, const Evidence& e) {
  Rows bad, ends;
  for (const LedgerRow& r : s.ledger.rows())
    if (!r.finite()) (r.phase == Phase::optimizer ? ends : bad).push_back(&r);
  if (ends.empty() && !bad.empty()) ends = {bad.back()};
  const LedgerRow* from = nullptr;
  for (const LedgerRow* end : ends)
    if (const LedgerRow* o = s.ledger.origin(*end);
        !from || std::pair(o->nonfinite_inputs, o->number) < std::pair(from->nonfinite_inputs, from->number))
      from = o;
  if (!from) return {};
  const StepView view{s, e};
  const RowRules rules{view};
  if (s.bad_tensor) return rules.of_reader(bad.empty() ? *from : *bad.front());
  return from->nonfinite_inputs ? rules.of_reader(*from) : rules.of_maker(*from);
}

// By how many powers of two a loss scale changes that leaves room above fp32's largest gradient of the first step. 0:
// none was observed.
static int bits_of_room(const Evidence& e) {
  double largest = 0;
  if (e.first_in_fp32)
    for (const LedgerRow& r : e.first_in_fp32->ledger.rows())
      if (r.phase == Phase::backward && r.finite()) largest = std::max(largest, r.numbers.largest);
  const double end = format_of(e.recipe->dtype).max();
  return largest > 0 ? static_cast<int>(std::floor(std::log2(end / largest / e.last_scale) - kRoomBits)) : 0;
}

Found of_skips(const Evidence& e) {
  if (!e.skip || share(e.skipped, e.steps) < kManySkipped) return {};
  Found f = of_nonfinite(*e.skip, e);
  if (!f || f->phase == Phase::forward || !f->precision || e.last_scale <= 1) return f;
  const bool dynamic = e.recipe->scaling && e.recipe->scaling->dynamic;
  const bool grows = dynamic && e.growths > 1;
  f->cause = grows ? Cause::scale_grows : Cause::scale_too_high;
  f->sentence = fmt::format("{} of {} steps are skipped at the {} loss scale {}{}: {}", e.skipped, e.steps,
                            dynamic ? "dynamic" : "static", scale_text(e.last_scale),
                            grows ? fmt::format(", which grew {} times", e.growths) : "", f->sentence);
  f->cures.clear();
  const int bits = dynamic ? 0 : bits_of_room(e);
  if (bits < 0) f->cures.push_back(cures::static_scale(*e.recipe, bits));
  f->cures.insert(f->cures.end(), {cures::dynamic_scale(*e.recipe), cures::bf16(*e.recipe)});
  return f;
}

// A product with a tensor that no op of this step made, as the first state of a recurrent layer: it may be 0.
static bool may_read_zeros(const LedgerRow& r) { return r.id == OpId::mul && std::ranges::count(r.operands, -1) > 0; }

Found of_zeros(const Evidence& e) {
  for (const auto* s : {&e.first, &e.late}) {
    if (!*s) continue;
    const StepView view{**s, e};
    for (const LedgerRow& r : (*s)->ledger.rows()) {
      if (!is_zero(r) || r.phase == Phase::optimizer || r.kind == OpKind::InPlace || r.reads.empty()) continue;
      if (std::ranges::any_of(r.reads, [&view](std::int64_t i) { return is_zero(view.row(i)); })) continue;
      Found f = s == &e.first ? RowRules{view}.of_zero(r) : Found();
      if (!f && e.fp32_fails && r.phase == Phase::forward && r.counts.underflow == 0 && !may_read_zeros(r))
        f = view.finding(r, Cause::dead_units, {}, "{} gives 0 for every input: nothing before it learns",
                         site_of(r, e));
      if (!f) continue;
      f->severity = 2;  // everything after it is lost
      return f;
    }
  }
  return {};
}

Found of_overflow(const Evidence& e) {
  if (!e.first || !e.first_in_fp32) return {};
  // Results and zeros by layer and op. Zeros that fp32 does not have: the zeros of masks are the same in fp32.
  const auto key = [](const LedgerRow& r) { return r.module + "|" + r.name(); };
  std::map<std::string, Numbers> here, there;
  for (const LedgerRow& r : e.first->ledger.rows()) here[key(r)] += r.numbers;
  for (const LedgerRow& r : e.first_in_fp32->ledger.rows()) there[key(r)] += r.numbers;
  const StepView view{*e.first, e};
  const LedgerRow* worst = nullptr;
  double most = kManyLost;
  for (const LedgerRow& r : e.first->ledger.rows()) {
    const Numbers& a = here[key(r)];
    const Numbers& b = there[key(r)];
    const double gone = b.elements ? share(a.zeros, a.elements) - share(b.zeros, b.elements) : 0;
    if (gone <= most || !r.finite() || r.phase != Phase::forward) continue;
    for (const std::int64_t i : r.reads)
      if (const LedgerRow* made = e.first->ledger.origin(view.row(i)); made && !made->nonfinite_inputs) {
        most = gone;
        worst = made;
      }
  }
  if (!worst) return {};
  Finding f = RowRules{view}.of_maker(*worst);
  f.severity = 1 + most;
  return f;
}

Found of_moments(const Evidence& e) {
  const bool coded = e.recipe->quantization && e.recipe->quantization->moment2;
  const auto [s, worst, most] = worst_of({&e.first, &e.late, &e.bad}, [&](const LedgerRow& r) {
    if (r.state.size() != 2 || r.eps_is_zero || !(is_half(r.state_dtype) || coded) || r.nonfinite_inputs) return 0.0;
    if (!r.state[1].finite() && is_half(r.state_dtype)) return static_cast<double>(r.state[1].elements);
    return share(r.lost_moments, r.state[1].elements) > kManyLost ? static_cast<double>(r.lost_moments) : 0;
  });
  if (!s) return {};
  const StepView view{*s, e};
  Finding f = RowRules{view}.of_optimizer(*worst);
  f.cause = Cause::second_moment;
  f.precision = true;
  f.cures = cures::valid(*e.recipe, {cures::state_in_f32(*e.recipe), cures::masters(*e.recipe)});
  if (worst->state[1].finite() || coded)
    f.sentence = fmt::format("{}: {} of its second moments are 0 in {} while the first are not: eps {} alone divides",
                             site_of(*worst, e), percent(share(worst->lost_moments, worst->state[1].elements)),
                             coded ? to_string(e.recipe->quantization->moment2->format) : to_string(worst->state_dtype),
                             worst->eps);
  f.severity = e.bad && e.bad->step == 0 ? 0 : 1.6;  // huge updates end in an overflow elsewhere, later
  return f;
}

// The share of the step's error in the loss that comes from the sums of an op.
double share_of_sums(const LedgerRow& r, const Evidence& e) {
  double share = 0;
  for (const LossShare& s : e.shares)
    if ((s.source == ErrorSource::whole || s.source == ErrorSource::accumulation) && s.phase == r.phase &&
        s.layer == r.module && (!s.layer.empty() || s.line == r.line))
      share += s.share;
  return share;
}

// Sums in an accumulator of the recipe.
static Finding of_accumulator(const StepView& view, const LedgerRow& r) {
  const double of_loss = share_of_sums(r, view.e);
  Finding f = view.finding(r, Cause::accumulator, {cures::f32_sums(*view.e.recipe)},
                           "{}: terms are below half an ulp of sums in the accumulator {}, which are off by {}",
                           site_of(r, view.e), r.accumulator, percent(std::pow(10, -r.accumulation_db / 20)));
  if (of_loss > kMuchOfLoss) f.sentence += fmt::format("; {} of the loss's error comes from them", percent(of_loss));
  f.exact = {{.part = ExactPart::sum, .site = f.site}};
  return f;
}

// Sums that an op stores in a half dtype, term by term.
static Finding of_swamped_sums(const StepView& view, const LedgerRow& r) {
  const amp::Recipe& own = *view.e.recipe;
  return view.finding(r, Cause::accumulator, {cures::ops_in_f32(own, {r.op}), cures::ops_and_norms_in_f32(own, {r.op})},
                      "{}: {} of what it adds is below half an ulp of the sum in {}", site_of(r, view.e),
                      percent(share(r.swamped, r.added)), to_string(r.to));
}

Found of_sums(const Evidence& e) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    const auto [s, worst, most] = worst_of({&e.late, &e.first}, [phase, &e](const LedgerRow& r) {
      if (r.phase != phase) return 0.0;
      const double swamped = phase == Phase::forward ? share(r.swamped, r.added) : 0;
      if (swamped > kManySwamped) return swamped / 2;
      if (r.accumulator.empty()) return 0.0;
      const double faint = r.accumulation_db < kFaintSums ? std::pow(10, -r.accumulation_db / 10) : 0;
      const double of_loss = share_of_sums(r, e);
      return std::max(faint, of_loss > kMuchOfLoss ? of_loss / 2 : 0);
    });
    if (!s) continue;
    const StepView view{*s, e};
    Finding f = worst->accumulator.empty() ? of_swamped_sums(view, *worst) : of_accumulator(view, *worst);
    f.step = -1;
    f.severity = std::min(1.0, most);
    return f;
  }
  return {};
}

}  // namespace gradual::inspect::rules
