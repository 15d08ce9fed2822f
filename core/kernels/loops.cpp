#include "loops.h"

#include <mutex>

#include "../formats/cast_counts.h"

namespace gradual::cpu {

constexpr std::int64_t kShortRow = 128;  // rows shorter than this are combined into blocks

static void finish_view(const Loop& loop, View& v) {
  v.linear = true;
  v.constant = true;
  std::int64_t step = 1;
  for (int d = loop.ndim - 1; d >= 0; --d) {
    v.linear = v.linear && v.strides[d] == step;
    v.constant = v.constant && v.strides[d] == 0;
    step *= loop.sizes[d];
  }
}

void simplify(Loop& loop, bool order) {
  const auto move = [&](int to, int from) {
    loop.sizes[to] = loop.sizes[from];
    for (int i = 0; i < loop.operands; ++i) loop.view[i].strides[to] = loop.view[i].strides[from];
  };
  int n = 0;
  for (int d = 0; d < loop.ndim; ++d)
    if (loop.sizes[d] != 1) move(n++, d);
  if (n == 0) {  // one element
    loop.sizes[n++] = 1;
    for (int i = 0; i < loop.operands; ++i) loop.view[i].strides[0] = i == 0 ? 1 : 0;
  }
  for (int d = 1; order && d < n; ++d) {  // insertion sort, outermost (largest stride) first
    for (int k = d; k > 0 && loop.view[0].strides[k - 1] < loop.view[0].strides[k]; --k) {
      std::swap(loop.sizes[k - 1], loop.sizes[k]);
      for (int i = 0; i < loop.operands; ++i) std::swap(loop.view[i].strides[k - 1], loop.view[i].strides[k]);
    }
  }
  int top = 0;
  for (int d = 1; d < n; ++d) {
    const bool merge = std::all_of(loop.view, loop.view + loop.operands,
                                   [&](const View& v) { return v.strides[top] == v.strides[d] * loop.sizes[d]; });
    const std::int64_t outer = merge ? loop.sizes[top] : 1;
    move(merge ? top : ++top, d);
    loop.sizes[top] *= outer;
  }
  loop.ndim = top + 1;
  for (int i = 0; i < loop.operands; ++i) finish_view(loop, loop.view[i]);
}

std::int64_t offset_of(const Loop& loop, int operand, std::int64_t position) {
  std::int64_t offset = 0;
  for (int d = loop.ndim - 1; d >= 0; --d) {
    offset += position % loop.sizes[d] * loop.view[operand].strides[d];
    position /= loop.sizes[d];
  }
  return offset;
}

char* together(const Loop& loop, int operand, std::int64_t position, std::int64_t n) {
  const View& view = loop.view[operand];
  const int last = loop.ndim - 1;
  if (!view.linear && (view.strides[last] != 1 || position % loop.sizes[last] + n > loop.sizes[last])) return nullptr;
  return view.data +
         (view.linear ? position : offset_of(loop, operand, position)) * static_cast<std::int64_t>(size_of(view.dtype));
}

std::int64_t Loop::block(std::int64_t position, std::int64_t end) const {
  const std::int64_t row = ndim > 0 ? sizes[ndim - 1] : 1;
  const std::int64_t n = std::min(kBlock, end - position);
  return row < kShortRow ? n : std::min(n, row - position % row);
}

Loop make_loop(const Shape& sizes, std::span<const Tensor* const> operands, bool row_major) {
  Loop loop;
  loop.numel = numel(sizes);
  loop.ndim = sizes.size();
  std::copy_n(sizes.begin(), sizes.size(), loop.sizes);
  for (const Tensor* t : operands) {
    View& v = loop.view[loop.operands++];
    std::fill_n(v.strides, kMaxDims, 0);
    if (!t->defined()) continue;
    v.data = static_cast<char*>(t->raw());
    v.dtype = t->dtype();
    for (int d = 0, lead = sizes.size() - t->dim(); d < t->dim(); ++d)
      if (t->sizes()[d] != 1) v.strides[lead + d] = t->strides()[d];
  }
  simplify(loop, !row_major);
  return loop;
}

void move_raw(const Loop& loop, int operand, std::int64_t position, std::int64_t n, void* dense, Move move) {
  const View& view = loop.view[operand];
  visit_width(size_of(view.dtype), [&]<class W>(W) {
    const std::int64_t step = view.strides[loop.ndim - 1];
    W* here = static_cast<W*>(dense);
    for_rows(loop, position, n, [&](const std::int64_t* offsets, std::int64_t length) {
      W* there = reinterpret_cast<W*>(view.data) + offsets[operand];
      const bool gathers = move == Move::gather;
      if (step == 1) std::copy_n(gathers ? there : here, length, gathers ? here : there);
      else if (step == 0 && gathers) std::fill_n(here, length, *there);
      else if (gathers)
        for (std::int64_t i = 0; i < length; ++i) here[i] = there[i * step];
      else
        for (std::int64_t i = 0; i < length; ++i) there[i * step] = here[i];
      here += length;
    });
  });
}

void merge_counts(CastCounts* into, const CastCounts& chunk) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  *into += chunk;
}

CastCounts* counts_for(DType from, DType to) {
  CastCounts* counts = cast_counts();
  if (!counts || from == to) return nullptr;
  if (is_floating(from) && is_floating(to)) {
    const FloatInfo a = float_info(from);
    const FloatInfo b = float_info(to);
    if (b.mantissa_bits >= a.mantissa_bits && b.exponent_bits >= a.exponent_bits) return nullptr;
  }
  return counts;
}

}  // namespace gradual::cpu
