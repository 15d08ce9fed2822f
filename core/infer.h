// What the inference of all rows is made of: checks that name the op, and the commonest outputs. Internal.
#pragma once

#include "dispatch.h"
#include "failf.h"

namespace gradual::infer {

enum class Kind { any, real, index };  // real: f64, f32, f16 or bf16; index: i64
// Input i; Error saying that the op needs `what` where it is undefined, or that its dtype or number of dims will not do.
const Tensor& need(const OpCall& c, int i, const char* what = "a tensor", Kind kind = Kind::any, int dims = -1);
void refuse_f8(const OpCall& c, const Tensor& t);
void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what);  // unless undefined
inline DType statistics_dtype(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

// Elementwise outputs keep the stride order of a full-size input that is dense (channels-last stays so).
void keep_strides(const Tensor& t, OutSpec& out);
void same(const OpCall& c, OutSpec* out);             // dtype, sizes and stride order of input 0
void same_contiguous(const OpCall& c, OutSpec* out);  // dtype and sizes of input 0

void set(InferFn fn, std::initializer_list<OpId> ops);  // into the column
void register_layers();  // contractions, pooling, normalisation, losses (infer_layers.cpp)

}  // namespace gradual::infer
