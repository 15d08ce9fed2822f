// Analysis of variance of a full factorial experiment whose replicates are blocks: all combinations of levels were
// measured once in each block. Here a combination is a training, and a block is a seed. Source: Montgomery, "Design and
// Analysis of Experiments", chapters 4 (blocks) and 5 (factorial designs).
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace gradual::lab {

// The combinations of levels that some factors have, each factor with this number of levels. Combinations count up with
// the last factor fastest.
struct LevelCounts {
  std::vector<int> counts;

  std::size_t combinations() const;
  // The levels of a combination, one a factor, and the reverse.
  std::vector<int> levels(std::size_t combination) const;
  std::size_t combination(const std::vector<int>& levels) const;
};

// What one combination of a term's levels gives.
struct TermEffect {
  double mean = 0;    // of all measurements that have it
  double effect = 0;  // what the term adds to the overall mean and, in an interaction, to both main effects
  double half = 0;    // half the 95% interval of the effect; NaN without an estimate of the error
};

// A main effect (one factor), or an interaction of two.
struct FactorialTerm {
  std::vector<int> factors = {};
  std::vector<TermEffect> effects = {};  // a combination of the term's levels each
  double squares = 0;                    // sum of squares over all measurements
  int degrees = 0;
  double share = 0;  // of all squares about the means of the blocks, 0 to 1; NaN if there are none
  double f = 0;      // mean square over that of the error; NaN without an estimate of the error
  double p = 0;      // the chance of such an f if the term did nothing
};

struct Factorial {
  double mean = 0;
  std::vector<FactorialTerm> terms;  // main effects, then interactions of two factors
  double higher_share = 0;           // of interactions of more factors
  double error_share = 0;            // of what differs between blocks by chance
  // The variance of a measurement within a block. From the blocks; with one block from the interactions of three and
  // more factors, which then count as chance. NaN if there are no such.
  double error_variance = std::numeric_limits<double>::quiet_NaN();
  int error_degrees = 0;
};

// values[combination][block]. Error if a factor has less than two levels, or a value is missing or not finite.
Factorial analyse(const LevelCounts& factors, const std::vector<std::vector<double>>& values);

}  // namespace gradual::lab
