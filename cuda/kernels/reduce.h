// Reductions over one or several operands, counterpart of core/cpu/reduce.cpp. An Op is a struct passed to kernels by
// value:
//
//   Number                      the compute type of elements: float, double or int64
//   Acc                         the accumulator: a number, or a struct as in block.h
//   kInputs                     number of operands
//   identity()                  the neutral element of combine
//   map(x, output, position)    the Acc of the elements x[0], x[1], .. at that position of the output's range
//   combine(a, b)
//   finish(acc, output)         stores the output's result
//
// The order of combinations depends on sizes and strides alone.
#pragma once

#include <optional>

#include "../../core/kernels/reduce_plan.h"
#include "../runtime/memory.h"
#include "block.h"
#include "vector_io.h"

namespace gradual::cuda {

template <int N> struct ReduceSource {
  Geometry<N> kept, reduced;
  bool columns = false;  // neighbouring threads take neighbouring outputs, not neighbours of one range
  bool wide = false;     // in runs of eight adjacent outputs, or of eight elements of one output
  bool halves = false;   // rows in runs of four, two at a time
  std::int64_t outputs() const { return kept.numel; }
  std::int64_t count() const { return reduced.numel; }
};
// The source for operands of one size, reduced in the dims of the bit mask.
template <int N> ReduceSource<N> reduce_source(const Tensor* const (&operands)[N], std::uint32_t dims) {
  const cpu::Plan plan = cpu::make_plan(operands, dims);
  ReduceSource<N> s{geometry_of<N>(plan.kept), geometry_of<N>(plan.reduced)};
  s.columns = plan.columns || plan.count() < cpu::kMinColumns;
  s.wide = s.columns ? wide(s.kept, s.reduced) : wide(s.reduced, s.kept);
  s.halves = !s.columns && !s.wide && wide(s.reduced, s.kept, N, kRun / 2);
  return s;
}

template <class Op> __device__ void join_run(const Op& op, typename Op::Acc (&part)[kRun]) {
  for (int half = kRun / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) part[j] = op.combine(part[j], part[j + half]);
}

// Combines the values of threads [0, lanes) of a group; the first thread gets the result. lanes: those of a warp or of
// the block.
template <class Op>
__device__ typename Op::Acc join_lanes(const Op& op, const Block& block, int lanes, typename Op::Acc value) {
  const auto combine = [&](const auto& a, const auto& b) { return op.combine(a, b); };
  if (lanes == static_cast<int>(kWarp)) return reduce_warp(value, combine);
  return reduce_block(block, value, op.identity(), combine);
}

// A warp or a block takes a segment of an output's range.
template <class Op> struct ReduceRows {
  using Acc = typename Op::Acc;
  ReduceSource<Op::kInputs> s;
  Op op;
  int lanes;
  std::int64_t segments, each;
  Acc* partials;  // [outputs, segments]; null: finish

  __device__ void operator()(const Block& b) const {
    const int lane = b.thread % lanes;
    const std::int64_t task = b.index * (b.threads / lanes) + b.thread / lanes;
    const bool inside = task < s.kept.numel * segments;
    const std::int64_t output = inside ? task / segments : 0;
    const std::int64_t begin = inside ? task % segments * each : 0;
    const std::int64_t end = inside ? (begin + each < s.reduced.numel ? begin + each : s.reduced.numel) : 0;
    Acc part[kRun];
    for (Acc& p : part) p = op.identity();
    std::int64_t base[Op::kInputs];
    s.kept.locate(output, base);
    for (std::int64_t at = begin; at < end; at += lanes * kRun) take(output, base, at, lane, end, part);
    join_run(op, part);
    const Acc all = join_lanes(op, b, lanes, part[0]);
    if (!inside || lane != 0) return;
    if (partials) partials[task] = all;
    else op.finish(all, output);
  }

 private:
  __device__ void take(std::int64_t output, const std::int64_t (&base)[Op::kInputs], std::int64_t at, int lane,
                       std::int64_t end, Acc (&part)[kRun]) const {
    constexpr int N = Op::kInputs;
    const bool together = s.wide || s.halves;
    const std::int64_t first = together ? at + lane * kRun : at + lane;
    const std::int64_t step = together ? 1 : lanes;
    if (first >= end) return;
    typename Op::Number x[N][kRun];
    if (s.wide) {
      std::int64_t offset[N];
      s.reduced.locate(first, offset);
      unrolled<N>([&](auto k) { load_run(s.reduced.operand[k], base[k] + offset[k], x[k]); });
    } else if (s.halves) {
      constexpr int kHalf = kRun / 2;
      unrolled<2>([&](auto h) {
        std::int64_t offset[N];
        s.reduced.locate(first + h * kHalf < end ? first + h * kHalf : first, offset);
        unrolled<N>([&](auto k) {
          typename Op::Number half[kHalf];
          load_run(s.reduced.operand[k], base[k] + offset[k], half);
          for (int j = 0; j < kHalf; ++j) x[k][h * kHalf + j] = half[j];
        });
      });
    } else {
      std::int64_t offsets[N][kRun];
      for (int j = 0; j < kRun; ++j) {
        std::int64_t offset[N];
        s.reduced.locate(first + j * step < end ? first + j * step : first, offset);
        for (int k = 0; k < N; ++k) offsets[k][j] = base[k] + offset[k];
      }
      unrolled<N>([&](auto k) { load_scattered(s.reduced.operand[k], offsets[k], x[k]); });
    }
    unrolled<kRun>([&](auto j) {
      if (first + j * step >= end) return;
      typename Op::Number of[N];
      for (int k = 0; k < N; ++k) of[k] = x[k][j];
      part[j] = op.combine(part[j], op.map(of, output, first + j * step));
    });
  }
};

// A block takes a segment of the ranges of adjacent outputs: `across` threads take kRun outputs each, the others
// continue down the ranges.
template <class Op> struct ReduceColumns {
  using Acc = typename Op::Acc;
  ReduceSource<Op::kInputs> s;
  Op op;
  int across;
  std::int64_t tiles, segments, each;
  Acc* partials;

  __device__ void operator()(const Block& b) const {
    constexpr int N = Op::kInputs;
    __shared__ Acc shared[kRun][kThreads];
    const int lane = b.thread % across;
    const int down = b.thread / across;
    const std::int64_t segment = b.index / tiles;
    const std::int64_t tile = b.index % tiles * across * kRun;
    const std::int64_t first = tile + (s.wide ? lane * kRun : lane);
    const std::int64_t step = s.wide ? 1 : across;
    const bool inside = first < s.kept.numel;
    std::int64_t base[N][kRun] = {};
    for (int j = 0; j < kRun && inside; ++j) {
      std::int64_t offset[N];
      s.kept.locate(first + j * step < s.kept.numel ? first + j * step : first, offset);
      for (int k = 0; k < N; ++k) base[k][j] = offset[k];
    }
    Acc part[kRun];
    for (Acc& p : part) p = op.identity();
    const std::int64_t begin = segment * each;
    const std::int64_t end = begin + each < s.reduced.numel ? begin + each : s.reduced.numel;
    for (std::int64_t at = begin + down; at < end && inside; at += b.threads / across) {
      std::int64_t offset[N];
      s.reduced.locate(at, offset);
      typename Op::Number x[N][kRun];
      unrolled<N>([&](auto k) { load(s.kept.operand[k], base[k], offset[k], x[k]); });
      unrolled<kRun>([&](auto j) {
        typename Op::Number of[N];
        for (int k = 0; k < N; ++k) of[k] = x[k][j];
        part[j] = op.combine(part[j], op.map(of, first + j * step < s.kept.numel ? first + j * step : first, at));
      });
    }
    for (int j = 0; j < kRun; ++j) shared[j][b.thread] = part[j];
    for (int half = b.threads / across / 2; half > 0; half /= 2) {
      __syncthreads();
      if (down >= half) continue;
      for (auto& column : shared) column[b.thread] = op.combine(column[b.thread], column[b.thread + half * across]);
    }
    if (down != 0) return;
    for (int j = 0; j < kRun; ++j) {
      const std::int64_t output = first + j * step;
      if (output >= s.kept.numel) break;
      if (partials) partials[output * segments + segment] = shared[j][b.thread];
      else op.finish(shared[j][b.thread], output);
    }
  }

 private:
  __device__ void load(const ElementOperand& o, const std::int64_t (&base)[kRun], std::int64_t offset,
                       typename Op::Number (&x)[kRun]) const {
    if (s.wide) return load_run(o, base[0] + offset, x);
    std::int64_t at[kRun];
    for (int j = 0; j < kRun; ++j) at[j] = base[j] + offset;
    load_scattered(o, at, x);
  }
};

// A warp or a block combines an output's partial results.
template <class Op> struct JoinSegments {
  using Acc = typename Op::Acc;
  Op op;
  int lanes;
  std::int64_t outputs, segments;
  const Acc* partials;
  __device__ void operator()(const Block& b) const {
    const int lane = b.thread % lanes;
    const std::int64_t output = b.index * (b.threads / lanes) + b.thread / lanes;
    Acc all = op.identity();
    for (std::int64_t i = lane; i < segments && output < outputs; i += lanes)
      all = op.combine(all, partials[output * segments + i]);
    all = join_lanes(op, b, lanes, all);
    if (lane == 0 && output < outputs) op.finish(all, output);
  }
};

namespace detail {
inline constexpr std::int64_t kEnoughBlocks = 1056;  // at most: eight per multiprocessor of the largest GPUs
inline std::int64_t parts(std::int64_t n, std::int64_t each) { return (n + each - 1) / each; }
// The range of an output is cut into segments of `least` elements. The length doubles while there are more than
// kEnoughBlocks blocks.
inline std::int64_t segment_length(std::int64_t count, std::int64_t least, std::int64_t others) {
  while (least < count && others * parts(count, least) > kEnoughBlocks) least *= 2;
  return least;
}
inline int lanes_for(std::int64_t n) { return static_cast<int>(n <= 1024 ? kWarp : kThreads); }
}  // namespace detail

template <class Op> void reduce(const ReduceSource<Op::kInputs>& s, const Op& op) {
  using namespace detail;
  using Acc = typename Op::Acc;
  const std::int64_t outputs = s.outputs();
  const std::int64_t count = s.count();
  if (outputs == 0) return;
  int across = 1;
  while (across < static_cast<int>(kWarp) && across * kRun < outputs) across *= 2;
  const int lanes = lanes_for(count);
  const std::int64_t tiles = s.columns ? parts(outputs, across * kRun) : outputs;
  const std::int64_t least = s.columns ? kThreads / across * 8 : kThreads * kRun * 4;
  const std::int64_t each = segment_length(count, least, tiles);
  const std::int64_t segments = count > each ? parts(count, each) : 1;
  std::optional<Workspace> memory;
  if (segments > 1) memory.emplace(static_cast<std::size_t>(outputs * segments) * sizeof(Acc));
  Acc* const partials = memory ? memory->as<Acc>() : nullptr;
  if (s.columns) for_blocks(tiles * segments, ReduceColumns<Op>{s, op, across, tiles, segments, each, partials});
  else for_blocks(parts(outputs * segments, kThreads / lanes), ReduceRows<Op>{s, op, lanes, segments, each, partials});
  if (!memory) return;
  const int joining = lanes_for(segments);
  for_blocks(parts(outputs, kThreads / joining), JoinSegments<Op>{op, joining, outputs, segments, partials});
}

}  // namespace gradual::cuda
