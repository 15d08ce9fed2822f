// Addition as a language: the smallest task on which a transformer has something to learn.
#pragma once

#include "text.h"

namespace gradual::data {

struct Addition {
  Vocabulary vocabulary;  // "+0123456789="
  Dataset problems;       // all pairs of numbers of that many digits, leading zeros included, in order
  int digits = 2;

  // "12+34=": what to give a model to have it continue; Error for a number of more digits.
  std::string prompt(std::int64_t a, std::int64_t b) const;
  // "640": what it should continue with, the sum's digits last first, for so the carry is known when it is needed.
  std::string answer(std::int64_t a, std::int64_t b) const;
};

// Sequences such as "12+34=640". Inputs are i64 [N, T] with T = 3 * digits + 2: all characters but the last; targets
// are the characters that follow, with cross_entropy's ignore_index -100 within the problem, so that only the answer
// counts. N = 100^digits. Error outside of 1 to 3 digits.
Addition addition(int digits = 2);

}  // namespace gradual::data
