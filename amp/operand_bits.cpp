#include "operand_bits.h"

#include <initializer_list>
#include <optional>

#include "../core/quantize/bits_per_number.h"

namespace gradual::amp {
namespace {

constexpr int kTf32Bits = 19;  // 1 for the sign, 8 for the exponent, 10 for the mantissa

double unquantised_bits(const Recipe& recipe) {
  if (recipe.dtype == DType::f32 && recipe.tf32) return kTf32Bits;
  return 8.0 * static_cast<double>(size_of(recipe.dtype));
}

// The first of the quantizers that is given rounds the operand last.
double first_of(std::initializer_list<const std::optional<Quantizer>*> quantizers, double otherwise) {
  for (const std::optional<Quantizer>* q : quantizers)
    if (*q) return bits_per_number(**q);
  return otherwise;
}

// Of an operand that has these bits in all but the outlier channels. dy of wgrad is read in both ways: by the share of
// the products.
double with_outliers(const Quantization& q, const std::optional<Quantizer>& operand, double others, double plain) {
  if (!q.outliers || !operand) return others;
  const double outliers = q.outliers->quantizer ? bits_per_number(*q.outliers->quantizer) : plain;
  return q.outliers->share * outliers + (1 - q.outliers->share) * others;
}

}  // namespace

double operand_bits(const Recipe& recipe) {
  const double plain = unquantised_bits(recipe);
  if (!recipe.quantization) return plain;
  const Quantization& q = *recipe.quantization;
  double sum = 0;
  sum += with_outliers(q, q.forward_x, first_of({&q.forward_x, &q.result}, plain), plain);
  sum += with_outliers(q, q.forward_w, first_of({&q.forward_w, &q.weight}, plain), plain);
  sum += first_of({&q.dgrad_dy, &q.result}, plain);
  sum += first_of({&q.dgrad_w, &q.weight}, plain);
  sum += with_outliers(q, q.wgrad_x, first_of({&q.wgrad_x, &q.result}, plain), plain);
  sum += with_outliers(q, q.wgrad_dy, first_of({&q.wgrad_dy, &q.result}, plain), plain);
  return sum / 6;
}

}  // namespace gradual::amp
