// Sums over the error of a tensor, in ulps and relative to its size.
#pragma once

#include <cstdint>

#include "../core/tensor/tensor.h"

namespace gradual::inspect {

// An error, over the elements that are finite in both.
struct ErrorSum {
  double squares = 0;                 // of the error
  double exact_squares = 0;           // of what it is compared with
  double max_ulps = 0, sum_ulps = 0;  // spacings of the dtype at the larger of both numbers
  std::int64_t elements = 0;
  std::int64_t lost = 0;  // elements that are NaN or Inf, but finite in f64

  double relative() const;  // root of squares / exact_squares; 0 where both are 0
  double sqnr_db() const;   // 10 log10(exact_squares / squares); Inf: no error
  double mean_ulps() const { return elements ? sum_ulps / static_cast<double>(elements) : 0; }
};

// given: an op's result; exact: the op in f64 on the same inputs; shadow: in f64 on the shadow's inputs. All have the
// same sizes; dtype is the result's.
struct Comparison {
  ErrorSum local, inherited, total;
  double cosine = 1;  // of given and shadow
};
Comparison compare(const Tensor& given, const Tensor& exact, const Tensor& shadow, DType dtype);

// f64, row-major; `t` itself where it is so.
Tensor rows_of(const Tensor& t);
Tensor minus(const Tensor& a, const Tensor& b);
// Sums over the elements, or products, that are finite.
double squares(const Tensor& t);
double inner(const Tensor& a, const Tensor& b);

}  // namespace gradual::inspect
