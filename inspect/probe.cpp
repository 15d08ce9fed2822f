#include "probe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../core/formats/accumulate_element.h"
#include "../core/support/throwf.h"

namespace gradual::inspect {
namespace {

constexpr int kWidest = 56;       // in bits: in every accumulator, a number absorbs a unit that is smaller by this
constexpr int kMostTerms = 4096;  // products
constexpr int kReplays = 64;      // and random dot products

double power(int exponent) { return std::ldexp(1.0, exponent); }

// x rounded to a multiple of 2^last. NaN for an unknown mode and for stochastic rounding.
double rounded_at(double x, int last, const std::optional<RoundingMode>& mode) {
  x = std::ldexp(x, -last);
  // exact: up is down
  const double up = std::ceil(x);
  const double down = std::floor(x);
  const double odd = std::fmod(down, 2) != 0 ? down : up;
  const double to[] = {std::nearbyint(x), std::round(x), std::trunc(x), up, down, up == down ? x : odd, std::nan("")};
  return std::ldexp(to[static_cast<int>(mode.value_or(RoundingMode::stochastic))], last);
}
// x rounded to `bits` bits, and to a multiple of 2^least.
double rounded(double x, int bits, const std::optional<RoundingMode>& mode, int least) {
  return rounded_at(x, static_cast<int>(std::max<double>(least, std::logb(x) - bits + 1)), mode);
}

// Two factors at a place, whose product is 2^e times a number of few bits. Neither factor is subnormal if 2^e is in
// the range of products.
struct Pair {
  std::size_t at;
  double a, b;
  Pair(int place, double left, double right) : at(static_cast<std::size_t>(place)), a(left), b(right) {}
  Pair(int place, double value) : Pair(place, value, power(std::ilogb(value) >> 1)) { a /= b; }
};

// The dot product that is examined, and the operands of the next call.
class Experiments {
 public:
  Experiments(const DotProduct& dot, const ProbeOptions& options)
      : terms(options.terms),
        operands(float_info(options.operands)),
        result(float_info(options.result)),
        a(static_cast<std::size_t>(terms)),
        b(a.size()),
        dot_(dot) {}

  // The result for these products; all others are 0.
  double run(std::initializer_list<Pair> pairs) {
    std::ranges::fill(a, 0);
    std::ranges::fill(b, 0);
    for (const Pair& p : pairs) {
      a[p.at] = p.a;
      b[p.at] = p.b;
    }
    return run();
  }
  double run() const { return dot_(a, b); }

  const int terms;
  const FloatInfo operands;
  const FloatInfo result;
  std::vector<double> a;
  std::vector<double> b;

 private:
  const DotProduct& dot_;
};

// The powers of two 2^least to 2^largest that a sum and the result hold, and a unit that is small beside the largest.
struct PowerRange {
  int least = 0;
  int largest = 0;
  int unit = 0;
};

PowerRange find_range(Experiments& dot) {
  PowerRange r;
  const auto holds = [&] { return dot.run({{0, power(r.least)}}) == power(r.least); };
  const auto cancels = [&](int at) { return dot.run({{0, power(r.largest)}, {at, -power(r.largest)}}) == 0; };
  r.least = std::max(2 * std::ilogb(dot.operands.min_normal), -1074);
  while (r.least < 0 && !holds()) ++r.least;
  r.largest = std::min(2 * std::ilogb(dot.operands.max), 1023);
  while (r.largest > r.least && !(cancels(1) && cancels(dot.terms - 1))) --r.largest;
  if (!holds() || r.largest == r.least)
    throw_error("probe: the function is not a dot product: a power of two times 1 is another, or M - M is not 0");
  r.unit = std::max(r.least, std::min(r.largest - kWidest, std::ilogb(dot.result.max) - 1));
  return r;
}

// Finds the order of the sum.
class OrderFinder {
 public:
  OrderFinder(Experiments& dot, const PowerRange& range) : dot_(dot), range_(range) {}

