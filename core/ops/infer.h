// Checks shared by the files of the inference column.
#pragma once

#include "dispatch.h"

namespace gradual::inference {

// Of strides, dilations and paddings: more is surely a mistake, and sums of them do not overflow.
inline constexpr std::int64_t kMostExtent = INT32_MAX;

enum class Kind { any, real, index };  // real: f64, f32, f16 or bf16; index: i64
// Input i. Error if it is undefined (the op needs `what`) or has the wrong dtype or number of dims.
const Tensor& need(const OpCall& c, int i, const char* what = "a tensor", Kind kind = Kind::any, int dims = -1);
// Checks the sizes of input i unless it is undefined.
void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what);
// The output has dtype and sizes of input 0.
void same_contiguous(const OpCall& c, OutSpec* out);
// Gives an elementwise output the stride order of t, if t is dense. t is the first input of full size; channels-last
// images take precedence.
void keep_strides(const Tensor& t, OutSpec& out);
// The sizes after a reduction of `dims` (ReduceAttrs).
Shape reduced(const Shape& sizes, std::uint32_t dims, bool keepdim);

// The inference functions that the op table names.
#define GRADUAL_OP(name, inputs, outputs, kind, rule, infer) void infer_##infer(const OpCall& c, OutSpec* out);
#include "../ops.def"

}  // namespace gradual::inference
