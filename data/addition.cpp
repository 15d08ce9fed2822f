#include "addition.h"

#include <algorithm>

namespace gradual::data {
namespace {

constexpr std::int64_t kIgnored = -100;

std::int64_t power_of_ten(int digits) {
  std::int64_t p = 1;
  for (int i = 0; i < digits; ++i) p *= 10;
  return p;
}

std::string padded(std::int64_t value, int digits) {
  const std::string text = std::to_string(value);
  return std::string(static_cast<std::size_t>(digits) - text.size(), '0') + text;
}

}  // namespace

std::string Addition::prompt(std::int64_t a, std::int64_t b) const {
  const std::int64_t limit = power_of_ten(digits);
  if (a < 0 || b < 0 || a >= limit || b >= limit)
    fail("addition: " + std::to_string(a) + " + " + std::to_string(b) + ": both must lie in [0, " +
         std::to_string(limit) + ")");
  return padded(a, digits) + "+" + padded(b, digits) + "=";
}

std::string Addition::answer(std::int64_t a, std::int64_t b) const {
  std::string text = padded(a + b, digits + 1);
  std::reverse(text.begin(), text.end());
  return text;
}

Addition addition(int digits) {
  if (digits < 1 || digits > 3) fail("addition: " + std::to_string(digits) + " digits; 1 to 3 are allowed");
  Addition out{.vocabulary = Vocabulary("+0123456789="), .problems = {}, .digits = digits};
  const std::int64_t limit = power_of_ten(digits);
  const std::int64_t length = 3 * digits + 2;
  const Shape sizes{limit * limit, length};
  const Tensor inputs = empty(sizes, {.dtype = DType::i64});
  const Tensor targets = empty(sizes, {.dtype = DType::i64});
  auto* x = inputs.data<std::int64_t>();
  auto* y = targets.data<std::int64_t>();
  for (std::int64_t a = 0; a < limit; ++a) {
    for (std::int64_t b = 0; b < limit; ++b, x += length, y += length) {
      const Tensor row = out.vocabulary.encode(out.prompt(a, b) + out.answer(a, b));
      const auto* tokens = row.data<std::int64_t>();
      std::copy(tokens, tokens + length, x);
      std::copy(tokens + 1, tokens + length + 1, y);
      std::fill(y, y + 2 * digits + 1, kIgnored);  // those that complete the problem, its '=' included
    }
  }
  out.problems = {.inputs = inputs, .targets = targets, .classes = out.vocabulary.size(), .name = "addition"};
  return out;
}

}  // namespace gradual::data
