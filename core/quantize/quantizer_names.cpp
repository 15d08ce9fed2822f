// The text of describe(Quantizer).
#include <fmt/format.h>

#include <string>
#include <variant>

#include "../support/message_text.h"
#include "quantizer.h"

namespace gradual {

std::string describe(const Quantizer& q) {
  std::string text = to_string(q.format);
  if (q.rounding.mode != RoundingMode::nearest_even) text += " " + to_string(q.rounding);
  text += std::visit([](const auto& kind) { return kind.text(); }, q.scaling);
  if (product_of(q.scaling) == ScaledProduct::rounded) text += ", products rounded first";
  if (q.center) text += ", mean subtracted";
  if (q.hadamard) text += ", Hadamard transform";
  if (q.hadamard && q.hadamard != HadamardSize(16)) text += " of " + std::to_string(q.hadamard.size);
  if (q.signs == HadamardSigns::drawn) text += " with drawn signs";
  if (q.gradient != QuantizerGradient::straight) text += fmt::format(", {} gradient", to_string(q.gradient));
  return text;
}

}  // namespace gradual
