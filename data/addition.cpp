#include "addition.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradual::data {
namespace {

std::int64_t numbers(int digits) { return digits == 1 ? 10 : 10 * numbers(digits - 1); }

}  // namespace

std::string Addition::prompt(std::int64_t a, std::int64_t b) const {
  const std::int64_t limit = numbers(digits);
  if (a < 0 || b < 0 || a >= limit || b >= limit)
    fail(fmt::format("addition: {} + {}: both must lie in [0, {})", a, b, limit));
  return fmt::format("{:0{}}+{:0{}}=", a, digits, b, digits);
}

std::string Addition::answer(std::int64_t a, std::int64_t b) const {
  std::string text = fmt::format("{:0{}}", a + b, digits + 1);
  std::ranges::reverse(text);
  return text;
}

Addition addition(int digits) {
  if (digits < 1 || digits > 3) fail("addition: " + std::to_string(digits) + " digits; 1 to 3 are allowed");
  Addition out{.vocabulary = Vocabulary("+0123456789="), .problems = {}, .digits = digits};
  const std::int64_t limit = numbers(digits);
  std::string text;
  for (std::int64_t a = 0; a < limit; ++a)
    for (std::int64_t b = 0; b < limit; ++b) text += out.prompt(a, b) + out.answer(a, b);
  const Tensor rows = out.vocabulary.encode(text).reshape({limit * limit, 3 * digits + 3});
  const Tensor inputs = rows.narrow(1, 0, 3 * digits + 2).contiguous();
  const Tensor targets = rows.narrow(1, 1, 3 * digits + 2).contiguous();
  targets.narrow(1, 0, 2 * digits + 1).fill_(-100);  // those that complete the problem, its '=' included
  out.problems = {.inputs = inputs, .targets = targets, .classes = out.vocabulary.size(), .name = "addition"};
  return out;
}

}  // namespace gradual::data
