#include "narrow.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gradual::lab {
namespace {

constexpr std::size_t kGap = 2;  // between columns

using Line = std::vector<std::string>;  // of characters, which take one column each

Line characters(const std::string& line) {
  Line all;
  for (const char c : line) {
    const bool goes_on = (static_cast<unsigned char>(c) & 0xC0) == 0x80;  // of UTF-8
    if (goes_on && !all.empty()) all.back() += c;
    else all.emplace_back(1, c);
  }
  return all;
}

bool is_blank(const Line& line, std::size_t at) { return at >= line.size() || line[at] == " "; }

std::size_t indent_of(const Line& line) {
  std::size_t indent = 0;
  while (indent < line.size() && line[indent] == " ") ++indent;
  return indent;
}

// Two or more gaps of two spaces or more.
bool is_of_table(const Line& line) {
  int gaps = 0;
  for (std::size_t i = indent_of(line); i + 1 < line.size(); ++i)
    if (line[i] != " " && is_blank(line, i + 1) && i + 2 < line.size() && is_blank(line, i + 2)) ++gaps;
  return gaps >= 2;
}

std::string text_of(const Line& line, std::size_t from, std::size_t to) {
  std::string text;
  for (std::size_t i = from; i < to; ++i) text += i < line.size() ? line[i] : " ";
  return text;
}
std::string without_end(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// A line of prose, or a part of a table's that is too long: further lines are indented by two more.
std::string wrapped_line(const Line& line, std::size_t columns) {
  const std::size_t indent = indent_of(line);
  std::string out;
  std::string now(indent, ' ');
  std::size_t width = indent;
  bool empty = true;
  for (std::size_t at = indent; at < line.size();) {
    std::size_t end = at;
    while (end < line.size() && line[end] != " ") ++end;
    std::size_t next = end;
    while (next < line.size() && line[next] == " ") ++next;
    if (!empty && width + (end - at) > columns) {
      out += without_end(now) + "\n";
      now = std::string(indent + 2, ' ');
      width = indent + 2;
    }
    now += text_of(line, at, next);
    width += next - at;
    empty = false;
    at = next;
  }
  return out + without_end(now) + "\n";
}

// A column of a table: characters from `from` to before `to`, and the blanks of all lines that follow.
struct Column {
  std::size_t from = 0;
  std::size_t to = 0;
  std::size_t gap = 0;
};

std::vector<Column> columns_of(const std::vector<Line>& table, std::size_t width) {
  const auto blank = [&](std::size_t at) {
    return std::ranges::all_of(table, [at](const Line& l) { return is_blank(l, at); });
  };
  std::vector<Column> all;
  for (std::size_t at = 0; at < width;) {
    Column c{.from = at};
    while (at < width && !blank(at)) ++at;
    c.to = at;
    while (at < width && blank(at)) ++at;
    c.gap = at - c.to;
    // One blank may be inside of a text.
    if (!all.empty() && all.back().gap < kGap) {
      all.back().to = c.to;
      all.back().gap = c.gap;
    } else if (c.to > c.from || all.empty()) {
      all.push_back(c);
    }
  }
  return all;
}

std::string narrowed_table(const std::vector<Line>& table, std::size_t limit) {
  std::size_t width = 0;
  for (const Line& line : table) width = std::max(width, line.size());
  std::string out;
  if (width <= limit) {
    for (const Line& line : table) out += text_of(line, 0, line.size()) + "\n";
    return out;
  }
  constexpr std::size_t kIndent = 4;
  const std::vector<Column> columns = columns_of(table, width);
  const auto emit = [&](const std::string& padded) {
    const std::string text = without_end(padded);
    const Line line = characters(text);
    if (!text.empty()) out += line.size() > limit ? wrapped_line(line, limit) : text + "\n";
  };
  for (const Line& line : table) {
    std::string now;
    std::size_t used = 0;
    for (const Column& c : columns) {
      const std::size_t wide = c.to - c.from;
      if (used > kIndent && used + wide > limit) {
        emit(now);
        now = std::string(kIndent, ' ');
        used = kIndent;
      }
      now += text_of(line, c.from, c.to) + std::string(std::min(c.gap, kGap), ' ');
      used += wide + std::min(c.gap, kGap);
    }
    emit(now);
  }
  return out;
}

}  // namespace

std::string narrowed(const std::string& text, std::size_t columns) {
  std::string out;
  std::vector<Line> table;
  const auto flush = [&] {
    if (!table.empty()) out += narrowed_table(table, columns);
    table.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const Line line = characters(text.substr(at, end - at));
    if (is_of_table(line)) {
      table.push_back(line);
    } else {
      flush();
      out += line.size() <= columns ? text_of(line, 0, line.size()) + "\n" : wrapped_line(line, columns);
    }
    at = end + 1;
  }
  flush();
  if (!text.empty() && text.back() != '\n') out.pop_back();
  return out;
}

}  // namespace gradual::lab
