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

Row low_halves(Row a, Row b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Row high_halves(Row a, Row b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// Four perfect shuffles of the 256 elements transpose them: each rotates the bits of an element's position by one.
void transpose(const Element* from, std::int64_t from_stride, Element* to, std::int64_t to_stride) {
  Row rows[kSide], shuffled[kSide];
  for (int i = 0; i < kSide; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(Row));
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < kSide / 2; ++i) {
      shuffled[2 * i] = low_halves(rows[i], rows[i + kSide / 2]);
      shuffled[2 * i + 1] = high_halves(rows[i], rows[i + kSide / 2]);
    }
    for (int i = 0; i < kSide / 2; ++i) {
      rows[2 * i] = low_halves(shuffled[i], shuffled[i + kSide / 2]);
      rows[2 * i + 1] = high_halves(shuffled[i], shuffled[i + kSide / 2]);
    }
  }
  for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(Row));
}

}  // namespace

void move_blocks(const void* from, void* to, std::int64_t groups, std::int64_t pixels, Blocks direction) {
  const bool pack = direction == Blocks::pack;
  // Element (channel, pixel) of a group lies at channel * pixels + pixel in planes, at pixel * 16 + channel in blocks.
  const std::int64_t channel_from = pack ? pixels : 1, pixel_from = pack ? 1 : kSide;
  const std::int64_t channel_to = pack ? 1 : pixels, pixel_to = pack ? kSide : 1;
  const std::int64_t grain = std::max<std::int64_t>(1, cpu::kGrain / std::max<std::int64_t>(1, kSide * pixels));
  parallel_for(groups, grain, [&](std::int64_t group, std::int64_t end) {
    for (; group < end; ++group) {
      const Element* const f = static_cast<const Element*>(from) + group * kSide * pixels;
      Element* const t = static_cast<Element*>(to) + group * kSide * pixels;
      std::int64_t pixel = 0;
      for (; pixel + kSide <= pixels; pixel += kSide)
        transpose(f + pixel * pixel_from, pack ? pixels : kSide, t + pixel * pixel_to, pack ? kSide : pixels);
      for (; pixel < pixels; ++pixel)
        for (std::int64_t c = 0; c < kSide; ++c)
          t[c * channel_to + pixel * pixel_to] = f[c * channel_from + pixel * pixel_from];
    }
  });
}

}  // namespace gradual::onednn
