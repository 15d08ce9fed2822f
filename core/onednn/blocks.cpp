#include "blocks.h"

#include <algorithm>
#include <cstring>

#include "../cpu/loops.h"
#include "../parallel.h"

namespace gradual::onednn {
namespace {

inline constexpr int kSide = 16;
using Element = std::uint16_t;
using Row = Element __attribute__((vector_size(kSide * sizeof(Element))));

// One group of 16 channels. Compiled for what every processor has that multiplies bf16, and others are not asked to.
#if defined(__x86_64__)
[[gnu::target("avx512bw,avx512vl")]]
#endif
void move_group(const Element* from, Element* to, std::int64_t pixels, bool pack) {
  // Element (channel, pixel) lies at channel * pixels + pixel in planes, at pixel * 16 + channel in blocks.
  const std::int64_t channel_from = pack ? pixels : 1, pixel_from = pack ? 1 : kSide;
  const std::int64_t channel_to = pack ? 1 : pixels, pixel_to = pack ? kSide : 1;
  std::int64_t pixel = 0;
  for (; pixel + kSide <= pixels; pixel += kSide) {
    Row rows[2][kSide];
    for (int i = 0; i < kSide; ++i)
      std::memcpy(&rows[0][i], from + pixel * pixel_from + i * (pack ? pixels : kSide), sizeof(Row));
    // 256 elements cut in halves that interleave: the bits of a position rotate by one, and four times swap row and column.
    for (int step = 0; step < 4; ++step) {
      const Row* const in = rows[step % 2];
      Row* const out = rows[1 - step % 2];
      for (int i = 0; i < kSide / 2; ++i) {
        out[2 * i] =
            __builtin_shufflevector(in[i], in[i + kSide / 2], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        out[2 * i + 1] = __builtin_shufflevector(in[i], in[i + kSide / 2], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                 14, 30, 15, 31);
      }
    }
    for (int i = 0; i < kSide; ++i)
      std::memcpy(to + pixel * pixel_to + i * (pack ? kSide : pixels), &rows[0][i], sizeof(Row));
  }
  for (; pixel < pixels; ++pixel)
    for (std::int64_t c = 0; c < kSide; ++c)
      to[c * channel_to + pixel * pixel_to] = from[c * channel_from + pixel * pixel_from];
}

}  // namespace

void move_blocks(const void* from, void* to, std::int64_t groups, std::int64_t pixels, Blocks direction) {
  const std::int64_t size = kSide * pixels;
  const std::int64_t grain = std::max<std::int64_t>(1, cpu::kGrain / std::max<std::int64_t>(1, size));
  parallel_for(groups, grain, [&](std::int64_t group, std::int64_t end) {
    for (; group < end; ++group)
      move_group(static_cast<const Element*>(from) + group * size, static_cast<Element*>(to) + group * size, pixels,
                 direction == Blocks::pack);
  });
}

}  // namespace gradual::onednn
