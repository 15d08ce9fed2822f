// bf16 images between planes [N, C, H, W] and what oneDNN's convolutions read: blocks of 16 channels (nChw16c) or channels
// last (nhwc). With vectors: oneDNN 2.6's own reorder moves element by element, which costs as much as a small convolution.
#pragma once

#include <cstdint>

namespace gradual::onednn {

enum class Blocks : std::uint8_t { pack, unpack };
struct BlockLayout {
  std::int64_t images, channels, pixels;  // channels in whole 16s
  bool last;                              // nhwc; else nChw16c
};
// Only where has_bf16().
void move_blocks(const void* from, void* to, const BlockLayout& layout, Blocks direction);

}  // namespace gradual::onednn
