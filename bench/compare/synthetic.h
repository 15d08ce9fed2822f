// The benchmark's data: the same numbers in every framework, from a hash of their index (torch_worker.py has the same).
#pragma once

#include <cstdint>
#include <vector>

namespace compare {

enum class Stream : std::uint64_t { inputs, classes, tokens };

inline std::uint64_t hashed(Stream stream, std::int64_t i) {
  constexpr std::uint64_t kLow = 0xffffffff;
  std::uint64_t h = static_cast<std::uint64_t>(i) + (static_cast<std::uint64_t>(stream) << 28);
  h = h * 2654435761U & kLow;
  h ^= h >> 15;
  h = h * 2246822519U & kLow;
  return h ^ h >> 13;
}

// Uniform, of mean 0 and variance 1.
inline std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] =
        static_cast<float>((static_cast<double>(hashed(Stream::inputs, i)) / 2147483648.0 - 1) * 1.7320508);
  return values;
}

// Integers in [0, limit).
inline std::vector<std::int64_t> integers(Stream stream, std::int64_t count, std::int64_t limit) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] =
        static_cast<std::int64_t>(hashed(stream, i) % static_cast<std::uint64_t>(limit));
  return values;
}

// A checksum, by which the driver checks that all workers have the same data.
template <class T> double checksum(const std::vector<T>& values) {
  double sum = 0;
  for (const T v : values) sum += static_cast<double>(v);
  return sum;
}

}  // namespace compare
