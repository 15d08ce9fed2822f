#include "format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <list>

#include "../support/message_text.h"
#include "../support/throwf.h"
#include "format_table.h"
#include "synonyms.h"

namespace gradual {
namespace {

std::vector<NamedFormat> make_named() {
  const auto fn = [](int x, int m, int bias, NanEncoding nan) {
    return Format{.exponent_bits = x, .mantissa_bits = m, .bias = bias, .nan = nan};
  };
  const auto fnuz = [&](int x, int m) {
    Format f = fn(x, m, 1 << (x - 1), NanEncoding::negative_zero);
    f.has_negative_zero = false;
    return f;
  };
  const auto unsigned_fn = [&](int x, int m, int bias) {
    Format f = fn(x, m, bias, NanEncoding::all_ones);
    f.is_signed = false;
    f.has_negative_zero = false;
    return f;
  };
  Format powers = unsigned_fn(8, 0, 127);
  powers.subnormals = false;
  powers.has_zero = false;
  std::vector<NamedFormat> all = {
      {"fp32", Format::ieee(8, 23), "IEEE 754 binary32"},
      {"tf32", Format::ieee(8, 10), "NVIDIA Ampere's tensor cores; a mode there, not a storage format"},
      {"bf16", Format::ieee(8, 7), "the upper half of binary32"},
      {"fp16", Format::ieee(5, 10), "IEEE 754 binary16"},
      {"e4m3fn", fn(4, 3, 7, NanEncoding::all_ones), "OCP 8-bit floating point E4M3"},
      {"e5m2", Format::ieee(5, 2), "OCP 8-bit floating point E5M2"},
      {"e4m3fnuz", fnuz(4, 3), "8 bits, one NaN and no -0 (Noune et al. 2022)"},
      {"e5m2fnuz", fnuz(5, 2), "8 bits, one NaN and no -0 (Noune et al. 2022)"},
      {"e8m0fnu", powers, "OCP MX: the scale of a block, a power of two"},
      {"e2m3fn", fn(2, 3, 1, NanEncoding::none), "OCP MX, 6 bits"},
      {"e3m2fn", fn(3, 2, 3, NanEncoding::none), "OCP MX, 6 bits"},
      {"e2m1fn", fn(2, 1, 1, NanEncoding::none), "OCP MX, 4 bits"},
      {"ue4m3", unsigned_fn(4, 3, 7), "e4m3fn without its sign: the scale of an NVFP4 block", false},
      {"ue5m3", unsigned_fn(5, 3, 15), "8 bits without a sign: the scale of a block", false},
      {"ue6m2", unsigned_fn(6, 2, 48), "8 bits without a sign: the scale of a HiFloat4 block", false},
      {"int8", Format::fixed_point(7, 0), "integers from -127 to 127: sign and magnitude, without -128", false},
      {"int4", Format::fixed_point(3, 0), "integers from -7 to 7: sign and magnitude, without -8", false},
      {"uint8", Format::fixed_point(8, 0, false), "integers from 0 to 255", false},
      {"uint4", Format::fixed_point(4, 0, false), "integers from 0 to 15", false},
      {"mxint8", Format::fixed_point(1, 6), "OCP MX INT8; also the element of MSFP16 (Rouhani et al. 2020)", false},
      {"msfp12", Format::fixed_point(1, 2), "the element of MSFP12: 3 bits under a shared exponent", false},
  };
  static std::list<std::string> names;  // of P3109's
  for (int p = 1; p <= 7; ++p)
    for (const bool finite : {false, true}) {
      Format f = fnuz(8 - p, p - 1);
      f.bias = 1 << (7 - p);
      f.has_inf = !finite;
      all.push_back({names.emplace_back(fmt::format("binary8p{}{}", p, finite ? "f" : "")), f,
                     finite ? "IEEE P3109 (interim report), finite: one NaN at 80, no -0, no Inf"
                            : "IEEE P3109 (interim report), extended: one NaN at 80, no -0, Inf at 7F and FF",
                     false});
    }
  return all;
}

// Short names in common use.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"f32", "fp32"},      {"f16", "fp16"},    {"f8e4m3fn", "e4m3fn"}, {"f8e5m2", "e5m2"}, {"e8m0", "e8m0fnu"},
    {"ue8m0", "e8m0fnu"}, {"e2m3", "e2m3fn"}, {"e3m2", "e3m2fn"},     {"e2m1", "e2m1fn"}, {"msfp16", "mxint8"},
};

// X and Y of "eXmY", for other letters as well.
std::optional<std::pair<int, int>> parse_widths(std::string_view text, char first = 'e', char second = 'm') {
  int x = 0;
  int y = 0;
  const char* end = text.data() + text.size();
  if (!text.starts_with(first)) return {};
  const auto [after_x, bad_x] = std::from_chars(text.data() + 1, end, x);
  if (bad_x != std::errc() || after_x == end || *after_x != second) return {};
  const auto [after_y, bad_y] = std::from_chars(after_x + 1, end, y);
  if (bad_y != std::errc() || after_y != end) return {};
  return std::pair(x, y);
}

// "q1.14", "uq0.8", "int8", "uint4".
std::optional<Format> parse_fixed_point(std::string_view text) {
  const bool is_signed = !text.starts_with('u');
  const std::string rest(text.substr(is_signed ? 0 : 1));
  const bool integer = rest.starts_with("int");
  const auto bits = parse_widths(integer ? "q" + rest.substr(3) + ".0" : rest, 'q', '.');
  if (!bits) return {};
  return Format::fixed_point(bits->first - (integer && is_signed ? 1 : 0), bits->second, is_signed);
}

void check_widths(int x, int m) {
  if (x < 1 || x > 8) throwf("format e{}m{}: {} exponent bits; allowed are 1 to 8", x, m, x);
  if (m < 0 || m > 23) throwf("format e{}m{}: {} mantissa bits; allowed are 0 to 23", x, m, m);
}

// Format::ieee without its checks, for allowed widths.
Format ieee_form(int x, int m) {
  const auto nan = m > 0 ? NanEncoding::ieee : NanEncoding::all_ones;
  return {.exponent_bits = x, .mantissa_bits = m, .bias = (1 << (x - 1)) - 1, .has_inf = m > 0, .nan = nan};
}

Format without_sign(Format f) {
  f.is_signed = false;
  f.has_negative_zero = false;
  return f;
}

}  // namespace

