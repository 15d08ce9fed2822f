// The operands of a product of which an op computes a part, as a rank of a tensor-parallel or sequence-parallel group
// does. Scales of a tensor then follow from the amax of the whole, on which ranks agree. Error where they would have to
// agree on more: ranges with a zero point, means, and scales of channels (Quantization::smooth).
// Hadamard transforms: the amax is that of the whole, transformed in groups of its own. Groups of a part are others
// where its contracted dim is no multiple of the group, and signs that are drawn are drawn by each part: its numbers
// may then exceed the amax, and saturate. Convolutions: Error for transforms, and for a scale of scales.
#pragma once

#include <memory>

#include "../core/support/scoped.h"
#include "../core/tensor/tensor.h"

namespace gradual::amp {

struct WholeOperands {
  Tensor x;       // [.., in]; of a convolution images
  Tensor weight;  // [out, in ..], a view of the parameter
  Tensor dy;      // [.., out], from the time that backward has it; of a convolution images
};

// While it lives, rewritten ops of this thread (rewrite.h), and the contractions of their backward, are parts of these
// operands.
class WholeOperandsScope : Pinned {
 public:
  explicit WholeOperandsScope(std::shared_ptr<WholeOperands> whole);
  ~WholeOperandsScope();

 private:
  std::shared_ptr<WholeOperands> before_;
};

// Inside a rewrite: the operands of which its call is a part; null: its operands are whole.
const std::shared_ptr<WholeOperands>& whole_operands();

}  // namespace gradual::amp
