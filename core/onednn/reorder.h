// bf16 images between planes [N, C, H, W] and what oneDNN's convolutions read: blocks of 16 channels (nChw16c) or
// channels last (nhwc). oneDNN 2.6 moves these element by element, which costs as much as a small convolution.
#pragma once

#include <cstdint>

namespace gradual::onednn {

struct BlockLayout {
  std::int64_t images, channels, pixels;  // whole 16s of channels; 16 pixels or more
  bool last, pack;                        // nhwc, else nChw16c; from planes, else to planes
};
// Needs AVX2.
void move_blocks(const void* from, void* to, const BlockLayout& layout);

}  // namespace gradual::onednn
