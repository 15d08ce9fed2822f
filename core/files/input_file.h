// Shared by the readers of files.
#pragma once

#include <string>
#include <string_view>

#include "../tensor/tensor.h"

namespace gradual {

// All bytes of a regular file. Errors name the file and the system's reason.
std::string read_file(const std::string& path);

// A tensor with a copy of the numbers in `bytes`: little-endian, row-major. Error if their count does not match the
// sizes. A bool's byte that is not 0 is true, as for NumPy and PyTorch.
Tensor tensor_of_bytes(DType dtype, const Shape& sizes, std::string_view bytes);

}  // namespace gradual
