// What the inference of all rows is made of: checks that name the op, and the commonest outputs. Internal.
#pragma once

#include <string>

#include "dispatch.h"

namespace gradual::infer {

// Throws: the call, then why.
[[noreturn]] void bad(const OpCall& c, const std::string& why);
// Input i; Error saying that the op needs `what` where it is undefined.
const Tensor& need(const OpCall& c, int i, const char* what);
void need_dims(const OpCall& c, int i, int n);
void need_float(const OpCall& c, int i);  // f64, f32, f16 or bf16
void refuse_f8(const OpCall& c, const Tensor& t);
void need_index(const OpCall& c, int i);                                             // i64
void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what);  // unless undefined
// weight and bias of a norm are f32 or x's dtype.
void need_norm_parameter(const OpCall& c, int i, DType x);
inline DType statistics_dtype(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

bool dense(const Tensor& t);  // without gaps or overlaps, in whatever order of dims
// Elementwise outputs keep the stride order of the first full-size input that is dense (channels-last stays so).
void keep_strides(const OpCall& c, OutSpec& out);
void same(const OpCall& c, OutSpec* out);             // dtype, sizes and stride order of input 0
void same_contiguous(const OpCall& c, OutSpec* out);  // dtype and sizes of input 0

void register_layers();  // contractions, pooling, normalisation, losses (infer_layers.cpp)

}  // namespace gradual::infer