  // The tree of these places only.
  SumTree order_of(const std::vector<int>& places) {
    const int pivot = places[places.size() / 2];
    SumTree tree{.first = pivot};
    for (const std::vector<int>& group : by_ancestor(places, pivot)) {
      SumTree other = order_of(group);
      std::vector<SumTree>& parts = other.children;
      const bool at_once = !parts.empty() && (outside(pivot, parts[0].first, parts[1].first) ||
                                              !outside(parts[0].first, parts[1].first, pivot));
      std::vector<SumTree> addends = at_once ? std::move(parts) : std::vector{std::move(other)};
      addends.push_back(std::move(tree));
      tree = sum_of(std::move(addends));
    }
    return tree;
  }

 private:
  // The places without the pivot, grouped by their lowest common ancestor with it, the lowest ancestor first.
  std::vector<std::vector<int>> by_ancestor(const std::vector<int>& places, int pivot) {
    // True if the common ancestor of the pivot and i is below that of the pivot and j.
    const auto below = [&](int i, int j) { return outside(pivot, i, j) && !outside(pivot, j, i); };
    std::vector<std::vector<int>> groups;
    for (const int at : places) {
      if (at == pivot) continue;
      const auto group = std::ranges::partition_point(groups, [&](const auto& g) { return below(g.front(), at); });
      if (group == groups.end() || below(at, group->front())) groups.insert(group, std::vector{at});
      else group->push_back(at);
    }
    return groups;
  }

  // True if t is not below the lowest common ancestor of i and j: the unit at t survives. An addition of three or more
  // that loses no unit counts as such an ancestor only for places below the addends of i and j.
  bool outside(int i, int j, int t) {
    const double largest = power(range_.largest);
    const double unit = power(range_.unit);
    return dot_.run({{i, largest}, {j, -largest}, {t, unit}}) == unit;
  }

  Experiments& dot_;
  const PowerRange range_;
};

// Finds the bits and the rounding of a sum's additions, and whether it adds products unrounded.
class AdderFinder {
 public:
  AdderFinder(Experiments& dot, const PowerRange& range)
      : dot_(dot), range_(range), base_(std::max(range.least, std::min(0, range.largest - kWidest))) {}

  // Fills in the adders of a sum and of the sums below it, innermost first. `cancel` is a place that is added to the
  // sum; -1: none.
  void examine(SumTree& sum, int cancel = -1) {
    std::vector<SumTree>& addends = sum.children;
    const auto other = [&](const SumTree& t) { return addends[&t == addends.data() ? 1 : 0].first; };
    for (SumTree& addend : addends)
      if (!addend.children.empty()) examine(addend, other(addend));
    const int i = addends[0].first;
    const int j = addends[1].first;
    Adder& adder = sum.adder;
    find_rounding(adder.bits, adder.rounding, i, j, cancel);
    if (addends.size() > 2) find_rounding(adder.aligned, adder.alignment, i, addends[2].first, j);
    // The last sum is seen only after it is rounded to the result's dtype: it is assumed to have the bits of the sum
    // before.
    const Adder& before = std::ranges::max_element(addends, {}, &SumTree::size)->adder;
    if (cancel < 0 && adder.bits == dot_.result.mantissa_bits + 1 && before.bits > adder.bits) {
      adder.bits = before.bits;
      adder.rounding = before.rounding;
    }
    for (SumTree& addend : addends)
      if (addend.children.empty()) addend.exact = is_exact(addend.first, other(addend), adder.bits);
  }

  // What the products that were examined so far have in common.
  Products products() const {
    if (fitting_ == dot_.terms) return Products::fit;
    if (asked_ == 0) return Products::unseen;
    return exact_ == 0 ? Products::rounded : Products::fused;
  }

 private:
  // The result of M + t - M in units of 2^base; of (M + t) minus M if no place can cancel M before the result.
  double last_bits(double m, double t, int i, int j, int cancel) {
    const double one = power(base_);
    if (cancel >= 0) return dot_.run({{i, m * one}, {j, t * one}, {cancel, -m * one}}) / one;
    return dot_.run({{i, m * one}, {j, t * one}}) / one - m;
  }

