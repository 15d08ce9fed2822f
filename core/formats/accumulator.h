// The accumulator of a contraction or a reduction: the format of its partial sums.
//
//   const AccumulatorScope scope(accumulator("fp16-acc"));
//   matmul(a, b);   // every partial sum is rounded to f16
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../support/scoped.h"
#include "format.h"
#include "rounding.h"

namespace gradual {

// How a group of products is added to the sum. Terms are those of MMA-Sim (arXiv 2511.10909).
enum class GroupSum : std::uint8_t {
  // The products and the sum are aligned to the largest exponent, cut off `fraction` bits (1 to 40) below it, added
  // exactly and rounded once. NVIDIA's tensor cores.
  aligned,
  // They are added exactly and rounded once. AMD CDNA 1. No fraction.
  exact,
  // Products are rounded, then the sums of neighbours, of neighbouring sums and so on, and the last one's with the sum.
  // Numbers below the smallest normal one are zero: operands below 2^lowest, products and sums by the accumulator's
  // format. AMD CDNA 2. No fraction, no stochastic rounding.
  pairwise,
  // The products are cut as in `aligned`, but without the sum. Then their sum and the sum so far are aligned to each
  // other and rounded down, `fraction` + 8 and `fraction` bits below the larger exponent. The result is rounded down to
  // `fraction` + 7 bits after the leading one, then to the format. A product of 2^128 is Inf. The sum's exponent is
  // that of a normal number, also if it is zero. AMD CDNA 3.
  late,
  // The same, where the products with even and those with odd numbers are cut apart, then aligned to each other and
  // rounded down, `fraction` bits below the larger exponent. No finite product is Inf. A sum that lies wholly more than
  // one bit below what is kept is zero. AMD CDNA 3's f8.
  late_even_odd,
};

// The sum starts at zero, and each product updates it: sum = round(sum + a b). The product, if it has no format of its
// own, and the sum before rounding are exact. matmul, linear, conv2d with its gradients, the products of attention, sum
// and mean compute so in an AccumulatorScope, on one exact and slow path. The products have the order of the contracted
// axis. A convolution is the product of its windows with the axis kh*kw*C in forward, kh*kw*O in the input's gradient
// (with the zeros between strides), oh*ow*N in the weight's gradient. A reduction takes an output's elements in
// row-major order. A sum beyond the format's range becomes Inf, or NaN in a format without Inf. The finished sum and
// the bias are added exactly and rounded once to the output's dtype. A mean divides the sum in f32. Ops on f64 tensors
// ignore the accumulator.
struct Accumulator {
  Format format = Format::ieee(8, 23);
  Rounding rounding = {};  // toward_zero truncates; stochastic takes its words from `key`
  // `chunk` products have a sum of their own; these sums are added in the same format (Wang et al. 2018). 0: one sum.
  int chunk = 0;
  // After this many products the sum is added to an f32 sum (to nearest) and restarts at zero, as in DeepSeek-V3. 0:
  // never. A chunk ends there too.
  int promote = 0;
  // Products are rounded to it, to nearest even, before they are added, as by units that multiply and add apart
  // (MPTorch has both formats, too). Beyond its range they are Inf, or NaN in a format without Inf. Unset: products are
  // exact. Not with groups nor f64. Terms of sum and mean are no products. CPU only.
  std::optional<Format> product = {};
  bool f64 = false;  // sums are doubles; format and rounding must have their defaults
  // Not 0: `group` products at a time, at most 64, are added to the sum as matrix units do (Fasi et al. 2021; MMA-Sim,
  // arXiv 2511.10909). A product's exponent is the sum of its operands' exponents. A chunk or a promotion ends a group.
  // CPU only.
  int group = 0;
  int fraction = 0;
  GroupSum adds = GroupSum::aligned;
  // The exponent of the operands' smallest normal number: subnormal operands count with it. Unset: with their own.
  std::optional<int> lowest = {};
  // Of stochastic rounding: two ops with one key round by the same words. A quantisation draws one for each product.
  RandomKey key = {};

  bool operator==(const Accumulator&) const = default;
};
// Throws Error that names the wrong field and what is allowed.
void check_valid(const Accumulator& accumulator);

// The accumulator with this name: one of accumulators(), a name of named_formats() or "eXmY". ":toward-zero" or another
// rounding, "/chunk=N", "/promote=N", "/group=N", "/fraction=N", "/adds=WAY", "/lowest=N" and "/product=FORMAT" may
// follow. Libraries use "hopper-fp8/promote=128".
// Error for other texts.
Accumulator accumulator(std::string_view name);
struct NamedAccumulator {
  std::string name;
  Accumulator accumulator;
  std::string about;
};
const std::vector<NamedAccumulator>& accumulators();
std::string to_string(GroupSum adds);  // aligned, exact, pairwise, late, late-even-odd
// The inverse of accumulator(), without the key.
std::string to_string(const Accumulator& accumulator);

// Sets the accumulator of this thread's ops while the scope lives. nullopt: the ops accumulate in f32 as usual.
struct AccumulatorScope : Scoped<std::optional<Accumulator>> {
  explicit AccumulatorScope(const std::optional<Accumulator>& accumulator);
};
std::optional<Accumulator>& current_accumulator();  // one of the thread's modes (core/tensor/modes.h)

}  // namespace gradual
