#include "factorial.h"

#include <cmath>
#include <cstddef>
#include <numeric>

#include "../core/support/throwf.h"
#include "student_t.h"

namespace gradual::lab {
namespace {

void check_valid(const LevelCounts& factors, const std::vector<std::vector<double>>& values) {
  if (factors.counts.empty()) throw_error("a factorial experiment needs a factor");
  for (const int count : factors.counts)
    if (count < 2) throwf("a factor has {} level; at least 2 are needed", count);
  if (values.size() != factors.combinations())
    throwf("{} combinations are given; the factors have {}", values.size(), factors.combinations());
  for (const std::vector<double>& blocks : values) {
    if (blocks.empty() || blocks.size() != values[0].size())
      throwf("a combination has {} of the {} measurements that the first one has", blocks.size(), values[0].size());
    for (const double v : blocks)
      if (!std::isfinite(v)) throwf("a measurement is {}; it must be finite", v);
  }
}

// The levels that a combination has of some factors, as a combination of these.
std::size_t projected(const LevelCounts& all, const LevelCounts& some, const std::vector<int>& factors,
                      std::size_t combination) {
  const std::vector<int> levels = all.levels(combination);
  std::vector<int> of_some;
  for (const int f : factors) of_some.push_back(levels[static_cast<std::size_t>(f)]);
  return some.combination(of_some);
}

LevelCounts counts_of(const LevelCounts& all, const std::vector<int>& factors) {
  LevelCounts some;
  for (const int f : factors) some.counts.push_back(all.counts[static_cast<std::size_t>(f)]);
  return some;
}

// The mean over all combinations with the same levels of `factors`.
std::vector<double> marginal_means(const LevelCounts& all, const std::vector<int>& factors,
                                   const std::vector<double>& means) {
  const LevelCounts some = counts_of(all, factors);
  std::vector<double> sums(some.combinations());
  for (std::size_t c = 0; c < means.size(); ++c) sums[projected(all, some, factors, c)] += means[c];
  const double each = static_cast<double>(means.size()) / static_cast<double>(sums.size());
  for (double& sum : sums) sum /= each;
  return sums;
}

FactorialTerm term_of(const LevelCounts& all, const std::vector<int>& factors, const std::vector<double>& means,
                      double mean) {
  FactorialTerm term{.factors = factors, .degrees = 1};
  for (const int f : factors) term.degrees *= all.counts[static_cast<std::size_t>(f)] - 1;
  for (const double m : marginal_means(all, factors, means)) term.effects.push_back({.mean = m, .effect = m - mean});
  if (factors.size() == 1) return term;
  const LevelCounts some = counts_of(all, factors);
  for (std::size_t k = 0; k < factors.size(); ++k) {
    const std::vector<double> main = marginal_means(all, {factors[k]}, means);
    for (std::size_t c = 0; c < term.effects.size(); ++c)
      term.effects[c].effect -= main[static_cast<std::size_t>(some.levels(c)[k])] - mean;
  }
  return term;
}

// The sum of squares of a term over all measurements.
double squares_of(const FactorialTerm& term, double measurements) {
  double sum = 0;
  for (const TermEffect& e : term.effects) sum += e.effect * e.effect;
  return sum * measurements / static_cast<double>(term.effects.size());
}

std::vector<std::vector<int>> sets_of_one_and_two(int factors) {
  std::vector<std::vector<int>> sets;
  for (int i = 0; i < factors; ++i) sets.push_back({i});
  for (int i = 0; i < factors; ++i)
    for (int j = i + 1; j < factors; ++j) sets.push_back({i, j});
  return sets;
}

// Sums of squares: of combinations about the mean, and of what is left about combinations and blocks.
struct Squares {
  double combinations = 0;
  double error = 0;
};

Squares squares(const std::vector<std::vector<double>>& values, const std::vector<double>& means, double mean) {
  const std::size_t blocks = values[0].size();
  std::vector<double> block_means(blocks);
  for (const std::vector<double>& v : values)
    for (std::size_t b = 0; b < blocks; ++b) block_means[b] += v[b] / static_cast<double>(values.size());
  Squares s;
  for (std::size_t c = 0; c < values.size(); ++c) {
    s.combinations += static_cast<double>(blocks) * (means[c] - mean) * (means[c] - mean);
    for (std::size_t b = 0; b < blocks; ++b) {
      const double rest = values[c][b] - means[c] - block_means[b] + mean;
      s.error += rest * rest;
    }
  }
  return s;
}

constexpr double kTail = 0.025;  // on each side of the interval

}  // namespace

std::size_t LevelCounts::combinations() const {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{1},
                         [](std::size_t product, int count) { return product * static_cast<std::size_t>(count); });
}

std::vector<int> LevelCounts::levels(std::size_t combination) const {
  std::vector<int> out(counts.size());
  for (std::size_t i = counts.size(); i-- > 0;) {
    const auto count = static_cast<std::size_t>(counts[i]);
    out[i] = static_cast<int>(combination % count);
    combination /= count;
  }
  return out;
}

std::size_t LevelCounts::combination(const std::vector<int>& levels) const {
  std::size_t c = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    c = c * static_cast<std::size_t>(counts[i]) + static_cast<std::size_t>(levels[i]);
  return c;
}

Factorial analyse(const LevelCounts& factors, const std::vector<std::vector<double>>& values) {
  check_valid(factors, values);
  const auto combinations = static_cast<int>(values.size());
  const auto blocks = static_cast<int>(values[0].size());
  std::vector<double> means;
  for (const std::vector<double>& v : values) means.push_back(std::accumulate(v.begin(), v.end(), 0.0) / blocks);
  Factorial out;
  out.mean = std::accumulate(means.begin(), means.end(), 0.0) / combinations;
  const Squares all = squares(values, means, out.mean);
  const double measurements = static_cast<double>(combinations) * blocks;
  double higher = all.combinations;
  int higher_degrees = combinations - 1;
  for (const std::vector<int>& set : sets_of_one_and_two(static_cast<int>(factors.counts.size()))) {
    FactorialTerm& term = out.terms.emplace_back(term_of(factors, set, means, out.mean));
    term.squares = squares_of(term, measurements);
    higher -= term.squares;
    higher_degrees -= term.degrees;
  }
  if (higher_degrees == 0 || higher < 0) higher = 0;  // what rounding leaves
  constexpr double kNoise = 1e-24;  // of squares that rounding leaves where all values of a block are equal
  const double squares_in_all = all.combinations + all.error;
  const double total = squares_in_all > kNoise * measurements * out.mean * out.mean ? squares_in_all : std::nan("");
  out.higher_share = higher / total;
  out.error_share = all.error / total;
  const bool replicated = blocks > 1;
  out.error_degrees = replicated ? (combinations - 1) * (blocks - 1) : higher_degrees;
  if (out.error_degrees > 0) out.error_variance = (replicated ? all.error : higher) / out.error_degrees;
  const double t = out.error_degrees > 0 ? student_quantile(kTail, out.error_degrees) : std::nan("");
  for (FactorialTerm& term : out.terms) {
    term.share = term.squares / total;
    term.f = term.squares / term.degrees / out.error_variance;
    term.p = fisher_tail(term.f, term.degrees, out.error_degrees);
    const double half = t * std::sqrt(out.error_variance * term.degrees / measurements);
    for (TermEffect& e : term.effects) e.half = half;
  }
  return out;
}

}  // namespace gradual::lab
