// IDX files, the format of MNIST (yann.lecun.com/exdb/mnist): two zero bytes, the element type, the number of
// dimensions, each size as a big-endian 32-bit integer, then the elements, row-major.
#pragma once

#include <string>
#include <string_view>

#include "dataset.h"

namespace gradual::data {

// Reads all element types, plain or gzipped: unsigned bytes as u8; signed bytes and 16- and 32-bit integers as i32; f32
// and f64. Error naming the file, what was found and what is allowed, for another element type, more than eight
// dimensions, or sizes that do not match the file's length. A gzipped file is unpacked no further than its sizes say.
Tensor read_idx(const std::string& path);
// The same from memory; `name` stands for the file in messages.
Tensor parse_idx(std::string_view bytes, const std::string& name);

// Reads "train-images-idx3-ubyte", "train-labels-idx1-ubyte" and "t10k-..." in `folder`, or the same names with a dot
// before "idx", as Kaggle has them; each plain or with ".gz". Inputs are f32 [N, 1, 28, 28], (pixel / 255 - 0.1307) /
// 0.3081 (the mean and deviation of MNIST's 60,000 training images); targets are i64 [N], 0 to 9. Folders with other
// images (Fashion-MNIST, other sizes) work too.
Split mnist(const std::string& folder);

}  // namespace gradual::data
