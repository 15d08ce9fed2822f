#include "probe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "../core/formats/accumulate_element.h"
#include "../core/support/throwf.h"

namespace gradual::inspect {
namespace {

constexpr int kWidest = 56;  // bits: a larger number absorbs a unit that is as much smaller, in every accumulator
constexpr int kCounted = 12, kMostTerms = 1 << kCounted;
constexpr int kReplays = 64;  // random dot products

double power(int exponent) { return std::ldexp(1.0, exponent); }

// x to a multiple of 2^last.
double rounded_at(double x, int last, RoundingMode mode) {
  x = std::ldexp(x, -last);
  const double to[] = {std::nearbyint(x), std::round(x), std::trunc(x), std::ceil(x), std::floor(x)};
  const double odd = to[4] == x || std::fmod(to[4], 2) != 0 ? to[4] : to[3];
  return std::ldexp(mode == RoundingMode::to_odd ? odd : to[static_cast<int>(mode)], last);
}
// x to so many bits (0: all), not below 2^least.
double rounded(double x, int bits, RoundingMode mode, int least) {
  return x == 0 || bits == 0 ? x : rounded_at(x, std::max(std::ilogb(x) - bits + 1, least), mode);
}

// A dot product by a tree and its adders. NaN beyond 2^largest, and where an adder is not known.
struct Replay {
  std::span<const double> a, b;
  int least, largest;

  double operator()(const SumTree& t) const {
    const Adder& how = t.adder;
    const auto mode =
        how.rounding.value_or(how.bits || t.children.size() == 2 ? RoundingMode::stochastic : RoundingMode{});
    const auto alignment = how.alignment.value_or(RoundingMode::stochastic);
    if (mode == RoundingMode::stochastic || (how.aligned && alignment == RoundingMode::stochastic)) return std::nan("");
    std::vector<double> addends;
    double most = 0, total = 0;
    for (const SumTree& child : t.children) {
      const auto at = static_cast<std::size_t>(child.first);
      const bool rounds = child.children.empty() && !child.exact;
      const double x = child.children.empty() ? a[at] * b[at] : (*this)(child);
      addends.push_back(rounds ? rounded(x, how.bits, mode, least) : x);
      most = std::max(most, std::abs(addends.back()));
    }
    for (double x : addends) {
      if (how.aligned && most > 0) x = rounded_at(x, std::ilogb(most) - how.aligned + 1, alignment);
      total = how.bits < 53 ? std::bit_cast<double>(gradual::detail::sum_to_odd(total, x)) : total + x;
    }
    total = rounded(total, how.bits, mode, least);
    return std::abs(total) <= power(largest) ? total : std::nan("");
  }
};

class Prober {
 public:
  Prober(const DotProduct& dot, const ProbeOptions& options)
      : dot_(dot),
        n_(options.terms),
        a_(static_cast<std::size_t>(n_)),
        b_(a_),
        operands_(float_info(options.operands)),
        result_(float_info(options.result)),
        found_{.options = options} {}

  ProbeResult all() {
    find_range();
    find_counts();
    std::vector<int> places(a_.size());
    std::iota(places.begin(), places.end(), 0);
    found_.tree = std::move(trees(std::move(places), -1, a_.size()).front());
    base_ = std::max(found_.least, std::min(0, top_ - kWidest));
    find_adders(found_.tree, nullptr);
    find_products(found_.tree);
    summarise();
    find_flushes();
    if (found_.consistent && result_.mantissa_bits < 52) replay();
    return std::move(found_);
  }

 private:
  // A pair of factors at a place: of a value that is 2^e times a number of few bits. Neither factor is subnormal if 2^e
  // is in the range of products.
  struct Pair {
    int at;
    double a, b;
    Pair(int place, double left, double right) : at(place), a(left), b(right) {}
    Pair(int place, double value) : Pair(place, value, 1) {
      const int half = std::ilogb(value) >> 1;
      a = std::ldexp(value, -half), b = power(half);
    }
  };
  double run(std::initializer_list<Pair> pairs, std::span<const int> units = {}) {
    std::ranges::fill(a_, 0.0);
    std::ranges::fill(b_, 0.0);
    const auto set = [&](const Pair& p) {
      a_[static_cast<std::size_t>(p.at)] = p.a, b_[static_cast<std::size_t>(p.at)] = p.b;
    };
    for (const Pair& p : pairs) set(p);
    for (const int at : units) set({at, power(unit_)});
    ++found_.calls;
    return dot_(a_, b_);
  }

