// The library's rounding against the reference on every boundary of every format and on a sample of all floats.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "inputs.h"

using namespace gradual;

namespace {

constexpr RoundingMode kModes[] = {RoundingMode::nearest_even, RoundingMode::nearest_away, RoundingMode::toward_zero,
                                   RoundingMode::up,           RoundingMode::down,         RoundingMode::to_odd};
constexpr Overflow kPolicies[] = {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite, Overflow::ml_dtypes};
constexpr RandomKey kKey{.seed = 21, .stream = 3};

// What is expected of an array: codes, the bits of their values, and the counts.
struct Expected {
  std::vector<std::uint32_t> codes, values;
  CastCounts counts;
};

template <class T> Expected expect(const Rounder& r, const std::vector<T>& in) {
  const auto round = reference::round_function(r.rounding.mode);
  const int bits = r.rounding.random_bits;
  const reference::ValueBits bits_of_code(r.format);
  Expected e;
  for (std::size_t i = 0; i < in.size(); ++i) {
    reference::Chance chance{.random = 0, .bits = bits};
    if (r.rounding.mode == RoundingMode::stochastic)
      chance.random = philox_word(r.key.seed, r.key.stream, i) >> (32 - bits);
    const reference::Result result = round(r.format, r.overflow, static_cast<double>(in[i]), chance);
    e.codes.push_back(result.code);
    e.values.push_back(bits_of_code[result.code]);
    reference::count(result.kind, e.counts);
  }
  return e;
}

std::string describe(const Rounder& r, double x, std::uint32_t got, std::uint32_t want) {
  return fmt::format("{} {} {}: {:a} gave {:x}, not {:x}", to_string(r.format), to_string(r.rounding),
                     to_string(r.overflow), x, got, want);
}

// Codes and values with counts and without, which may take other ways.
template <class T> void check_rounder(const Rounder& r, const std::vector<T>& in, const Expected& e) {
  const auto n = static_cast<std::int64_t>(in.size());
  CastCounts encode_counts, round_counts;
  const auto plain = reference::encode(r, in);
  const auto counted = reference::encode(r, in, {&encode_counts, nullptr});
  std::vector<T> values(in.size());
  std::vector<T> again = in;
  r.round(in.data(), values.data(), n);
  r.round(again.data(), again.data(), n, 0, {&round_counts, nullptr});
  std::string first;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!first.empty()) break;
    const auto x = static_cast<double>(in[i]);
    const std::uint32_t code = reference::code_at(r.format, plain, i);
    if (code != e.codes[i]) first = describe(r, x, code, e.codes[i]);
    const std::uint32_t with = reference::code_at(r.format, counted, i);
    if (with != e.codes[i]) first = "counted: " + describe(r, x, with, e.codes[i]);
    for (const T value : {values[i], again[i]}) {
      const std::uint32_t bits = reference::value_bits(static_cast<float>(value));
      if (bits != e.values[i] || (value == value && static_cast<T>(static_cast<float>(value)) != value))
        first = "value: " + describe(r, x, bits, e.values[i]);
    }
  }
  const std::string what = to_string(r.format) + " " + to_string(r.rounding) + " " + std::string(to_string(r.overflow));
  CHECK_MESSAGE(first.empty(), first);
  CHECK_MESSAGE(reference::as_vector(encode_counts) == reference::as_vector(e.counts), what);
  CHECK_MESSAGE(reference::as_vector(round_counts) == reference::as_vector(e.counts), what);
}

template <class T> void check_on_all_paths(const Rounder& r, const std::vector<T>& in) {
  const Expected e = expect(r, in);
  reference::for_each_isa([&](CpuIsa) { check_rounder(r, in, e); });
}

}  // namespace

TEST_CASE("floats at every boundary of every format, all modes and policies" * doctest::test_suite("long")) {
  for (const Format& f : reference::all_formats()) {
    const std::vector<float> in = reference::edges<float>(f);
    for (const RoundingMode mode : kModes)
      for (const Overflow overflow : kPolicies) check_on_all_paths(Rounder{f, {mode}, overflow}, in);
  }
}

TEST_CASE("doubles at every boundary of every format, all modes and policies" * doctest::test_suite("long")) {
  for (const Format& f : reference::all_formats()) {
    const std::vector<double> in = reference::edges<double>(f);
    for (const RoundingMode mode : kModes)
      for (const Overflow overflow : kPolicies) {
        const Rounder r{f, {mode}, overflow};
        check_rounder(r, in, expect(r, in));
      }
  }
}

// 16 of each stratum and format, another sample for each format: 2^20 floats for each.
TEST_CASE("a stratified sample of all floats, all modes" * doctest::test_suite("long")) {
  std::uint64_t seed = 0;
  std::uint64_t inputs = 0;
  for (const Format& f : reference::all_formats()) {
    const std::vector<float> in = reference::stratified(16, ++seed);
    inputs += in.size();
    for (const RoundingMode mode : kModes) check_on_all_paths(Rounder{f, {mode}, Overflow::ieee}, in);
  }
  CHECK(inputs >= 16'000'000);
}

