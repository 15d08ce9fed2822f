// Convolutions as products over shifted images.
#pragma once

#include <cstdint>
#include <vector>

#include "../op.h"

namespace gradual::cpu {

// One of the two axes of a correlation: output i reads the padded inputs i * step + taps[..].
struct Axis {
  std::int64_t pad = 0;                // where input 0 lies; below 0, inputs are left out
  std::int64_t step = 1;               // from one output to the next
  std::int64_t count = 0;              // outputs
  std::int64_t start = 0, stride = 1;  // where they go in the tensor that is written
  std::vector<std::int64_t> taps;      // rising or falling
  std::vector<std::int64_t> kernel;    // which elements of the kernel these are
  std::int64_t reach() const;          // the largest tap
  std::int64_t padded(std::int64_t outputs) const { return (outputs - 1) * step + reach() + 1; }
};

// A convolution's own axis.
Axis forward_axis(std::int64_t kernel, std::int64_t outputs, std::int64_t stride, std::int64_t pad,
                  std::int64_t dilation);
// Its adjoint, which reads dy and writes `inputs` elements. With a stride s, elements s apart share their taps: one
// axis for each of the s phases, so that no zero is multiplied.
Axis adjoint_axis(std::int64_t kernel, std::int64_t inputs, std::int64_t stride, std::int64_t pad,
                  std::int64_t dilation, std::int64_t phase);

void conv2d(const OpCall& call, Outputs& out);
void conv2d_backward_input(const OpCall& call, Outputs& out);
void conv2d_backward_weight(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
