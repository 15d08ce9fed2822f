#include "csv.h"

#include <algorithm>
#include <charconv>

#include "../core/files/input_file.h"
#include "../core/support/throwf.h"
#include "gzip.h"

namespace gradual::data {
namespace {

// The text before the first `end`, without surrounding blanks. `rest` becomes the text after it.
std::string_view split_off(std::string_view& rest, char end) {
  const std::size_t at = std::min(rest.find(end), rest.size());
  std::string_view part = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  part.remove_prefix(std::min(part.find_first_not_of(" \t"), part.size()));
  return part.substr(0, part.find_last_not_of(" \t\r") + 1);
}

// A line ends with LF, CR LF or CR.
std::string_view split_off_line(std::string_view& rest) {
  const std::size_t at = std::min(rest.find_first_of("\r\n"), rest.size());
  const bool two = rest.substr(at).starts_with("\r\n");
  std::string_view line = rest.substr(0, at);
  rest.remove_prefix(std::min(at + (two ? 2 : 1), rest.size()));
  return line;
}

double parse_number(std::string_view field) {
  if (field.empty()) throw_error("empty, a number is needed");
  const std::string_view digits = field.substr(field.starts_with('+') && !field.starts_with("+-") ? 1 : 0);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size()) return value;
  const bool too_large = error == std::errc::result_out_of_range;
  throwf("\"{}\" is {}", field.substr(0, 40), too_large ? "out of f64's range" : "not a number");
}

}  // namespace

Tensor parse_csv(std::string_view bytes, const std::string& name, std::int64_t columns) {
  if (columns < 0) throwf("csv \"{}\": {} columns; allowed are 0 and more", name, columns);
  const std::string unpacked = gunzip_if_packed(bytes, name);
  std::string_view text = unpacked;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // as Excel writes it
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);  // blank lines at the end
  std::vector<double> values;
  std::int64_t rows = 0;
  while (!text.empty()) {
    std::string_view fields = split_off_line(text);
    ++rows;
    std::int64_t column = 0;
    try {
      for (bool more = true; more;) {
        ++column;
        if (columns > 0 && column > columns) throwf("one too many; each line has {} columns", columns);
        more = fields.find(',') != std::string_view::npos;
        values.push_back(parse_number(split_off(fields, ',')));
      }
      if (column < columns) throwf("the last of this line; each line has {} columns", columns);
    } catch (const Error& e) { throwf("csv \"{}\", line {}, column {}: {}", name, rows, column, e.what()); }
    columns = column;
  }
  if (rows == 0) throwf("csv \"{}\": it is empty", name);
  return from_data(values, {rows, columns}, {.dtype = DType::f64});
}

Tensor read_csv(const std::string& path, std::int64_t columns) { return parse_csv(read_file(path), path, columns); }

}  // namespace gradual::data
