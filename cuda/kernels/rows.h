// Kernels over rows: softmax, layer and RMS norm, cross entropy; counterpart of core/cpu/rows.h. A row that fits into
// registers is read once; a longer one is read again in each pass.
//
// A kernel provides a Body, a struct passed by value, whose call operator receives a Row. It passes functions f(i, x,
// p) to the row's methods: element i of the row as x[0], x[1], .. of the operands, and p[0], .. of the parameters.
#pragma once

#include "../../core/kernels/formulas.h"
#include "../../core/kernels/reduce_plan.h"
#include "block.h"
#include "vector_io.h"

namespace gradual::cuda {

// Operand 0 is written, N are read. All rows read the same M parameters of type C (none if one of them is null).
template <class C, int N, int M> struct RowSet {
  Geometry<N + 1> rows, along;  // position: the row, in row-major order; an element of it
  const C* parameters[M] = {};
  Counter counter;
  bool wide = false;  // in runs of eight
  std::int64_t length() const { return along.numel; }
};
// Rows along a dim of operands of one size.
template <class C, int M, int K>
RowSet<C, K - 1, M> row_set(const Tensor* const (&operands)[K], int dim, const C* const (&parameters)[M],
                            const CountingStores& counting) {
  const cpu::Plan plan = cpu::make_plan(operands, 1u << dim);
  RowSet<C, K - 1, M> s;
  s.rows = geometry_of<K>(plan.kept);
  s.along = geometry_of<K>(plan.reduced);
  s.counter = counting.counter();
  s.wide = wide(s.along, s.rows);
  for (int m = 0; m < M; ++m) {
    s.parameters[m] = parameters[m];
    s.wide = s.wide && aligned(parameters[m]);
  }
  return s;
}
template <class C, int K>
RowSet<C, K - 1, 1> row_set(const Tensor* const (&operands)[K], int dim, const CountingStores& counting) {
  const C* const none[] = {nullptr};
  return row_set<C>(operands, dim, none, counting);
}

// The threads of a row: one, a warp or a block. The order of sums depends on their number.
struct Team {
  Block block;
  int lane, lanes;
  template <class T, class Combine> __device__ T join(T value, T identity, Combine combine) const {
    if (lanes == 1) return value;
    if (lanes == static_cast<int>(kWarp)) return reduce_warp(value, combine);
    return reduce_block(block, value, identity, combine);
  }
};

// kHeld: numbers of each operand that a thread holds in registers, a multiple of kRun; 0: it reads them in each pass.
template <class C, int N, int M, int kHeld> class Row {
 public:
  using Set = RowSet<C, N, M>;
  const Set& set;
  const Team team;
  const std::int64_t index, length;
  static constexpr bool kReads = kHeld == 0;  // in each pass, from memory

  __device__ Row(const Set& s, const Team& t, std::int64_t row) : set(s), team(t), index(row), length(s.along.numel) {
    s.rows.locate(row, base_);
    if constexpr (kHeld > 0)
      unrolled<kHeld / kRun>([&](auto run) {
        if (position(run, 0) < length) load(run, held_[run]);
      });
  }

  template <class F> __device__ C sum(const F& f) const {
    C part[kRun] = {};
    each_run([&](std::int64_t run, const auto& x, const auto& p) {
      for (int j = 0; j < kRun; ++j)
        if (position(run, j) < length) part[j] += at(f, run, j, x, p);
    });
    for (int half = kRun / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) part[j] += part[j + half];
    return team.join(part[0], C{0}, Plus{});
  }
  // The largest number that is not NaN; -Inf if there is none.
  template <class F> __device__ C largest(const F& f) const {
    constexpr C kLeast = -std::numeric_limits<C>::infinity();
    C best = kLeast;
    each_run([&](std::int64_t run, const auto& x, const auto& p) {
      for (int j = 0; j < kRun; ++j) {
        if (position(run, j) >= length) continue;
        const C value = at(f, run, j, x, p);
        best = value > best ? value : best;
      }
    });
    return team.join(best, kLeast, [](C a, C b) { return a > b ? a : b; });
  }
  // The sum of exp(x[0] - top) in one pass, and `top`, the largest number as above (online softmax). A thread's sum is
  // relative to the largest number so far, and is rescaled when a larger one follows.
  __device__ C sum_exps(C& top) const {
    constexpr C kLeast = -std::numeric_limits<C>::infinity();
    const auto shrink = [](C from, C to) { return from == kLeast ? C{0} : math::exp(from - to); };
    C best = kLeast;
    C part[kRun] = {};
    each_run([&](std::int64_t run, const auto& x, const auto&) {
      C most = best;
      for (int j = 0; j < kRun; ++j) most = position(run, j) < length && x[0][j] > most ? x[0][j] : most;
      if (most > best) {
        const C factor = shrink(best, most);
        for (C& sum : part) sum *= factor;
        best = most;
      }
      const C from = best == kLeast ? C{0} : best;
      for (int j = 0; j < kRun; ++j)
        if (position(run, j) < length) part[j] += math::exp(x[0][j] - from);
    });
    for (int half = kRun / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) part[j] += part[j + half];
    top = team.join(best, kLeast, [](C a, C b) { return a > b ? a : b; });
    const C factor = best == top ? C{1} : shrink(best, top);
    return team.join(part[0] * factor, C{0}, Plus{});
  }
  // x[0] of one element.
  __device__ C element(std::int64_t i) const {
    const ElementOperand& o = set.along.operand[1];
    return load_element<C>(o.dtype, o.data, base_[1] + i * o.strides[0]);
  }
  template <class F> __device__ void write(const F& f) const {
    each_run([&](std::int64_t run, const auto& x, const auto& p) {
      C y[kRun] = {};
      std::int64_t to[kRun];
      int n = 0;
      for (int j = 0; j < kRun; ++j) {
        to[j] = base_[0] + position(run, j) * set.along.operand[0].strides[0];
        if (position(run, j) >= length) continue;
        y[j] = at(f, run, j, x, p);
        n = j + 1;
      }
      if (set.wide) store_run(set.along.operand[0], to[0], y, set.counter);
      else store_scattered(set.along.operand[0], to, n, y, set.counter);
    });
  }
  // Replaces x[0] by f's value, so that kept(f, ..) does not compute f again if the row is in registers.
  template <class F> __device__ void keep(const F& f) {
    if constexpr (kHeld > 0) {
      each_run([&](std::int64_t run, auto& x, const auto& p) {
        for (int j = 0; j < kRun; ++j)
          if (position(run, j) < length) x[0][j] = at(f, run, j, x, p);
      });
    }
  }
  template <class F> __device__ C kept(const F& f, std::int64_t i, const C (&x)[N], const C (&p)[M]) const {
    if constexpr (kHeld > 0) return x[0];
    else return f(i, x, p);
  }
  __device__ bool first_lane() const { return team.lane == 0; }

 private:
  // Number j of this thread's run.
  __device__ std::int64_t position(std::int64_t run, int j) const {
    const std::int64_t start = run * team.lanes * kRun;
    return set.wide ? start + team.lane * kRun + j : start + team.lane + j * team.lanes;
  }
  template <class F>
  __device__ C at(const F& f, std::int64_t run, int j, const C (&x)[N][kRun], const C (&p)[M][kRun]) const {
    C numbers[N], parameters[M];
    for (int k = 0; k < N; ++k) numbers[k] = x[k][j];
    for (int m = 0; m < M; ++m) parameters[m] = p[m][j];
    return f(position(run, j), numbers, parameters);
  }
  // f(run, the operands' numbers, the parameters') for each of this thread's runs. Numbers beyond the row's end are
  // undefined.
  template <class F> __device__ void each_run(const F& f) const { runs(*this, f); }
  template <class F> __device__ void each_run(const F& f) { runs(*this, f); }
  template <class Self, class F> static __device__ void runs(Self& self, const F& f) {
    if constexpr (kHeld > 0) {
      unrolled<kHeld / kRun>([&](auto run) {
        if (self.position(run, 0) >= self.length) return;
        C p[M][kRun] = {};
        self.load_parameters(run, p);
        f(run, self.held_[run], p);
      });
    } else {
      C p[M][kRun] = {};
      C x[N][kRun];
      for (std::int64_t run = 0; self.position(run, 0) < self.length; ++run) {
        self.load(run, x);
        self.load_parameters(run, p);
        f(run, x, p);
      }
    }
  }
  __device__ void load(std::int64_t run, C (&x)[N][kRun]) const {
    for (int k = 0; k < N; ++k) {
      const ElementOperand& o = set.along.operand[k + 1];
      std::int64_t at[kRun];
      for (int j = 0; j < kRun; ++j) at[j] = base_[k + 1] + inside(run, j) * o.strides[0];
      if (set.wide) load_run(o, at[0], x[k]);
      else load_scattered(o, at, x[k]);
    }
  }
  __device__ void load_parameters(std::int64_t run, C (&p)[M][kRun]) const {
    for (int m = 0; m < M; ++m) {
      const C* numbers = set.parameters[m];
      if (!numbers) continue;
      if (set.wide) {
        const auto* parts = reinterpret_cast<const RunPart<C>*>(numbers + position(run, 0));
        for (int j = 0; j < kRun; ++j) p[m][j] = parts[j / RunPart<C>::kSize].of[j % RunPart<C>::kSize];
      } else {
        for (int j = 0; j < kRun; ++j) p[m][j] = numbers[inside(run, j)];
      }
    }
  }
  __device__ std::int64_t inside(std::int64_t run, int j) const {
    const std::int64_t i = position(run, j);
    return i < length ? i : 0;
  }

  std::int64_t base_[N + 1];
  C held_[kHeld > 0 ? kHeld / kRun : 1][N][kRun];
};

template <class C, int N, int M, int kHeld, class Body> struct TeamRows {
  RowSet<C, N, M> set;
  Body body;
  int lanes;  // a warp's or the block's
  __device__ void operator()(const Block& b) const {
    const std::int64_t row = b.index * (b.threads / lanes) + b.thread / lanes;
    if (row >= set.rows.numel) return;  // a whole warp does
    Row<C, N, M, kHeld> r(set, {b, b.thread % lanes, lanes}, row);
    body(r);
  }
};
template <class C, int N, int M, class Body> struct ThreadRows {
  RowSet<C, N, M> set;
  Body body;
  __device__ void operator()(std::int64_t row) const {
    Row<C, N, M, 0> r(set, {{}, 0, 1}, row);
    body(r);
  }
};

// body(row) for every row.
template <class C, int N, int M, class Body> void for_rows(const RowSet<C, N, M>& set, const Body& body) {
  const std::int64_t rows = set.rows.numel;
  const std::int64_t n = set.length();
  if (rows == 0) return;
  // Short rows, and columns: neighbouring threads take neighbours in memory.
  const Geometry<N + 1>& g = set.rows;
  const bool columns = set.along.operand[1].strides[0] != 1 && g.operand[1].strides[g.ndim - 1] == 1;
  if (n <= 16 || columns) return for_each(rows, ThreadRows<C, N, M, Body>{set, body});
  const auto start = [&]<int kHeld>(std::integral_constant<int, kHeld>, unsigned lanes) {
    const std::int64_t each = kThreads / lanes;
    for_blocks((rows + each - 1) / each, TeamRows<C, N, M, kHeld, Body>{set, body, static_cast<int>(lanes)});
  };
  constexpr std::integral_constant<int, kRun> kOne;
  constexpr std::integral_constant<int, 4 * kRun> kFour;
  constexpr std::integral_constant<int, 0> kNone;
  const unsigned lanes = n <= kWarp * kFour ? kWarp : kThreads;
  if (n <= lanes * kOne) start(kOne, lanes);
  else if (n <= lanes * kFour) start(kFour, lanes);
  else start(kNone, lanes);
}

}  // namespace gradual::cuda
