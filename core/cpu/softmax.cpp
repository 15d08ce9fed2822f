// softmax, log_softmax, and cross entropy on class indices (log-softmax and negative log-likelihood in one).
#include <algorithm>

#include "../kernels/formulas.h"
#include "../ops/dispatch.h"
#include "../support/throwf.h"
#include "kernels.h"
#include "rows.h"

namespace gradual::cpu {
namespace {

template <class T> T row_sum(const T* x, std::int64_t n) {
  return blocked_sum<T>(n, [&](std::int64_t i) { return x[i]; });
}

// Short rows are handled kAtOnce at a time: one loop computes all their exponentials or logarithms.
inline constexpr int kAtOnce = 16;
std::int64_t rows_at_once(std::int64_t n) { return n < 64 ? kAtOnce : 1; }

// exp of x[0 .. n), in place.
template <class T> void exp_all(T* x, std::int64_t n) {
  for_lanes(x, n, [&](std::int64_t at, const T* lanes, int count) {
    T y[kLanes];
    for (int p = 0; p < kLanes; ++p) y[p] = math::exp(lanes[p]);
    std::copy_n(y, count, x + at);
  });
}

// out = x - max - log(sum(exp(x - max))) for each row. A row of -Inf alone gives NaN, as 0/0 does.
template <class T> void log_softmax_rows(const T* x, T* out, std::int64_t rows, std::int64_t n) {
  T largest[kAtOnce], log_sum[kAtOnce];
  std::fill_n(log_sum, kAtOnce, T{1});
  for (std::int64_t r = 0; r < rows; ++r) {
    largest[r] = row_max(x + r * n, n);
    for (std::int64_t i = r * n; i < (r + 1) * n; ++i) out[i] = x[i] - largest[r];
  }
  exp_all(out, rows * n);
  for (std::int64_t r = 0; r < rows; ++r) log_sum[r] = row_sum(out + r * n, n);
  for (std::int64_t r = 0; r < kAtOnce; ++r) log_sum[r] = math::log(log_sum[r]);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = r * n; i < (r + 1) * n; ++i) out[i] = x[i] - largest[r] - log_sum[r];
}

// Calls f(row, in0, in1, out, n) for each row along the call's dim; in1 is null if there is one input.
template <class F> void along(const OpCall& call, Outputs& out, const F& f) {
  if (out[0].numel() == 0) return;
  const int dim = call.get<DimAttrs>().dim;
  const auto dim_last = [&](const Tensor& t) { return dim + 1 < t.dim() ? transpose(t, dim, -1) : t; };
  write_row_major(dim_last(out[0]), [&](Tensor& to) {
    visit_floating(to.dtype(), [&]<class T>(T) {
      const Rows rows(to.sizes(), 1);
      const std::int64_t n = rows.length;
      map_rows<T>(rows.count, n, dim_last(call[0]), call.inputs.size() > 1 ? dim_last(call[1]) : Tensor(), to,
                  [&](std::int64_t row, const T* a, const T* b, T* y) { f(row, a, b, y, n); });
    });
  });
}

void softmax(const OpCall& call, Outputs& out) {
  const std::int64_t rows = call.get<DimAttrs>().causal ? call[0].size(-2) : 0;
  along(call, out, [&]<class T>(std::int64_t row, const T* x, const T*, T* y, std::int64_t n) {
    const std::int64_t seen = rows ? std::min(row % rows + 1, n) : n;
    softmax_row(x, y, seen);
    std::fill(y + seen, y + n, T{0});
  });
}

void softmax_backward(const OpCall& call, Outputs& out) {
  along(call, out, []<class T>(std::int64_t, const T* dy, const T* y, T* dx, std::int64_t n) {
    const T dot = blocked_sum<T>(n, [&](std::int64_t i) { return dy[i] * y[i]; });
    for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dot);
  });
}

void log_softmax(const OpCall& call, Outputs& out) {
  along(call, out,
        []<class T>(std::int64_t, const T* x, const T*, T* y, std::int64_t n) { log_softmax_rows(x, y, 1, n); });
}

void log_softmax_backward(const OpCall& call, Outputs& out) {
  along(call, out, []<class T>(std::int64_t, const T* dy, const T* y, T* dx, std::int64_t n) {
    const T sum = row_sum(dy, n);
    for (std::int64_t i = 0; i < n; ++i) dx[i] = dy[i] - math::exp(y[i]) * sum;
  });
}

