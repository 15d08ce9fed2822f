// Attention where no fused kernel applies: half operands, and all between them and the results in f32.
#include <gradual/core/ops/cpu_backend.h>

#include "../../support/attention_error.h"

using namespace gradual;
using namespace gradual::test;

TEST_CASE("attention in half that no fused kernel takes rounds its results alone") {
  for (const CpuBackend backend : {CpuBackend::eigen, CpuBackend::onednn}) {
    if (backend == CpuBackend::onednn && !has_onednn()) continue;
    const CpuBackendScope scope(backend);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const AttentionCase& c : kHalfAttention) check_attention_in_half(c, dtype, Device::cpu());
      check_cancelling_attention(dtype, Device::cpu());
    }
  }
}
