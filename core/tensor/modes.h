// The modes of a thread: what its ops compute with, beyond their operands. Scopes set them, snapshot() (dispatch.h)
// takes them as a whole, and ThreadStateScope puts them back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "../formats/accumulator.h"
#include "memory.h"

namespace gradual {

class Tensor;

// f32: operands are used unchanged. tf32: operands are first rounded to 10 mantissa bits (nearest, ties to even), as in
// the tensor cores of NVIDIA's Ampere and later; sums stay f32. No effect on f64 and on inputs narrower than f32.
enum class MatmulPrecision : std::uint8_t { f32, tf32 };

// What a thread does with a checkpointed segment (autograd/activation_checkpoint.h). first: it runs the segment without
// recording it. again: it runs the segment in backward, and records it.
enum class Segment : std::uint8_t { none, first, again };

// Sums numbers of one part of a batch over all its parts. It has a gradient.
using SumOverParts = std::function<Tensor(const Tensor& own)>;

struct Modes {
  MatmulPrecision matmul_precision = MatmulPrecision::f32;
  bool fast_f8 = false;                         // compute_mode.h
  std::optional<Accumulator> accumulator = {};  // none: contractions and reductions accumulate in f32
  bool fused_rows = true;                       // fusions.h
  Category category = Category::workspace;      // of new storages
  Segment segment = Segment::none;
  const SumOverParts* sum_over_parts = nullptr;  // nn/norm.h; null: each part of a batch has its own statistics
};
// This thread's. A new thread starts with the defaults above.
Modes& modes();

}  // namespace gradual
