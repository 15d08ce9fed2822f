// Attention by cuDNN's fused kernels, as graphs of operations in the patterns "Fused flash attention fprop" and "bprop"
// of its documentation, without dropout. The single operation for attention (SDPA_FWD) has no causal mask before cuDNN
// 9.21. In backward the last product writes dq directly: with an f32 tensor in between, cuDNN's kernels add atomically.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "../kernels/attention.h"
#include "../kernels/movement.h"
#include "../runtime/memory.h"
#include "../runtime/runtime.h"
#include "cudnn_graph.h"
#include "cudnn_plans.h"

namespace gradual::cuda {
namespace {

using Id = OperationGraph::Id;

constexpr std::size_t kMostPlans = 256;    // per thread
constexpr std::size_t kOldest = 91002;     // older versions have known errors or do not support -Inf
constexpr std::size_t kAnyLength = 91600;  // older versions need whole blocks of 128 keys in backward
constexpr float kMasked = -std::numeric_limits<float>::infinity();

Dims4 dims(const Shape& s) { return {s[0], s[1], s[2], s[3]}; }
Dims4 turned(Dims4 d) {
  std::swap(d[2], d[3]);
  return d;
}

bool begins_vector(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0; }
// Vector loads read eight numbers at a time.
bool fits(const Tensor& t) {
  if (!begins_vector(t) || t.strides()[3] != 1) return false;
  for (int d = 0; d < 3; ++d)
    if (t.strides()[d] < 8 || t.strides()[d] % 8 != 0) return false;
  return true;
}
Tensor fitting(const Tensor& t) { return fits(t) ? t : copied(t, t.dtype()); }

// The graph of a call, and the tensors of a run, in the order of `ids`.
class Plan : Pinned {
 public:
  explicit Plan(const Attention& a, const DescribedGpu* gpu = nullptr) : type_(cudnn_type(a.q.dtype())) {
    rows_ = dims(a.logsumexp.sizes());
    q_ = take(a.q);
    kt_ = take(a.k, true);
    if (a.backward()) backward(a);
    else forward(a);
    plan_.emplace(graph_, true, gpu);
  }

  explicit operator bool() const { return static_cast<bool>(*plan_); }
  std::int64_t scratch() const { return plan_->scratch(); }

  bool run(const Attention& a) {
    if (!*plan_) return false;
    const auto scale = static_cast<float>(a.scale);
    const float one = 1;
    const Workspace sums(static_cast<std::size_t>(a.backward() ? a.logsumexp.numel() : 0) * sizeof(float));
    std::vector<const void*> data{a.q.raw(), a.k.raw()};
    if (a.backward())
      for (const Tensor* t : {&a.v, &a.y, &a.logsumexp, &a.dy, &a.dq, &a.dk, &a.dv}) data.push_back(t->raw());
    else
      for (const Tensor* t : {&a.v, &a.y, &a.logsumexp}) data.push_back(t->raw());
    data.push_back(&scale);
    if (a.causal) data.push_back(&kMasked);
    if (a.backward()) data.insert(data.end(), {&one, sums.as<void>()});
    return plan_->run(ids_, data, a.backward() ? "cuDNN attention, backward" : "cuDNN attention");
  }

 private:
  Id noted(Id id) {
    ids_.push_back(id);
    return id;
  }
  // A tensor in memory, or its matrices transposed.
  Id take(const Tensor& t, bool transposed = false) {
    Dims4 sizes = dims(t.sizes());
    Dims4 strides = dims(t.strides());
    if (transposed) {
      sizes = turned(sizes);
      strides = turned(strides);
    }
    return noted(graph_.memory(type_, sizes, strides));
  }
  Id take_rows() { return noted(graph_.memory(CUDNN_DATA_FLOAT, rows_, packed_strides(rows_))); }
  Dims4 score_sizes(const Attention& a) const { return {rows_[0], rows_[1], rows_[2], a.k.size(2)}; }
  Id product(Id x, Id y, const Dims4& sizes) {
    const Id made = graph_.between(sizes);
    graph_.matmul(x, y, made);
    return made;
  }
  // -Inf for keys after the query.
  Id masked(Id scores, Id least) {
    const Id rows = graph_.index(scores, 2);
    const Id columns = graph_.index(scores, 3);
    return graph_.select(scores, least, graph_.compare(CUDNN_POINTWISE_CMP_GE, rows, columns));
  }

  void forward(const Attention& a) {
    const Id v = take(a.v);
    const Id y = take(a.y);
    const Id logsumexp = take_rows();
    const Id scale = noted(graph_.number());
    Id scores = graph_.pointwise(CUDNN_POINTWISE_MUL, product(q_, kt_, score_sizes(a)), scale);
    if (a.causal) scores = masked(scores, noted(graph_.number()));
    const Id top = graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, rows_);
    const Id exps = graph_.pointwise(CUDNN_POINTWISE_EXP, graph_.pointwise(CUDNN_POINTWISE_SUB, scores, top));
    const Id sum = graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, exps, rows_);
    graph_.pointwise_into(logsumexp, CUDNN_POINTWISE_ADD, top, graph_.pointwise(CUDNN_POINTWISE_LOG, sum));
    const Id p = graph_.between(score_sizes(a), type_);
    graph_.pointwise_into(p, CUDNN_POINTWISE_DIV, exps, sum);
    graph_.matmul(p, v, y);
  }

