// Reorders bf16 images between planes [N, C, H, W] and the layouts that oneDNN's convolutions read: blocks of 16
// channels (nChw16c) or channels-last (nhwc). oneDNN 2.6 reorders them element by element, which costs as much as a
// small convolution.
#pragma once

#include <cstdint>

namespace gradual::onednn {

struct BlockLayout {
  std::int64_t images, channels, pixels;  // channels: a multiple of 16; pixels: at least 16
  bool last, pack;                        // last: nhwc, else nChw16c; pack: from planes, else to planes
};
// Needs AVX2.
void move_blocks(const void* from, void* to, const BlockLayout& layout);

}  // namespace gradual::onednn
