#include "philox.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gradual {

namespace {

// Blocks computed side by side: independent lanes that the compiler turns into vectors.
constexpr std::uint64_t kLanes = 8;

void philox_lanes(std::uint64_t seed, std::uint64_t stream, std::uint64_t index, std::uint32_t* out) {
  std::uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
    c0[lane] = static_cast<std::uint32_t>(index + lane);
    c1[lane] = static_cast<std::uint32_t>((index + lane) >> 32);
    c2[lane] = static_cast<std::uint32_t>(stream);
    c3[lane] = static_cast<std::uint32_t>(stream >> 32);
  }
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t product0 = std::uint64_t{0xd2511f53} * c0[lane];
      const std::uint64_t product1 = std::uint64_t{0xcd9e8d57} * c2[lane];
      c0[lane] = static_cast<std::uint32_t>(product1 >> 32) ^ c1[lane] ^ key0;
      c1[lane] = static_cast<std::uint32_t>(product1);
      c2[lane] = static_cast<std::uint32_t>(product0 >> 32) ^ c3[lane] ^ key1;
      c3[lane] = static_cast<std::uint32_t>(product0);
    }
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
    out[4 * lane] = c0[lane];
    out[4 * lane + 1] = c1[lane];
    out[4 * lane + 2] = c2[lane];
    out[4 * lane + 3] = c3[lane];
  }
}

}  // namespace

void philox_fill(std::uint64_t seed, std::uint64_t stream, std::uint64_t first_element, std::uint32_t* out,
                 std::int64_t n) {
  constexpr std::uint64_t kWords = 4 * kLanes;
  std::uint32_t words[kWords];
  for (std::int64_t done = 0; done < n;) {
    const std::uint64_t element = first_element + static_cast<std::uint64_t>(done);
    const auto skip = static_cast<std::int64_t>(element % 4);
    const std::int64_t count = std::min<std::int64_t>(n - done, static_cast<std::int64_t>(kWords) - skip);
    if (count == kWords) {
      philox_lanes(seed, stream, element / 4, out + done);
    } else {
      philox_lanes(seed, stream, element / 4, words);
      std::copy_n(words + skip, count, out + done);
    }
    done += count;
  }
}

std::array<float, 2> box_muller(std::uint32_t radius_word, std::uint32_t angle_word) {
  const double u = (radius_word + 1.0) * 0x1p-32;  // in (0, 1]: the logarithm stays finite
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * 0x1p-32 * angle_word;
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace gradual
