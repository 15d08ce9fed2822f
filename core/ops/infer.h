// Checks that the files of the inference column share.
#pragma once

#include <initializer_list>

#include "dispatch.h"

namespace gradual::inference {

enum class Kind { any, real, index };  // real: f64, f32, f16 or bf16; index: i64
// Input i; Error saying that the op needs `what` where it is undefined, or that its dtype or number of dims will not do.
const Tensor& need(const OpCall& c, int i, const char* what = "a tensor", Kind kind = Kind::any, int dims = -1);
// Unless undefined.
void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what);
// dtype and sizes of input 0.
void same_contiguous(const OpCall& c, OutSpec* out);
// An elementwise output has the stride order of t, if that is dense: the first input of full size, but that images which are
// channels-last come before all others.
void keep_strides(const Tensor& t, OutSpec& out);
void set(InferFn fn, std::initializer_list<OpId> ops);

// Contractions, pooling, normalisation, attention and losses (infer_layers.cpp).
void register_layers();

}  // namespace gradual::inference