Format Format::ieee(int x, int m) {
  check_widths(x, m);
  const Format f = ieee_form(x, m);
  check_valid(f);
  return f;
}

Format Format::fixed_point(int integer_bits, int fraction_bits, bool is_signed) {
  const std::int64_t bits = std::int64_t{integer_bits} + fraction_bits;
  if (integer_bits < 0 || fraction_bits < 0 || bits < 1 || bits > 24)
    throwf("fixed point with {} integer and {} fraction bits: allowed are 1 to 24 in all, without the sign",
           integer_bits, fraction_bits);
  return {.is_signed = is_signed,
          .exponent_bits = 1,
          .mantissa_bits = static_cast<int>(bits) - 1,
          .bias = 2 - integer_bits,
          .has_negative_zero = false};
}

int Format::table_bits() const { return table->bits; }

int Format::storage_bits() const {
  for (const int width : {4, 6, 8, 16})
    if (bits() <= width) return width;
  return 32;
}

std::uint32_t Format::max_code() const {
  if (table) return table->codes.back();
  const std::uint32_t ones = (1u << (exponent_bits + mantissa_bits)) - 1;
  if (nan == NanEncoding::ieee) return ones - (1u << mantissa_bits);
  return nan == NanEncoding::all_ones || has_inf ? ones - 1 : ones;
}

std::optional<std::uint32_t> Format::inf_code() const {
  if (table) return table->inf;
  return has_inf ? std::optional(max_code() + 1) : std::nullopt;
}

std::optional<std::uint32_t> Format::nan_code() const {
  if (table) return table->nan;
  if (nan == NanEncoding::none) return {};
  if (nan == NanEncoding::negative_zero) return sign_bit();
  return max_code() + 1 + (nan == NanEncoding::ieee ? 1u << (mantissa_bits - 1) : 0);
}

double Format::min() const { return table ? table->values.front() : is_signed ? -max() : 0; }

double Format::min_normal() const {
  if (table) return *std::ranges::upper_bound(table->values, 0.0F);
  return std::ldexp(1.0, (has_zero ? 1 : 0) - bias);
}
double Format::min_positive() const {
  if (table) return min_normal();
  return subnormals && mantissa_bits > 0 ? std::ldexp(1.0, 1 - bias - mantissa_bits) : min_normal();
}
double Format::epsilon() const {
  if (!table) return std::ldexp(1.0, -mantissa_bits);
  const auto above = std::ranges::upper_bound(table->values, 1.0F);
  return above == table->values.end() ? std::numeric_limits<double>::infinity() : double{*above} - 1;
}
int Format::max_exponent() const { return std::ilogb(max()); }

float Format::decode(std::uint32_t code) const {
  if (table) return table->decoded[code & ((1u << table->bits) - 1)];
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const bool negative = (code & sign_bit()) != 0;
  const std::uint32_t magnitude = code & ((1u << (exponent_bits + mantissa_bits)) - 1);
  if (nan == NanEncoding::negative_zero && code == sign_bit()) return static_cast<float>(kNan);
  const auto exponent = static_cast<int>(magnitude >> mantissa_bits);
  const std::uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1);
  double value = 0;
  if (magnitude > max_code()) value = has_inf && magnitude == max_code() + 1 ? kInf : kNan;
  else if (exponent > 0 || !has_zero)
    value = std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  else if (subnormals) value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return static_cast<float>(negative ? -value : value);
}

