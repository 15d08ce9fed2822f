// Formats as tables of values, and the names of scalar formats, against other implementations (golden/formats.csv) and
// against a search through all values.
#include <doctest/doctest.h>
#include <gradual/core/formats/format_table.h>
#include <gradual/core/formats/rounding.h>
#include <gradual/core/support/philox.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "support/cpu_isas.h"
#include "support/files.h"
#include "support/source_dir.h"

using namespace gradual;
using test::contains;
using test::message_of;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// By kind and format: the numbers between spaces, "a:b" as two.
std::map<std::string, std::vector<double>> golden(const std::string& kind) {
  std::map<std::string, std::vector<double>> all;
  std::ifstream file(source_dir() + "/tests/golden/formats.csv");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(',');
    const auto second = line.find(',', first + 1);
    if (line.substr(0, first) != kind) continue;
    std::ranges::replace(line, ':', ' ');
    std::istringstream numbers(line.substr(second + 1));
    for (std::string text; numbers >> text;) all[line.substr(first + 1, second - first - 1)].push_back(std::stod(text));
  }
  REQUIRE_FALSE(all.empty());
  return all;
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

// The table's rounding by its definition: the two neighbours, then a choice.
struct Expected {
  double value = 0;
  std::optional<std::uint32_t> code;
};
struct Search {
  const ValueTable& t;
  std::size_t n = t.values.size();
  std::size_t least = 0;
  // The values and one more at each end, whose parity goes on.
  std::vector<double> all = std::vector<double>(t.values.begin(), t.values.end());
  std::vector<bool> odd = std::vector<bool>(n + 2);

  explicit Search(const ValueTable& table) : t(table) {
    for (std::size_t i = 0; i < n; ++i)
      if (std::abs(t.values[i]) < std::abs(t.values[least])) least = i;
    all.insert(all.begin(), all[0] + 2 * (*t.lowest - all[0]));
    all.push_back(all[n] + 2 * (*t.highest - all[n]));
    for (std::size_t i = 0; i < n; ++i) odd[i + 1] = t.codes[i] % 2 == 1;
    odd[0] = !odd[1];
    odd[n + 1] = !odd[n];
  }
  Expected operator()(RoundingMode mode, Overflow overflow, double x, std::uint64_t random, int bits) const;
};

Expected Search::operator()(RoundingMode mode, Overflow overflow, double x, std::uint64_t random, int bits) const {
  using enum RoundingMode;
  const bool saturates = overflow == Overflow::saturate;
  const auto value = [&](std::size_t i) { return Expected{t.values[i], t.codes[i]}; };
  const auto beyond = [&](bool negative) {
    const auto code = negative ? t.negative_inf : t.inf;
    if (code) return Expected{negative ? -kInf : kInf, code};
    return t.nan ? Expected{NAN, t.nan} : value(negative ? 0 : n - 1);
  };
  if (std::isnan(x)) return t.nan ? Expected{NAN, t.nan} : value(saturates ? n - 1 : least);
  if (std::isinf(x)) return saturates ? value(x < 0 ? 0 : n - 1) : beyond(x < 0);
  const auto above = std::upper_bound(all.begin() + 1, all.end(), x) - all.begin();  // all[0] may be the same as all[1]
  const auto low = static_cast<std::size_t>(above - 1);
  std::size_t chosen = low;
  if (x != all[low] && low <= n && !(low == 0 && x < all[0])) {
    const double bound = low == 0 ? *t.lowest : low == n ? *t.highest : t.bounds[low - 1];
    const bool ends_are_free = std::isinf(low == 0 ? all[0] : all[low + 1]);
    bool up = false;
    if (mode == nearest_even) up = x > bound || (x == bound && odd[low] && !odd[low + 1]);
    if (mode == nearest_away) up = x > bound || (x == bound && x > 0);
    if (mode == toward_zero) up = all[low] < 0 && all[low + 1] > 0 ? x >= 0 : x < 0;  // where there is no zero
    if (mode == RoundingMode::up) up = true;
    if (mode == to_odd) up = odd[low + 1] == odd[low] ? all[low] >= 0 : odd[low + 1];
    if (mode == stochastic)
      up = std::floor(std::ldexp((x - all[low]) / (all[low + 1] - all[low]), bits)) + static_cast<double>(random) >=
           std::ldexp(1, bits);
    if (ends_are_free) up = low == 0;
    chosen = low + (up ? 1 : 0);
  }
  if (chosen > 0 && chosen <= n) return value(chosen - 1);
  const bool negative = chosen == 0;
  const bool max_odd = t.codes.back() % 2 == 1;
  const bool finite = overflow == Overflow::saturate || overflow == Overflow::saturate_finite ||
                      (overflow == Overflow::ieee && (mode == toward_zero || (mode == up && negative) ||
                                                      (mode == down && !negative) || (mode == to_odd && max_odd)));
  return finite ? value(negative ? 0 : n - 1) : beyond(negative);
}