  // With p = exp(score - logsumexp): dv = p^T dy, dscore = p (dy v^T - sum(dy y)) scale, dk = dscore^T q, dq = dscore
  // k.
  void backward(const Attention& a) {
    const Id vt = take(a.v, true);
    const Id y = take(a.y);
    const Id logsumexp = take_rows();
    const Id dy = take(a.dy);
    const Id dq = take(a.dq);
    const Id dk = take(a.dk);
    const Id dv = take(a.dv);
    const Id scale = noted(graph_.number());
    const Id least = a.causal ? noted(graph_.number()) : 0;
    const Id one = noted(graph_.number());
    const Id along = take_rows();
    const Id each = graph_.pointwise(CUDNN_POINTWISE_MUL, dy, y);
    graph_.pointwise_into(along, CUDNN_POINTWISE_MUL, graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, each, rows_), one);

    const Dims4 sizes = score_sizes(a);
    Id scores = graph_.pointwise(CUDNN_POINTWISE_MUL, product(q_, kt_, sizes), scale);
    scores = graph_.pointwise(CUDNN_POINTWISE_SUB, scores, logsumexp);
    if (a.causal) scores = masked(scores, least);
    const Id p = graph_.pointwise(CUDNN_POINTWISE_EXP, scores);
    const Dims4 transposed = turned(sizes);
    const Dims4 strides = turned(packed_strides(sizes));
    graph_.matmul(graph_.reshape(p, transposed, strides, type_), dy, dv);

    Id dscores = graph_.pointwise(CUDNN_POINTWISE_SUB, product(dy, vt, sizes), along);
    dscores = graph_.pointwise(CUDNN_POINTWISE_MUL, dscores, p);
    dscores = graph_.pointwise(CUDNN_POINTWISE_MUL, dscores, scale);
    graph_.matmul(graph_.reshape(dscores, transposed, strides, type_), q_, dk);
    graph_.matmul(dscores, graph_.reshape(kt_, dims(a.k.sizes()), dims(a.k.strides()), CUDNN_DATA_FLOAT), dq);
  }

  cudnnDataType_t type_;
  Dims4 rows_{};
  Id q_ = 0;
  Id kt_ = 0;
  OperationGraph graph_;
  std::vector<Id> ids_;
  std::optional<OperationPlan> plan_;
};

using Key = std::vector<std::int64_t>;
Key key_of(const Attention& a) {
  Key key{current_device(), static_cast<std::int64_t>(a.q.dtype()), a.causal, a.backward()};
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.y, &a.dy, &a.dq, &a.dk, &a.dv}) {
    if (!t->defined()) continue;
    key.insert(key.end(), t->sizes().begin(), t->sizes().end());
    key.insert(key.end(), t->strides().begin(), t->strides().end());
  }
  return key;
}

bool has_kernels_for(const Attention& a) {
  const std::int64_t queries = a.q.size(2);
  const std::int64_t keys = a.k.size(2);
  const auto size_fits = [](const Tensor& t) { return t.size(3) % 8 == 0 && t.size(3) <= 128; };
  if (!is_half(a.q.dtype())) return false;
  if (!size_fits(a.q) || !size_fits(a.v) || cudnnGetVersion() < kOldest) return false;
  if (!a.backward()) return true;
  return !(queries == 1 && keys == 1) && (keys % 128 == 0 || cudnnGetVersion() >= kAnyLength);
}

// `count` entries of the batch (dim 0) or of the heads (dim 1), from `begin` on.
Attention part_of(const Attention& a, int dim, std::int64_t begin, std::int64_t count) {
  Attention part = a;
  for (Tensor* t : {&part.q, &part.k, &part.v, &part.y, &part.logsumexp, &part.dy, &part.dq, &part.dk, &part.dv}) {
    if (!t->defined()) continue;
    Shape sizes = t->sizes();
    sizes[dim] = count;
    *t = as_strided(*t, sizes, t->strides(), t->offset() + begin * t->strides()[dim]);
  }
  return part;
}

std::int64_t parts_of(std::int64_t n, std::int64_t each) { return (n + each - 1) / each; }

// The kernels of backward write the gradients of all scores to scratch memory, so large calls are split into even
// parts.
bool start(const Attention& a) {
  Plan& plan = plan_of<Plan>(key_of(a), a, kMostPlans);
  if (plan.scratch() <= a.most_scratch) return plan.run(a);
  const int dim = a.q.size(0) > 1 ? 0 : 1;
  const std::int64_t all = a.q.size(dim);
  const std::int64_t parts = std::min(all, parts_of(plan.scratch(), a.most_scratch));
  const std::int64_t step = parts_of(all, parts);
  if (step >= all) return plan.run(a);
  for (std::int64_t begin = 0; begin < all; begin += step) {
    Attention part = part_of(a, dim, begin, std::min(step, all - begin));
    if (!begins_vector(part.logsumexp)) part.logsumexp = copied(part.logsumexp, part.logsumexp.dtype());
    if (!start(part)) return false;
  }
  return true;
}

}  // namespace

bool has_plan(const Attention& a, const DescribedGpu& gpu) { return has_kernels_for(a) && Plan(a, &gpu); }

bool attend(const Attention& given) {
  Attention a = given;
  for (const Tensor* made : {&a.dq, &a.dk, &a.dv})
    if (made->defined() && !fits(*made)) return false;
  if (!has_kernels_for(a) || (!a.backward() && !fits(a.y))) return false;
  for (Tensor* read : {&a.q, &a.k, &a.v, &a.dy})
    if (read->defined()) *read = fitting(*read);
  if (a.backward()) a.y = fitting(a.y);
  return start(a);
}

}  // namespace gradual::cuda
