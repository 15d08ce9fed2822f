// Sources to round: every boundary of a format, and samples of all floats and doubles.
#pragma once

#include <gradual/core/formats/convert.h>
#include <gradual/core/support/philox.h>

#include <vector>

#include "reference.h"
#include "support/cpu_isas.h"

namespace reference {

// Custom formats, in addition to gradual::named_formats().
inline std::vector<Format> odd_formats() {
  std::vector<Format> all;
  for (const auto& [x, m] : {std::pair(1, 2), {1, 7}, {2, 0}, {3, 7}, {4, 2}, {5, 0}, {8, 0}, {8, 1}, {8, 23}})
    all.push_back(Format::ieee(x, m));
  for (const std::string_view name : {"bf16", "fp16", "fp32", "e4m3fn", "e2m1fn", "e4m3fnuz"}) {
    Format flushed = gradual::format(name);
    flushed.subnormals = false;
    all.push_back(flushed);
  }
  for (const std::string_view name : {"e4m3fn", "e5m2", "e2m1fn"}) {
    Format f = gradual::format(name);
    f.is_signed = false;
    f.has_negative_zero = false;
    all.push_back(f);
  }
  Format shifted = gradual::format("e4m3fn");  // a bias unlike any other: all values below 1
  shifted.bias = 40;
  all.push_back(shifted);
  Format powers = gradual::format("e8m0fnu");  // packed codes, with NaN and without
  powers.exponent_bits = 4;
  powers.bias = 7;
  all.push_back(powers);
  powers.exponent_bits = 6;
  powers.bias = 80;
  powers.nan = NanEncoding::none;
  all.push_back(powers);
  return all;
}

inline std::vector<Format> all_formats() {
  std::vector<Format> all = odd_formats();
  for (const gradual::NamedFormat& n : gradual::named_formats())
    if (n.common) all.push_back(n.format);
  for (const char* name : {"int8", "uint8", "msfp12", "ue5m3", "binary8p1", "binary8p3", "binary8p4f", "q1.14"})
    all.push_back(gradual::format(name));
  return all;
}

// Codes without sign up to the first beyond the largest value, which stands for the limit of overflow. Of wide formats
// those around each power of two, and a sample.
inline std::vector<std::uint32_t> codes_to_visit(const Format& f) {
  const std::uint32_t end = codes_of(f).largest + 1;
  std::vector<std::uint32_t> codes;
  if (f.mantissa_bits <= 8) {
    for (std::uint32_t c = 0; c <= end; ++c) codes.push_back(c);
    return codes;
  }
  for (std::uint32_t power = 0; power <= end; power += 1u << f.mantissa_bits) {
    for (int step = -4; step < 4; ++step)
      if (step >= 0 || power > 0) codes.push_back(power + static_cast<std::uint32_t>(step));
    for (std::uint32_t i = 0; i < 64; ++i)
      codes.push_back(power + gradual::philox_word(1, 0, power + i) % (1u << f.mantissa_bits));
  }
  std::erase_if(codes, [&](std::uint32_t c) { return c > end; });
  return codes;
}

// All values, all midpoints, the places half a spacing beyond the largest value, and the neighbours of each as T, with
// both signs; and what is special about T.
template <class T> std::vector<T> edges(const Format& f) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  using Limits = std::numeric_limits<T>;
  constexpr auto kSign = Bits{1} << (8 * sizeof(T) - 1);
  std::vector<T> out;
  const auto add = [&](double value) {
    const auto bits = std::bit_cast<Bits>(static_cast<T>(value));
    for (int step = -1; step <= 1; ++step) {
      if (bits == 0 && step < 0) continue;
      const Bits neighbour = bits + static_cast<Bits>(static_cast<std::int64_t>(step));
      out.push_back(std::bit_cast<T>(neighbour));
      out.push_back(std::bit_cast<T>(neighbour | kSign));
    }
  };
  // As if exponents went on: the format with one binade more and all codes finite.
  const auto magnitude = [&](std::uint32_t code) {
    const auto exponent = static_cast<int>(code >> f.mantissa_bits);
    const std::uint32_t fraction = code % (1u << f.mantissa_bits);
    const std::uint32_t hidden = exponent > 0 || !f.has_zero ? 1u << f.mantissa_bits : 0;
    const int lowest = f.has_zero ? 1 : 0;
    return std::ldexp(fraction + hidden, std::max(exponent, lowest) - f.bias - f.mantissa_bits);
  };
  for (const std::uint32_t code : codes_to_visit(f)) {
    const double here = magnitude(code);
    const double next = magnitude(code + 1);
    for (const int part : {0, 1, 2, 3})  // quarters: what stochastic rounding with few bits tells apart
      add(here + (next - here) * part / 4);
  }
  for (const T special : {T{0}, Limits::denorm_min(), Limits::min(), Limits::max(), Limits::infinity(), T{1}, T{3}})
    add(static_cast<double>(special));
  for (const Bits nan : {Bits{1}, Bits{2}, (Bits{1} << (Limits::digits - 2)), (Bits{1} << (Limits::digits - 1)) - 1}) {
    const Bits bits = std::bit_cast<Bits>(Limits::infinity()) + nan;
    out.push_back(std::bit_cast<T>(bits));
    out.push_back(std::bit_cast<T>(bits | kSign));
  }
  return out;
}

// Some floats of each sign, exponent and first seven bits of the mantissa: 65,536 strata, `each` random ones of each.
inline std::vector<float> stratified(std::uint32_t each, std::uint64_t seed) {
  std::vector<std::uint32_t> words(65536 * std::size_t{each});
  gradual::philox_fill(seed, 0, 0, words.data(), static_cast<std::int64_t>(words.size()));
  std::vector<float> out(words.size());
  for (std::size_t i = 0; i < words.size(); ++i)
    out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i / each) << 16 | words[i] >> 16);
  return out;
}

// The same floats with 29 random bits more, and doubles of all exponents.
inline std::vector<double> stratified_doubles(std::uint32_t each, std::uint64_t seed) {
  const std::vector<float> floats = stratified(each, seed);
  std::vector<std::uint32_t> words(2 * floats.size());
  gradual::philox_fill(seed, 1, 0, words.data(), static_cast<std::int64_t>(words.size()));
  std::vector<double> out;
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(floats[i]));
    out.push_back(std::bit_cast<double>(bits | words[2 * i] >> 3));
    if (i % 4 == 0) out.push_back(std::bit_cast<double>(std::uint64_t{words[2 * i]} << 32 | words[2 * i + 1]));
  }
  return out;
}

// Codes as Rounder::encode wrote them.
inline std::uint32_t code_at(const Format& f, const std::vector<std::uint8_t>& bytes, std::size_t i) {
  const auto width = static_cast<std::size_t>(gradual::code_bytes(f));
  std::uint32_t code = 0;
  for (std::size_t b = 0; b < width; ++b) code |= std::uint32_t{bytes[i * width + b]} << (8 * b);
  return code;
}
template <class T>
std::vector<std::uint8_t> encode(const gradual::Rounder& r, const std::vector<T>& in, gradual::CastStats stats = {},
                                 std::int64_t first_element = 0) {
  std::vector<std::uint8_t> bytes(in.size() * static_cast<std::size_t>(gradual::code_bytes(r.format)));
  r.encode(in.data(), bytes.data(), static_cast<std::int64_t>(in.size()), first_element, stats);
  return bytes;
}

}  // namespace reference