template <class T> std::vector<T> sources(const ValueTable& t) {
  std::vector<T> out = {T(0),
                        T(-0.0),
                        std::numeric_limits<T>::infinity(),
                        -std::numeric_limits<T>::infinity(),
                        std::numeric_limits<T>::quiet_NaN(),
                        std::numeric_limits<T>::denorm_min(),
                        std::numeric_limits<T>::max(),
                        std::numeric_limits<T>::lowest()};
  const auto around = [&](double x) {
    const T near = static_cast<T>(x);
    for (const T y : {near, std::nextafter(near, T(kInf)), std::nextafter(near, T(-kInf))}) out.push_back(y);
  };
  const std::size_t step = std::max<std::size_t>(1, t.values.size() / 300);
  for (std::size_t i = 0; i < t.values.size(); i += step) {
    around(t.values[i]);
    if (i + 1 < t.values.size()) {
      around(t.bounds[i]);
      around((double{t.values[i]} + t.values[i + 1]) / 2);
    }
  }
  around(*t.lowest);
  around(*t.highest);
  around(2 * *t.highest - t.values.back());
  for (std::uint32_t i = 0; i < 600; ++i) {
    const double size = std::exp2(static_cast<double>(philox_word(3, 0, i)) * 0x1p-32 * 80 - 50);
    out.push_back(static_cast<T>(i % 2 == 0 ? size : -size));
  }
  return out;
}

template <class T> void check_table(const ValueTable& t, const Rounder& r, const std::vector<T>& in, bool isas) {
  std::vector<T> values(in.size());
  std::vector<std::uint16_t> words(in.size() + 1);
  CastCounts counts;
  const auto n = static_cast<std::int64_t>(in.size());
  r.encode(in.data(), words.data(), n);
  CastCounts wanted{.elements = in.size()};
  const auto check = [&] {
    r.round(in.data(), values.data(), n);
    const Search search(t);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::uint64_t random = philox_word(r.key.seed, r.key.stream, i) >> (32 - r.rounding.random_bits);
      const Expected e = search(r.rounding.mode, r.overflow, in[i], random, r.rounding.random_bits);
      const std::uint32_t code = t.bits <= 8 ? reinterpret_cast<std::uint8_t*>(words.data())[i] : words[i];
      if (!same(values[i], e.value) || code != e.code)
        FAIL_CHECK(t.name, " ", to_string(r.rounding), " ", to_string(r.overflow), " of ", in[i], ": ", values[i], " (",
                   code, "), not ", e.value, " (", *e.code, ")");
    }
  };
  if (isas) reference::for_each_isa([&](CpuIsa) { check(); });
  else check();
  r.round(in.data(), values.data(), n, 0, {.counts = &counts});
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (std::isnan(in[i])) ++wanted.nan;
    else if (std::isinf(in[i])) ++wanted.inf;
    else if (in[i] == 0) ++wanted.zeros;
    else if (values[i] == 0) ++wanted.underflow;
    else wanted.overflow += static_cast<std::uint64_t>(!std::isfinite(values[i]));
  }
  if (r.overflow == Overflow::ml_dtypes && (t.inf || t.nan)) CHECK(counts == wanted);
}

}  // namespace

TEST_CASE("the values of named formats are those of gfloat, bitsandbytes and the papers") {
  int checked = 0;
  for (const auto& [name, values] : golden("values")) {
    const bool twos_complement = name == "mxint8-twos-complement";  // code 80, -2, is left out here
    const Format f = format(twos_complement ? "mxint8" : name);
    for (std::size_t c = 0; c < values.size(); ++c) {
      const auto code = static_cast<std::uint32_t>(c);
      const double ours = twos_complement && c > 128 ? -f.decode(256 - code) : f.decode(code);
      const bool beyond = std::isfinite(values[c]) && values[c] != 0 &&
                          (std::abs(values[c]) < 0x1p-126 || std::abs(values[c]) >= 0x1p128);
      if (twos_complement && c == 128) continue;
      if (!same(ours, beyond ? NAN : static_cast<float>(values[c])))
        FAIL_CHECK(name, " ", c, ": ", ours, ", not ", values[c]);
      ++checked;
    }
  }
  CHECK(checked == 17 * 256 - 1 + 32);
  const std::vector<double> takum16 = golden("codes").at("takum16");
  for (std::size_t i = 0; i < takum16.size(); i += 2) {
    const double v = takum16[i + 1];
    const bool beyond = v != 0 && (std::abs(v) < 0x1p-126 || std::abs(v) >= 0x1p128);
    CHECK(same(format("takum16").decode(static_cast<std::uint32_t>(takum16[i])), beyond ? NAN : v));
  }
}

