#pragma once

#include <cstdint>

#include "dtype.h"

// Conversions of arrays between dtypes: the one place where elements are rounded when they are stored.
//
// Rounding follows float_types.h: to nearest, ties to even, once from the source's own value (doubles and
// 64-bit integers do not pass through a rounded float), overflow to Inf or, in f8e4m3fn, to NaN. To an
// integer: towards zero, values out of range saturate and NaN gives 0. To bool: x != 0, so NaN is true. A
// bool is read as byte != 0. Widening is exact.
//
// The processor chooses the code (cpu_isa.h), whose bits are always the same. Everything runs on the calling thread;
// arrays may be split freely, for elements do not depend on each other.
namespace gradual {

// What a narrowing store did to its elements. The source decides the category and every element is in at most
// one besides `elements`; the rest became normal values.
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

// Reads n elements of dtype src, `stride` elements apart (0 repeats one element, negative walks backwards),
// into a contiguous buffer of float, double or std::int64_t.
template <class To> void fetch_and_cast(DType src, const void* p, std::int64_t stride, To* out, std::int64_t n);
// Rounds such a buffer to dtype `to` and writes it, `stride` elements apart. Counts are added to *counts.
template <class T>
void cast_and_store(DType to, const T* in, void* p, std::int64_t stride, std::int64_t n, CastCounts* counts = nullptr);

// Contiguous n elements from any dtype to any other; equal dtypes copy the bits. The arrays must not overlap.
void convert(DType src, const void* in, DType dst, void* out, std::int64_t n, CastCounts* counts = nullptr);

// Round stochastically (rounding.h) with 32 random bits, to any floating dtype but f64. Element i takes word
// `first_element + i` of the Philox stream, so that the result does not depend on how an array is split.
void store_stochastic(DType dst, const float* in, void* p, std::int64_t n, std::uint64_t seed, std::uint64_t stream,
                      std::uint64_t first_element, CastCounts* counts = nullptr);

}  // namespace gradual
