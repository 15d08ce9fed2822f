// matmul and linear: shapes and batches here, the product itself in gemm.cpp.
#include <algorithm>

#include "../dispatch.h"
#include "../parallel.h"
#include "conv.h"
#include "gemm.h"
#include "kernels.h"
#include "loaded.h"
#include "loops.h"

namespace gradual::cpu {
namespace {

// The batch dims of an operand seen with the output's batch sizes: its stride along each, 0 where it is repeated.
Shape batch_strides(const Tensor& t, const Shape& strides, const Shape& batch) {
  Shape out = Shape::filled(batch.size(), 0);
  const int own = std::max(0, t.ndim() - 2);
  for (int d = 0; d < own; ++d)
    if (t.sizes()[d] != 1) out[batch.size() - own + d] = strides[d];
  return out;
}

std::int64_t batch_offset(std::int64_t i, const Shape& batch, const Shape& strides) {
  std::int64_t offset = 0;
  for (int d = batch.size() - 1; d >= 0; --d) {
    offset += i % batch[d] * strides[d];
    i /= batch[d];
  }
  return offset;
}

// Whether the batch dims and rows of a are rows of one matrix, `row_stride` apart.
bool rows_merge(const Tensor& a, const Shape& strides, const Shape& batch, std::int64_t* row_stride) {
  if (a.ndim() != batch.size() + 2) return false;
  Shape sizes = a.sizes();
  Shape own = strides;
  sizes.erase(sizes.size() - 1);
  own.erase(own.size() - 1);
  for (int d = 0; d < batch.size(); ++d)
    if (sizes[d] != batch[d]) return false;
  Shape merged;
  if (!view_strides(sizes, own, {numel(sizes)}, merged)) return false;
  *row_stride = merged[0];
  return true;
}

template <class T>
void run_batches(const Gemm<T>& g, const Shape& batch, const Shape& a_strides, const Shape& b_strides) {
  const std::int64_t work = std::max<std::int64_t>(1, g.m * g.n * g.k);
  const auto one = [&](std::int64_t i) {
    Gemm<T> part = g;
    part.a.data += batch_offset(i, batch, a_strides);
    part.b.data += batch_offset(i, batch, b_strides);
    part.c += i * g.m * g.n;
    return part;
  };
  const std::int64_t count = numel(batch);
  if (work >= 4 * kWorthThreads || count == 1) {
    for (std::int64_t i = 0; i < count; ++i) gemm(one(i));
  } else {
    parallel_for(count, std::max<std::int64_t>(1, kWorthThreads / work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) gemm_serial(one(i));
    });
  }
}

template <class T> void matmul_of(const Tensor& ta, const Tensor& tb, Tensor& out) {
  const Loaded<T> a(ta);
  const Loaded<T> b(tb);
  const Result<T> c(out);
  const bool rows = ta.ndim() > 1;
  const bool cols = tb.ndim() > 1;
  Gemm<T> g{};
  g.m = rows ? ta.size(-2) : 1;
  g.n = cols ? tb.size(-1) : 1;
  g.k = ta.size(-1);
  g.a = {a.data(), rows ? a.strides()[ta.ndim() - 2] : 0, a.strides()[ta.ndim() - 1]};
  g.b = {b.data(), b.strides()[cols ? tb.ndim() - 2 : 0], cols ? b.strides()[tb.ndim() - 1] : 0};
  g.c = c.data();
  g.ldc = g.n;
  Shape batch;
  for (int d = 0; d < out.ndim() - (rows ? 1 : 0) - (cols ? 1 : 0); ++d) batch.push_back(out.sizes()[d]);
  if (batch.empty()) {
    gemm(g);
  } else if (tb.ndim() <= 2 && rows_merge(ta, a.strides(), batch, &g.a.row_stride)) {
    g.m *= numel(batch);
    gemm(g);
  } else {
    run_batches(g, batch, batch_strides(ta, a.strides(), batch), batch_strides(tb, b.strides(), batch));
  }
  c.store();
}

void matmul(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  visit_floating(out[0].dtype(), [&](auto zero) { matmul_of<decltype(zero)>(call[0], call[1], out[0]); });
}

// The rows of x [.., in] as one matrix: in place where its strides allow, else through one copy.
template <class T> void linear_of(const OpCall& call, Tensor& out) {
  const Tensor& tx = call[0];
  const Tensor& bias = call[2];
  const Loaded<T> x(tx);
  const Loaded<T> w(call[1]);
  std::optional<Loaded<T>> start;
  if (bias.defined()) start.emplace(bias, Loaded<T>::As::rows);
  const Result<T> y(out);
  Gemm<T> g{};
  g.k = tx.size(-1);
  g.n = call[1].size(0);
  g.m = out.numel() / g.n;
  g.b = {w.data(), w.strides()[1], w.strides()[0]};
  g.c = y.data();
  g.ldc = g.n;
  g.initial = start ? start->data() : nullptr;
  Shape lead = tx.sizes();
  lead.erase(lead.size() - 1);
  Shape lead_strides = x.strides();
  lead_strides.erase(lead_strides.size() - 1);
  const std::int64_t step = x.strides()[tx.ndim() - 1];
  Shape merged;
  if (view_strides(lead, lead_strides, {g.m}, merged)) {
    g.a = {x.data(), merged[0], step};
    gemm(g);
  } else {
    const std::int64_t rows = lead.back();
    lead.erase(lead.size() - 1);
    g.m = rows;
    g.a = {x.data(), lead_strides[lead_strides.size() - 1], step};
    run_batches(g, lead, lead_strides, Shape::filled(lead.size(), 0));
  }
  y.store();
}

void linear(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  visit_floating(out[0].dtype(), [&](auto zero) { linear_of<decltype(zero)>(call, out[0]); });
}

}  // namespace

void register_contractions() {
  KernelFn* cpu = columns().cpu;
  cpu[static_cast<int>(OpId::matmul)] = matmul;
  cpu[static_cast<int>(OpId::linear)] = linear;
  cpu[static_cast<int>(OpId::conv2d)] = conv2d;
  cpu[static_cast<int>(OpId::conv2d_backward_input)] = conv2d_backward_input;
  cpu[static_cast<int>(OpId::conv2d_backward_weight)] = conv2d_backward_weight;
}

}  // namespace gradual::cpu
