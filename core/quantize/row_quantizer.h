// Rounds rows as fake_quantize() does, but in a kernel's own memory and a few at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "quantizer.h"

namespace gradual {

// The rounding of one f32 tensor on the CPU whose rows, along the contracted axis, have `length` elements.
class RowQuantizer {
 public:
  // key: QuantizeOptions::key. Error if the quantizer is not valid.
  RowQuantizer(const Quantizer& quantizer, std::int64_t length, RandomKey key = {});

  // True if the scales of a row follow from this row alone.
  static bool suits(const Quantizer& quantizer);

  // Rounds n elements, whole rows, in place. The first one has this number in the tensor with its axis last. Any thread
  // may call it.
  void round(float* values, std::int64_t n, std::int64_t first) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace gradual