  // The powers of two, and from them M and the unit.
  void find_range() {
    const int places[] = {0, 1, n_ / 2, n_ - 1};
    const auto holds = [&](int e) {
      return std::ranges::all_of(places, [&](int at) { return run({{at, power(e)}}) == power(e); });
    };
    const auto cancels = [&](double m) {
      return std::ranges::all_of(places, [&](int at) {
        return run({{at, m}, {(at + 1) % n_, -m}}) == 0 && run({{at, m}, {(at + n_ - 1) % n_, -m}}) == 0;
      });
    };
    int &least = found_.least, &largest = found_.largest;
    for (least = std::max(2 * std::ilogb(operands_.min_normal), -1074); least < 0 && !holds(least);) ++least;
    for (largest = std::min(2 * std::ilogb(operands_.max), 1023); largest > least && !cancels(power(largest));)
      --largest;
    if (!holds(least) || largest == least)
      throw_error(
          "probe: the function does not give the product of two powers of two, or 0 for M - M: it is no dot product");
    if (!cancels(big_ * power(largest))) big_ = 1;
    top_ = largest;
    unit_ = std::max(least, std::min(largest - kWidest, std::ilogb(result_.max) - 1) - kCounted);
  }

  // How many units M absorbs and the accumulator counts.
  void find_counts() {
    const auto lost = [&](int i, int j, int t) { return outside(i, j, {&t, 1}) == 0; };
    const auto absorbs = [&](int i, int j, int t) { return lost(i, j, t) || lost(j, t, i) || lost(t, i, j); };
    const int largest = top_, middle = n_ / 2;
    for (top_ = unit_ + 1; top_ < largest; ++top_)
      if (absorbs(0, 1, 2) && absorbs(0, middle, n_ - 1) && absorbs(n_ - 3, n_ - 2, n_ - 1)) break;
    const int more = largest - top_ - 1;  // of the bits of M than absorb a unit
    top_ = largest;
    std::vector<int> units{0};
    for (const std::size_t most = std::size_t{1} << std::clamp(more, 0, kCounted);
         counted_ < std::min(most, a_.size());) {
      units.push_back(static_cast<int>(counted_));
      if (run({}, units) != power(unit_) * static_cast<double>(units.size())) break;
      ++counted_;
    }
  }

  // How many of the units are not below the lowest common ancestor of i and j. Directed rounding makes more than units
  // of those below, on one side: what is no count is asked with the signs exchanged, and then in halves.
  int outside(int i, int j, std::span<const int> units) {
    if (units.empty()) return 0;
    for (double m = big_ * power(top_); units.size() <= counted_; m = -m) {
      const double n = run({{i, m}, {j, -m}}, units) / power(unit_);
      if (units.size() == 1) return n == 1 ? 1 : 0;
      if (n >= 0 && n <= static_cast<double>(units.size()) && n == std::floor(n)) return static_cast<int>(n);
      if (m < 0) break;
    }
    return outside(i, j, units.first(units.size() / 2)) + outside(i, j, units.subspan(units.size() / 2));
  }

  // The trees of these places, none with more than `limit` products. They are one tree, or are added at once to a sum to
  // which the place `other` belongs.
  std::vector<SumTree> trees(std::vector<int> places, int other, std::size_t limit) {
    std::vector<SumTree> all;
    while (!places.empty()) {
      const int pivot = limit == 1 ? places.front() : places[places.size() / 2];
      std::map<std::size_t, std::vector<int>> by_size;  // of the lowest common ancestor with the pivot
      std::vector<int> rest;
      for (const int at : places) {
        if (at == pivot) continue;
        std::vector<int> units;
        units.reserve(places.size());
        std::ranges::copy_if(places, std::back_inserter(units), [&](int t) { return t != at && t != pivot; });
        if (other >= 0) units.push_back(other);
        const std::size_t size =
            limit == 1 ? 2 : units.size() + 2 - static_cast<std::size_t>(outside(pivot, at, units));
        (size > std::min(limit, places.size()) ? rest : by_size[size]).push_back(at);
      }
      all.push_back(grow(pivot, std::move(by_size)));
      places = std::move(rest);
    }
    return all;
  }

