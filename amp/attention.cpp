#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../autograd/activation_checkpoint.h"
#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../core/observe/observer.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
const char* const refused = q->hadamard                        ? "a Hadamard transform"
                            : q->center                        ? "center"
                            : is_any<DelayedScale>(q->scaling) ? "delayed scaling"
                            : has_kept_scale(q->scaling)       ? "learned scaling"
                                                               : nullptr;
if (refused)
  throwf(
      "{}: {}; attention's quantizers take their scales from the numbers at hand: every scaling but delayed and "
      "learned is allowed, without hadamard and center",
      name, refused);
if (q->gradient != QuantizerGradient::straight)
  throwf("{}: the gradient is {}; in attention it is straight", name, to_string(q->gradient));
}
for (const auto* sums : {&a.qk_accumulator, &a.pv_accumulator})
  if (*sums) check_valid(**sums);
if (a.block < 1) throwf("block is {}; a block has at least 1 key", a.block);
if (a.beta != 0 && !(a.beta > 1 && std::isfinite(a.beta)))
  throwf("beta is {}; allowed are 0 and finite numbers above 1", a.beta);
}

Tensor attention_in_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                           const AttentionAttrs& attrs, const AttentionPrecision& precision, Loc loc) {
  in_context("attention in blocks", [&] { check_valid(precision); });
  check_inputs(q, k, v, mask, attrs);
  const auto recorded = [](const Tensor& t) { return t.defined() && needs_grad(t); };
  const bool backward =
      in_checkpoint() || (grad_enabled() && (recorded(q) || recorded(k) || recorded(v) || recorded(mask)));
  return apply(std::make_shared<BlockAttention>(precision, attrs, backward), {q, k, v, mask}, loc)[0];
}

const AttentionAttrs* attributes_of_blocks(const OpCall& call) {
  if (call.op != OpId::custom) return nullptr;
  const auto* const blocks = dynamic_cast<const BlockAttention*>(call.get<CustomAttrs>().function);
  return blocks ? &blocks->attributes() : nullptr;
}

}  // namespace gradual::amp
