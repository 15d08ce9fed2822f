// Products with subnormal numbers without multiplying by them: the bits of a multiplication.
#include "../../../core/cpu/subnormal.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace gradual;

namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

}  // namespace

TEST_CASE("a product with a subnormal number has the bits of a multiplication") {
  constexpr float kRates[] = {0, 0x1p-149F, 0x1p-24F, 0.01F, 0.1F, 0.5F, 0.75F, 0.9F, 0.99F, 0x1.fffffep-1F, 1};
  std::vector<std::uint32_t> all;
  for (std::uint32_t x = 0; x < 0x800000; x += x < 4096 ? 1 : 977) all.push_back(x);  // 0 and the subnormal ones
  for (std::uint32_t x = 0x7ffff0; x < 0x800010; ++x) all.push_back(x);
  for (const float x : {1e-38F, 1e-30F, 0.3F, 1.0F, 3e38F, std::numeric_limits<float>::infinity()})
    all.push_back(bits(x));
  int wrong = 0;
  for (const float rate : kRates)
    for (const std::uint32_t x : all)
      for (const std::uint32_t sign : {0U, 1U << 31}) {
        if (rate == 0 && x == bits(std::numeric_limits<float>::infinity())) continue;  // NaN
        const float number = std::bit_cast<float>(x | sign);
        wrong += bits(cpu::TimesSubnormal()(rate, number)) != bits(rate * number);
      }
  CHECK(wrong == 0);
  CHECK(std::isnan(cpu::TimesSubnormal()(0.5F, NAN)));
}

TEST_CASE("subnormal numbers are found among others") {
  std::vector<float> x = {0,
                          -0.0F,
                          1,
                          -1,
                          std::numeric_limits<float>::min(),
                          -std::numeric_limits<float>::min(),
                          std::numeric_limits<float>::infinity(),
                          NAN};
  CHECK_FALSE(cpu::any_subnormal(x.data(), std::int64_t{8}));
  for (const float s :
       {std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::denorm_min(), 0x1.fffffcp-127F}) {
    x[2] = s;
    CHECK(cpu::any_subnormal(x.data(), std::int64_t{8}));
  }
}
