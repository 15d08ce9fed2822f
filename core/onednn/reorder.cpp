#include "reorder.h"

#include <algorithm>

#include "../kernels/loops.h"
#include "../support/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradual::onednn {
namespace {

inline constexpr std::int64_t kSide = 16;
using Element = std::uint16_t;

// to[column * to_step + row] = from[row * from_step + column] for 16 rows and columns.
#if defined(__x86_64__)
[[gnu::target("avx2")]] inline void transpose(const Element* from, std::int64_t from_step, Element* to,
                                              std::int64_t to_step) {
  constexpr int kHalf = 8;
  for (int half = 0; half < 2; ++half, from += kHalf, to += kHalf * to_step) {
    __m256i rows[4][kHalf];
    for (int i = 0; i < kHalf; ++i) {
      const auto eight = [&](std::int64_t row) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * from_step));
      };
      rows[0][i] = _mm256_set_m128i(eight(i + kHalf), eight(i));
    }
    // 64 elements of a lane cut in halves that interleave: the bits of a position rotate by one, and three times swap row
    // and column.
    for (int step = 0; step < 3; ++step)
      for (int i = 0; i < kHalf / 2; ++i) {
        rows[step + 1][2 * i] = _mm256_unpacklo_epi16(rows[step][i], rows[step][i + kHalf / 2]);
        rows[step + 1][2 * i + 1] = _mm256_unpackhi_epi16(rows[step][i], rows[step][i + kHalf / 2]);
      }
    for (int i = 0; i < kHalf; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * to_step), rows[3][i]);
  }
}
#else
void transpose(const Element* from, std::int64_t from_step, Element* to, std::int64_t to_step) {
  for (std::int64_t row = 0; row < kSide; ++row)
    for (std::int64_t column = 0; column < kSide; ++column) to[column * to_step + row] = from[row * from_step + column];
}
#endif

#if defined(__x86_64__)
[[gnu::target("avx2")]]
#endif
void move_image(const Element* from, Element* to, const BlockLayout& l, Blocks direction) {
  const std::int64_t group_step = l.last ? kSide : kSide * l.pixels, pixel_step = l.last ? l.channels : kSide;
  const bool pack = direction == Blocks::pack;
  for (std::int64_t next = 0; next < l.pixels; next += kSide) {
    const std::int64_t pixel = std::min(next, std::max<std::int64_t>(0, l.pixels - kSide));  // the last ones again
    for (std::int64_t group = 0; group < l.channels / kSide; ++group) {
      const std::int64_t plane = group * kSide * l.pixels + pixel, packed = group * group_step + pixel * pixel_step;
      if (l.pixels >= kSide) {
        if (pack) transpose(from + plane, l.pixels, to + packed, pixel_step);
        else transpose(from + packed, pixel_step, to + plane, l.pixels);
        continue;
      }
      for (std::int64_t c = 0; c < kSide; ++c)
        for (std::int64_t p = 0; p < l.pixels; ++p) {
          const std::int64_t in_plane = plane + c * l.pixels + p, in_packed = packed + p * pixel_step + c;
          if (pack) to[in_packed] = from[in_plane];
          else to[in_plane] = from[in_packed];
        }
    }
  }
}

}  // namespace

void move_blocks(const void* from, void* to, const BlockLayout& l, Blocks direction) {
  const std::int64_t size = l.channels * l.pixels;
  const std::int64_t grain = std::max<std::int64_t>(1, cpu::kGrain / std::max<std::int64_t>(1, size));
  parallel_for(l.images, grain, [&](std::int64_t image, std::int64_t end) {
    for (; image < end; ++image)
      move_image(static_cast<const Element*>(from) + image * size, static_cast<Element*>(to) + image * size, l,
                 direction);
  });
}

}  // namespace gradual::onednn
