// bf16 images between planes [N, C, H, W] and blocks of 16 channels [N, C/16, H, W, 16] (nChw16c), with vectors of 16
// elements: oneDNN 2.6's own reorder moves them one at a time, which costs as much as a small convolution.
#pragma once

#include <cstdint>

namespace gradual::onednn {

enum class Blocks : std::uint8_t { pack, unpack };
// `groups` is N * C / 16, `pixels` H * W; both may be any number. Only where has_bf16().
void move_blocks(const void* from, void* to, std::int64_t groups, std::int64_t pixels, Blocks direction);

}  // namespace gradual::onednn
