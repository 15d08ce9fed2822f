#include <doctest/doctest.h>
#include <gradual/core/support/cpu_isa.h>
#include <gradual/core/support/philox.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

using namespace gradual;

TEST_CASE("philox gives the published vectors") {
  // kat_vectors of the Random123 distribution (Salmon et al.).
  using Counter = std::array<std::uint32_t, 4>;
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) == Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
        Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  constexpr Counter kPi = philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  CHECK(kPi == Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  CHECK(philox_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) == kPi);
}

TEST_CASE("philox fills a range as it gives single words") {
  constexpr std::uint64_t kSeed = 0x0123456789abcdef;
  constexpr std::uint64_t kStream = 0xfedcba9876543210;
  // Across a multiple of 2^34 the counter's second word changes.
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{5}, (std::uint64_t{1} << 34) - 7}) {
    for (const std::int64_t n : {0, 1, 3, 4, 31, 32, 33, 100}) {
      CAPTURE(first);
      CAPTURE(n);
      std::vector<std::uint32_t> words(static_cast<std::size_t>(n) + 1, 0xabababab);
      philox_fill(kSeed, kStream, first, words.data(), n);
      bool same = true;
      for (std::int64_t i = 0; i < n; ++i) {
        same = same &&
               words[static_cast<std::size_t>(i)] == philox_word(kSeed, kStream, first + static_cast<std::uint64_t>(i));
      }
      CHECK(same);
      CHECK(words.back() == 0xabababab);
    }
  }
  const CpuIsa before = cpu_isa();
  for (const CpuIsa isa : cpu_isas()) {
    CAPTURE(to_string(isa));
    set_cpu_isa(isa);
    std::vector<std::uint32_t> words(500);
    philox_fill(kSeed, kStream, (std::uint64_t{1} << 34) - 200, words.data(), std::ssize(words));
    bool same = true;
    for (std::uint64_t i = 0; i < words.size(); ++i)
      same = same && words[i] == philox_word(kSeed, kStream, (std::uint64_t{1} << 34) - 200 + i);
    CHECK(same);
  }
  set_cpu_isa(before);
  CHECK(philox_word(1, 0, 0) != philox_word(0, 1, 0));
  CHECK(philox_word(0, 1, 0) != philox_word(0, 0, 4));
}

TEST_CASE("uniform numbers lie on the grid of 24 bits in (0, 1)") {
  CHECK(uniform01(0) == 0.0f);
  CHECK(uniform01(0xff) == 0.0f);
  CHECK(uniform01(0x100) == 0x1p-24f);
  CHECK(uniform01(0x80000000) == 0.5f);
  CHECK(uniform01(0xffffffff) == 1.0f - 0x1p-24f);
  constexpr int kDraws = 1 << 18;
  double sum = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) sum += uniform01(philox_word(7, 0, i));
  // The standard deviation of the mean is 1 / sqrt(12 n); five of them.
  CHECK(std::abs(sum / kDraws - 0.5) < 5 / std::sqrt(12.0 * kDraws));
}

TEST_CASE("Box-Muller numbers are finite at the ends and have a normal distribution's moments") {
  for (const std::uint32_t radius : {0u, 1u, 0xffffffffu}) {
    for (const std::uint32_t angle : {0u, 0x40000000u, 0xffffffffu}) {
      for (const float x : box_muller(radius, angle)) {
        CHECK(std::isfinite(x));
        CHECK(std::abs(x) < 6.67f);
      }
    }
  }
  CHECK(box_muller(0xffffffff, 123)[0] == 0.0f);
  constexpr int kPairs = 1 << 17;
  std::array<double, 5> moments = {};
  double product = 0;
  for (std::uint64_t i = 0; i < kPairs; ++i) {
    const auto pair = box_muller(philox_word(1, 2, 2 * i), philox_word(1, 2, 2 * i + 1));
    for (const double x : pair) {
      for (int power = 1; power <= 4; ++power) moments[static_cast<std::size_t>(power)] += std::pow(x, power);
    }
    product += static_cast<double>(pair[0]) * pair[1];
  }
  // Five standard deviations of each estimate: Var x^k = E x^2k - (E x^k)^2 = 1, 2, 15, 96; of the product 1.
  constexpr double kDraws = 2.0 * kPairs;
  CHECK(std::abs(moments[1] / kDraws) < 5 * std::sqrt(1 / kDraws));
  CHECK(std::abs(moments[2] / kDraws - 1) < 5 * std::sqrt(2 / kDraws));
  CHECK(std::abs(moments[3] / kDraws) < 5 * std::sqrt(15 / kDraws));
  CHECK(std::abs(moments[4] / kDraws - 3) < 5 * std::sqrt(96 / kDraws));
  CHECK(std::abs(product / kPairs) < 5 * std::sqrt(1.0 / kPairs));
}
