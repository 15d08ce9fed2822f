// The contents of a tensor (how many elements are zero, subnormal, NaN or Inf, and the range of the other magnitudes),
// and its error, in ulps and relative to its size.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "../autograd/grad_mode.h"
#include "../core/formats/cast_counts.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/multiversion.h"

namespace gradual::inspect {

// While it lives, ops of this thread are not part of the program: they are not recorded, cast, observed or counted.
struct Unseen {
  NoGrad no_grad;
  StageScope amp{chain().amp, nullptr};
  StageScope observe{chain().observe, nullptr};
  StageScope results{chain().results, nullptr};
  CountScope counts{nullptr};
};

// 0 if the whole is 0.
constexpr double percent_of(std::int64_t part, std::int64_t whole) {
  return whole ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// NaN is equal to NaN.
constexpr bool same_number(double a, double b) { return a == b || (a != a && b != b); }

struct Numbers {
  std::int64_t elements = 0;
  std::int64_t zeros = 0;      // of either sign
  std::int64_t subnormal = 0;  // below the smallest normal number of the tensor's dtype, and not zero
  std::int64_t nan = 0;
  std::int64_t inf = 0;
  // magnitudes of the finite nonzero elements; 0 if there are none
  double least = 0;
  double largest = 0;

  bool finite() const { return nan + inf == 0; }
  Numbers& operator+=(const Numbers& other);
};

// t is a floating tensor on any device; elements of an expanded dim count once per position. Runs no op that an
// observer, the tape or autocast could see. All counts are 0 for an undefined tensor and for integers.
Numbers numbers_of(const Tensor& t);

// The elements as a row on the CPU: in the order of memory, without a copy, if they have no gaps; else row-major. Two
// tensors with the same strides have the same order.
Tensor in_any_order(const Tensor& t);

// "2^-24 to 2^3.2, 12% zero, 3 NaN".
std::string to_string(const Numbers& n);

// The sums of an error over the elements that are finite in both tensors.
struct ErrorSum {
  double squares = 0;        // sum of the squared error
  double exact_squares = 0;  // sum of the squared exact values
  // an ulp is the spacing of the dtype at the larger of the two numbers
  double max_ulps = 0;
  double sum_ulps = 0;
  std::int64_t elements = 0;
  std::int64_t lost = 0;     // elements that are NaN or Inf but are finite in f64
  double sum = 0;            // of the error, with its sign
  double along = 0;          // of error * exact value
  double along_squares = 0;  // of (error * exact value)^2

  double relative() const { return squares == 0 ? 0 : std::sqrt(squares / exact_squares); }
  double sqnr_db() const { return 10 * std::log10((squares == 0 ? 1 : exact_squares) / squares); }  // Inf: no error
  // The mean error, with its sign, in units of the root mean square of the exact values.
  double bias() const;
  // The part of the exact values in the error, <error, exact> / <exact, exact>: -0.02 if numbers are 2% too small.
  double gain() const { return exact_squares > 0 ? along / exact_squares : 0; }
  // Half the 95% intervals of both. Of independent errors without a bias, such as those of stochastic rounding, 95% are
  // within them.
  double bias_interval() const;
  double gain_interval() const { return exact_squares > 0 ? 1.96 * std::sqrt(along_squares) / exact_squares : 0; }
  double mean_ulps() const { return elements ? sum_ulps / static_cast<double>(elements) : 0; }
};

// "+0.0012 +- 0.0004".
std::string with_interval(double value, double half);

// given: the result of an op. exact: the op in f64 on the same inputs. shadow: the op in f64 on the shadow's inputs.
// All have the same sizes. Ulps are those of `dtype`.
struct Comparison {
  ErrorSum local, inherited, total;
  double cosine = 1;  // between given and shadow
};
Comparison compare(const Tensor& given, const Tensor& exact, const Tensor& shadow, DType dtype);
ErrorSum error_of(const Tensor& given, const Tensor& exact);  // without ulps

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
// The sum of products; those that are not finite are skipped.
double inner(const Tensor& a, const Tensor& b);
inline double squares(const Tensor& a) { return inner(a, a); }

}  // namespace gradual::inspect
