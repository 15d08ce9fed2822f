// The accumulator of a contraction or a reduction: the format of its partial sums.
//
//   const AccumulatorScope scope(accumulator("fp16-acc"));
//   matmul(a, b);   // every partial sum is rounded to f16
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "../support/scoped.h"
#include "format.h"
#include "rounding.h"

namespace gradual {

// The sum starts at zero, and each product updates it: sum = round(sum + a b). The product and the sum before rounding
// are exact. matmul, linear, conv2d with its gradients, the products of attention, sum and mean compute so in an
// AccumulatorScope, on one exact and slow path. The products have the order of the contracted axis. A convolution is
// its im2col product with the axis C*kh*kw in forward, O*kh*kw in the input's gradient (with the zeros between strides)
// and N*oh*ow in the weight's gradient. A reduction takes the elements of an output in row-major order. A sum beyond
// the format's range becomes Inf, or NaN in a format without Inf. The finished sum and the bias are added exactly and
// rounded once to the output's dtype. A mean divides the sum in f32. Ops on f64 tensors ignore the accumulator.
struct Accumulator {
  Format format = Format::ieee(8, 23);
  Rounding rounding = {};  // toward_zero truncates; stochastic is not allowed
  // `chunk` products have a sum of their own; these sums are added in the same format (Wang et al. 2018). 0: one sum.
  int chunk = 0;
  // After this many products the sum is added to an f32 sum (to nearest) and restarts at zero, as in DeepSeek-V3. 0:
  // never. A chunk ends there too.
  int promote = 0;
  bool f64 = false;  // sums are doubles; format and rounding must have their defaults

  bool operator==(const Accumulator&) const = default;
};
// Throws Error that names the wrong field and what is allowed.
void check_valid(const Accumulator& accumulator);

// The accumulator with this name: "f32", "f64", "fp16-acc" (f16 sums, nearest), "bf16-acc", "hopper-fp8-14bit" (e8m13,
// truncated, as measured on Hopper's FP8 tensor cores), a name of named_formats() or "eXmY". ":toward-zero" or another
// rounding, "/chunk=N" and "/promote=N" may follow. Libraries use "hopper-fp8-14bit/promote=128". Error for other
// texts.
Accumulator accumulator(std::string_view name);
// The inverse of accumulator().
std::string to_string(const Accumulator& accumulator);

// Sets the accumulator of this thread's ops while the scope lives. nullopt: the ops accumulate in f32 as usual.
struct AccumulatorScope : Scoped<std::optional<Accumulator>> {
  explicit AccumulatorScope(const std::optional<Accumulator>& accumulator);
};
std::optional<Accumulator>& current_accumulator();

}  // namespace gradual
