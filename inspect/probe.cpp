#include "probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

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

class Prober {
 public:
  Prober(const DotProduct& dot, const ProbeOptions& o)
      : dot_(dot), n_(o.terms), operands_(float_info(o.operands)), result_(float_info(o.result)) {}

  ProbeResult all() {
    find_range();
    std::vector<int> places(a_.size());
    std::iota(places.begin(), places.end(), 0);
    found_.tree = order_of(places);
    // The reversed order has other pivots.
    found_.consistent = to_string(order_of({places.rbegin(), places.rend()})) == to_string(found_.tree);
    base_ = std::max(found_.least, std::min(0, found_.largest - kWidest));
    examine(found_.tree, -1);
    using enum Products;
    found_.products = fitting_ == n_ ? fit : asked_ == 0 ? unseen : exact_ == 0 ? rounded : fused;
    if (found_.outer && found_.promote == 0) std::swap(found_.chunk, found_.promote);
    if (!shows(found_.tree, tree_of({.chunk = found_.chunk, .promote = found_.promote}, n_)))
      found_.chunk = found_.promote = 0;
    find_flushes();
    if (found_.consistent && result_.mantissa_bits < 52) replay();
    return std::move(found_);
  }

 private:
  // Two factors at a place, whose product is 2^e times a number of few bits. Neither factor is subnormal if 2^e is in
  // the range of products.
  struct Pair {
    std::size_t at;
    double a, b;
    Pair(int place, double left, double right) : at(static_cast<std::size_t>(place)), a(left), b(right) {}
    Pair(int place, double value) : Pair(place, value, power(std::ilogb(value) >> 1)) { a /= b; }
  };
  double run(std::initializer_list<Pair> pairs) {
    a_.assign(a_.size(), 0);
    b_ = a_;
    for (const Pair& p : pairs) {
      a_[p.at] = p.a;
      b_[p.at] = p.b;
    }
    return dot_(a_, b_);
  }

  // Finds the range of powers of two, which gives M and the unit.
  void find_range() {
    int& least = found_.least;
    int& largest = found_.largest;
    const auto holds = [&] { return run({{0, power(least)}}) == power(least); };
    const auto cancels = [&](int at) { return run({{0, power(largest)}, {at, -power(largest)}}) == 0; };
    for (least = std::max(2 * std::ilogb(operands_.min_normal), -1074); least < 0 && !holds();) ++least;
    largest = std::min(2 * std::ilogb(operands_.max), 1023);
    while (largest > least && !(cancels(1) && cancels(n_ - 1))) --largest;
    if (!holds() || largest == least)
      throw_error("probe: the function is not a dot product: a power of two times 1 is another, or M - M is not 0");
    unit_ = std::max(least, std::min(largest - kWidest, std::ilogb(result_.max) - 1));
  }

  // True if t is not below the lowest common ancestor of i and j: the unit at t survives. An addition of three or more
  // that loses no unit counts as such an ancestor only for places below the addends of i and j.
  bool outside(int i, int j, int t) {
    return run({{i, power(found_.largest)}, {j, -power(found_.largest)}, {t, power(unit_)}}) == power(unit_);
  }

