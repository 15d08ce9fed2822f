#include "philox.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cpu_isa.h"

namespace gradual {

namespace {

constexpr std::uint32_t kMultipliers[] = {0xd2511f53, 0xcd9e8d57};
constexpr std::uint32_t kKeySteps[] = {0x9e3779b9, 0xbb67ae85};
constexpr int kRounds = 10;

// What the words of a run of blocks follow from.
struct Blocks {
  std::uint64_t seed;
  std::uint64_t stream;
};

// Writes the words of so many blocks from `block` on.
constexpr std::uint64_t kTogether = 16;
using Write = void (*)(const Blocks& of, std::uint64_t block, std::uint32_t* words);

void write_baseline(const Blocks& of, std::uint64_t block, std::uint32_t* words) {
  for (std::uint64_t b = 0; b < kTogether; ++b) {
    const std::array<std::uint32_t, 4> four = philox_block(of.seed, of.stream, block + b);
    std::copy(four.begin(), four.end(), words + 4 * b);
  }
}

#if defined(__x86_64__)
// Each word of a counter lies in the lower half of a 64-bit lane, one block a lane. Multiplications read that half
// alone, so what the upper half holds does not matter.
[[gnu::target("avx2")]] void write_avx2(const Blocks& of, std::uint64_t block, std::uint32_t* words) {
  constexpr int kVectors = 2;  // in turn: one waits for its multiplication while the other multiplies
  const __m256i by0 = _mm256_set1_epi64x(kMultipliers[0]);
  const __m256i by1 = _mm256_set1_epi64x(kMultipliers[1]);
  for (std::uint64_t done = 0; done < kTogether; done += std::uint64_t{4} * kVectors) {
    __m256i c[kVectors][4];
    for (int v = 0; v < kVectors; ++v) {
      const auto first = static_cast<std::int64_t>(block + done) + 4 * v;
      c[v][0] = _mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_set_epi64x(3, 2, 1, 0));
      c[v][1] = _mm256_srli_epi64(c[v][0], 32);
      c[v][2] = _mm256_set1_epi64x(static_cast<std::int64_t>(of.stream));
      c[v][3] = _mm256_set1_epi64x(static_cast<std::int64_t>(of.stream >> 32));
    }
    __m256i key0 = _mm256_set1_epi64x(static_cast<std::int64_t>(of.seed));
    __m256i key1 = _mm256_set1_epi64x(static_cast<std::int64_t>(of.seed >> 32));
    for (int round = 0; round < kRounds; ++round) {
      for (auto& w : c) {
        const __m256i product0 = _mm256_mul_epu32(w[0], by0);
        const __m256i product1 = _mm256_mul_epu32(w[2], by1);
        w[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), w[1]), key0);
        w[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), w[3]), key1);
        w[1] = product1;
        w[3] = product0;
      }
      key0 = _mm256_add_epi64(key0, _mm256_set1_epi64x(kKeySteps[0]));
      key1 = _mm256_add_epi64(key1, _mm256_set1_epi64x(kKeySteps[1]));
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m256i first = _mm256_blend_epi32(c[v][0], _mm256_slli_epi64(c[v][1], 32), 0xaa);
      const __m256i second = _mm256_blend_epi32(c[v][2], _mm256_slli_epi64(c[v][3], 32), 0xaa);
      const __m256i even = _mm256_unpacklo_epi64(first, second);
      const __m256i odd = _mm256_unpackhi_epi64(first, second);
      auto* const to = reinterpret_cast<__m256i*>(words + 4 * done + 16 * static_cast<std::uint64_t>(v));
      _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}

