#include "ordered_sum.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "../core/ops/ops.h"
#include "../core/support/multiversion.h"
#include "../core/support/parallel.h"
#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

constexpr std::int64_t kTile = 4096;  // sums at a time: they stay in the cache

// Rows [rows, terms] and columns [terms, width] of a product, of which [rows, columns] sums are computed.
struct Tile {
  const float* a = nullptr;
  const float* b = nullptr;
  float* y = nullptr;
  std::int64_t rows = 0;
  std::int64_t terms = 0;
  std::int64_t columns = 0;
  std::int64_t width = 0;
  bool fused = false;
};

void begin_with(const Tile& t, std::int64_t term, float* to) {
  vectorized([t, term, to] {
    for (std::int64_t i = 0; i < t.rows; ++i) {
      const float x = t.a[i * t.terms + term];
      for (std::int64_t j = 0; j < t.columns; ++j) to[i * t.columns + j] = x * t.b[term * t.width + j];
    }
  });
}

void add_term(const Tile& t, std::int64_t term, float* to) {
  vectorized([t, term, to] {
    for (std::int64_t i = 0; i < t.rows; ++i) {
      const float x = t.a[i * t.terms + term];
      float* const sums = to + i * t.columns;
      const float* const factors = t.b + term * t.width;
      if (t.fused)
        for (std::int64_t j = 0; j < t.columns; ++j) sums[j] = std::fma(x, factors[j], sums[j]);
      else
        for (std::int64_t j = 0; j < t.columns; ++j) sums[j] += x * factors[j];
    }
  });
}

void add_sums(float* to, const float* from, std::int64_t count) {
  vectorized([to, from, count] {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
  });
}

void compute(const Tile& t, const std::vector<OrderedSum::Step>& steps, std::vector<float>& stack) {
  const std::int64_t count = t.rows * t.columns;
  std::int64_t sums = 0;
  const auto sum = [&](std::int64_t i) { return stack.data() + i * count; };
  for (const OrderedSum::Step& step : steps) {
    if (step.action == OrderedSum::Action::join) {
      --sums;
      add_sums(sum(sums - 1), sum(sums), count);
    } else if (step.action == OrderedSum::Action::begin) {
      begin_with(t, step.term, sum(sums));
      ++sums;
    } else {
      add_term(t, step.term, sum(sums - 1));
    }
  }
  for (std::int64_t i = 0; i < t.rows; ++i) std::copy_n(stack.data() + i * t.columns, t.columns, t.y + i * t.width);
}

constexpr TreeKind kTrees[] = {TreeKind::one_by_one, TreeKind::blocks, TreeKind::pairwise, TreeKind::random};

}  // namespace

OrderedSum::OrderedSum(std::int64_t terms, const OrderedSumOptions& options, std::mt19937_64& random)
    : tree_(options.tree ? *options.tree : kTrees[random() % std::size(kTrees)]),
      block_(std::int64_t{4} << random() % 8),
      fused_(random() % 2 != 0),
      order_(static_cast<std::size_t>(std::max<std::int64_t>(terms, 0))) {
  if (terms < 1) throwf("ordered sum: {} terms; at least 1 is needed", terms);
  std::iota(order_.begin(), order_.end(), 0);
  const bool own = random() % 4 == 0;
  if (!own || !options.own_order)
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
  const std::int64_t wanted = options.parts > 0 ? options.parts : std::int64_t{1} << random() % 4;
  const std::int64_t parts = std::min(wanted, terms);
  steps_.reserve(2 * order_.size());
  for (std::int64_t p = 0; p < parts; ++p) {
    grow(terms * p / parts, terms * (p + 1) / parts, random);
    if (p > 0) put(Action::join, 0);
  }
}

void OrderedSum::put(Action action, std::int64_t place) {
  const bool join = action == Action::join;
  steps_.push_back({action, join ? 0 : static_cast<std::int32_t>(order_[static_cast<std::size_t>(place)])});
  if (action == Action::begin) ++sums_;
  if (join) --sums_;
  most_ = std::max(most_, sums_);
}

void OrderedSum::grow(std::int64_t begin, std::int64_t end, std::mt19937_64& random) {
  if (tree_ == TreeKind::one_by_one || tree_ == TreeKind::blocks || end - begin == 1) {
    const std::int64_t length = tree_ == TreeKind::blocks ? block_ : end - begin;
    for (std::int64_t first = begin; first < end; first += length) {
      put(Action::begin, first);
      for (std::int64_t i = first + 1; i < std::min(first + length, end); ++i) put(Action::add, i);
      if (first > begin) put(Action::join, 0);
    }
    return;
  }
  const auto places = static_cast<std::uint64_t>(end - begin - 1);
  const std::int64_t split = tree_ == TreeKind::pairwise ? std::midpoint(begin, end)
                                                         : begin + 1 + static_cast<std::int64_t>(random() % places);
  grow(begin, split, random);
  if (end - split == 1) {
    put(Action::add, split);
    return;
  }
  grow(split, end, random);
  put(Action::join, 0);
}

Tensor OrderedSum::product(const Tensor& a, const Tensor& b) const {
  const Tensor left = contiguous(a);
  const Tensor right = contiguous(b);
  const std::int64_t rows = left.size(0);
  const std::int64_t width = right.size(1);
  const Tensor y = zeros({rows, width});
  const std::int64_t columns = std::min(width, kTile);
  if (y.numel() == 0) return y;
  const std::int64_t height = std::min(rows, std::max<std::int64_t>(1, kTile / columns));
  const std::int64_t across = (width + columns - 1) / columns;
  const std::int64_t tiles = (rows + height - 1) / height * across;
  parallel_for(tiles, 1, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> stack(static_cast<std::size_t>(most_ * height * columns));
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::int64_t i = tile / across * height;
      const std::int64_t j = tile % across * columns;
      compute({.a = left.data<float>() + i * left.size(1),
               .b = right.data<float>() + j,
               .y = y.data<float>() + i * width + j,
               .rows = std::min(height, rows - i),
               .terms = left.size(1),
               .columns = std::min(columns, width - j),
               .width = width,
               .fused = fused_},
              steps_, stack);
    }
  });
  return y;
}

Tensor OrderedSum::total(const Tensor& terms) const { return product(ones({1, terms.size(0)}), terms); }

}  // namespace gradual::lab
