// The numbers that an instance is drawn from.
#pragma once

#include <gradual/core/support/generator.h>
#include <gradual/gradual.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace gradual::precision_bench {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}

  double real(double low, double high) {
    return low + (high - low) * rand({1}, {.dtype = DType::f64}, generator_).item();
  }
  // Uniform in the exponent.
  double scale(double low, double high) { return std::exp(real(std::log(low), std::log(high))); }
  // `low` to `high`, both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(real(0, static_cast<double>(high - low + 1) - 1e-9));
  }
  template <class T> T one_of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(choices.size()) - 1))];
  }

 private:
  Generator generator_;
};

}  // namespace gradual::precision_bench
