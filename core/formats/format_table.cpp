#include "format_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <list>

#include "../support/throwf.h"

namespace gradual {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// f32's normal numbers below infinity.
bool is_normal_or_zero(double v) { return v == 0 || (std::abs(v) >= 0x1p-126 && std::abs(v) < 0x1p128); }

void check_values(const ValueTable& t) {
  if (t.name.empty() || t.name.find_first_of(" ,:") != std::string::npos)
    throw_error("a name has at least one character, and no space, comma or colon");
  const std::size_t n = t.values.size();
  if (n < 2 || n > 65536) throwf("a table has 2 to 65536 values, not {}", n);
  for (const float v : t.values)
    if (!is_normal_or_zero(v)) throwf("{} is neither 0 nor a normal number of f32, 2^-126 to below 2^128", v);
  if (const auto at = std::ranges::adjacent_find(t.values, std::greater_equal()); at != t.values.end())
    throwf("values ascend; {} comes after {}", at[1], at[0]);
  if (!(t.values.back() > 0)) throw_error("it has no value above zero");
  if (t.codes.size() != n) throwf("{} values have {} codes", n, t.codes.size());
  if (t.bounds.size() != n - 1) throwf("{} values have {} bounds, not {}", n, n - 1, t.bounds.size());
  for (std::size_t i = 0; i + 1 < n; ++i)
    if (!(t.bounds[i] >= t.values[i] && t.bounds[i] <= t.values[i + 1]))
      throwf("the bound {} is not from {} to {}", t.bounds[i], t.values[i], t.values[i + 1]);
  if (t.bits < 1 || t.bits > 16) throwf("codes have 1 to 16 bits, not {}", t.bits);
  if (!(*t.lowest <= t.values.front() && *t.highest >= t.values.back()))
    throw_error("lowest and highest are beyond the values, or the first and the last of them");
  std::vector<std::uint32_t> all = t.codes;
  for (const auto& code : {t.nan, t.inf, t.negative_inf})
    if (code) all.push_back(*code);
  std::ranges::sort(all);
  if (all.back() >> t.bits != 0) throwf("code {} has more than {} bits", all.back(), t.bits);
  if (const auto twice = std::ranges::adjacent_find(all); twice != all.end()) throwf("code {} is there twice", *twice);
}

void complete(ValueTable& t) {
  const std::size_t n = t.values.size();
  if (t.codes.empty())
    for (std::size_t i = 0; i < n; ++i) t.codes.push_back(static_cast<std::uint32_t>(i));
  std::uint32_t most = 1;
  for (const std::uint32_t c : t.codes) most = std::max(most, c);
  for (const auto& code : {t.nan, t.inf, t.negative_inf}) most = std::max(most, code.value_or(0));
  if (t.bits == 0) t.bits = static_cast<int>(std::bit_width(most));
  if (t.bounds.empty())
    for (std::size_t i = 1; i < n; ++i) t.bounds.push_back((double{t.values[i - 1]} + double{t.values[i]}) / 2);
  if (n < 2 || t.bits < 1 || t.bits > 16 || t.codes.size() != n) return;  // check_values() says what is wrong
  t.decoded.assign(std::size_t{1} << t.bits, std::numeric_limits<float>::quiet_NaN());
  const auto decodes = [&](std::optional<std::uint32_t> code, float value) {
    if (code && *code < t.decoded.size()) t.decoded[*code] = value;
  };
  for (std::size_t i = 0; i < n; ++i) decodes(t.codes[i], t.values[i]);
  decodes(t.inf, HUGE_VALF);
  decodes(t.negative_inf, -HUGE_VALF);
  if (!t.lowest) t.lowest = t.values[0] - (double{t.values[1]} - t.values[0]) / 2;
  if (!t.highest) t.highest = t.values[n - 1] + (double{t.values[n - 1]} - t.values[n - 2]) / 2;
}

// --- the built-in tables ---------------------------------------------------------------------------------------------

// Positive posits (Posit Standard 2022, with `es` exponent bits): sign, a run of equal bits (the regime), exponent,
// fraction.
double posit(std::uint32_t code, int bits, int es) {
  const bool first = (code >> (bits - 2) & 1) != 0;
  int at = bits - 2;
  int run = 0;
  for (; at >= 0 && (code >> at & 1) == static_cast<std::uint32_t>(first); --at) ++run;
  int exponent = 0;
  for (int e = es - 1; e >= 0; --e)
    if (--at >= 0) exponent |= static_cast<int>(code >> at & 1) << e;
  at = std::max(at, 0);
  const double fraction = std::ldexp(static_cast<double>(code & ((1u << at) - 1)), -at);
  return std::ldexp(1 + fraction, (first ? run - 1 : -run) * (1 << es) + exponent);
}

// Positive linear takums (Hunhold 2024): sign, direction, 3 bits of regime, characteristic, fraction; codes of fewer
// than 12 bits stand for longer ones that end in zeros.
double takum(std::uint32_t code, int bits) {
  const std::uint32_t wide = code << (20 - bits);  // 20 bits: 1, 1, 3, and 15 for characteristic and fraction
  const bool direct = (wide >> 18 & 1) != 0;
  const int regime = static_cast<int>(wide >> 15 & 7);
  const int r = direct ? regime : 7 - regime;
  const int rest = 15 - r;
  const int tail = static_cast<int>(wide >> rest & ((1u << r) - 1));
  const int c = direct ? (1 << r) - 1 + tail : -(1 << (r + 1)) + 1 + tail;
  return std::ldexp(1 + std::ldexp(static_cast<double>(wide & ((1u << rest) - 1)), -rest), c);
}

// The table of value(code) for all codes. NaN and Inf have codes of their own; codes of other numbers that a table
// cannot hold have no value. between(a, b): the bound between two values; default: the midpoint.
template <class Value> ValueTable from_codes(ValueTable t, Value value, double (*between)(double, double) = nullptr) {
  std::vector<std::pair<float, std::uint32_t>> all;
  for (std::uint32_t code = 0; code < 1u << t.bits; ++code) {
    const double v = value(code);
    if (std::isnan(v)) t.nan = code;
    else if (std::isinf(v)) (v > 0 ? t.inf : t.negative_inf) = code;
    else if (is_normal_or_zero(v)) all.emplace_back(static_cast<float>(v), code);
  }
  std::ranges::sort(all);
  for (const auto& [v, code] : all) {
    t.values.push_back(v);
    t.codes.push_back(code);
  }
  for (std::size_t i = 1; between && i < all.size(); ++i) t.bounds.push_back(between(all[i - 1].first, all[i].first));
  return t;
}

// Numbers in two's complement, from value(code, bits) of the positive ones. Bounds between two values are the values of
// the codes between theirs, which have one bit more than the format.
template <class Value> ValueTable tapered(std::string name, std::string about, int bits, Value value) {
  const auto of = [=](std::uint32_t code, int width) {
    const std::uint32_t sign = 1u << (width - 1);
    if (code == 0 || code == sign) return code == 0 ? 0 : kNan;
    return code > sign ? -value(2 * sign - code, width) : value(code, width);
  };
  ValueTable t = from_codes({.name = std::move(name), .about = std::move(about), .bits = bits},
                            [=](std::uint32_t code) { return of(code, bits); });
  for (std::size_t i = 1; i < t.values.size(); ++i) {
    const double low = t.values[i - 1];
    const double high = t.values[i];
    const double bound = low == 0 || high == 0 ? 0 : of(2 * t.codes[i] - 1, bits + 1);
    t.bounds.push_back(std::clamp(bound, low, high));  // where codes beyond f32 are left out
  }
  t.lowest = -kInf;
  t.highest = kInf;
  return t;
}

// HiFloat8 (Luo et al. 2024): a prefix of 2 to 4 bits tells how many bits of exponent follow, in sign and magnitude
// with a hidden leading one; 3 to 1 bits of mantissa.
double hif8(std::uint32_t code) {
  if (code == 0x80) return kNan;
  if (code > 0x80) return -hif8(code - 0x80);
  if (code == 0x6f) return kInf;
  if (code < 8) return code == 0 ? 0 : std::ldexp(1.0, static_cast<int>(code) - 23);
  const int d = code >> 5 ? static_cast<int>(code >> 5) + 1 : static_cast<int>(code >> 4);
  const int mantissa = d < 2 ? 3 : 5 - d;
  // the exponent's hidden bit; its sign is below
  const std::uint32_t leading = 1u << d >> 1;
  const std::uint32_t e = code >> mantissa;
  const int size = static_cast<int>(leading | (d > 0 ? e & (leading - 1) : 0));
  const double fraction = std::ldexp(static_cast<double>(code & ((1u << mantissa) - 1)), -mantissa);
  return std::ldexp(1 + fraction, (e & leading) != 0 ? -size : size);
}

// 0 has code 0; the code of -0 has no value.
double log8(std::uint32_t code) {
  const std::uint32_t k = code & 127;
  if (k == 0) return code == 0 ? 0 : std::numeric_limits<double>::denorm_min();
  return std::copysign(std::exp2((static_cast<double>(k) - 64) / 8), code == k ? 1 : -1);
}
// Half way between the logarithms; next to zero half of the value.
double geometric(double a, double b) { return a == 0 || b == 0 ? (a + b) / 2 : std::copysign(std::sqrt(a * b), a); }

ValueTable twos_complement(int bits) {
  return from_codes(
      {.name = fmt::format("int{}tc", bits), .about = "two's complement: intN with its lowest value", .bits = bits},
      [=](std::uint32_t code) { return code - static_cast<double>(code >> (bits - 1) << bits); });
}

// The dynamic maps of 8-bit optimizers (Dettmers et al. 2022), as bitsandbytes' create_dynamic_map makes them: of
// bits - 1 decades the i-th from below has 2^i values (unsigned: twice as many), the middles of equal parts of
// 0.1 to 1; and 0 and 1.
ValueTable dynamic_map(int bits, bool is_signed) {
  ValueTable t{.name = fmt::format("{}dynamic{}", is_signed ? "" : "u", bits),
               .about = fmt::format("dynamic map of {} (Dettmers et al. 2022, bitsandbytes), for max / amax scales",
                                    is_signed ? "first moments" : "second moments"),
               .values = {0, 1},
               .bits = bits};
  const int decades = bits - 1;
  for (int i = 0; i < decades; ++i) {
    const int parts = 1 << (is_signed ? i : i + 1);
    for (int k = 0; k < parts; ++k) {
      const double middle = 0.1 + 0.9 * (k + 0.5) / parts;
      const auto value = static_cast<float>(std::pow(10.0, i + 1 - decades) * middle);
      t.values.push_back(value);
      if (is_signed) t.values.push_back(-value);
    }
  }
  std::ranges::sort(t.values);
  return t;
}

std::vector<ValueTable> make_tables() {
  const auto posits = [](int es) { return [es](std::uint32_t code, int bits) { return posit(code, bits, es); }; };
  return {
      {.name = "nf4",
       .about = "NormalFloat4 (Dettmers et al. 2023, QLoRA): quantiles of a normal distribution, for max / amax scales",
       .values = {-1, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
                  -0.18477343022823334F, -0.09105003625154495F, 0, 0.07958029955625534F, 0.16093020141124725F,
                  0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F,
                  0.7229568362236023F, 1}},
      {.name = "af4",
       .about = "AbnormalFloat4 for blocks of 64 (Yoshida 2023): least absolute error",
       .values = {-1, -0.69441008F, -0.51243739F, -0.3736951F, -0.25607552F, -0.14982478F, -0.04934812F, 0, 0.04273164F,
                  0.12934483F, 0.21961274F, 0.31675666F, 0.42563882F, 0.55496234F, 0.72424863F, 1}},
      tapered("posit8", "Posit Standard (2022): 2 exponent bits, 2^-24 to 2^24", 8, posits(2)),
      tapered("posit16", "Posit Standard (2022): 2 exponent bits, 2^-56 to 2^56", 16, posits(2)),
      tapered("posit8es0", "posits of 2017: no exponent bits, 2^-6 to 2^6", 8, posits(0)),
      tapered("posit16es1", "posits of 2017: 1 exponent bit, 2^-28 to 2^28", 16, posits(1)),
      tapered("takum8", "linear takums (Hunhold 2024), those within f32's range", 8, takum),
      tapered("takum16", "linear takums (Hunhold 2024), those within f32's range", 16, takum),
      from_codes({.name = "hif8",
                  .about = "HiFloat8 (Luo et al. 2024): tapered, 2^-22 to 2^15",
                  .bits = 8,
                  .lowest = -40960,  // half way to 1.5 * 2^15, whose code is Inf's
                  .highest = 40960},
                 hif8),
      from_codes({.name = "log8", .about = "logarithmic: 0 and +-2^((k - 64) / 8), k from 1 to 127", .bits = 8}, log8,
                 geometric),
      twos_complement(8),
      twos_complement(4),
      twos_complement(2),
      dynamic_map(8, true),
      dynamic_map(8, false),
      dynamic_map(4, true),
      dynamic_map(4, false),
  };
}

// Tables stay where they are: formats point to them.
struct Known {
  std::list<ValueTable> tables;
  std::vector<NamedFormat> formats;
  std::size_t built_in = 0;

