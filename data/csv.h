// Tables of numbers as comma-separated text.
#pragma once

#include <string>
#include <string_view>

#include "../core/tensor/tensor.h"

namespace gradual::data {

// Reads f64 [lines, columns], plain or gzipped; `columns` 0: the number in the first line. Lines end with \n or \r\n,
// blank lines at the end are allowed, blanks around a number are skipped. Error naming the file, line and column (both
// from 1) for text that is not a number, and for too few or too many columns.
Tensor read_csv(const std::string& path, std::int64_t columns = 0);
// The same from memory; `name` stands for the file in messages.
Tensor parse_csv(std::string_view bytes, const std::string& name, std::int64_t columns = 0);

}  // namespace gradual::data
