// The error of a tensor, in ulps and relative to its size.
#pragma once

#include <cstdint>

#include "../core/tensor/tensor.h"

namespace gradual::inspect {

// The sums of an error over the elements that are finite in both tensors.
struct ErrorSum {
  double squares = 0;                 // sum of the squared error
  double exact_squares = 0;           // sum of the squared exact values
  double max_ulps = 0, sum_ulps = 0;  // an ulp is the spacing of the dtype at the larger of the two numbers
  std::int64_t elements = 0;
  std::int64_t lost = 0;  // elements that are NaN or Inf but are finite in f64

  double relative() const;  // sqrt(squares / exact_squares); 0 if both are 0
  double sqnr_db() const;   // 10 log10(exact_squares / squares); Inf: no error
  double mean_ulps() const { return elements ? sum_ulps / static_cast<double>(elements) : 0; }
};

// given: the result of an op. exact: the op in f64 on the same inputs. shadow: the op in f64 on the shadow's inputs.
// All have the same sizes; `dtype` is that of the result.
struct Comparison {
  ErrorSum local, inherited, total;
  double cosine = 1;  // between given and shadow
};
Comparison compare(const Tensor& given, const Tensor& exact, const Tensor& shadow, DType dtype);

// The values in f64, row-major; `t` itself if it is so already.
Tensor rows_of(const Tensor& t);
Tensor minus(const Tensor& a, const Tensor& b);
// The sum of squares, and of products; elements or products that are not finite are skipped.
double squares(const Tensor& t);
double inner(const Tensor& a, const Tensor& b);

}  // namespace gradual::inspect
