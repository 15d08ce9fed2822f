// A number format: its values, the gaps between them, its limits, and the value that your number rounds to.
//
// A code is sign, exponent and mantissa. Exponent codes from 1 on mean (1 + mantissa / 2^m) * 2^(exponent - bias). From
// one power of two to the next (a binade) there are 2^m values with equal gaps; each binade's gap is twice the previous
// one's. Exponent code 0 continues down to zero with the gap of the smallest binade (subnormal values). A number
// between two values is rounded to one of them: the rounding mode decides which. The overflow policy decides about
// numbers beyond the largest value.
#include <gradual/core/formats/bit_fields.h>
#include <gradual/core/formats/format_table.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>
#include <vector>

#include "example.h"

using namespace gradual;

namespace {

constexpr int kColumns = 64;  // of a number line

std::string text(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v < 0 ? "-Inf" : "Inf";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", v);
  return buffer;
}
// The same, as a power of two if it is one.
std::string with_power(double v) {
  int exponent = 0;
  if (std::frexp(v, &exponent) != 0.5 || v == 1) return text(v);
  return text(v) + " = 2^" + std::to_string(exponent - 1);
}

constexpr const char* kUsage =
    "A number format on paper: its values, the gaps between them, its limits, and where a number of yours lands.\n"
    "  number_line                               # lists the formats\n"
    "  number_line FORMAT                        # a name in that list, e4m2 or any other eXmY\n"
    "  number_line FORMAT NUMBER                 # e4m3fn 17; 0x1p-10, inf or nan too\n"
    "  number_line --bits [FORMAT]..             # the bits of formats: sign, exponent and mantissa\n"
    "  --svg FILE, with --bits: the same as a picture\n";

void list_formats() {
  std::printf("%s\n  FORMAT is one of\n", kUsage);
  for (const auto* list : {&named_formats(), &table_formats()})
    for (const NamedFormat& n : *list)
      std::printf("    %-10s %s\n", std::string(n.name).c_str(), std::string(n.about).c_str());
  std::printf(
      "    qI.F, uqI.F, intN, uintN   fixed point and integers\n"
      "    eXmY      X exponent bits (1 to 8) and Y mantissa bits (0 to 23), with IEEE's Inf and NaN;\n"
      "              e2m1, e2m3 and e3m2 are OCP's, without Inf and NaN\n");
}

// The gap from x, at most the largest value, to the next value away from zero, as if the exponent were unbounded.
double gap(const Format& f, double x) {
  if (f.table) {
    const auto& values = f.table->values;
    const auto above = std::upper_bound(values.begin() + 1, values.end() - 1, static_cast<float>(x));
    return double{*above} - *(above - 1);
  }
  const int exponent = f.has_zero ? std::max(std::ilogb(x), std::ilogb(f.min_normal())) : std::ilogb(x);
  return std::ldexp(1.0, exponent - f.mantissa_bits);
}

void show_table(const ValueTable& t) {
  std::printf("%s: %d bits, %zu values, %s\n", t.name.c_str(), t.bits, t.values.size(), t.about.c_str());
  const auto code = [](std::optional<std::uint32_t> c) { return c ? std::to_string(*c) : "none"; };
  std::printf("  codes of Inf: %s, of NaN: %s\n", code(t.inf).c_str(), code(t.nan).c_str());
  for (std::size_t i = 0; i < t.values.size(); ++i) {
    if (t.values.size() > 40 && i == 16) {
      std::printf("  ...\n");
      i = t.values.size() - 16;
    }
    std::printf("  %#6x  %s\n", t.codes[i], with_power(t.values[i]).c_str());
  }
}

void show_limits(const Format& f) {
  std::printf("%s: %d bits, %d of sign, %d of exponent, %d of mantissa; bias %d\n", to_string(f).c_str(), f.bits(),
              f.is_signed ? 1 : 0, f.exponent_bits, f.mantissa_bits, f.bias);
  for (const NamedFormat& n : named_formats())
    if (n.format == f) std::printf("  %s\n", std::string(n.about).c_str());
    else if (n.common && n.format.is_signed == f.is_signed && n.format.exponent_bits == f.exponent_bits &&
             n.format.mantissa_bits == f.mantissa_bits)
      std::printf("  (%s has as many bits and reaches %s)\n", std::string(n.name).c_str(),
                  text(n.format.max()).c_str());
  std::printf("  largest value      %s\n", with_power(f.max()).c_str());
  const bool normals = f.min_normal() <= f.max();  // e1m2 and similar formats are all subnormal
  std::printf("  smallest normal    %s\n", normals ? with_power(f.min_normal()).c_str() : "none");
  std::printf("  smallest positive  %s\n", with_power(f.min_positive()).c_str());
  std::printf("  gap above 1        %s\n", f.max() > 1 ? with_power(gap(f, 1)).c_str() : "none");
  const char* nans[] = {"none", "above Inf", "all ones", "the code of -0"};
  const char* zeros[] = {"none", "one", "yes, and -0"};
  std::printf("  Inf: %s. NaN: %s. Zero: %s\n\n", f.has_inf ? "yes" : "none", nans[static_cast<int>(f.nan)],
              zeros[f.has_zero + f.has_negative_zero]);
}

// One line per binade: its codes, its gap, its values or the first and last of them.
void show_binades(const Format& f) {
  const std::uint32_t per = 1u << f.mantissa_bits;
  const std::uint32_t last = f.max_code() >> f.mantissa_bits;
  std::printf("  %-*s %-24s %s\n", f.bits() > 8 ? 24 : 12, "codes", "gap",
              f.is_signed ? "values (and their negatives)" : "values");
  for (std::uint32_t e = 0; e <= last; ++e) {
    // of many binades: the first, the last, and those around 1
    const int power = static_cast<int>(e) - f.bias;
    if (last > 32 && e > 2 && e + 2 < last && std::abs(power) > 2) {
      if (e == 3 || power == 3) std::printf("  ...\n");
      continue;
    }
    const std::uint32_t from = e << f.mantissa_bits;
    const std::uint32_t to = std::min(from + per - 1, f.max_code());
    std::printf("  %#*x to %#-*x %-24s ", f.bits() > 8 ? 10 : 4, from, f.bits() > 8 ? 10 : 4, to,
                with_power(std::ldexp(1.0, power + (e == 0 && f.has_zero ? 1 : 0) - f.mantissa_bits)).c_str());
    if (per <= 8)
      for (std::uint32_t c = from; c <= to; ++c) std::printf("%s ", text(f.decode(c)).c_str());
    else
      std::printf("%s, %s, ... %s", text(f.decode(from)).c_str(), text(f.decode(from + 1)).c_str(),
                  text(f.decode(to)).c_str());
    std::printf("%s\n", e == 0 && f.has_zero ? " (subnormal)" : "");
  }
}

// From 0 to the largest value, a mark for each value; # if several share a column.
void show_line(const Format& f) {
  std::string line(kColumns + 1, '-');
  const auto put = [&](double value) {
    char& mark = line[static_cast<std::size_t>(std::lround(value / f.max() * kColumns))];
    mark = mark == '-' ? '|' : '#';
  };
  for (std::uint32_t c = 0; !f.table && c <= f.max_code(); ++c) put(f.decode(c));
  for (std::size_t i = 0; f.table && i < f.table->values.size(); ++i)
    if (f.table->values[i] >= 0) put(f.table->values[i]);
  std::printf("\n  0 %s %s\n", line.c_str(), text(f.max()).c_str());
}

// The exponent range of a wide format, drawn on f32's range from 2^-150 to 2^128.
void show_reach(const Format& f) {
  std::string line;
  for (int e = -150; e < 128; e += 4)
    line += e + 3 < std::ilogb(f.min_positive()) || e > f.max_exponent() ? '.'
            : f.subnormals && e < std::ilogb(f.min_normal())             ? 's'
                                                                         : '=';
  std::printf("\n  2^-150 %s 2^128   (= normal, s subnormal values)\n", line.c_str());
}

double rounded(const Format& f, RoundingMode mode, Overflow overflow, double x) {
  double y = 0;
  Rounder{f, {mode}, overflow}.round(&x, &y, 1);
  return y;
}

// The values below and above |x|; beyond the largest one as if the exponent were unbounded.
struct Neighbours {
  // part: position of x between them, 0 to 1 (more: beyond both)
  double low = 0;
  double high = 0;
  double part = 0;
};
Neighbours neighbours(const Format& f, double x) {
  Neighbours n{rounded(f, RoundingMode::down, Overflow::saturate, x),
               rounded(f, RoundingMode::up, Overflow::saturate, x)};
  if (x > f.max()) n.high = f.max() + gap(f, f.max());
  if (f.table && x < f.table->values[0]) n.low = 2 * double{f.table->values[0]} - f.table->values[1];
  n.part = n.low == n.high ? 0 : (x - n.low) / (n.high - n.low);
  return n;
}

void show_between(const Format& f, double x, const Neighbours& n) {
  const std::string sign = x < 0 && !f.table ? "-" : "";
  if (n.low == n.high) {
    std::printf("\n%s is a value of %s\n", text(x).c_str(), to_string(f).c_str());
    return;
  }
  std::string line(kColumns + 1, '-');
  line[0] = '|';
  line[kColumns] = '|';
  line[kColumns / 2] = '+';
  const bool shown = n.part <= 1;
  const bool beyond = n.high > f.max();
  if (shown) line[static_cast<std::size_t>(std::lround(n.part * kColumns))] = 'x';
  const std::string low = sign + text(n.low);
  const std::string high = sign + text(n.high);
  std::printf("\n%s lies %s %s%s and %s%s\n", text(x).c_str(), shown ? "between" : "beyond both", low.c_str(),
              beyond ? " (the last value)" : "", high.c_str(), beyond ? " (the next one, if exponents went on)" : "");
  std::printf("  %s %s %s   (+ halfway%s)\n", low.c_str(), line.c_str(), high.c_str(), shown ? ", x your number" : "");
}

// The value that x rounds to under each rounding and policy.
void show_rounding(const Format& f, double x) {
  const bool inside = std::isfinite(x) && (f.is_signed || x >= 0) && (f.has_zero || x >= f.min_positive());
  const Neighbours n = inside ? neighbours(f, f.table ? x : std::abs(x)) : Neighbours{};
  if (inside) show_between(f, x, n);
  else std::printf("\n%s\n", text(x).c_str());
  constexpr Overflow kPolicies[] = {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite, Overflow::ml_dtypes};
  std::printf("  %-14s", "rounding");
  for (const Overflow o : kPolicies) std::printf("%-29s ", std::string(to_string(o)).c_str());
  for (int mode = 0; mode < 7; ++mode) {
    std::printf("\n  %-14s", to_string(Rounding{static_cast<RoundingMode>(mode)}).c_str());
    for (const Overflow o : kPolicies) {
      const auto landing = [&](RoundingMode m) { return text(rounded(f, m, o, x)); };
      std::string cell = landing(static_cast<RoundingMode>(mode));
      if (static_cast<RoundingMode>(mode) == RoundingMode::stochastic && n.part > 0 && n.part < 1) {
        const std::string near = landing(RoundingMode::toward_zero);
        const std::string far = landing(x < 0 ? RoundingMode::down : RoundingMode::up);
        cell = near;
        if (near != far) cell += " or " + far + " (" + std::to_string(std::lround(100 * n.part)) + "%)";
      }
      std::printf("%-29s ", cell.c_str());
    }
  }
  std::printf("\n");
}

bool codes_come_back(const Format& f) {
  const Rounder r{f, {}, Overflow::ieee};
  for (std::size_t i = 0; f.table && i < f.table->values.size(); ++i) {
    std::uint32_t again = 0;
    r.encode(&f.table->values[i], &again, 1);
    if (again != f.table->codes[i]) return false;
  }
  if (f.table) return true;
  const std::uint32_t step = f.bits() > 16 ? 65521 : 1;  // of wide formats every 65521st code, a prime
  for (std::uint32_t code = 0; code <= f.max_code(); code += step) {
    const float value = f.decode(code);
    std::uint32_t again = 0;  // the codes' bytes lie low first
    r.encode(&value, &again, 1);
    if (again != code) return false;
  }
  return true;
}

// The formats named, or those that training uses most.
void show_bits(example::Arguments& arguments) {
  const std::string picture = arguments.text("--svg", "");
  std::vector<std::string> named;
  for (std::string name = arguments.word(""); !name.empty(); name = arguments.word("")) named.push_back(name);
  arguments.done();
  std::vector<std::string_view> names = {"fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "e2m1", "e8m0"};
  if (!named.empty()) names.assign(named.begin(), named.end());
  std::printf("%s", bit_fields(names).c_str());
  if (picture.empty()) return;
  std::ofstream file(picture);
  file << bit_fields_svg(names);
  if (!file.flush()) throw std::runtime_error("cannot write " + picture);
}

void body(example::Arguments& arguments) {
  if (arguments.flag("--bits")) return show_bits(arguments);
  const std::string format_name = arguments.word("");
  const std::string number = arguments.word("");
  arguments.done();
  if (format_name.empty()) return list_formats();
  const Format f = format(format_name);
  char* end = nullptr;
  const double x = std::strtod(number.c_str(), &end);
  if (*end != '\0')
    throw std::runtime_error("'" + number + "' is no number; numbers are like 17, -2.5, 0x1p-10, inf, nan");
  if (f.table) show_table(*f.table);
  else {
    show_limits(f);
    show_binades(f);
  }
  if (f.bits() <= 8 && f.has_zero) show_line(f);
  else show_reach(f);
  if (!number.empty()) show_rounding(f, x);
  example::claim(codes_come_back(f), "every value, encoded again, gives its own code");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
