#include "philox.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "multiversion.h"

namespace gradual {

void philox_fill(std::uint64_t seed, std::uint64_t stream, std::uint64_t first_element, std::uint32_t* out,
                 std::int64_t n) {
  constexpr std::uint64_t kLanes = 8;  // blocks computed together, which the compiler vectorizes
  vectorized([=] {
    std::uint32_t words[4 * kLanes];
    const std::uint64_t end = first_element + static_cast<std::uint64_t>(n);
    for (std::uint64_t block = first_element / 4; 4 * block < end; block += kLanes) {
      for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
        const std::array<std::uint32_t, 4> four = philox_block(seed, stream, block + lane);
        for (std::uint64_t i = 0; i < 4; ++i) words[4 * lane + i] = four[i];
      }
      const std::uint64_t from = std::max(first_element, 4 * block);
      const std::uint64_t to = std::min(end, 4 * (block + kLanes));
      std::copy(words + (from - 4 * block), words + (to - 4 * block), out + (from - first_element));
    }
  });
}

std::array<float, 2> box_muller(std::uint32_t radius_word, std::uint32_t angle_word) {
  const double u = (radius_word + 1.0) * 0x1p-32;  // in (0, 1]: the logarithm stays finite
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * 0x1p-32 * angle_word;
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace gradual
