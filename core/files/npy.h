// NumPy's .npy files: one array each. Read: versions 1.0, 2.0 and 3.0, row-major or Fortran order; written: 1.0.
#pragma once

#include <string>
#include <string_view>

#include "../tensor/tensor.h"

namespace gradual {

// Writes f64 f32 f16 i64 i32 u8 bool, as NumPy's f8 f4 f2 i8 i4 u1 b1. Other dtypes are an Error: NumPy has no bf16 and
// no f8, and the types that the ml_dtypes package writes for them ("<V2", "<V1") do not distinguish the f8 formats.
// Cast them to f32, which keeps every value, or write safetensors. The write is atomic (atomic_file.h).
void save_npy(const std::string& path, const Tensor& tensor);

// Also reads i1, i2 and u2 as i32, and u4 as i64, which hold all their values. A file in Fortran order gives a tensor
// with Fortran's strides. Error, naming the file, for a malformed or truncated
// file, left-over bytes, big-endian numbers or a dtype not listed above.
Tensor load_npy(const std::string& path);
// The same from memory; `name` stands for the file in messages.
Tensor parse_npy(std::string_view bytes, const std::string& name);

}  // namespace gradual
