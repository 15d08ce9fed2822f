#include <doctest/doctest.h>
#include <gradual/core/quantize/block_scaled_matmul.h>
#include <gradual/gradual.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "support/source_dir.h"

using namespace gradual;

namespace {

constexpr std::int64_t kCount = 64;
constexpr std::int64_t kLength = 128;

// The generator of make_mmasim_scaled.py.
struct Draw {
  std::uint64_t state;
  std::uint32_t next() {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<std::uint32_t>(state >> 33);
  }
};

BlockScaledRows rows_of(Draw& draw, const std::string& name, const std::string& scales, std::int64_t block) {
  const std::map<std::string, std::uint32_t> masks{
      {"e4m3fn", 0xf7}, {"e5m2", 0xbf}, {"e3m2fn", 0x3f}, {"e2m3fn", 0x3f}, {"e2m1fn", 0x0f}};
  const Format of_values = format(name);
  const Format of_scales = format(scales);
  std::vector<float> values;
  for (std::int64_t i = 0; i < kCount * kLength; ++i) values.push_back(of_values.decode(draw.next() & masks.at(name)));
  std::vector<float> factors;
  for (std::int64_t i = 0; i < kCount * kLength / block; ++i) {
    const std::uint32_t word = draw.next();
    factors.push_back(of_scales.decode(scales == "e8m0fnu" ? 117 + word % 21 : word & 0x77));
  }
  return {from_data(values, {kCount, kLength}), from_data(factors, {kCount, kLength / block}), of_values, of_scales};
}

BlockScaledRows ones_of(const char* name, const char* scales, std::int64_t length, std::int64_t blocks) {
  return {ones({1, length}), ones({1, blocks}), format(name), format(scales)};
}

}  // namespace

TEST_CASE("block-scaled products have the bits of MMA-Sim") {
  std::ifstream file(source_dir() + "/tests/golden/mmasim_scaled.csv");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) cells.push_back(cell);
    REQUIRE(cells.size() == 5);
    CAPTURE(cells[0]);
    Draw draw{std::stoull(cells[3])};
    const BlockScaledRows a = rows_of(draw, cells[0], cells[1], std::stoll(cells[2]));
    const BlockScaledRows b = rows_of(draw, cells[0], cells[1], std::stoll(cells[2]));
    const Tensor y = block_scaled_matmul(a, b);
    std::istringstream sums(cells[4]);
    std::int64_t i = 0;
    for (std::string sum; sums >> sum; ++i)
      CHECK(std::bit_cast<std::uint32_t>(y.select(0, i).select(0, i).item<float>()) ==
            static_cast<std::uint32_t>(std::stoul(sum, nullptr, 16)));
    CHECK(i == kCount);
  }
  CHECK(lines == 6);
}

TEST_CASE("a block-scaled product refuses what the hardware lacks") {
  const auto refused = [](const BlockScaledRows& x, const char* message) {
    CHECK_THROWS_WITH_AS(block_scaled_matmul(x, x), doctest::Contains(message), Error);
  };
  refused(ones_of("e4m3fn", "e8m0fnu", 48, 3), "groups of 32 numbers in blocks of 32, not rows of 48 with 3 scales");
  refused(ones_of("e4m3fn", "e8m0fnu", 64, 4), "blocks of 32, not rows of 64 with 4 scales");
  refused(ones_of("e2m1fn", "e8m0fnu", 32, 1), "groups of 64 numbers in blocks of 16 or 32");
  refused(ones_of("e4m3fn", "e4m3fn", 32, 1), "not e4m3fn");
  refused(ones_of("e2m1fn", "e4m3fn", 64, 2), "not e4m3fn");
  CHECK(block_scaled_matmul(ones_of("e2m1fn", "e4m3fn", 64, 4), ones_of("e2m1fn", "e4m3fn", 64, 4)).item() == 64);
  CHECK_THROWS_WITH_AS(block_scaled_matmul(ones_of("e2m1fn", "e4m3fn", 64, 4), ones_of("e2m1fn", "e4m3fn", 128, 8)),
                       doctest::Contains("rows of 64 and of 128 numbers"), Error);
}
