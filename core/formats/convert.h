#pragma once

#include <cstdint>

#include "dtype.h"

// Conversions of arrays between dtypes. Every store of a tensor's elements rounds here.
//
// Rounding follows float_types.h: to nearest, ties to even, once from the source's value (doubles and 64-bit integers
// do not pass through a rounded float). An overflow gives Inf, or NaN in f8e4m3fn. Integers are rounded towards zero;
// values out of range saturate, and NaN gives 0. A bool is x != 0, so NaN gives true. A bool is read as byte != 0.
// Widening is exact.
//
// The code depends on the processor (cpu_isa.h), the bits do not. Everything runs on the calling thread. Arrays may be
// split anywhere, because elements do not depend on each other.
namespace gradual {

// Counts of the elements of narrowing stores. Besides `elements`, an element is in at most one count; an element in no
// other count became a normal value.
struct CastCounts {
  std::uint64_t elements = 0;
  std::uint64_t zeros = 0;      // zero before, of either sign
  std::uint64_t underflow = 0;  // not zero before, zero after
  std::uint64_t subnormal = 0;  // not zero before, a subnormal value after
  std::uint64_t overflow = 0;   // finite before; Inf, NaN or a saturated integer after
  std::uint64_t nan = 0;        // NaN before (and after, where the dtype is floating)
  std::uint64_t inf = 0;        // infinite before

  CastCounts& operator+=(const CastCounts& other);
  bool operator==(const CastCounts&) const = default;
};

// Reads n elements of dtype src, `stride` elements apart, into a contiguous buffer of float, double or std::int64_t.
// Stride 0 repeats one element; a negative stride walks backwards.
template <class To> void fetch_and_cast(DType src, const void* p, std::int64_t stride, To* out, std::int64_t n);
// Rounds n elements of such a buffer to dtype `to` and writes them `stride` elements apart. Counts are added to *counts.
template <class T>
void cast_and_store(DType to, const T* in, void* p, std::int64_t stride, std::int64_t n, CastCounts* counts = nullptr);

// Converts n contiguous elements between any two dtypes. Equal dtypes copy the bits. The arrays must not overlap.
void convert(DType src, const void* in, DType dst, void* out, std::int64_t n, CastCounts* counts = nullptr);

// Rounds stochastically (rounding.h) with 32 random bits to any floating dtype but f64. Element i takes word
// `first_element + i` of the Philox stream, so that the result does not depend on how an array is split.
void store_stochastic(DType dst, const float* in, void* p, std::int64_t n, std::uint64_t seed, std::uint64_t stream,
                      std::uint64_t first_element, CastCounts* counts = nullptr);

}  // namespace gradual
