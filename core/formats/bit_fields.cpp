#include "bit_fields.h"

#include <algorithm>
#include <string>

#include "../support/error.h"
#include "format.h"

namespace gradual {
namespace {

struct Fields {
  std::string name;
  int sign = 0;
  int exponent = 0;
  int mantissa = 0;
};

struct Columns {
  std::vector<Fields> formats;
  int name = 0;
  int exponent = 0;
  int mantissa = 0;
};

Columns columns_of(const std::vector<std::string_view>& names) {
  Columns c;
  for (const std::string_view name : names) {
    const Format f = format(name);
    if (f.table)
      throw_error("bit_fields: " + std::string(name) +
                  " is a list of values; its bits are no sign, exponent and mantissa");
    c.formats.push_back({std::string(name), f.is_signed ? 1 : 0, f.exponent_bits, f.mantissa_bits});
    c.name = std::max(c.name, static_cast<int>(name.size()));
    c.exponent = std::max(c.exponent, f.exponent_bits);
    c.mantissa = std::max(c.mantissa, f.mantissa_bits);
  }
  return c;
}

std::string sizes(const Fields& f) {
  return std::to_string(f.sign) + " + " + std::to_string(f.exponent) + " + " + std::to_string(f.mantissa);
}

std::string repeated(int count, char c) { return std::string(static_cast<std::size_t>(count), c); }

constexpr int kSide = 14;    // of a square, in pixels
constexpr int kLetter = 8;   // the width of a letter of a monospaced font of 13 pixels
constexpr int kRow = 24;     // from line to line
constexpr int kBetween = 6;  // between two groups

std::string text_at(int x, int y, const std::string& text) {
  return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\">" + text + "</text>\n";
}

std::string squares(int x, int y, int count, const char* kind) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += "<rect class=\"" + std::string(kind) + "\" x=\"" + std::to_string(x + i * kSide) + "\" y=\"" +
           std::to_string(y) + "\" width=\"" + std::to_string(kSide - 1) + "\" height=\"" + std::to_string(kSide) +
           "\"/>\n";
  return out;
}

// The colours of the three groups; those of Okabe and Ito differ for all eyes.
constexpr const char* kStyle =
    "<style>\n"
    "text { font: 13px monospace; fill: #777 }\n"
    ".sign { fill: #d55e00 } .exponent { fill: #009e73 } .mantissa { fill: #0072b2 }\n"
    "</style>\n";

}  // namespace

std::string bit_fields(const std::vector<std::string_view>& names) {
  const Columns c = columns_of(names);
  std::string out;
  for (const Fields& f : c.formats) {
    out += f.name + repeated(c.name - static_cast<int>(f.name.size()) + 2, ' ');
    out += f.sign ? "s " : "  ";
    out += repeated(c.exponent - f.exponent, ' ') + repeated(f.exponent, 'e') + " ";
    out += repeated(f.mantissa, 'm') + repeated(c.mantissa - f.mantissa, ' ') + "  " + sizes(f) + "\n";
  }
  return out;
}

std::string bit_fields_svg(const std::vector<std::string_view>& names) {
  const Columns c = columns_of(names);
  const int sign = kLetter * (c.name + 2);
  const int exponent = sign + kSide + kBetween;
  const int mantissa = exponent + c.exponent * kSide + kBetween;
  const int sum = mantissa + c.mantissa * kSide + 2 * kBetween;
  const int width = sum + kLetter * 12;
  const int height = kRow * static_cast<int>(c.formats.size() + 2) - kRow / 2;
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + std::to_string(width) + "\" height=\"" +
                    std::to_string(height) + "\" role=\"img\">\n<title>The bits of number formats</title>\n" + kStyle;
  int y = kRow;
  for (const Fields& f : c.formats) {
    out += text_at(2, y, f.name);
    const int top = y - kSide + 3;
    out += squares(sign, top, f.sign, "sign");
    out += squares(exponent + (c.exponent - f.exponent) * kSide, top, f.exponent, "exponent");
    out += squares(mantissa, top, f.mantissa, "mantissa");
    out += text_at(sum, y, sizes(f));
    y += kRow;
  }
  out += text_at(sign, y, "sign, exponent (the range), mantissa (the digits)");
  return out + "</svg>\n";
}

}  // namespace gradual
