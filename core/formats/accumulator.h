// The accumulator of a contraction or a reduction as a type: what its partial sums are rounded to.
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

// sum = round(sum + a b) for one product after the other, from zero; products and the sum before rounding are exact.
// The scope's ops (matmul, linear, conv2d with its gradients, attention's products, and sum, mean) run on one exact,
// slow path. Products come in the order of the contracted axis; a convolution is its im2col product, of C*kh*kw in
// forward, O*kh*kw in the input's gradient (zeros between strides included) and N*oh*ow in the weight's; a reduction
// takes the elements of an output in row-major order. What is beyond the format's range becomes Inf (NaN where there is
// none). The finished sum and the bias are added exactly and rounded once to the output's dtype; a mean divides the sum
// in f32. f64 tensors know no accumulator.
struct Accumulator {
  Format format = Format::ieee(8, 23);
  Rounding rounding = {};  // toward_zero: truncation; stochastic is not allowed
  // Sums of `chunk` products are made alone and then added up in the same format (Wang et al. 2018); 0: one chain.
  int chunk = 0;
  // The sum is added to an f32 one (to nearest) and starts again after so many products, as DeepSeek-V3 does; 0: never.
  // Chunks lie within what is promoted.
  int promote = 0;
  bool f64 = false;  // sums are doubles; format and rounding stay as they are by default

  bool operator==(const Accumulator&) const = default;
};
// Error naming the field and what is allowed.
void check_valid(const Accumulator& accumulator);

// By name: "f32", "f64", "fp16-acc" (f16 sums, nearest), "bf16-acc", "hopper-fp8-14bit" (e8m13 truncated: what was
// measured of Hopper's FP8 tensor cores), a name of named_formats() or "eXmY"; then ":toward-zero" or another rounding,
// "/chunk=N", "/promote=N". "hopper-fp8-14bit/promote=128" is what libraries run.
Accumulator accumulator(std::string_view name);
// The inverse.
std::string to_string(const Accumulator& accumulator);

// Of this thread's ops while it lives; none: f32 as they are.
struct AccumulatorScope : Scoped<std::optional<Accumulator>> {
  explicit AccumulatorScope(const std::optional<Accumulator>& accumulator);
};
std::optional<Accumulator>& current_accumulator();

}  // namespace gradual
