#pragma once

#include <array>
#include <cstdint>

// Philox4x32-10, a counter-based random generator: a keyed bijection of 128-bit counters, so that any element
// of any stream is computed on its own (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// Numbers are keyed by seed, stream and element and therefore do not depend on threads, launch shapes or how
// often a run was resumed.
namespace gradual {

constexpr std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                     std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xd2511f53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9e3779b9;  // the golden ratio
    key[1] += 0xbb67ae85;  // sqrt(3) - 1
  }
  return counter;
}

// Block `index` of a stream: the seed is the key, the index the counter's lower and the stream its upper
// half, as in cuRAND.
constexpr std::array<std::uint32_t, 4> philox_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return philox4x32_10({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                        static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                       {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// Word `element` of a stream: word element % 4 of block element / 4.
constexpr std::uint32_t philox_word(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  return philox_block(seed, stream, element / 4)[element % 4];
}

// out[i] = philox_word(seed, stream, first_element + i) for i < n, many at a time.
void philox_fill(std::uint64_t seed, std::uint64_t stream, std::uint64_t first_element, std::uint32_t* out,
                 std::int64_t n);

// The upper 24 bits as a multiple of 2^-24 in [0, 1): every value exact, all equally likely.
constexpr float uniform01(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Two independent normal numbers from two words (Box and Muller, 1958), at most 6.67 in size. Computed in
// double and rounded, so that the last bits in which mathematical libraries differ hardly ever show.
std::array<float, 2> box_muller(std::uint32_t radius_word, std::uint32_t angle_word);

}  // namespace gradual