  Format add(ValueTable table) {
    complete(table);
    in_context(fmt::format("format '{}'", table.name), [&] { check_values(table); });
    tables.push_back(std::move(table));
    const Format f{.has_negative_zero = false, .subnormals = false, .table = &tables.back()};
    formats.push_back({f.table->name, f, f.table->about, false});
    return f;
  }
  Known() {
    for (ValueTable& t : make_tables()) add(std::move(t));
    built_in = formats.size();
  }
};
Known& known() {
  static Known all;
  return all;
}

}  // namespace

Format table_format(ValueTable table) {
  complete(table);
  for (const auto* list : {&named_formats(), &table_formats()}) {
    const auto at = std::ranges::find(*list, table.name, &NamedFormat::name);
    if (at == list->end()) continue;
    ValueTable other = at->format.table ? *at->format.table : ValueTable();
    // follows from the others, and has NaNs
    table.decoded.clear();
    other.decoded.clear();
    if (other == table) return at->format;
    throwf("format '{}': the name is another format's", table.name);
  }
  return known().add(std::move(table));
}

bool is_built_in(const Format& format) {
  const auto at = std::ranges::find(known().formats, format, &NamedFormat::format);
  return at - known().formats.begin() < static_cast<std::ptrdiff_t>(known().built_in);
}

const std::vector<NamedFormat>& table_formats() { return known().formats; }

}  // namespace gradual