TEST_CASE("posits round as softposit does") {
  for (const auto& [name, pairs] : golden("round"))
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      std::uint32_t code = 0;
      Rounder{format(name), {}, Overflow::ieee}.encode(&pairs[i], &code, 1);
      if (code != static_cast<std::uint32_t>(pairs[i + 1]))
        FAIL_CHECK(name, " of ", pairs[i], ": ", code, ", not ", pairs[i + 1]);
    }
}

TEST_CASE("integers and fixed point are what their names say, in every code") {
  struct Row {
    const char* name;
    int bits;
    double step;
    bool is_signed;
  };
  for (const Row& row : {Row{"int8", 8, 1, true},
                         {"int4", 4, 1, true},
                         {"uint8", 8, 1, false},
                         {"uint4", 4, 1, false},
                         {"mxint8", 8, 0x1p-6, true},
                         {"msfp12", 4, 0.25, true},
                         {"msfp16", 8, 0x1p-6, true},
                         {"q1.14", 16, 0x1p-14, true},
                         {"uq0.8", 8, 0x1p-8, false},
                         {"int2", 2, 1, true},
                         {"q0.1", 2, 0.5, true}}) {
    const Format f = format(row.name);
    CHECK(f.bits() == row.bits);
    const std::uint32_t sign = row.is_signed ? 1u << (row.bits - 1) : 0;
    const std::uint32_t count = 1u << (row.bits - (row.is_signed ? 1 : 0));
    for (std::uint32_t c = 0; c < count; ++c) {
      CHECK(f.decode(c) == c * row.step);
      if (sign != 0) CHECK(f.decode(c | sign) == c * -row.step);
    }
    const std::string text = to_string(f);
    CHECK(format(text) == f);
    CHECK(f.max() == (count - 1) * row.step);
  }
  CHECK(to_string(Format::fixed_point(1, 14)) == "q1.14");
  CHECK(to_string(Format::fixed_point(0, 8, false)) == "uq0.8");
  CHECK(to_string(format("int6")) == "q5.0");
  CHECK(contains(message_of([] { format("q20.9"); }), "1 to 24 in all, without the sign"));
  CHECK(contains(message_of([] { format("int1"); }), "1 to 24 in all"));
  CHECK(contains(message_of([] { format("q1.x"); }), "no format 'q1.x'"));
  CHECK(format("ue4m3").max() == 448);
  CHECK(format("ue4m3").bits() == 7);
  CHECK(format("ue5m3").max() == 114688);
  for (std::uint32_t c = 0; c < 0x7f; ++c) CHECK(format("ue4m3").decode(c) == format("e4m3fn").decode(c));
  CHECK(std::isnan(format("ue5m3").decode(0xff)));
  for (std::uint32_t c = 0; c < 0xff; ++c)  // e5m3 by IEEE's rules, but for the highest binade
    CHECK(format("ue5m3").decode(c) == (c < 0xf8 ? format("e5m3").decode(c) : std::ldexp(1 + (c & 7) / 8.0, 16)));
}

TEST_CASE("tables round as a search through their values says, in every mode and policy, on every instruction set") {
  using enum RoundingMode;
  std::vector<Format> all;
  for (const NamedFormat& n : table_formats()) all.push_back(n.format);
  all.push_back(
      table_format({.name = "odd-codes", .values = {-3, -0.5F, 0.25F, 4}, .codes = {1, 3, 9, 5}, .nan = 15, .inf = 7}));
  all.push_back(table_format({.name = "counts", .values = {1, 2, 4, 8, 16}, .bounds = {1, 3, 7, 16}, .nan = 9}));
  for (const Format& f : all) {
    const ValueTable& t = *f.table;
    const auto floats = sources<float>(t);
    const auto doubles = sources<double>(t);
    for (const RoundingMode mode : {nearest_even, nearest_away, toward_zero, up, down, to_odd, stochastic})
      for (const Overflow o : {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite, Overflow::ml_dtypes}) {
        if (t.values.size() > 300 && o != Overflow::ieee) continue;
        const Rounder r{f, {mode, 13}, o, {5, 6}};
        check_table(t, r, floats, o == Overflow::ieee && t.values.size() <= 300);
        check_table(t, r, doubles, false);
      }
    // Every value is itself, in every mode.
    std::vector<float> back(t.values.size());
    for (const RoundingMode mode : {nearest_even, nearest_away, toward_zero, up, down, to_odd, stochastic}) {
      Rounder{f, {mode}, Overflow::ieee}.round(t.values.data(), back.data(), static_cast<std::int64_t>(back.size()));
      CHECK(back == t.values);
    }
    std::vector<std::uint16_t> codes(t.values.size());
    Rounder{f, {}, Overflow::ieee}.encode(t.values.data(), codes.data(), static_cast<std::int64_t>(codes.size()));
    decode(f, codes.data(), back.data(), static_cast<std::int64_t>(back.size()));
    CHECK(back == t.values);
    CHECK(format(to_string(f)) == f);
    check_valid(f);
  }
}

