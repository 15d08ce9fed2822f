#include "dtype.h"

#include <cmath>
#include <vector>

#include "../support/message_text.h"
#include "../support/throwf.h"
#include "synonyms.h"

namespace gradual {

DType dtype_from_name(std::string_view text) {
  std::vector<std::string> known;
  for (const DTypeInfo& row : kDTypeTable) {
    if (text == row.name) return static_cast<DType>(known.size());
    known.emplace_back(row.name);
  }
  throwf("unknown dtype '{}'; known are {}{}", text, join(known), did_you_mean(text, known, format_synonyms()));
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_f8(a) || is_f8(b))
    throwf("promote: {} with {}: f8 tensors never promote; cast one operand to the dtype that is meant", to_string(a),
           to_string(b));
  const int by = kDTypeTable[static_cast<int>(a)].promotion - kDTypeTable[static_cast<int>(b)].promotion;
  return by == 0 ? DType::f32 : by > 0 ? a : b;  // equal: f16 with bf16
}

FloatInfo float_info(DType dtype) {
  if (!is_floating(dtype)) throwf("float_info: {} is not a floating dtype", to_string(dtype));
  const auto& [text, size, promotion, exponent_bits, mantissa_bits] = kDTypeTable[static_cast<int>(dtype)];
  // IEEE formats keep the highest exponent for Inf and NaN. e4m3fn spends it on numbers, and only its last
  // code, all ones, is NaN: the largest number has that exponent and the mantissa 110.
  const bool has_inf = dtype != DType::f8e4m3fn;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double epsilon = std::ldexp(1.0, -mantissa_bits);
  const double max = has_inf ? std::ldexp(2.0 - epsilon, bias) : std::ldexp(2.0 - 2 * epsilon, bias + 1);
  const double min_normal = std::ldexp(1.0, 1 - bias);
  return {max, min_normal, min_normal * epsilon, epsilon, exponent_bits, mantissa_bits, bias, has_inf};
}

}  // namespace gradual
