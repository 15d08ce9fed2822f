// The text of describe(Quantizer).
#include <variant>

#include "../support/message_text.h"
#include "quantizer.h"

namespace gradual {

std::string describe(const Quantizer& q) {
  std::string text = to_string(q.format);
  if (q.rounding.mode != RoundingMode::nearest_even) text += " " + to_string(q.rounding);
  text += std::visit([](const auto& kind) { return kind.text(); }, q.scaling);
  if (product_of(q.scaling) == ScaledProduct::rounded) text += ", products rounded first";
  return text + (q.hadamard ? ", Hadamard transform" : "");
}

}  // namespace gradual
