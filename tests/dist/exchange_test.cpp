// Sums over ranks in low precision (dist/rank_sum.h) as loops over numbers.
#include <doctest/doctest.h>
#include <gradual/dist/rank_sum.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "dist/thread_ranks.h"
#include "support/bf16.h"

using namespace gradual;
using namespace gradual::dist;

namespace {

using Row = std::vector<float>;
using Rounding = float (*)(float x, float scale);

float bf16(float x, float /*scale*/) { return gradual::testing::bf16(x); }
// The scale is a power of two, by which a number is multiplied before it is rounded.
float e4m3(float x, float scale) {
  if (x == 0) return 0;
  const float scaled = x * scale;
  const int exponent = std::max(std::ilogb(scaled), -6);
  const float gap = std::ldexp(1.0F, exponent - 3);
  return std::clamp(std::nearbyint(scaled / gap) * gap, -448.0F, 448.0F) / scale;
}

// What each rank has, and the rounding of what travels.
struct Ranks {
  std::vector<Row> values;
  Rounding round;
  float scale = 1;  // of what ranks send
  double factor = 1;

  std::size_t size() const { return values.size(); }
  float result(float sum, float scale_of_sum) const {
    return round(static_cast<float>(static_cast<double>(sum) * factor), scale_of_sum);
  }
};

// The part of rank j starts there and goes once around. Each rank adds its own.
Row ring(const Ranks& ranks) {
  const std::size_t numbers = ranks.values[0].size();
  Row out(numbers);
  for (std::size_t j = 0; j < ranks.size(); ++j)
    for (std::size_t i = numbers * j / ranks.size(); i < numbers * (j + 1) / ranks.size(); ++i) {
      float sum = ranks.values[j][i];
      for (std::size_t hop = 1; hop < ranks.size(); ++hop)
        sum = ranks.round(sum, ranks.scale) + ranks.values[(j + hop) % ranks.size()][i];
      out[i] = ranks.result(sum, ranks.scale);
    }
  return out;
}
// 1 sends to 0, 3 to 2, ..; then 2 to 0, 6 to 4, ..
Row tree(Ranks ranks) {
  for (std::size_t step = 1; step < ranks.size(); step *= 2)
    for (std::size_t r = step; r < ranks.size(); r += 2 * step)
      for (std::size_t i = 0; i < ranks.values[r].size(); ++i)
        ranks.values[r - step][i] += ranks.round(ranks.values[r][i], ranks.scale);
  Row out;
  for (const float sum : ranks.values[0]) out.push_back(ranks.result(sum, ranks.scale));
  return out;
}
// Of four ranks: f32 sums of pairs, and their sum.
Row gather(const Ranks& ranks, float scale_of_sum) {
  Row out;
  for (std::size_t i = 0; i < ranks.values[0].size(); ++i) {
    const auto rounded = [&](std::size_t r) { return ranks.round(ranks.values[r][i], ranks.scale); };
    out.push_back(ranks.result((rounded(0) + rounded(1)) + (rounded(2) + rounded(3)), scale_of_sum));
  }
  return out;
}

Ranks ranks_of(std::size_t count, std::size_t numbers, Rounding round) {
  Ranks ranks{.values = {}, .round = round, .factor = 1 / static_cast<double>(count)};
  for (std::size_t r = 0; r < count; ++r) {
    Row& row = ranks.values.emplace_back();
    for (std::size_t i = 0; i < numbers; ++i)
      row.push_back(static_cast<float>(std::sin(static_cast<double>(7 * i + 3 * r + 1)) / (1 + i % 5)));
  }
  return ranks;
}
Row sum_of(const Ranks& ranks, const std::string& exchange) {
  const auto communicator = single();
  RankSum sum(*communicator, amp::exchange_from_name(exchange), static_cast<int>(ranks.size()),
              {static_cast<std::int64_t>(ranks.values[0].size())});
  return sum.sum(ranks.values, ranks.factor, {});
}

// The largest power of two by which numbers up to `bound` stay below 448, with the exchange's margin.
float scale_for(double bound, const std::string& exchange) {
  const int margin = std::get<TensorScale>(amp::exchange_from_name(exchange).quantizer->scaling).margin;
  return static_cast<float>(std::exp2(std::floor(std::log2(448 / bound)) - margin));
}
double largest(const Row& row) {
  double most = 0;
  for (const float x : row) most = std::max(most, std::abs(static_cast<double>(x)));
  return most;
}

}  // namespace

TEST_CASE("exchanges in bf16: the bits of loops over numbers, by ring, tree and gather") {
  for (const std::size_t count : {1, 2, 3, 5, 8}) {
    CAPTURE(count);
    const Ranks ranks = ranks_of(count, 103, bf16);
    CHECK(sum_of(ranks, "bf16/ring") == ring(ranks));
    CHECK(sum_of(ranks, "bf16/tree") == tree(ranks));
  }
  const Ranks four = ranks_of(4, 103, bf16);
  CHECK(sum_of(four, "bf16/gather") == gather(four, 1));
  CHECK(sum_of(four, "bf16/ring") != sum_of(four, "bf16/tree"));
}

TEST_CASE("exchanges in e4m3: one scale from the amaxes of all ranks, and for the gathered sum from their sum") {
  Ranks four = ranks_of(4, 103, e4m3);
  double most = 0;
  double sum = 0;
  for (const Row& row : four.values) {
    most = std::max(most, largest(row));
    sum += largest(row);
  }
  four.scale = scale_for(most, "e4m3fn/gather");
  CHECK(sum_of(four, "e4m3fn/gather") == gather(four, scale_for(sum * four.factor, "e4m3fn/gather")));
  // Partial sums travel, which the scale of all amaxes together must hold.
  four.scale = scale_for(sum, "e4m3fn/ring");
  CHECK(sum_of(four, "e4m3fn/ring") == ring(four));
}