[[gnu::target("avx512f")]] void write_avx512(const Blocks& of, std::uint64_t block, std::uint32_t* words) {
  constexpr int kVectors = 2;
  constexpr __mmask8 kAll = 0xff;  // g++ 12 says that the intrinsics without a mask read an uninitialised vector
  const __m512i by0 = _mm512_set1_epi64(kMultipliers[0]);
  const __m512i by1 = _mm512_set1_epi64(kMultipliers[1]);
  constexpr int kThree = 0x96;  // the exclusive or of three
  __m512i c[kVectors][4];
  for (int v = 0; v < kVectors; ++v) {
    const __m512i first = _mm512_set1_epi64(static_cast<std::int64_t>(block) + 8 * v);
    c[v][0] = _mm512_add_epi64(first, _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    c[v][1] = _mm512_maskz_srli_epi64(kAll, c[v][0], 32);
    c[v][2] = _mm512_set1_epi64(static_cast<std::int64_t>(of.stream));
    c[v][3] = _mm512_set1_epi64(static_cast<std::int64_t>(of.stream >> 32));
  }
  __m512i key0 = _mm512_set1_epi64(static_cast<std::int64_t>(of.seed));
  __m512i key1 = _mm512_set1_epi64(static_cast<std::int64_t>(of.seed >> 32));
  for (int round = 0; round < kRounds; ++round) {
    for (auto& w : c) {
      const __m512i product0 = _mm512_maskz_mul_epu32(kAll, w[0], by0);
      const __m512i product1 = _mm512_maskz_mul_epu32(kAll, w[2], by1);
      w[0] = _mm512_ternarylogic_epi64(_mm512_maskz_srli_epi64(kAll, product1, 32), w[1], key0, kThree);
      w[2] = _mm512_ternarylogic_epi64(_mm512_maskz_srli_epi64(kAll, product0, 32), w[3], key1, kThree);
      w[1] = product1;
      w[3] = product0;
    }
    key0 = _mm512_add_epi64(key0, _mm512_set1_epi64(kKeySteps[0]));
    key1 = _mm512_add_epi64(key1, _mm512_set1_epi64(kKeySteps[1]));
  }
  constexpr __mmask16 kUpper = 0xaaaa;
  const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  const __m512i high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  for (int v = 0; v < kVectors; ++v) {
    const __m512i first = _mm512_mask_blend_epi32(kUpper, c[v][0], _mm512_maskz_slli_epi64(kAll, c[v][1], 32));
    const __m512i second = _mm512_mask_blend_epi32(kUpper, c[v][2], _mm512_maskz_slli_epi64(kAll, c[v][3], 32));
    _mm512_storeu_si512(words + 32 * v, _mm512_permutex2var_epi64(first, low, second));
    _mm512_storeu_si512(words + 32 * v + 16, _mm512_permutex2var_epi64(first, high, second));
  }
}
#endif

Write write_for(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa >= CpuIsa::avx512) return write_avx512;
  if (isa >= CpuIsa::avx2) return write_avx2;
#else
  static_cast<void>(isa);
#endif
  return write_baseline;
}

}  // namespace

void philox_fill(std::uint64_t seed, std::uint64_t stream, std::uint64_t first_element, std::uint32_t* out,
                 std::int64_t n) {
  const Write write = write_for(cpu_isa());
  const Blocks of{seed, stream};
  const std::uint64_t end = first_element + static_cast<std::uint64_t>(n);
  for (std::uint64_t block = first_element / 4; 4 * block < end; block += kTogether) {
    const std::uint64_t from = std::max(first_element, 4 * block);
    const std::uint64_t to = std::min(end, 4 * (block + kTogether));
    std::uint32_t* const at = out + (from - first_element);
    if (to - from == 4 * kTogether) {
      write(of, block, at);
      continue;
    }
    std::uint32_t words[4 * kTogether];
    write(of, block, words);
    std::copy(words + (from - 4 * block), words + (to - 4 * block), at);
  }
}

std::array<float, 2> box_muller(std::uint32_t radius_word, std::uint32_t angle_word) {
  const double u = (radius_word + 1.0) * 0x1p-32;  // in (0, 1]: the logarithm stays finite
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * 0x1p-32 * angle_word;
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace gradual
