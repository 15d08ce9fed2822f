// For observers: a call of attention in blocks (attention.h) among the ops that they see.
#pragma once

#include "../core/ops/attrs.h"
#include "../core/ops/op.h"

namespace gradual::amp {

// The attributes of a call of attention_in_blocks, whose inputs are q, k, v and mask; null for another call.
const AttentionAttrs* attributes_of_blocks(const OpCall& call);

}  // namespace gradual::amp
