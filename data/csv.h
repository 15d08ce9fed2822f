// Tables of numbers as comma-separated text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../core/tensor.h"

namespace gradual::data {

struct CsvOptions {
  char separator = ',';
  bool header = false;       // the first line holds names
  std::int64_t columns = 0;  // how many each line must have; 0: as many as the first
};

struct Csv {
  std::vector<std::string> header;  // empty without one
  Tensor values;                    // f64 [lines, columns]
};

// Plain or gzipped. Lines end with \n or \r\n, blank lines at the end are allowed, blanks around a number are skipped.
// An Error names the file, line and column (both from 1): not a number, too few or too many columns.
Csv read_csv(const std::string& path, CsvOptions options = {});
// The same from memory; `name` stands for the file in messages.
Csv parse_csv(std::string_view text, const std::string& name, CsvOptions options = {});

}  // namespace gradual::data
