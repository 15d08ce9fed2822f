#include "csv.h"

#include <algorithm>
#include <charconv>

#include "gzip.h"

namespace gradual::data {
namespace {

struct Place {
  const std::string& file;
  std::int64_t line = 1;
  std::int64_t column = 1;

  [[noreturn]] void refuse(const std::string& what) const {
    fail("csv \"" + file + "\", line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what);
  }
};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

double parse_number(std::string_view field, const Place& place) {
  if (field.empty()) place.refuse("empty, a number is needed");
  std::string_view digits = field;
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size()) return value;
  std::string message = "\"";
  message.append(field.substr(0, 40));
  message += error == std::errc::result_out_of_range ? "\" is out of f64's range" : "\" is not a number";
  place.refuse(message);
}

// Calls each(field, place) for the line's fields; returns how many there were.
template <class F> std::int64_t for_each_field(std::string_view line, char separator, Place place, F each) {
  for (place.column = 1;; ++place.column) {
    const std::size_t end = line.find(separator);
    each(trimmed(line.substr(0, end)), place);
    if (end == std::string_view::npos) return place.column;
    line.remove_prefix(end + 1);
  }
}

}  // namespace

Csv parse_csv(std::string_view text, const std::string& name, CsvOptions options) {
  Csv out;
  std::vector<double> values;
  std::int64_t columns = options.columns;
  std::int64_t rows = 0;
  std::int64_t blank = 0;  // the first blank line, 0: none yet
  Place place{.file = name};
  for (; !text.empty(); ++place.line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (trimmed(line).empty()) {
      if (blank == 0) blank = place.line;
      continue;
    }
    if (blank != 0) Place{.file = name, .line = blank}.refuse("a blank line before the end");
    const bool is_header = options.header && place.line == 1;
    const std::int64_t count =
        for_each_field(line, options.separator, place, [&](std::string_view field, const Place& at) {
          if (columns > 0 && at.column > columns)
            at.refuse("one too many; each line has " + std::to_string(columns) + " columns");
          if (is_header) {
            out.header.emplace_back(field);
          } else {
            values.push_back(parse_number(field, at));
          }
        });
    place.column = count;
    if (columns > 0 && count < columns)
      place.refuse("the last of this line; each line has " + std::to_string(columns) + " columns");
    columns = count;
    place.column = 1;
    rows += is_header ? 0 : 1;
  }
  if (columns == 0) fail("csv \"" + name + "\": it is empty");
  out.values = from_data(values, {rows, columns}, {.dtype = DType::f64});
  return out;
}

Csv read_csv(const std::string& path, CsvOptions options) { return parse_csv(read_maybe_gzip(path), path, options); }

}  // namespace gradual::data
