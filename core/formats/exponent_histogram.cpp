// Counts how often each exponent occurs: ExponentHistogram of rounding.h.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../support/multiversion.h"
#include "rounding.h"
#include "rounding_kernels.h"

namespace gradual::detail {
namespace {

constexpr std::int64_t kCountedTogether = 4096;  // a sum of bytes, below, holds at most 128 ones
constexpr std::int64_t kStep = 32;               // numbers that are counted by several vectors at a time
constexpr std::int64_t kSlots = 16;              // of four bits in a field; the last one counts all other bins
constexpr std::int64_t kFullSlot = 15;           // ones that a slot holds

// The vectors of an instruction set. g++ 12 compares longer ones number by number.
struct Avx512 {
  using Words [[gnu::vector_size(64)]] = std::uint32_t;
  using SignedWords [[gnu::vector_size(64)]] = std::int32_t;
  using Fields [[gnu::vector_size(64)]] = std::uint64_t;
};
struct Avx2 {
  using Words [[gnu::vector_size(32)]] = std::uint32_t;
  using SignedWords [[gnu::vector_size(32)]] = std::int32_t;
  using Fields [[gnu::vector_size(32)]] = std::uint64_t;
};

// The bins of numbers. Up to a multiple of kStep, numbers of no bin follow.
struct Bins {
  alignas(64) std::uint32_t bins[kCountedTogether];
  std::int64_t zeros = 0;
  std::int64_t highest = 0;
};

template <class T> void take_bins(const T* in, std::int64_t n, Bins& to) {
  using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  using Int = typename SourceBits<U>::Int;
  constexpr Int kBelow = 1023 - 127;  // a double's exponents below f32's
  constexpr std::uint32_t kNone = 1 << 16;
  vectorized([in, n, out = &to] {
    const T* __restrict const from = in;
    std::uint32_t* __restrict const bins = out->bins;
    U zeros = 0;
    U highest = 0;
#pragma omp simd reduction(+ : zeros) reduction(max : highest)
    for (std::int64_t i = 0; i < n; ++i) {
      const U magnitude = std::bit_cast<U>(from[i]) & ~SourceBits<U>::kSign;
      Int bin = static_cast<Int>(magnitude >> SourceBits<U>::kMantissa);
      if constexpr (SourceBits<U>::kWide) {
        bin = bin > kBelow ? bin - kBelow : 0;
        bin = bin < 255 ? bin : 255;
      }
      bins[i] = static_cast<std::uint32_t>(bin);
      zeros += magnitude == 0 ? 1U : 0U;
      highest = highest > static_cast<U>(bin) ? highest : static_cast<U>(bin);
    }
    out->zeros = static_cast<std::int64_t>(zeros);
    out->highest = static_cast<std::int64_t>(highest);
  });
  std::fill(to.bins + n, to.bins + (n + kStep - 1) / kStep * kStep, kNone);
}

// counts[i]: how many of n numbers, a multiple of kStep, are of bin `highest` - i; the last one: how many are of
// others. A number adds a one to a field of 64 bits, shifted to its slot; full slots are added up as bytes.
template <class Vectors>
[[gnu::always_inline]] inline void count_slots(const std::uint32_t* bins, std::int64_t n, std::uint32_t highest,
                                               std::uint64_t* counts) {
  constexpr std::uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f;
  constexpr std::uint64_t kEvenBytes = 0x00ff00ff00ff00ff;
  using Words = typename Vectors::Words;
  using SignedWords = typename Vectors::SignedWords;
  using Fields = typename Vectors::Fields;
  constexpr std::int64_t kWords = sizeof(Words) / sizeof(std::uint32_t);
  constexpr std::int64_t kFields = sizeof(Fields) / sizeof(std::uint64_t);
  constexpr int kVectors = kStep / kWords;
  constexpr int kSums = 2 * kVectors;
  // AVX2 compares signed numbers alone: with this bit they have the order of unsigned ones.
  constexpr std::uint32_t kSign = 0x80000000;
  constexpr std::uint32_t kLast = kSign + kSlots - 1;
  const Fields one = Fields{} + 1;
  Fields even[kSums] = {};
  Fields odd[kSums] = {};
  for (std::int64_t i = 0; i < n;) {
    Fields sums[kSums] = {};
    const std::int64_t full = i + kFullSlot * kStep;
    for (const std::int64_t end = n < full ? n : full; i < end; i += kStep) {
      for (int k = 0; k < kVectors; ++k) {
        Words bin;
        std::memcpy(&bin, bins + i + k * kWords, sizeof bin);
        const Words below = kSign + highest - bin;
        const auto near = reinterpret_cast<SignedWords>(below) < static_cast<std::int32_t>(kLast);
        const Words shift = (near ? below : Words{} + kLast) * 4;
        Fields pair;
        std::memcpy(&pair, &shift, sizeof pair);
        sums[2 * k] += one << (pair & 0xff);
        sums[2 * k + 1] += one << (pair >> 32);
      }
    }
    for (int k = 0; k < kSums; ++k) {
      even[k] += sums[k] & kNibbles;
      odd[k] += sums[k] >> 4 & kNibbles;
    }
  }
  Fields parts[4] = {};  // of slots 0, 4, 8, 12; 1, 5, ..; each in 16 bits
  for (int k = 0; k < kSums; ++k) {
    parts[0] += even[k] & kEvenBytes;
    parts[1] += odd[k] & kEvenBytes;
    parts[2] += even[k] >> 8 & kEvenBytes;
    parts[3] += odd[k] >> 8 & kEvenBytes;
  }
  for (int part = 0; part < 4; ++part) {
    std::uint64_t sum = 0;
    for (std::int64_t lane = 0; lane < kFields; ++lane) sum += parts[part][lane];
    for (int k = 0; k < 4; ++k) counts[4 * k + part] = sum >> (16 * k) & 0xffff;
  }
}

// Most numbers lie within a few powers of two of the largest one: the bins are counted from there down, 15 at a time.
template <class T> void add_exponents(const T* in, std::int64_t n, ExponentHistogram& total) {
  Bins found;
  for (; n > 0; in += kCountedTogether, n -= kCountedTogether) {
    const std::int64_t count = std::min(n, kCountedTogether);
    take_bins(in, count, found);
    const std::int64_t all = (count + kStep - 1) / kStep * kStep;
    std::int64_t rest = count - found.zeros;
    for (std::int64_t highest = found.highest; rest > 0; highest -= kSlots - 1) {
      std::uint64_t counts[kSlots];
      const auto count_by = [from = found.bins, all, top = static_cast<std::uint32_t>(highest),
                             to = &counts[0]](auto vectors) {
        vectorized([=] { count_slots<decltype(vectors)>(from, all, top, to); });
      };
      if (cpu_isa() >= CpuIsa::avx512) count_by(Avx512());
      else count_by(Avx2());
      if (highest < kSlots - 1) counts[highest] -= static_cast<std::uint64_t>(found.zeros);
      for (std::int64_t slot = 0; slot < kSlots - 1 && slot <= highest; ++slot) {
        total.bins[static_cast<std::size_t>(highest - slot)] += counts[slot];
        rest -= static_cast<std::int64_t>(counts[slot]);
      }
    }
  }
}

}  // namespace
}  // namespace gradual::detail

namespace gradual {

void ExponentHistogram::add(const float* values, std::int64_t n) { detail::add_exponents(values, n, *this); }
void ExponentHistogram::add(const double* values, std::int64_t n) { detail::add_exponents(values, n, *this); }

ExponentHistogram& ExponentHistogram::operator+=(const ExponentHistogram& other) {
  for (std::size_t i = 0; i < bins.size(); ++i) bins[i] += other.bins[i];
  return *this;
}

}  // namespace gradual