  // The tree of these places only.
  SumTree order_of(const std::vector<int>& places) {
    const int pivot = places[places.size() / 2];
    // True if the common ancestor of the pivot and i is below that of the pivot and j.
    const auto below = [&](int i, int j) { return outside(pivot, i, j) && !outside(pivot, j, i); };
    std::vector<std::vector<int>> groups;  // by the lowest common ancestor with the pivot, lowest first
    for (const int at : places) {
      if (at == pivot) continue;
      const auto group = std::ranges::partition_point(groups, [&](const auto& g) { return below(g.front(), at); });
      if (group == groups.end() || below(at, group->front())) groups.insert(group, std::vector{at});
      else group->push_back(at);
    }
    SumTree tree{.first = pivot};
    for (const std::vector<int>& group : groups) {
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

  // The result of M + t - M in units of 2^base; of (M + t) minus M if no place can cancel M before the result.
  double last_bits(double m, double t, int i, int j, int cancel) {
    const double one = power(base_);
    if (cancel >= 0) return run({{i, m * one}, {j, t * one}, {cancel, -m * one}}) / one;
    return run({{i, m * one}, {j, t * one}}) / one - m;
  }
  // Sets `bits` to the number of bits that keep 1 in 2^s + 1, and `rounding` by how 1/4, 1/2 and 3/4 of the last bit
  // are rounded.
  void find_rounding(int& bits, std::optional<RoundingMode>& rounding, int i, int j, int cancel) {
    const int most = std::min(found_.largest - base_, kWidest - 1);
    int s = 0;
    for (int more = 32; more > 0; more /= 2)
      if (s + more <= most && last_bits(power(s + more), 1, i, j, cancel) == 1) s += more;
    bits = s < most ? s + 1 : 0;
    if (bits < 2 || base_ + bits + 1 > found_.largest) return;
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
    const int h = std::max(found_.least + 2 * q, std::min(0, found_.largest - 1));
    const bool fits = q > operands_.mantissa_bits;
    fitting_ += fits;
    if (bits == 0 || fits || h >= found_.largest) return false;
    const double factor = 1 + power(-q);
    const bool exact = run({{at, std::ldexp(factor, h - h / 2), std::ldexp(factor, h / 2)},
                            {other, -std::ldexp(1 + power(1 - q), h)}}) == power(h - 2 * q);
    ++asked_;
    exact_ += exact;
    return exact;
  }

  // Finds the adders and products of a sum, innermost first. `cancel` is a place that is added to the sum; -1: none.
  void examine(SumTree& sum, int cancel) {
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
    if (cancel < 0 && adder.bits == result_.mantissa_bits + 1 && before.bits > adder.bits) {
      adder.bits = before.bits;
      adder.rounding = before.rounding;
    }
    for (SumTree& addend : addends)
      if (addend.children.empty()) addend.exact = is_exact(addend.first, other(addend), adder.bits);

    if (sum.first != 0) return;
    if (!innermost_) {
      innermost_ = &sum;
      found_.sum = adder;
    } else if (!found_.outer && adder != found_.sum) found_.outer = adder;
    int& length = found_.chunk == 0 ? found_.chunk : found_.promote;
    if (length == 0 && addends[1].size > std::max(found_.chunk, 1)) length = addends[0].size;
  }

  void find_flushes() {
    const double subnormal = operands_.min_normal / 2;
    found_.flushes_operands = run({{0, subnormal, 1 / subnormal}}) != 1;
    if (found_.largest > std::ilogb(result_.max) || found_.sum.bits < 2) return;  // the result hides the smallest sums
    const int i = 0;
    const int j = innermost_->children[1].first;
    const double least = power(found_.least);
    const bool gradual = found_.least == -1074 || run({{i, 1.5 * least}}) != 1.5 * least;
    const int bits = std::min(found_.sum.bits, result_.mantissa_bits + 1);
    const double normal = gradual ? std::ldexp(least, bits - 1) : least;
    const double half = normal / 2;
    found_.flushes_sums = run({{i, normal + half}, {j, -normal}}) != half;
    if (std::ilogb(half) < 2 * std::ilogb(operands_.min_normal)) return;
    // In one of the two orders, a fused product is added after the normal number.
    found_.flushes_products =
        run({{i, normal}, {j, half}}) != normal + half && run({{j, normal}, {i, half}}) != normal + half;
  }

  // The dot product by the tree and its adders. NaN beyond 2^largest, and if an adder is unknown.
  double replayed(const SumTree& sum, int least) const {
    const Adder& how = sum.adder;
    if (how.bits == 0 && sum.children.size() == 2) return std::nan("");
    std::vector<double> addends;
    double most = 0;
    double total = 0;
    for (const SumTree& t : sum.children) {
      const auto at = static_cast<std::size_t>(t.first);
      const double x = t.children.empty() ? a_[at] * b_[at] : replayed(t, least);
      addends.push_back(t.children.empty() && !t.exact && how.bits ? rounded(x, how.bits, how.rounding, least) : x);
      most = std::max(most, std::abs(addends.back()));
    }
    for (double x : addends) {
      if (how.aligned && most > 0) x = rounded_at(x, std::ilogb(most) - how.aligned + 1, how.alignment);
      total = how.bits < 53 ? std::bit_cast<double>(gradual::detail::sum_to_odd(total, x)) : total + x;
    }
    if (how.bits) total = rounded(total, how.bits, how.rounding, least);
    return std::abs(total) <= power(found_.largest) ? total : std::nan("");
  }
  void replay() {
    std::mt19937_64 random(1);
    const auto below = [&](std::uint64_t n) { return static_cast<double>(random() % n); };
    const int digits = operands_.mantissa_bits + 1;
    const int scale = std::min(0, found_.largest / 2 - 1) + 1 - digits;
    for (int i = 0; i < kReplays; ++i) {
      const double share = below(4);  // share of nonzero numbers, in quarters
      for (auto* list : {&a_, &b_})
        for (double& x : *list) {
          x = std::ldexp(below(std::uint64_t{2} << digits) - power(digits), scale - static_cast<int>(below(3)));
          if (below(4) > share) x = 0;
        }
      const double sum = replayed(found_.tree, found_.flushes_sums == false ? found_.least : -1074);
      found_.replayed += std::isnan(sum) ? 0 : 1;  // NaN equals nothing
      found_.reproduced += dot_(a_, b_) == rounded(sum, result_.mantissa_bits + 1, RoundingMode::nearest_even,
                                                   std::ilogb(result_.min_subnormal));
    }
  }

  const DotProduct& dot_;
  int n_;
  FloatInfo operands_, result_;
  std::vector<double> a_ = std::vector<double>(static_cast<std::size_t>(n_));
  std::vector<double> b_ = a_;
  int unit_ = 0;                        // exponents: of the unit
  int base_ = 0;                        // and of 1 in counts of bits
  const SumTree* innermost_ = nullptr;  // the innermost sum that has product 0
  // numbers of products
  int fitting_ = 0;
  int asked_ = 0;
  int exact_ = 0;
  ProbeResult found_;
};

}  // namespace

ProbeResult probe(const DotProduct& dot, const ProbeOptions& options) {
  if (options.terms < 4 || options.terms > kMostTerms)
    throwf("probe: {} terms; 4 to {} are allowed", options.terms, kMostTerms);
  return Prober(dot, options).all();
}

}  // namespace gradual::inspect
