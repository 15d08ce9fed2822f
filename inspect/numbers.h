// The contents of a tensor: how many elements are zero, subnormal, NaN or Inf, and the range of the other magnitudes.
#pragma once

#include "../autograd/grad_mode.h"
#include "../core/formats/cast_counts.h"
#include "../core/ops/dispatch.h"

namespace gradual::inspect {

// While it lives, ops of this thread are not part of the program: they are not recorded, cast, observed or counted.
struct Unseen {
  NoGrad no_grad;
  StageScope amp{chain().amp, nullptr}, observe{chain().observe, nullptr}, results{chain().results, nullptr};
  CountScope counts{nullptr};
};

// 0 if the whole is 0.
constexpr double percent_of(std::int64_t part, std::int64_t whole) {
  return whole ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

struct Numbers {
  std::int64_t elements = 0;
  std::int64_t zeros = 0;      // of either sign
  std::int64_t subnormal = 0;  // below the smallest normal number of the tensor's dtype, and not zero
  std::int64_t nan = 0, inf = 0;
  double least = 0, largest = 0;  // magnitudes of the finite nonzero elements; 0 if there are none

  bool finite() const { return nan + inf == 0; }
  double zero_percent() const { return percent_of(zeros, elements); }
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

}  // namespace gradual::inspect
