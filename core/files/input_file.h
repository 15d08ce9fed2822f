// What the readers of files share.
#pragma once

#include <string>
#include <string_view>

#include "../tensor/tensor.h"

namespace gradual {

// All bytes of a regular file. Error that names it and says what the system said.
std::string read_file(const std::string& path);

// A tensor with a copy of the numbers in `bytes`: little-endian, row-major. Error where they are not as many as the
// sizes say, or a bool is neither 0 nor 1.
Tensor tensor_of_bytes(DType dtype, const Shape& sizes, std::string_view bytes);

}  // namespace gradual
