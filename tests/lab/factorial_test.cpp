// Analysis of variance, against a least-squares fit by NumPy and F and t of SciPy.
#include <doctest/doctest.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/factorial.h>

#include <cmath>

using namespace gradual;
using namespace gradual::lab;

namespace {

// Factors of 2 and 3 levels, three blocks.
const LevelCounts kTwoByThree = {{2, 3}};
const std::vector<std::vector<double>> kValues = {{3, 5, 4}, {6, 7, 9}, {2, 2, 3}, {8, 11, 10}, {4, 4, 7}, {5, 9, 6}};

void check_term(const FactorialTerm& term, double squares, double share, double f, double p, double half) {
  CHECK(term.squares == doctest::Approx(squares));
  CHECK(term.share == doctest::Approx(share));
  CHECK(term.f == doctest::Approx(f));
  CHECK(term.p == doctest::Approx(p).epsilon(1e-6));
  for (const TermEffect& e : term.effects) CHECK(e.half == doctest::Approx(half));
}

}  // namespace

TEST_CASE("combinations count up with the last factor fastest") {
  CHECK(kTwoByThree.combinations() == 6);
  CHECK(kTwoByThree.levels(4) == std::vector<int>{1, 1});
  for (std::size_t c = 0; c < 6; ++c) CHECK(kTwoByThree.combination(kTwoByThree.levels(c)) == c);
}

TEST_CASE("two factors in blocks: squares, shares, F, p and intervals are those of a least-squares fit") {
  const Factorial all = analyse(kTwoByThree, kValues);
  REQUIRE(all.terms.size() == 3);
  CHECK(all.error_variance == doctest::Approx(1.4333333333));
  CHECK(all.error_degrees == 10);
  CHECK(all.error_share == doctest::Approx(0.1233859397));
  CHECK(all.higher_share == 0);
  check_term(all.terms[0], 29.3888888889, 0.2529890005, 20.5038759690, 0.00109455518, 0.6287523183);
  check_term(all.terms[1], 17.3333333333, 0.1492109039, 6.0465116279, 0.01899871603, 0.8891900559);
  check_term(all.terms[2], 55.1111111111, 0.4744141559, 19.2248062016, 0.00037458335, 0.8891900559);
}

TEST_CASE("effects are what made the numbers, whatever the blocks add") {
  // y = 10 + a + b + ab + block, with effects that sum to zero
  const std::vector<double> a = {-1, 1};
  const std::vector<double> b = {2, -3, 1};
  const std::vector<double> ab = {0.5, -0.25, -0.25};
  std::vector<std::vector<double>> values;
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 3; ++j) {
      const double y = 10 + a[i] + b[j] + (i == 0 ? ab[j] : -ab[j]);
      values.push_back({y - 100, y + 100});
    }
  const Factorial all = analyse(kTwoByThree, values);
  CHECK(all.mean == doctest::Approx(10));
  for (std::size_t i = 0; i < 2; ++i) CHECK(all.terms[0].effects[i].effect == doctest::Approx(a[i]));
  for (std::size_t j = 0; j < 3; ++j) CHECK(all.terms[1].effects[j].effect == doctest::Approx(b[j]));
  for (std::size_t c = 0; c < 6; ++c)
    CHECK(all.terms[2].effects[c].effect == doctest::Approx(c < 3 ? ab[c] : -ab[c - 3]));
  CHECK(all.error_share == doctest::Approx(0));
}

TEST_CASE("with one block interactions of three factors count as chance; two factors leave none") {
  std::vector<std::vector<double>> cube;
  for (int c = 0; c < 8; ++c) cube.push_back({c == 7 ? 1.0 : 0.0});
  const Factorial three = analyse({{2, 2, 2}}, cube);
  CHECK(three.error_degrees == 1);
  CHECK(three.higher_share == doctest::Approx(1.0 / 7));  // each of seven contrasts has the same share
  CHECK(three.terms[0].f == doctest::Approx(1));
  const Factorial two = analyse({{2, 2}}, {{0}, {0}, {0}, {1}});
  CHECK(two.error_degrees == 0);
  CHECK(std::isnan(two.terms[0].effects[0].half));
  CHECK(std::isnan(two.terms[0].p));
}

TEST_CASE("an experiment that is not whole is an error that says what is missing") {
  CHECK_THROWS_WITH_AS(analyse({{2, 1}}, {{1}, {2}}), "a factor has 1 level; at least 2 are needed", Error);
  CHECK_THROWS_WITH_AS(analyse({{2, 2}}, {{1}, {2}}), "2 combinations are given; the factors have 4", Error);
  CHECK_THROWS_WITH_AS(analyse({{2}}, {{1, 2}, {2}}),
                       "a combination has 1 of the 2 measurements that the first one has", Error);
  CHECK_THROWS_WITH_AS(analyse({{2}}, {{1}, {NAN}}), "a measurement is nan; it must be finite", Error);
}