TEST_CASE("a stratified sample of doubles, all modes" * doctest::test_suite("long")) {
  std::uint64_t seed = 1000;
  for (const Format& f : reference::all_formats()) {
    const std::vector<double> in = reference::stratified_doubles(2, ++seed);
    for (const RoundingMode mode : kModes) {
      const Rounder r{f, {mode}, Overflow::ieee};
      check_rounder(r, in, expect(r, in));
    }
  }
}

TEST_CASE("stochastic rounding goes up where the distance, cut to n bits, and the random number reach 1" *
          doctest::test_suite("long")) {
  for (const Format& f : reference::all_formats()) {
    std::vector<float> in = reference::edges<float>(f);
    const std::vector<float> more = reference::stratified(2, 77);
    in.insert(in.end(), more.begin(), more.end());
    for (const int bits : {1, 8, 13, 32})
      check_on_all_paths(Rounder{f, {RoundingMode::stochastic, bits}, Overflow::ieee, kKey}, in);
    const std::vector<double> doubles = reference::stratified_doubles(1, 78);
    for (const int bits : {8, 32}) {
      const Rounder r{f, {RoundingMode::stochastic, bits}, Overflow::saturate, kKey};
      check_rounder(r, doubles, expect(r, doubles));
    }
  }
}

TEST_CASE("e8m23 leaves floats alone") {
  const std::vector<float> in = reference::stratified(16, 5);
  std::vector<float> out(in.size());
  for (const RoundingMode mode : kModes) {
    Rounder{format("e8m23"), {mode}, Overflow::ieee}.round(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
    int changed = 0;
    for (std::size_t i = 0; i < in.size(); ++i)
      changed += reference::value_bits(in[i]) != reference::value_bits(out[i]);
    CHECK(changed == 0);
  }
}

TEST_CASE("arrays may be split anywhere") {
  const std::vector<float> in = reference::edges<float>(format("e4m3fn"));
  const auto n = static_cast<std::int64_t>(in.size());
  for (const RoundingMode mode : {RoundingMode::nearest_even, RoundingMode::stochastic})
    for (const std::string_view target : {"e4m3fn", "e8m0", "fp16", "tf32"}) {
      const Rounder r{format(target), {mode, 8}, Overflow::ieee, kKey};
      CastCounts whole_counts, counts;
      const auto whole = reference::encode(r, in, {&whole_counts, nullptr});
      for (const std::int64_t step : {1, 7, 1000, 1024, 1025, 5000}) {
        std::vector<std::uint8_t> parts(whole.size());
        counts = {};
        for (std::int64_t first = 0; first < n; first += step)
          r.encode(in.data() + first, parts.data() + first * code_bytes(r.format), std::min(step, n - first), first,
                   {&counts, nullptr});
        CHECK(parts == whole);
        CHECK(reference::as_vector(counts) == reference::as_vector(whole_counts));
      }
    }
}

namespace {

// 256 bins by the definition: floor(log2 |x|) + 127, with the ends.
template <class T> ExponentHistogram histogram_of(const std::vector<T>& in) {
  ExponentHistogram h;
  for (const T x : in) {
    if (x == 0) continue;
    const int exponent = std::isfinite(x) ? std::ilogb(x) : 128;
    ++h.bins[static_cast<std::size_t>(std::clamp(exponent + 127, 0, 255))];
  }
  return h;
}

}  // namespace

TEST_CASE("exponent histograms of floats and doubles, whatever the format") {
  std::vector<float> floats = reference::stratified(4, 9);
  floats.resize(floats.size() - 5);  // no multiple of four
  std::vector<double> doubles = reference::stratified_doubles(2, 10);
  doubles.push_back(std::nextafter(2.0, 1.0));  // which as a float is 2
  doubles.push_back(-1e300);
  doubles.push_back(1e-300);
  for (const std::string_view target : {"fp16", "e4m3fn", "e8m0"}) {
    const Rounder r{format(target), {}, Overflow::ieee};
    ExponentHistogram of_floats, of_doubles;
    reference::encode(r, floats, {nullptr, &of_floats});
    reference::encode(r, doubles, {nullptr, &of_doubles});
    CHECK(of_floats.bins == histogram_of(floats).bins);
    CHECK(of_doubles.bins == histogram_of(doubles).bins);
  }
  // few exponents, many, and one
  for (const float spread : {0.0F, 3.0F, 100.0F}) {
    std::vector<float> x(100003);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto word = philox_word(4, 0, i);
      x[i] = std::ldexp(1.0F + static_cast<float>(word & 255) / 256, static_cast<int>(spread * uniform01(word)));
      if (i % 7 == 0) x[i] = 0;
      if (i % 4096 == 5) x[i] *= 0x1p-140F;
    }
    ExponentHistogram h;
    h.add(x.data(), static_cast<std::int64_t>(x.size()));
    CHECK(h.bins == histogram_of(x).bins);
  }
}
