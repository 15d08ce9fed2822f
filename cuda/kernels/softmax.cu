// softmax, log_softmax, and cross entropy on class indices, counterpart of core/cpu/softmax.cpp.
#include "../../core/kernels/formulas.h"
#include "../../core/tensor/memory.h"
#include "../runtime/index_check.h"
#include "kernels.h"
#include "movement.h"
#include "reduce.h"
#include "rows.h"

namespace gradual::cuda {
namespace {

// --- along a dim -----------------------------------------------------------------------------------------------------

// exp(x - max) / sum. If `causal` is not 0, it is the number of rows per matrix: row i of them sees elements 0 to i,
// and the others become 0.
template <class C> struct Softmax {
  std::int64_t causal = 0;
  template <class R> __device__ void operator()(R& row) const {
    const std::int64_t seen = causal ? row.index % causal + 1 : row.length;
    const C largest = row.largest([&](std::int64_t i, const auto& x, const auto&) {
      return i < seen ? x[0] : -std::numeric_limits<C>::infinity();
    });
    const auto exps = [&](std::int64_t i, const auto& x, const auto&) {
      return i < seen ? math::exp(x[0] - largest) : C{0};
    };
    row.keep(exps);
    const C sum = row.sum([&](std::int64_t i, const auto& x, const auto& p) { return row.kept(exps, i, x, p); });
    row.write(
        [&](std::int64_t i, const auto& x, const auto& p) { return i < seen ? row.kept(exps, i, x, p) / sum : C{0}; });
  }
};

template <class C, class R> struct LogSum {  // the largest number of a row, and log(sum of exp(x - largest))
  C largest, log_sum;
  __device__ explicit LogSum(const R& row) {
    C sum;
    if constexpr (R::kReads) {
      sum = row.sum_exps(largest);
    } else {
      const C top = row.largest([](std::int64_t, const auto& x, const auto&) { return x[0]; });
      largest = top;
      sum = row.sum([=](std::int64_t, const auto& x, const auto&) { return math::exp(x[0] - top); });
    }
    log_sum = math::log(sum);
  }
};

template <class C> struct LogSoftmax {
  template <class R> __device__ void operator()(R& row) const {
    const LogSum<C, R> s(row);
    row.write([&](std::int64_t, const auto& x, const auto&) { return x[0] - s.largest - s.log_sum; });
  }
};

// x: dy, y.
template <class C> struct SoftmaxBackward {
  template <class R> __device__ void operator()(R& row) const {
    const C dot = row.sum([](std::int64_t, const auto& x, const auto&) { return x[0] * x[1]; });
    row.write([&](std::int64_t, const auto& x, const auto&) { return x[1] * (x[0] - dot); });
  }
};
template <class C> struct LogSoftmaxBackward {
  template <class R> __device__ void operator()(R& row) const {
    const C sum = row.sum([](std::int64_t, const auto& x, const auto&) { return x[0]; });
    row.write([&](std::int64_t, const auto& x, const auto&) { return x[0] - math::exp(x[1]) * sum; });
  }
};

// Runs Body over the rows along the call's dim, with N inputs.
template <int N, template <class> class Body> void along(const OpCall& c, Outputs& out) {
  if (out[0].numel() == 0) return;
  const auto& a = c.get<DimAttrs>();
  cpu::visit_floating(out[0].dtype(), [&]<class C>(C) {
    Body<C> body;
    if constexpr (requires { body.causal; }) body.causal = a.causal ? c[0].size(-2) : 0;
    const Tensor* operands[N + 1] = {&out[0]};
    for (int k = 0; k < N; ++k) operands[k + 1] = &c[k];
    const Tensor* const(&all)[N + 1] = operands;
    const CountingStores counting(dtype_of<C>, out[0].dtype());
    for_rows(row_set<C>(all, a.dim, counting), body);
  });
}

// --- cross entropy ---------------------------------------------------------------------------------------------------

// The classes of a call. One out of range is reported at the next wait for the device; its row counts as zeros.
struct Classes {
  const std::int64_t* data;
  std::int64_t stride, ignore;
  IndexCheck check;
  Classes(const OpCall& call, const Tensor& t, std::int64_t classes)
      : data(static_cast<const std::int64_t*>(t.raw())),
        stride(t.strides()[0]),
        ignore(call.get<CrossEntropyAttrs>().ignore_index),
        check(index_check(call, classes)) {}
  __device__ std::int64_t operator[](std::int64_t row) const { return data[row * stride]; }
};

// The rows that are not ignored.
template <class C> struct CountRows {
  using Number = std::int64_t;
  using Acc = std::int64_t;
  static constexpr int kInputs = 1;
  std::int64_t ignore;
  C* to;
  __device__ Acc identity() const { return 0; }
  __device__ Acc map(const Number (&label)[1], std::int64_t, std::int64_t) const { return label[0] != ignore; }
  __device__ Acc combine(Acc a, Acc b) const { return a + b; }
  __device__ void finish(Acc n, std::int64_t) const { *to = static_cast<C>(n); }
};
template <class C> void count_rows(const Tensor& labels, const Classes& classes, C* to) {
  const Tensor* const operands[] = {&labels};
  reduce(reduce_source(operands, 1), CountRows<C>{classes.ignore, to});
}

template <class C> struct AddLosses {
  using Number = C;
  using Acc = C;
  static constexpr int kInputs = 1;
  const C* counted;  // null: a sum
  Stored<C> to;
  __device__ C identity() const { return 0; }
  __device__ C map(const C (&loss)[1], std::int64_t, std::int64_t) const { return loss[0]; }
  __device__ C combine(C a, C b) const { return a + b; }
  __device__ void finish(C sum, std::int64_t) const {
    to(counted ? sum / *counted : sum, 0);
  }  // NaN (0/0) if all rows are ignored
};

// Writes log-probabilities, and -sum(t * log p) for the target t = (1 - s) * onehot(class) + s / C.
template <class C> struct CrossEntropy {
  Classes classes;
  C smoothing, on, each;
  Stored<C> losses;
  template <class R> __device__ void operator()(R& row) const {
    const LogSum<C, R> s(row);
    const auto logp = [&](std::int64_t, const auto& x, const auto&) { return x[0] - s.largest - s.log_sum; };
    row.write(logp);
    const C all = smoothing == 0 ? C{0} : row.sum(logp);
    if (!row.first_lane()) return;
    const std::int64_t label = classes[row.index];
    const bool taken = label != classes.ignore && classes.check(label, row.index);
    const C hit = taken ? row.element(label) - s.largest - s.log_sum : C{0};
    const C loss = smoothing == 0 ? -hit : on * -hit + each * -all;
    losses(taken ? loss : C{0}, row.index);
  }
};

// Logits in the layout that a cast would give, because the order of sums depends on it: logits with gaps, or with rows
// not aligned to 16 bytes, are cast.
Tensor placed(const Tensor& x, const CrossEntropyAttrs& a) {
  const bool in_place = is_dense(x.sizes(), x.strides()) && (!x.is_contiguous() || aligned(x.raw()));
  return a.narrow == DType::f32 || in_place ? x : copied(x, DType::f32);
}

template <class C> void cross_entropy_of(const OpCall& call, Outputs& out) {
  const auto& a = call.get<CrossEntropyAttrs>();
  const std::int64_t n = call[0].size(1);
  const Classes classes(call, call[1], n);
  const bool each = a.reduction == Reduction::none;
  const bool mean = a.reduction == Reduction::mean;
  const Workspace counted(sizeof(C));
  const CategoryScope scope(Category::workspace);
  const Tensor losses = each ? out[0] : empty({call[0].size(0)}, {.dtype = dtype_of<C>, .device = out[0].device()});
  const CountingStores counting(dtype_of<C>, out[0].dtype());
  const Stored<C> loss(out[0], counting);
  CrossEntropy<C> body{classes, static_cast<C>(a.label_smoothing), static_cast<C>(1 - a.label_smoothing),
                       static_cast<C>(a.label_smoothing / static_cast<double>(n)),
                       each ? loss : Stored<C>(static_cast<C*>(losses.raw()))};
  const Tensor x = placed(call[0], a);
  const Tensor* const operands[] = {&out[1], &x};
  for_rows(row_set<C>(operands, 1, counting), body);
  if (each) return;
  if (mean) count_rows(call[1], classes, counted.as<C>());
  const Tensor* const terms[] = {&losses};
  reduce(reduce_source(terms, 1), AddLosses<C>{mean ? counted.as<C>() : nullptr, loss});
}

// dx = dy * (softmax - target).
template <class C> struct CrossEntropyBackward {
  Classes classes;
  C off, on;
  ElementOperand dy;  // one number, or one per row
  const C* counted;
  template <class R> __device__ void operator()(R& row) const {
    const std::int64_t label = classes[row.index];
    const bool inside = label >= 0 && label < classes.check.size;
    if (label != classes.ignore && !inside && row.first_lane()) classes.check.report(label, row.index);
    const bool taken = label != classes.ignore && inside;
    C g = load_element<C>(dy.dtype, dy.data, row.index * dy.strides[0]);
    if (counted) g /= *counted;
    row.write([&](std::int64_t i, const auto& x, const auto&) {
      if (!taken) return C{0};
      return g * (i == label ? math::exp(x[0]) - off - on : math::exp(x[0]) - off);
    });
  }
};

template <class C> void cross_entropy_backward_of(const OpCall& call, Outputs& out) {
  const auto& a = call.get<CrossEntropyAttrs>();
  const std::int64_t n = call[1].size(1);
  const Classes classes(call, call[2], n);
  const bool mean = a.reduction == Reduction::mean;
  const Workspace counted(sizeof(C));
  if (mean) count_rows(call[2], classes, counted.as<C>());
  ElementOperand dy{static_cast<char*>(call[0].raw()), call[0].dtype()};
  if (call[0].numel() > 1) dy.strides[0] = call[0].strides()[0];
  const Tensor* const operands[] = {&out[0], &call[1]};
  const CountingStores counting(dtype_of<C>, out[0].dtype());
  for_rows(row_set<C>(operands, 1, counting),
           CrossEntropyBackward<C>{classes, static_cast<C>(a.label_smoothing / static_cast<double>(n)),
                                   static_cast<C>(1 - a.label_smoothing), dy, mean ? counted.as<C>() : nullptr});
}

void cross_entropy(const OpCall& call, Outputs& out) {
  cpu::visit_floating(out[1].dtype(), [&]<class C>(C) { cross_entropy_of<C>(call, out); });
}
void cross_entropy_backward(const OpCall& call, Outputs& out) {
  if (out[0].numel() == 0) return;
  cpu::visit_floating(out[0].dtype(), [&]<class C>(C) { cross_entropy_backward_of<C>(call, out); });
}

// Half logits: loss and log-probabilities are f32, and the gradient is rounded to the logits' dtype once.
std::optional<Attrs> widened_cross_entropy(const OpCall& call) {
  if (!call[0].defined() || !is_half(call[0].dtype())) return std::nullopt;
  auto attrs = call.get<CrossEntropyAttrs>();
  attrs.narrow = call[0].dtype();
  return attrs;
}

}  // namespace

void register_softmax() {
  set_kernel(OpId::softmax, along<1, Softmax>);
  set_kernel(OpId::softmax_backward, along<2, SoftmaxBackward>);
  set_kernel(OpId::log_softmax, along<1, LogSoftmax>);
  set_kernel(OpId::log_softmax_backward, along<2, LogSoftmaxBackward>);
  capability(OpId::cross_entropy).widened = widened_cross_entropy;
  set_kernel(OpId::cross_entropy, cross_entropy);
  set_kernel(OpId::cross_entropy_backward, cross_entropy_backward);
}

}  // namespace gradual::cuda
