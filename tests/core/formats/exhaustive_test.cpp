// All 2^32 floats into nine formats: minutes. ./dev test --exhaustive
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "inputs.h"

using namespace gradual;

namespace {

constexpr std::uint32_t kChunk = 1 << 16;

// The first mistake of one chunk of positive floats and of the same floats negated, or nothing.
template <RoundingMode mode>
std::string check_chunk(const Rounder& r, const reference::ValueBits& bits_of_code, std::uint32_t first) {
  std::vector<float> in(kChunk);
  std::vector<float> values(kChunk);
  std::vector<std::uint32_t> codes(kChunk);
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    CastCounts want, got;
    for (std::uint32_t i = 0; i < kChunk; ++i) {
      in[i] = std::bit_cast<float>(sign | (first + i));
      const reference::Result result = reference::round<mode>(r.format, r.overflow, static_cast<double>(in[i]));
      codes[i] = result.code;
      reference::count(result.kind, want);
    }
    const auto bytes = reference::encode(r, in, {&got, nullptr});
    r.round(in.data(), values.data(), kChunk);
    for (std::uint32_t i = 0; i < kChunk; ++i) {
      const std::uint32_t code = reference::code_at(r.format, bytes, i);
      if (code == codes[i] && reference::value_bits(values[i]) == bits_of_code[code]) continue;
      return fmt::format("{:08x} gave {:x} and {:a}, not {:x}", sign | (first + i), code, values[i], codes[i]);
    }
    if (reference::as_vector(got) != reference::as_vector(want)) return fmt::format("counts from {:08x} on", first);
  }
  return {};
}

template <RoundingMode mode> void check_all(const char* format_name) {
  const Rounder r{format(format_name), {mode}, Overflow::ieee};
  const reference::ValueBits bits_of_code(r.format);
  constexpr int kChunks = static_cast<int>(0x80000000u / kChunk);
  std::string mistake;
#pragma omp parallel for schedule(dynamic)
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const std::string found = check_chunk<mode>(r, bits_of_code, static_cast<std::uint32_t>(chunk) * kChunk);
    if (found.empty()) continue;
#pragma omp critical
    mistake = found;
  }
  CHECK_MESSAGE(mistake.empty(), mistake);
}

}  // namespace

TEST_CASE("all 2^32 floats into nine formats, to nearest even and toward zero") {
  const char* exhaustive = std::getenv("GRADUAL_EXHAUSTIVE");
  if (exhaustive == nullptr || std::string(exhaustive) != "1") {
    MESSAGE("skipped: takes minutes; ./dev test --exhaustive runs it");
    return;
  }
  for (const char* name : {"fp16", "bf16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m3fn", "e3m2fn", "e2m1fn"}) {
    CAPTURE(name);
    check_all<RoundingMode::nearest_even>(name);
    check_all<RoundingMode::toward_zero>(name);
  }
}