TEST_CASE("limits of tables") {
  CHECK(format("posit8").max() == 0x1p24);
  CHECK(format("posit8").min_positive() == 0x1p-24);
  CHECK(format("posit16").max() == 0x1p56);
  CHECK(format("posit8").epsilon() == 0.125);
  CHECK(format("hif8").max() == 32768);
  CHECK(format("hif8").nan_code() == 0x80u);
  CHECK(format("hif8").inf_code() == 0x6fu);
  CHECK(format("takum8").max() < 0x1p128);
  CHECK(format("nf4").bits() == 4);
  CHECK(format("log8").decode(64) == 1);
  CHECK(format("log8").max_exponent() == 7);
}

TEST_CASE("stochastic rounding to a table is unbiased") {
  const std::vector<double> in(200000, 0.2);
  std::vector<double> out(in.size());
  for (const char* name : {"nf4", "posit8", "log8"}) {
    Rounder{format(name), {RoundingMode::stochastic}, Overflow::saturate, {1, 2}}.round(in.data(), out.data(), 200000);
    double sum = 0;
    double most = 0;
    for (const double v : out) {
      sum += v;
      most = std::max(most, std::abs(v - 0.2));
    }
    CHECK(std::abs(sum / 200000 - 0.2) < 4 * most / std::sqrt(200000.0));  // 4 standard deviations
  }
}

TEST_CASE("errors of tables") {
  const auto of = [](ValueTable t) { return message_of([&] { table_format(std::move(t)); }); };
  CHECK(contains(of({.name = "", .values = {0, 1}}), "a name has at least one character"));
  CHECK(contains(of({.name = "t", .values = {1}}), "2 to 65536 values, not 1"));
  CHECK(contains(of({.name = "t", .values = {0, 0}}), "values ascend; 0 comes after 0"));
  CHECK(contains(of({.name = "t", .values = {0, 1e-40F}}), "neither 0 nor a normal number of f32"));
  CHECK(contains(of({.name = "t", .values = {0, NAN}}), "neither 0 nor a normal number of f32"));
  CHECK(contains(of({.name = "t", .values = {-2, -1}}), "no value above zero"));
  CHECK(contains(of({.name = "t", .values = {0, 1}, .codes = {1}}), "2 values have 1 codes"));
  CHECK(contains(of({.name = "t", .values = {0, 1}, .codes = {1, 1}}), "code 1 is there twice"));
  CHECK(contains(of({.name = "t", .values = {0, 1}, .codes = {1, 7}, .bits = 2}), "code 7 has more than 2 bits"));
  CHECK(contains(of({.name = "t", .values = {0, 1}, .bounds = {2}}), "the bound 2 is not from 0 to 1"));
  CHECK(contains(of({.name = "t", .values = {0, 1}, .bounds = {1, 1}}), "2 values have 1 bounds, not 2"));
  CHECK(contains(of({.name = "t", .values = {0, 1}, .highest = 0.5}), "lowest and highest are beyond the values"));
  CHECK(contains(of({.name = "e4m3fn", .values = {0, 1}}), "the name is another format's"));
  const Format once = table_format({.name = "twice", .values = {0, 1}});
  CHECK(table_format({.name = "twice", .values = {0, 1}}) == once);
  CHECK(contains(of({.name = "twice", .values = {0, 2}}), "the name is another format's"));
  const Format three = table_format({.name = "three", .values = {0, 1, 2}});  // a code of 2 bits is left
  CHECK(table_format({.name = "three", .values = {0, 1, 2}}) == three);
}

TEST_CASE("to-odd is symmetric in sign, also next to codes that are left out") {
  for (const char* name : {"takum16", "takum8", "posit16", "posit8", "int8tc", "log8", "hif8"}) {
    const Rounder r{format(name), {RoundingMode::to_odd}, Overflow::saturate};
    const float smallest = static_cast<float>(r.format.min_positive());
    for (const float x : {1e-39F, smallest / 2, smallest * 1.25F, 0.3F, 0.9F}) {
      const float in[] = {x, -x};
      float out[2];
      r.round(in, out, 2);
      CAPTURE(name);
      CAPTURE(x);
      CHECK(out[0] == -out[1]);
      CHECK(out[0] != 0);
      CHECK(out[1] != 0);
    }
  }
}