  // The tree of a pivot and of other places, by the size of what they have in common with it. An addition of three or
  // more that loses no unit counts those alone that are below the addends of M and -M.
  SumTree grow(int pivot, std::map<std::size_t, std::vector<int>> by_size) {
    SumTree tree{.first = pivot};
    std::size_t first = 0;  // products of that addend of the last sum which has the pivot
    int sibling = 0;        // a place in another one
    for (auto& group : by_size) {
      const auto size = static_cast<std::size_t>(tree.size), more = group.second.size();
      const int at = group.second.front();
      const bool exact = group.first < size + more, joins = exact && first && outside(pivot, at, {&sibling, 1}) == 1;
      if (!joins) first = size, sibling = at;
      const std::size_t part = exact ? group.first - std::min(first, group.first) : more;
      if (part == 0 || more % part != 0 || group.first > size + more) found_.consistent = false;
      std::vector<SumTree> addends = trees(std::move(group.second), pivot, std::max<std::size_t>(part, 1));
      if (joins) std::ranges::move(tree.children, std::back_inserter(addends));
      else addends.push_back(std::move(tree));
      tree = sum_of(std::move(addends));
    }
    return tree;
  }

  // M + t - M, or M + t less M where nothing can cancel M before the result, in units of 2^base.
  double last_bits(double m, double t, int i, int j, int cancel) {
    const double one = power(base_);
    if (cancel >= 0) return run({{i, m * one}, {j, t * one}, {cancel, -m * one}}) / one;
    return run({{i, m * one}, {j, t * one}}) / one - m;
  }
  // Into `bits` those that keep 1 in 2^s + 1, and then how a quarter, a half and three quarters of the last are rounded.
  void find_rounding(int& bits, std::optional<RoundingMode>& rounding, int i, int j, int cancel) {
    const int most = std::min(top_ - base_, kWidest - 1);
    const auto keeps = [&](int s) { return last_bits(power(s), 1, i, j, cancel) == 1; };
    int s = std::clamp(guess_ - 1, 0, most);
    if (!keeps(s)) s = 0;
    while (s < most && keeps(s + 1)) ++s;
    guess_ = s + 1, bits = s < most ? guess_ : 0;
    if (bits < 2 || base_ + bits + 1 > top_) return;
    std::vector<double> seen[2], expected;
    for (auto& list : seen)
      for (const double t : {1, 2, 3, -1, -2, -3})
        list.push_back(last_bits(std::copysign(power(bits + 1), t), t, i, j, cancel));
    for (int mode = 0; mode < static_cast<int>(RoundingMode::stochastic) && seen[0] != expected; ++mode) {
      expected.clear();
      rounding = static_cast<RoundingMode>(mode);
      for (const double t : {1, 2, 3, -1, -2, -3})  // M is an even number of last places, as 8 is
        expected.push_back(rounded_at(std::copysign(8, t) + t, 2, *rounding) - std::copysign(8, t));
    }
    if (seen[0] != expected) rounding.reset();
    if (seen[0] != seen[1]) rounding = RoundingMode::stochastic;
  }
  void find_adders(SumTree& node, const SumTree* parent) {
    if (node.children.empty()) return;
    for (SumTree& child : node.children) find_adders(child, &node);
    const int i = node.children[0].first, j = node.children[1].first;
    const int cancel = !parent ? -1 : parent->children[&node == parent->children.data() ? 1 : 0].first;
    Adder& adder = node.adder;
    find_rounding(adder.bits, adder.rounding, i, j, cancel);
    if (node.children.size() > 2) find_rounding(adder.aligned, adder.alignment, i, node.children[2].first, j);
    if (parent || adder.bits != result_.mantissa_bits + 1) return;
    // The last sum is seen through the result's dtype: it is taken to have the bits of the sum before.
    const Adder& before = std::ranges::max_element(node.children, {}, &SumTree::size)->adder;
    if (before.bits > adder.bits) adder.bits = before.bits, adder.rounding = before.rounding;
  }

  // (1 + 2^-q)^2 - (1 + 2^(1-q)) is 2^-2q, or 0 if the square is rounded to 2 q bits.
  void find_products(SumTree& node) {
    const int q = (node.adder.bits + 1) / 2, h = std::max(found_.least + 2 * q, std::min(0, top_ - 1));
    for (SumTree& child : node.children) {
      find_products(child);
      if (!child.children.empty() || node.adder.bits == 0) continue;
      const int other = node.children[&child == node.children.data() ? 1 : 0].first;
      const double factor = 1 + power(-q);
      if (q > operands_.mantissa_bits) ++fitting_;
      else if (h < top_)
        child.exact = run({{child.first, std::ldexp(factor, h - h / 2), std::ldexp(factor, h / 2)},
                           {other, -std::ldexp(1 + power(1 - q), h)}}) == power(h - 2 * q),
        ++asked_, exact_ += child.exact;
    }
  }