  // Sets `bits` to the number of bits that keep 1 in 2^s + 1, and `rounding` by how 1/4, 1/2 and 3/4 of the last bit
  // are rounded.
  void find_rounding(int& bits, std::optional<RoundingMode>& rounding, int i, int j, int cancel) {
    const int most = std::min(range_.largest - base_, kWidest - 1);
    int s = 0;
    for (int more = 32; more > 0; more /= 2)
      if (s + more <= most && last_bits(power(s + more), 1, i, j, cancel) == 1) s += more;
    bits = s < most ? s + 1 : 0;
    if (bits < 2 || base_ + bits + 1 > range_.largest) return;
    const auto each = [](const auto& result) {
      std::vector<double> results;
      for (const double t : {1, 2, 3, -1, -2, -3}) results.push_back(result(t));
      return results;
    };
    const auto ask = [&](double t) { return last_bits(std::copysign(power(bits + 1), t), t, i, j, cancel); };
    const std::vector<double> seen = each(ask);
    for (int again = 0; again < 3; ++again)
      if (each(ask) != seen) rounding = RoundingMode::stochastic;
    for (int n = 0; !rounding && n < static_cast<int>(RoundingMode::stochastic); ++n) {
      const auto mode = static_cast<RoundingMode>(n);  // M is an even multiple of the last place, like 8
      if (seen == each([&](double t) { return rounded_at(std::copysign(8, t) + t, 2, mode) - std::copysign(8, t); }))
        rounding = mode;
    }
  }

  // True if a product is added unrounded: (1 + 2^-q)^2 - (1 + 2^(1-q)) is 2^-2q, or 0 if the square is rounded to 2 q
  // bits.
  bool is_exact(int at, int other, int bits) {
    const int q = (bits + 1) / 2;
    const int h = std::max(range_.least + 2 * q, std::min(0, range_.largest - 1));
    const bool fits = q > dot_.operands.mantissa_bits;
    fitting_ += fits;
    if (bits == 0 || fits || h >= range_.largest) return false;
    const double factor = 1 + power(-q);
    const bool exact = dot_.run({{at, std::ldexp(factor, h - h / 2), std::ldexp(factor, h / 2)},
                                 {other, -std::ldexp(1 + power(1 - q), h)}}) == power(h - 2 * q);
    ++asked_;
    exact_ += exact;
    return exact;
  }

