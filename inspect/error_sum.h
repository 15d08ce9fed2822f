// The error of a tensor, in ulps and relative to its size.
#pragma once

#include <algorithm>
#include <array>

#include "../core/ops/ops.h"
#include "../core/support/multiversion.h"
#include "numbers.h"

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
// All have the same sizes. Ulps are those of `dtype`.
struct Comparison {
  ErrorSum local, inherited, total;
  double cosine = 1;  // between given and shadow
};
Comparison compare(const Tensor& given, const Tensor& exact, const Tensor& shadow, DType dtype);

inline constexpr std::int64_t kErrorBlock = 1024;
// Calls f(p, n) for blocks of n elements that stay in the L1 cache: p[k] points to the values of tensor k in f64, in
// row-major order. The tensors have the same sizes, any dtypes and devices.
template <std::size_t N, class F> void in_blocks(std::array<Tensor, N> tensors, const F& f) {
  const Unseen unseen;
  double values[N][kErrorBlock];
  for (Tensor& t : tensors) t = contiguous(t.detach().to(Device::cpu()));
  for (std::int64_t i = 0; i < tensors[0].numel(); i += kErrorBlock) {
    const std::int64_t n = std::min(kErrorBlock, tensors[0].numel() - i);
    std::array<const double*, N> p;
    for (std::size_t k = 0; k < N; ++k) {
      const DType dtype = tensors[k].dtype();
      const char* from = static_cast<const char*>(tensors[k].raw()) + i * static_cast<std::int64_t>(size_of(dtype));
      p[k] = dtype == DType::f64 ? reinterpret_cast<const double*>(from) : values[k];
      if (dtype != DType::f64) fetch_and_cast(dtype, from, 1, values[k], n);
    }
    vectorized([&f, p, n] { f(p, n); });
  }
}

Tensor minus(const Tensor& a, const Tensor& b);  // f64, row-major
// The sum of squares, of squared differences, and of products; those that are not finite are skipped.
double squares(const Tensor& a);
double squares(const Tensor& a, const Tensor& b);
double inner(const Tensor& a, const Tensor& b);

}  // namespace gradual::inspect