// The class indices of a call on rows of c logits. The constructor checks all of them, before anything is written.
struct Classes {
  const std::int64_t* data;
  std::int64_t stride, ignore, counted = 0;  // rows that are not ignored
  Classes(const OpCall& call, const Tensor& t, std::int64_t c)
      : data(static_cast<const std::int64_t*>(t.raw())),
        stride(t.strides()[0]),
        ignore(call.get<CrossEntropyAttrs>().ignore_index) {
    for (std::int64_t i = 0; i < t.size(0); ++i) {
      const std::int64_t label = (*this)[i];
      if (label == ignore) continue;
      if (label < 0 || label >= c)
        throwf(call, "class {} in row {}; classes must be 0 to {}, or ignore_index {}", label, i, c - 1, ignore);
      ++counted;
    }
  }
  std::int64_t operator[](std::int64_t row) const { return data[row * stride]; }
};

// -sum(t * log p) for the target t = (1 - smoothing) * onehot(label) + smoothing / n.
template <class T> T row_loss(const T* logp, std::int64_t label, double smoothing, std::int64_t n) {
  if (smoothing == 0) return -logp[label];
  return static_cast<T>(1 - smoothing) * -logp[label] +
         static_cast<T>(smoothing / static_cast<double>(n)) * -row_sum(logp, n);
}

template <class T> void cross_entropy(const OpCall& call, Outputs& out) {
  const auto& a = call.get<CrossEntropyAttrs>();
  const Rows rows(call[0].sizes(), 1);
  const std::int64_t n = rows.length;
  const Classes classes(call, call[1], n);
  const Scratch losses_scratch(static_cast<std::size_t>(rows.count) * sizeof(T) + 1);
  T* losses = losses_scratch.as<T>();
  map_neighbours<T>(rows.count, rows_at_once(n), call[0], n, {}, 0, out[1], n,
                    [&](std::int64_t row, std::int64_t some, const T* x, const T*, T* logp) {
                      log_softmax_rows(x, logp, some, n);
                      for (const std::int64_t end = row + some; row < end; ++row, logp += n)
                        losses[row] =
                            classes[row] == a.ignore_index ? T{0} : row_loss(logp, classes[row], a.label_smoothing, n);
                    });
  CastCounts* const cast = counts_for(dtype_of<T>, out[0].dtype());
  if (a.reduction == Reduction::none) return cast_and_store(out[0].dtype(), losses, out[0].raw(), 1, rows.count, cast);
  T loss = row_sum(losses, rows.count);
  if (a.reduction == Reduction::mean) loss /= static_cast<T>(classes.counted);  // NaN (0/0) if all rows are ignored
  cast_and_store(out[0].dtype(), &loss, out[0].raw(), 1, 1, cast);
}

// dx = dy * (softmax - target).
template <class T> void cross_entropy_backward(const OpCall& call, Outputs& out) {
  const auto& a = call.get<CrossEntropyAttrs>();
  const Rows rows(call[1].sizes(), 1);
  const std::int64_t n = rows.length;
  const Classes classes(call, call[2], n);
  const bool mean = a.reduction == Reduction::mean;
  const Loaded<T> dy(call[0], Loaded<T>::As::rows);
  const T off = static_cast<T>(a.label_smoothing / static_cast<double>(std::max<std::int64_t>(1, n)));
  const T on = static_cast<T>(1 - a.label_smoothing);
  map_neighbours<T>(rows.count, rows_at_once(n), call[1], n, {}, 0, out[0], n,
                    [&](std::int64_t row, std::int64_t some, const T* logp, const T*, T* dx) {
                      std::copy_n(logp, some * n, dx);
                      exp_all(dx, some * n);
                      for (const std::int64_t end = row + some; row < end; ++row, dx += n) {
                        const std::int64_t label = classes[row];
                        if (label == a.ignore_index) {
                          std::fill_n(dx, n, T{0});
                          continue;
                        }
                        T g = dy.data()[call[0].numel() > 1 ? row : 0];
                        if (mean) g /= static_cast<T>(classes.counted);
                        const T at_label = g * (dx[label] - off - on);
                        for (std::int64_t i = 0; i < n; ++i) dx[i] = g * (dx[i] - off);
                        dx[label] = at_label;
                      }
                    });
}

}  // namespace

void register_softmax() {
  set_kernel(OpId::softmax, softmax);
  set_kernel(OpId::softmax_backward, softmax_backward);
  set_kernel(OpId::log_softmax, log_softmax);
  set_kernel(OpId::log_softmax_backward, log_softmax_backward);
  set_kernel(OpId::cross_entropy, floating([]<class T>(const OpCall& c, Outputs& out) { cross_entropy<T>(c, out); }));
  set_kernel(OpId::cross_entropy_backward,
             floating([]<class T>(const OpCall& c, Outputs& out) { cross_entropy_backward<T>(c, out); }));
}

}  // namespace gradual::cpu