  void find_outer(const SumTree& node) {
    if (node.children.empty()) return;
    if (node.adder != found_.sum) found_.outer = node.adder;
    for (const SumTree& child : node.children) find_outer(child);
  }
  void summarise() {
    using enum Products;
    found_.products = fitting_ == n_ ? fit
                      : asked_ == 0  ? unseen
                      : exact_ == 0  ? rounded
                      : exact_ == n_ ? exact
                                     : fused;
    std::vector<const SumTree*> path;  // sums from all down to the one that has product 0 as an addend
    for (const SumTree* node = &found_.tree; !node->children.empty(); node = node->children.data())
      path.push_back(node);
    found_.sum = path.back()->adder;
    find_outer(found_.tree);
    int inner = 0, outer = 0;  // lengths of the sums that are added up, and of sums of those
    for (auto sum = path.rbegin(); sum != path.rend(); ++sum) {
      const int before = (*sum)->children[0].size, added = (*sum)->children[1].size;
      if (inner == 0 && added > 1) inner = before;
      else if (inner > 0 && outer == 0 && added > inner) outer = before;
    }
    Accumulator like{.chunk = inner, .promote = outer};
    if (found_.outer && outer == 0) std::swap(like.chunk, like.promote);
    if (shows(found_.tree, tree_of(like, n_))) found_.chunk = like.chunk, found_.promote = like.promote;
  }

  void find_flushes() {
    const double least = power(found_.least), operand = operands_.min_normal / 2;
    const double other = std::min(1 / operand, power(std::ilogb(operands_.max)));
    found_.flushes_operands = run({{0, operand, other}}) != operand * other;
    if (top_ > std::ilogb(result_.max) || found_.sum.bits < 2) return;  // the result hides the least sums
    const SumTree* sum = &found_.tree;                                  // of products alone
    const auto is_sum = [](const SumTree& t) { return !t.children.empty(); };
    for (auto at = sum->children.begin(); at != sum->children.end();) {
      at = std::ranges::find_if(sum->children, is_sum);
      if (at != sum->children.end()) sum = &*at, at = sum->children.begin();
    }
    const int i = sum->children[0].first, j = sum->children[1].first;
    const bool gradual = found_.least == -1074 || run({{i, 1.5 * least}}) != 1.5 * least;
    const int bits = std::min(found_.sum.bits, result_.mantissa_bits + 1);
    const double normal = gradual ? std::ldexp(least, bits - 1) : least, half = normal / 2;
    found_.flushes_sums = run({{i, normal + half}, {j, -normal}}) != half;
    if (std::ilogb(half) < 2 * std::ilogb(operands_.min_normal)) return;
    // In one of the two orders a fused product meets the normal number first.
    found_.flushes_products =
        run({{i, normal}, {j, half}}) != normal + half && run({{j, normal}, {i, half}}) != normal + half;
  }

  void replay() {
    std::mt19937_64 random(1);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int i = 0; i < kReplays; ++i) {
      const int share = below(4) + 1;  // of numbers that are not zero
      for (auto* list : {&a_, &b_})
        for (double& x : *list) {
          const double of_1 = 1 + std::ldexp(below(1 << operands_.mantissa_bits), -operands_.mantissa_bits);
          x = below(4) < share ? std::ldexp(of_1, std::min(0, top_ / 2 - 1) - below(3)) : 0;
          if (below(2)) x = -x;
        }
      const Replay by{a_, b_, found_.flushes_sums == false ? found_.least : -1074, top_};
      const double sum = by(found_.tree);
      if (std::isnan(sum)) continue;
      ++found_.replayed, ++found_.calls;
      found_.reproduced += dot_(a_, b_) == rounded(sum, result_.mantissa_bits + 1, RoundingMode::nearest_even,
                                                   std::ilogb(result_.min_subnormal));
    }
  }

  const DotProduct& dot_;
  int n_;
  std::vector<double> a_, b_;
  FloatInfo operands_, result_;
  int top_ = 0, unit_ = 0, base_ = 0;  // exponents: of M, of the unit, and of 1 where bits are counted
  double big_ = 1.5;                   // M / 2^top: next to a power of two the numbers are closer on one side
  std::size_t counted_ = 1;            // units at a time
  int guess_ = 1, fitting_ = 0, asked_ = 0, exact_ = 0;
  ProbeResult found_;
};

}  // namespace

ProbeResult probe(const DotProduct& dot, const ProbeOptions& options) {
  if (options.terms < 4 || options.terms > kMostTerms)
    throwf("probe: {} terms; 4 to {} are allowed", options.terms, kMostTerms);
  return Prober(dot, options).all();
}

}  // namespace gradual::inspect
