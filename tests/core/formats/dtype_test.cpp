#include <doctest/doctest.h>
#include <gradual/core/formats/dtype.h>
#include <gradual/core/formats/float_types.h>
#include <gradual/core/support/error.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

using namespace gradual;

namespace {

std::vector<DType> all_dtypes() {
  std::vector<DType> all(kDTypeCount);
  for (int i = 0; i < kDTypeCount; ++i) all[static_cast<std::size_t>(i)] = static_cast<DType>(i);
  return all;
}

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

}  // namespace

TEST_CASE("dtype names, sizes and kinds") {
  struct Row {
    DType dtype;
    const char* name;
    std::size_t size;
    bool floating, integral;
  };
  const Row rows[] = {{DType::f64, "f64", 8, true, false},
                      {DType::f32, "f32", 4, true, false},
                      {DType::f16, "f16", 2, true, false},
                      {DType::bf16, "bf16", 2, true, false},
                      {DType::f8e4m3fn, "f8e4m3fn", 1, true, false},
                      {DType::f8e5m2, "f8e5m2", 1, true, false},
                      {DType::i64, "i64", 8, false, true},
                      {DType::i32, "i32", 4, false, true},
                      {DType::u8, "u8", 1, false, true},
                      {DType::bool_, "bool", 1, false, false}};
  CHECK(std::size(rows) == kDTypeCount);
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(to_string(row.dtype) == row.name);
    CHECK(dtype_from_name(row.name) == row.dtype);
    CHECK(size_of(row.dtype) == row.size);
    CHECK(is_floating(row.dtype) == row.floating);
    CHECK(is_integral(row.dtype) == row.integral);
    CHECK(is_f8(row.dtype) == (row.floating && row.size == 1));
  }
  CHECK(message_of([] { dtype_from_name("float16"); }) ==
        "unknown dtype 'float16'; known are f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, u8, bool; did you mean "
        "'f16'?");
  CHECK(message_of([] { dtype_from_name("fp6"); }).ends_with("u8, bool"));  // no dtype has what is meant
}

TEST_CASE("dtype of a C++ type has its size") {
  CHECK(dtype_of<double> == DType::f64);
  CHECK(dtype_of<float> == DType::f32);
  CHECK(dtype_of<Half> == DType::f16);
  CHECK(dtype_of<BFloat16> == DType::bf16);
  CHECK(dtype_of<Float8E4M3FN> == DType::f8e4m3fn);
  CHECK(dtype_of<Float8E5M2> == DType::f8e5m2);
  CHECK(dtype_of<std::int64_t> == DType::i64);
  CHECK(dtype_of<std::int32_t> == DType::i32);
  CHECK(dtype_of<std::uint8_t> == DType::u8);
  CHECK(dtype_of<bool> == DType::bool_);
  CHECK(sizeof(Half) == size_of(DType::f16));
  CHECK(sizeof(BFloat16) == size_of(DType::bf16));
  CHECK(sizeof(Float8E4M3FN) == 1);
  CHECK(sizeof(Float8E5M2) == 1);
  CHECK(std::is_trivially_copyable_v<Half>);
  CHECK(std::is_trivially_default_constructible_v<Half>);
}

TEST_CASE("promotion") {
  using enum DType;
  const std::vector<DType> ladder = {bool_, u8, i32, i64, f16, f32, f64};
  for (std::size_t i = 0; i < ladder.size(); ++i) {
    for (std::size_t j = 0; j < ladder.size(); ++j) CHECK(promote(ladder[i], ladder[j]) == ladder[std::max(i, j)]);
  }
  CHECK(promote(bf16, i64) == bf16);
  CHECK(promote(bf16, f32) == f32);
  CHECK(promote(f16, bf16) == f32);
  CHECK(promote(bf16, f16) == f32);
  for (const DType f8 : {f8e4m3fn, f8e5m2}) {
    CHECK(promote(f8, f8) == f8);
    for (const DType other : all_dtypes()) {
      if (other == f8) continue;
      CHECK_THROWS_AS(promote(f8, other), Error);
      CHECK_THROWS_AS(promote(other, f8), Error);
    }
  }
  CHECK(message_of([] { promote(f8e4m3fn, f16); }) ==
        "promote: f8e4m3fn with f16: f8 tensors never promote; cast one operand to the dtype that is meant");
}

TEST_CASE("what the floating formats hold") {
  struct Row {
    DType dtype;
    double max, min_normal, min_subnormal, epsilon;
    int exponent_bits, mantissa_bits, bias;
    bool has_inf;
  };
  using F32 = std::numeric_limits<float>;
  using F64 = std::numeric_limits<double>;
  const Row rows[] = {{DType::f64, F64::max(), F64::min(), F64::denorm_min(), F64::epsilon(), 11, 52, 1023, true},
                      {DType::f32, F32::max(), F32::min(), F32::denorm_min(), F32::epsilon(), 8, 23, 127, true},
                      {DType::f16, 65504, 0x1p-14, 0x1p-24, 0x1p-10, 5, 10, 15, true},
                      {DType::bf16, 0x1.FEp127, 0x1p-126, 0x1p-133, 0x1p-7, 8, 7, 127, true},
                      {DType::f8e4m3fn, 448, 0x1p-6, 0x1p-9, 0x1p-3, 4, 3, 7, false},
                      {DType::f8e5m2, 57344, 0x1p-14, 0x1p-16, 0x1p-2, 5, 2, 15, true}};
  for (const Row& row : rows) {
    const FloatInfo info = float_info(row.dtype);
    CAPTURE(std::string(to_string(row.dtype)));
    CHECK(info.max == row.max);
    CHECK(info.min_normal == row.min_normal);
    CHECK(info.min_subnormal == row.min_subnormal);
    CHECK(info.epsilon == row.epsilon);
    CHECK(info.exponent_bits == row.exponent_bits);
    CHECK(info.mantissa_bits == row.mantissa_bits);
    CHECK(info.bias == row.bias);
    CHECK(info.has_inf == row.has_inf);
  }
  CHECK(message_of([] { float_info(DType::i32); }) == "float_info: i32 is not a floating dtype");
}
