#include "softmax.h"

namespace gradual::cpu {
namespace {

// f(in0, in1, out, scratch, n) for each row along the call's dim; in1 is null where there is one input.
template <class F> void along(const OpCall& call, Outputs& out, const F& f) {
  const Rows rows = rows_along(call[0].sizes(), call.get<DimAttrs>().dim);
  if (out[0].numel() == 0) return;
  visit_floating(out[0].dtype(), [&](auto zero) {
    using T = decltype(zero);
    const RowReader<T> first(call[0], rows);
    std::optional<RowReader<T>> second;
    if (call.inputs.size() > 1) second.emplace(call[1], rows);
    const RowWriter<T> write(out[0], rows);
    for_rows<T>(rows, 4, out[0].dtype(), [&](std::int64_t row, T* buffer, CastCounts* counts) {
      const std::int64_t n = rows.length;
      const T* a = first(row, buffer);
      const T* b = second ? (*second)(row, buffer + n) : nullptr;
      T* to = write.target(row, buffer + 2 * n);
      f(a, b, to, buffer + 3 * n, n);
      write.store(row, to, counts);
    });
  });
}

}  // namespace

void softmax(const OpCall& call, Outputs& out) {
  along(call, out, []<class T>(const T* x, const T*, T* y, T*, std::int64_t n) {
    const T largest = row_max(x, n);
    for (std::int64_t i = 0; i < n; ++i) y[i] = math::exp(x[i] - largest);
    const T sum = blocked_sum<T>(n, [&](std::int64_t i) { return y[i]; });
    for (std::int64_t i = 0; i < n; ++i) y[i] /= sum;
  });
}

void softmax_backward(const OpCall& call, Outputs& out) {
  along(call, out, []<class T>(const T* dy, const T* y, T* dx, T*, std::int64_t n) {
    const T dot = blocked_sum<T>(n, [&](std::int64_t i) { return dy[i] * y[i]; });
    for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dot);
  });
}

void log_softmax(const OpCall& call, Outputs& out) {
  along(call, out,
        []<class T>(const T* x, const T*, T* y, T* exps, std::int64_t n) { log_softmax_row(x, y, exps, n); });
}

void log_softmax_backward(const OpCall& call, Outputs& out) {
  along(call, out, []<class T>(const T* dy, const T* y, T* dx, T*, std::int64_t n) {
    const T sum = blocked_sum<T>(n, [&](std::int64_t i) { return dy[i]; });
    for (std::int64_t i = 0; i < n; ++i) dx[i] = dy[i] - math::exp(y[i]) * sum;
  });
}

}  // namespace gradual::cpu
