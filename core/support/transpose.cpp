#include "transpose.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "multiversion.h"

namespace gradual {
namespace {

constexpr std::int64_t kLine = 16;  // the floats of a cache line
constexpr int kLane = 4;            // those of 128 bits, within which most instructions move them

template <int n> using Floats [[gnu::vector_size(n * sizeof(float))]] = float;

struct Move {
  const float* from;
  std::int64_t from_step;
  float* to;
  std::int64_t to_step;
  Move at(std::int64_t r, std::int64_t c) const {
    return {from + c * from_step + r, from_step, to + r * to_step + c, to_step};
  }
};

// The indices of __builtin_shufflevector for n floats of a, then n of b.
// The first or second halves of the lanes, one float of a and one of b in turn.
constexpr int interleaved(int n, int i, bool second) {
  return i / kLane * kLane + i % kLane / 2 + (second ? kLane / 2 : 0) + (i % 2 != 0 ? n : 0);
}
// The first or second halves of the lanes of a, then of b.
constexpr int joined(int n, int i, bool second) {
  return i / kLane * kLane + i % (kLane / 2) + (second ? kLane / 2 : 0) + (i % kLane >= kLane / 2 ? n : 0);
}
// Every other lane of a, then of b.
constexpr int lanes(int n, int i, bool second) {
  return i / kLane * 2 % (n / kLane) * kLane + i % kLane + (second ? kLane : 0) + (i >= n / 2 ? n : 0);
}

// A square of sizeof...(I) rows and columns. After two steps, lane l of vector 4 g + q has column 4 l + q of the rows
// 4 g to 4 g + 3. Each further step joins two groups g and parts them by one bit of l.
template <int... I> [[gnu::always_inline]] inline void square(const Move& m, std::integer_sequence<int, I...>) {
  constexpr int n = sizeof...(I);
  using Vector = Floats<n>;
  Vector a[n];
  Vector b[n];
  (static_cast<void>(std::memcpy(&a[I], m.from + I * m.from_step, sizeof(Vector))), ...);
#pragma GCC unroll 16
  for (int i = 0; i < n; i += 2) {
    b[i] = __builtin_shufflevector(a[i], a[i + 1], interleaved(n, I, false)...);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], interleaved(n, I, true)...);
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; i += kLane)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = __builtin_shufflevector(b[i + j], b[i + j + 2], joined(n, I, false)...);
      a[i + 2 * j + 1] = __builtin_shufflevector(b[i + j], b[i + j + 2], joined(n, I, true)...);
    }
  if constexpr (n > kLane) {
#pragma GCC unroll 2
    for (int groups = n / kLane; groups > 1; groups /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < n / 2; ++i) {
        const int first = i / kLane * 2 * kLane + i % kLane;
        b[i] = __builtin_shufflevector(a[first], a[first + kLane], lanes(n, I, false)...);
        b[i + n / 2] = __builtin_shufflevector(a[first], a[first + kLane], lanes(n, I, true)...);
      }
      ((a[I] = b[I]), ...);
    }
  }
  (static_cast<void>(std::memcpy(m.to + I * m.to_step, &a[I], sizeof(Vector))), ...);
}

// Whole squares of n rows and columns.
template <int n> [[gnu::always_inline]] inline void squares(const Move& m, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; r += n)
    for (std::int64_t c = 0; c < columns; c += n) square(m.at(r, c), std::make_integer_sequence<int, n>());
}

template <int n> [[gnu::always_inline]] inline void all(const Move& m, std::int64_t rows, std::int64_t columns) {
  const std::int64_t whole_rows = rows - rows % kLane;
  const std::int64_t whole_columns = columns - columns % kLane;
  for (std::int64_t r = 0; r < whole_rows; r += kLine) {
    const std::int64_t height = std::min(kLine, whole_rows - r);
    for (std::int64_t c = 0; c < whole_columns; c += kLine) {
      const std::int64_t width = std::min(kLine, whole_columns - c);
      if (height == kLine && width == kLine) squares<n>(m.at(r, c), kLine, kLine);
      else squares<kLane>(m.at(r, c), height, width);
    }
  }
  for (std::int64_t c = whole_columns; c < columns; ++c)
    for (std::int64_t r = 0; r < whole_rows; ++r) *m.at(r, c).to = *m.at(r, c).from;
  for (std::int64_t r = whole_rows; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) *m.at(r, c).to = *m.at(r, c).from;
}

}  // namespace

void transpose(const float* from, std::int64_t from_step, float* to, std::int64_t to_step, std::int64_t rows,
               std::int64_t columns) {
  const Move move{from, from_step, to, to_step};
  const CpuIsa isa = cpu_isa();
  if (isa >= CpuIsa::avx512) vectorized([=] { all<16>(move, rows, columns); });
  else if (isa == CpuIsa::avx2) vectorized([=] { all<8>(move, rows, columns); });
  else all<kLane>(move, rows, columns);
}

}  // namespace gradual
