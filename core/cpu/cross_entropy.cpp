// Cross entropy on class indices: log-softmax and the negative log-likelihood in one row each way.
#include <string>

#include "../dispatch.h"
#include "../error.h"
#include "../ops.h"
#include "kernels.h"
#include "softmax.h"

namespace gradual::cpu {
namespace {

// Checks every class before a number is written, and counts the rows that are not ignored.
std::int64_t check_classes(const OpCall& call, const Tensor& classes, std::int64_t c, std::int64_t ignore) {
  const auto* y = static_cast<const std::int64_t*>(classes.raw());
  const std::int64_t stride = classes.strides()[0];
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < classes.size(0); ++i) {
    const std::int64_t label = y[i * stride];
    if (label == ignore) continue;
    if (label < 0 || label >= c)
      fail(describe(call) + ": class " + std::to_string(label) + " in row " + std::to_string(i) +
           "; classes must be 0 to " + std::to_string(c - 1) + ", or ignore_index " + std::to_string(ignore));
    ++counted;
  }
  return counted;
}

// -sum(t * log p) for the target t that has 1 - s on the class and s/C more on each.
template <class T> T row_loss(const T* logp, std::int64_t label, double smoothing, std::int64_t n) {
  T loss = -logp[label];
  if (smoothing > 0) {
    const T all = -blocked_sum<T>(n, [&](std::int64_t i) { return logp[i]; });
    loss = static_cast<T>(1 - smoothing) * loss + static_cast<T>(smoothing / static_cast<double>(n)) * all;
  }
  return loss;
}

template <class T> void cross_entropy_of(const OpCall& call, Outputs& out) {
  const auto& a = call.get<CrossEntropyAttrs>();
  const Rows rows = rows_of_last(call[0].sizes(), 1);
  const std::int64_t counted = check_classes(call, call[1], rows.length, a.ignore_index);
  const auto* classes = static_cast<const std::int64_t*>(call[1].raw());
  const std::int64_t stride = call[1].strides()[0];
  const RowReader<T> read(call[0], rows);
  const RowWriter<T> write(out[1], rows);
  const Scratch losses_scratch(static_cast<std::size_t>(rows.count) * sizeof(T) + 1);
  T* losses = losses_scratch.as<T>();
  for_rows<T>(rows, 3, out[1].dtype(), [&](std::int64_t row, T* buffer, CastCounts* counts) {
    const T* x = read(row, buffer);
    T* logp = write.target(row, buffer + rows.length);
    log_softmax_row(x, logp, buffer + 2 * rows.length, rows.length);
    const std::int64_t label = classes[row * stride];
    losses[row] = label == a.ignore_index ? T{0} : row_loss(logp, label, a.label_smoothing, rows.length);
    write.store(row, logp, counts);
  });
  CastCounts* const counts = counts_for(dtype_of<T>, out[0].dtype());
  if (a.reduction == static_cast<int>(Reduction::none))
    return store(out[0].dtype(), losses, out[0].raw(), 1, rows.count, counts);
  T loss = blocked_sum<T>(rows.count, [&](std::int64_t i) { return losses[i]; });
  if (a.reduction == static_cast<int>(Reduction::mean)) loss /= static_cast<T>(counted);  // 0/0: NaN, as it should
  store(out[0].dtype(), &loss, out[0].raw(), 1, 1, counts);
}

// dx = dy * (softmax - target).
template <class T> void cross_entropy_backward_of(const OpCall& call, Outputs& out) {
  const auto& a = call.get<CrossEntropyAttrs>();
  const Tensor& dy = call[0];
  const Rows rows = rows_of_last(call[1].sizes(), 1);
  const std::int64_t counted = check_classes(call, call[2], rows.length, a.ignore_index);
  const bool mean = a.reduction == static_cast<int>(Reduction::mean);
  const auto* classes = static_cast<const std::int64_t*>(call[2].raw());
  const std::int64_t stride = call[2].strides()[0];
  const Loaded<T> grads(dy, Loaded<T>::As::rows);
  const RowReader<T> read(call[1], rows);
  const RowWriter<T> write(out[0], rows);
  const T off = static_cast<T>(a.label_smoothing / static_cast<double>(std::max<std::int64_t>(1, rows.length)));
  const T on = static_cast<T>(1 - a.label_smoothing);
  for_rows<T>(rows, 2, out[0].dtype(), [&](std::int64_t row, T* buffer, CastCounts* counts) {
    const T* logp = read(row, buffer);
    T* dx = write.target(row, buffer + rows.length);
    const std::int64_t label = classes[row * stride];
    if (label == a.ignore_index) {
      std::fill(dx, dx + rows.length, T{0});
    } else {
      T g = grads.data()[dy.numel() > 1 ? row : 0];
      if (mean) g /= static_cast<T>(counted);
      for (std::int64_t i = 0; i < rows.length; ++i) dx[i] = g * (math::exp(logp[i]) - off);
      dx[label] = g * (math::exp(logp[label]) - off - on);
    }
    write.store(row, dx, counts);
  });
}

void cross_entropy(const OpCall& call, Outputs& out) {
  visit_floating(out[1].dtype(), [&](auto zero) { cross_entropy_of<decltype(zero)>(call, out); });
}
void cross_entropy_backward(const OpCall& call, Outputs& out) {
  visit_floating(out[0].dtype(), [&](auto zero) { cross_entropy_backward_of<decltype(zero)>(call, out); });
}

}  // namespace

void register_losses() {
  KernelFn* cpu = columns().cpu;
  cpu[static_cast<int>(OpId::cross_entropy)] = cross_entropy;
  cpu[static_cast<int>(OpId::cross_entropy_backward)] = cross_entropy_backward;
}

}  // namespace gradual::cpu