void check_valid(const Format& f) {
  if (f.table) return;  // table_format() checks it
  const auto bad = [&](const std::string& why) { throwf("format e{}m{}: {}", f.exponent_bits, f.mantissa_bits, why); };
  check_widths(f.exponent_bits, f.mantissa_bits);
  const bool ieee = f.nan == NanEncoding::ieee;
  if (ieee ? !f.has_inf : f.has_inf && f.nan != NanEncoding::negative_zero)
    bad("Inf goes with the IEEE encoding of NaN, and only with it or with NaN as the code of -0");
  if (ieee && f.mantissa_bits == 0) bad("Inf and NaN need a mantissa bit to be told apart");
  if (f.nan == NanEncoding::negative_zero && (f.has_negative_zero || !f.is_signed))
    bad("NaN as the code of -0 needs a sign and leaves no -0");
  if (!f.is_signed && f.has_negative_zero) bad("an unsigned format has no -0: negative_zero is false for it");
  if (!f.has_zero && (f.is_signed || f.mantissa_bits > 0 || f.subnormals))
    bad("a format without zero is an unsigned one of powers of two");
  if (f.max_code() < (f.subnormals ? 1u : 1u << f.mantissa_bits)) bad("it has no value but zero");
  const std::int64_t bias = f.bias;
  const std::int64_t lowest = (f.has_zero ? 1 : 0) - bias;
  const std::int64_t highest = (f.max_code() >> f.mantissa_bits) - bias;
  if (lowest < (f.has_zero ? -126 : -127) || highest > 127)
    bad(fmt::format("with the bias {} its normal values run from 2^{} to below 2^{}; f32 holds 2^-126 to below 2^128",
                    f.bias, lowest, highest + 1));
}

const std::vector<NamedFormat>& named_formats() {
  static const std::vector<NamedFormat> all = make_named();
  return all;
}

Format format(std::string_view text) {
  std::string_view wanted = text;
  for (const auto& [alias, target] : kAliases)
    if (text == alias) wanted = target;
  std::vector<std::string> names;
  for (const auto* list : {&named_formats(), &table_formats()})
    for (const NamedFormat& n : *list) {
      if (n.name == wanted) return n.format;
      names.emplace_back(n.name);
    }
  if (const auto fixed = parse_fixed_point(text)) return *fixed;
  if (const auto widths = parse_widths(text)) return Format::ieee(widths->first, widths->second);
  const bool short_name =
      std::ranges::any_of(kAliases, [&](const auto& a) { return text == "u" + std::string(a.first); });
  if (const auto widths = text.starts_with('u') && !short_name ? parse_widths(text.substr(1)) : std::nullopt)
    return without_sign(Format::ieee(widths->first, widths->second));
  throwf("no format '{}'; there are {}, eXmY and ueXmY with X 1 to 8 and Y 0 to 23, qI.F, uqI.F, intN and uintN{}",
         text, join(names), did_you_mean(text, names, format_synonyms()));
}

std::string to_string(const Format& f) {
  if (f.table) return f.table->name;
  for (const NamedFormat& n : named_formats())
    if (n.format == f) return std::string(n.name);
  const std::string widths = fmt::format("e{}m{}", f.exponent_bits, f.mantissa_bits);
  const bool allowed = f.exponent_bits >= 1 && f.exponent_bits <= 8 && f.mantissa_bits >= 0 && f.mantissa_bits <= 23;
  // "e2m1", "e2m3" and "e3m2" mean the OCP formats.
  const bool taken = std::ranges::any_of(kAliases, [&](const auto& alias) { return alias.first == widths; });
  if (allowed && !taken && f == ieee_form(f.exponent_bits, f.mantissa_bits)) return widths;
  const bool named = std::ranges::any_of(named_formats(), [&](const auto& n) { return n.name == "u" + widths; });
  if (allowed && !taken && !named && f == without_sign(ieee_form(f.exponent_bits, f.mantissa_bits)))
    return "u" + widths;
  const int whole = 2 - f.bias;
  const int fraction = f.mantissa_bits + 1 - whole;
  if (whole >= 0 && fraction >= 0 && f == Format::fixed_point(whole, fraction, f.is_signed))
    return fmt::format("{}q{}.{}", f.is_signed ? "" : "u", whole, fraction);
  static constexpr std::string_view kNan[] = {"no NaN", "IEEE NaN", "NaN all ones", "NaN at -0"};
  return fmt::format("{}{} (bias {}, {}{}{}{})", f.is_signed ? "" : "unsigned ", widths, f.bias,
                     kNan[static_cast<int>(f.nan)], f.has_inf ? ", Inf" : "", f.has_negative_zero ? ", -0" : "",
                     f.subnormals ? "" : ", no subnormals");
}

Format format_of(DType dtype) {
  if (!is_floating(dtype) || dtype == DType::f64)
    throwf("format_of: {} has no format here; f32, f16, bf16, f8e4m3fn and f8e5m2 have", to_string(dtype));
  static const Format formats[] = {format("f32"), format("f16"), format("bf16"), format("f8e4m3fn"), format("f8e5m2")};
  return formats[static_cast<int>(dtype) - static_cast<int>(DType::f32)];
}

std::optional<DType> dtype_of_format(const Format& f) {
  if (f.table) return {};
  for (const DType d : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3fn, DType::f8e5m2})
    if (format_of(d) == f) return d;
  return {};
}

}  // namespace gradual
