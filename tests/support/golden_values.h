// The numbers that tests/golden/make_files.py writes.
#pragma once

#include <gradual/core/files/state_dict.h>

#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

namespace test {

inline gradual::Tensor doubles(const std::vector<double>& values, const gradual::Shape& sizes, gradual::DType dtype) {
  return gradual::from_data(values, sizes, {.dtype = dtype});
}

inline gradual::Tensor integers(const std::vector<std::int64_t>& values, const gradual::Shape& sizes,
                                gradual::DType dtype) {
  return gradual::from_data(values, sizes, {.dtype = dtype});
}

inline gradual::StateDict golden_values() {
  using gradual::DType;
  using Limits64 = std::numeric_limits<std::int64_t>;
  using Limits32 = std::numeric_limits<std::int32_t>;
  gradual::StateDict out;
  out.set("f64", doubles({1.5, -2.25, 1e300, 5e-324, -0.0, std::numbers::pi}, {2, 3}, DType::f64));
  out.set("f32", doubles({1.5, -2.25, 1e30, 1e-45, -0.0, std::numbers::pi}, {2, 3}, DType::f32));
  out.set("f16", doubles({1.5, -2.25, 65504, 6e-8}, {4}, DType::f16));
  out.set("bf16", doubles({1.5, -2.25, 3e38}, {3}, DType::bf16));
  out.set("f8e4m3fn", doubles({1.5, -2.25, 448}, {3}, DType::f8e4m3fn));
  out.set("f8e5m2", doubles({1.5, -2.5, 57344}, {3}, DType::f8e5m2));
  out.set("i64", integers({Limits64::min(), Limits64::max()}, {2}, DType::i64));
  out.set("i32", integers({Limits32::min(), Limits32::max()}, {2}, DType::i32));
  out.set("u8", integers({0, 255}, {2, 1}, DType::u8));
  out.set("bool", integers({1, 0, 1}, {3}, DType::bool_));
  out.set("empty", doubles({}, {2, 0, 3}, DType::f32));
  out.set("scalar", doubles({0.1}, {}, DType::f64));
  return out;
}

// The same dtype, shape and bits. Both row-major.
inline bool same_bits(const gradual::Tensor& a, const gradual::Tensor& b) {
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes() || !a.is_contiguous() || !b.is_contiguous()) return false;
  const auto* p = static_cast<const unsigned char*>(a.raw());
  const auto* q = static_cast<const unsigned char*>(b.raw());
  for (std::size_t i = 0; i < a.nbytes(); ++i)
    if (p[i] != q[i]) return false;
  return true;
}

}  // namespace test
