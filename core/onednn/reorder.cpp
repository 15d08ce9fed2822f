#include "reorder.h"

#include <immintrin.h>

#include <algorithm>

#include "../kernels/loops.h"
#include "../support/parallel.h"

namespace gradual::onednn {
namespace {

inline constexpr std::int64_t kSide = 16;
using Element = std::uint16_t;

// to[column * to_step + row] = from[row * from_step + column] for 16 rows and columns. Each row is prefetched two cache
// lines ahead: where rows are planes, processors do not predict accesses to 16 of them in turn.
[[gnu::target("avx2")]] void transpose(const Element* from, std::int64_t from_step, Element* to, std::int64_t to_step) {
  constexpr int kHalf = 8;
  for (int half = 0; half < 2; ++half, from += kHalf, to += kHalf * to_step) {
    __m256i rows[4][kHalf];
    for (int i = 0; i < kHalf; ++i) {
      const auto* const low = from + i * from_step;
      const auto* const high = low + kHalf * from_step;
      __builtin_prefetch(low + 64);
      __builtin_prefetch(high + 64);
      rows[0][i] = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high), reinterpret_cast<const __m128i*>(low));
    }
    // A 128-bit lane of all rows has 64 elements. Interleaving its halves rotates the bits of an element's index by
    // one; three rotations swap row and column.
    for (int step = 0; step < 3; ++step)
      for (int i = 0; i < kHalf / 2; ++i) {
        rows[step + 1][2 * i] = _mm256_unpacklo_epi16(rows[step][i], rows[step][i + kHalf / 2]);
        rows[step + 1][2 * i + 1] = _mm256_unpackhi_epi16(rows[step][i], rows[step][i + kHalf / 2]);
      }
    for (int i = 0; i < kHalf; ++i) {
      __builtin_prefetch(to + i * to_step + 64, 1);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * to_step), rows[3][i]);
    }
  }
}

}  // namespace

void move_blocks(const void* from, void* to, const BlockLayout& l) {
  const std::int64_t size = l.channels * l.pixels;
  const std::int64_t pixel_step = l.last ? l.channels : kSide;
  const std::int64_t group_step = l.last ? kSide : kSide * l.pixels;
  parallel_for(l.images, std::max<std::int64_t>(1, cpu::kGrain / size), [=](std::int64_t image, std::int64_t end) {
    for (; image < end; ++image) {
      const auto* const read = static_cast<const Element*>(from) + image * size;
      auto* const write = static_cast<Element*>(to) + image * size;
      for (std::int64_t next = 0; next < l.pixels; next += kSide) {
        const std::int64_t pixel = std::min(next, l.pixels - kSide);  // the last pixels may be moved twice
        for (std::int64_t group = 0; group < l.channels / kSide; ++group) {
          const std::int64_t plane = group * kSide * l.pixels + pixel;
          const std::int64_t block = group * group_step + pixel * pixel_step;
          if (l.pack) transpose(read + plane, l.pixels, write + block, pixel_step);
          else transpose(read + block, pixel_step, write + plane, l.pixels);
        }
      }
    }
  });
}

}  // namespace gradual::onednn