  Experiments& dot_;
  const PowerRange range_;
  const int base_;  // the exponent of 1 in last_bits()
  // numbers of products
  int fitting_ = 0;
  int asked_ = 0;
  int exact_ = 0;
};

// Sets sum, outer, chunk and promote from the sums that have product 0, innermost first. Returns the innermost one.
const SumTree& describe(const SumTree& sum, ProbeResult& found) {
  const SumTree& first = sum.children[0];
  const bool is_innermost = first.children.empty();
  const SumTree& innermost = is_innermost ? sum : describe(first, found);
  if (is_innermost) found.sum = sum.adder;
  else if (!found.outer && sum.adder != found.sum) found.outer = sum.adder;
  int& length = found.chunk == 0 ? found.chunk : found.promote;
  if (length == 0 && sum.children[1].size > std::max(found.chunk, 1)) length = first.size;
  return innermost;
}

// innermost: the innermost sum that has product 0.
void find_flushes(Experiments& dot, const SumTree& innermost, ProbeResult& found) {
  const double subnormal = dot.operands.min_normal / 2;
  found.flushes_operands = dot.run({{0, subnormal, 1 / subnormal}}) != 1;
  // Otherwise the result hides the smallest sums.
  if (found.largest > std::ilogb(dot.result.max) || found.sum.bits < 2) return;
  const int i = 0;
  const int j = innermost.children[1].first;
  const double least = power(found.least);
  const bool gradual = found.least == -1074 || dot.run({{i, 1.5 * least}}) != 1.5 * least;
  const int bits = std::min(found.sum.bits, dot.result.mantissa_bits + 1);
  const double normal = gradual ? std::ldexp(least, bits - 1) : least;
  const double half = normal / 2;
  found.flushes_sums = dot.run({{i, normal + half}, {j, -normal}}) != half;
  if (std::ilogb(half) < 2 * std::ilogb(dot.operands.min_normal)) return;
  // In one of the two orders, a fused product is added after the normal number.
  found.flushes_products =
      dot.run({{i, normal}, {j, half}}) != normal + half && dot.run({{j, normal}, {i, half}}) != normal + half;
}

// The dot product of the operands by a tree and its adders. NaN beyond 2^largest, and if an adder is unknown.
double replayed(const Experiments& dot, const SumTree& sum, int least, int largest) {
  const Adder& how = sum.adder;
  if (how.bits == 0 && sum.children.size() == 2) return std::nan("");
  std::vector<double> addends;
  double most = 0;
  double total = 0;
  for (const SumTree& t : sum.children) {
    const auto at = static_cast<std::size_t>(t.first);
    const double x = t.children.empty() ? dot.a[at] * dot.b[at] : replayed(dot, t, least, largest);
    addends.push_back(t.children.empty() && !t.exact && how.bits ? rounded(x, how.bits, how.rounding, least) : x);
    most = std::max(most, std::abs(addends.back()));
  }
  for (double x : addends) {
    if (how.aligned && most > 0) x = rounded_at(x, std::ilogb(most) - how.aligned + 1, how.alignment);
    total = how.bits < 53 ? std::bit_cast<double>(gradual::detail::sum_to_odd(total, x)) : total + x;
  }
  if (how.bits) total = rounded(total, how.bits, how.rounding, least);
  return std::abs(total) <= power(largest) ? total : std::nan("");
}

// Compares random dot products with the tree and its adders.
void replay(Experiments& dot, ProbeResult& found) {
  std::mt19937_64 random(1);
  const auto below = [&](std::uint64_t n) { return static_cast<double>(random() % n); };
  const int digits = dot.operands.mantissa_bits + 1;
  const int scale = std::min(0, found.largest / 2 - 1) + 1 - digits;
  for (int i = 0; i < kReplays; ++i) {
    const double share = below(4);  // share of nonzero numbers, in quarters
    for (auto* list : {&dot.a, &dot.b})
      for (double& x : *list) {
        x = std::ldexp(below(std::uint64_t{2} << digits) - power(digits), scale - static_cast<int>(below(3)));
        if (below(4) > share) x = 0;
      }
    const int least = found.flushes_sums == false ? found.least : -1074;
    const double sum = replayed(dot, found.tree, least, found.largest);
    found.replayed += std::isnan(sum) ? 0 : 1;  // NaN equals nothing
    found.reproduced += dot.run() == rounded(sum, dot.result.mantissa_bits + 1, RoundingMode::nearest_even,
                                             std::ilogb(dot.result.min_subnormal));
  }
}

}  // namespace

ProbeResult probe(const DotProduct& dot, const ProbeOptions& options) {
  if (options.terms < 4 || options.terms > kMostTerms)
    throwf("probe: {} terms; 4 to {} are allowed", options.terms, kMostTerms);
  Experiments experiments(dot, options);
  const PowerRange range = find_range(experiments);
  ProbeResult found{.least = range.least, .largest = range.largest};

  OrderFinder order(experiments, range);
  std::vector<int> places(static_cast<std::size_t>(options.terms));
  std::iota(places.begin(), places.end(), 0);
  found.tree = order.order_of(places);
  // The reversed order has other pivots.
  found.consistent = to_string(order.order_of({places.rbegin(), places.rend()})) == to_string(found.tree);

  AdderFinder adders(experiments, range);
  adders.examine(found.tree);
  found.products = adders.products();
  const SumTree& innermost = describe(found.tree, found);
  if (found.outer && found.promote == 0) std::swap(found.chunk, found.promote);
  if (!shows(found.tree, tree_of({.chunk = found.chunk, .promote = found.promote}, options.terms))) {
    found.chunk = 0;
    found.promote = 0;
  }
  find_flushes(experiments, innermost, found);
  if (found.consistent && experiments.result.mantissa_bits < 52) replay(experiments, found);
  return found;
}

}  // namespace gradual::inspect
