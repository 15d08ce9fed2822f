// Attention in blocks of keys, fused. Threads share blocks of queries in forward, and heads or blocks of keys in
// backward. Each number is computed as by the ops of the reference: the products by ordered_gemm() or accumulate(), all
// else by the formulas of the elementwise kernels and the order of the op sum.
#include "../kernels/attention_blocks.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "../kernels/formulas.h"
#include "../kernels/matrix_batch.h"
#include "../support/multiversion.h"
#include "../support/parallel.h"
#include "../tensor/memory.h"
#include "ordered_gemm.h"
#include "rounded_gemm.h"
#include "row_sum.h"

namespace gradual::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kQueries = 64;  // of a task in forward
constexpr float kLeastShift = 0.5F;
constexpr float kMostShift = 16;

// Matrices of f32 with any strides.
struct Matrices : MatrixBatch {
  const float* data;
  explicit Matrices(const Tensor& t) : MatrixBatch{t.sizes(), t.strides()}, data(t.data<float>()) {}
  // Matrix `i` of the batch, from row `row` on.
  MatrixRef<float> at(std::int64_t i, const Shape& batch, std::int64_t row = 0) const {
    const int n = sizes.size();
    return {data + offset(i, batch) + row * strides[n - 2], strides[n - 2], strides[n - 1]};
  }
};
MatrixRef<float> turned(const MatrixRef<float>& m) { return {m.data, m.col_stride, m.row_stride}; }
MatrixRef<float> row_major(const float* data, std::int64_t columns) { return {data, columns, 1}; }

// c [m, n], row-major, = a b. Its first element is number `first` of the whole product.
void multiply(const Accumulator& how, std::int64_t m, std::int64_t n, std::int64_t k, const MatrixRef<float>& a,
              const MatrixRef<float>& b, float* c, std::int64_t first) {
  const Gemm<float> g{m, n, k, a, b, c, n};
  if (is_ordered_f32(how)) return ordered_gemm(g);
  std::fill_n(c, m * n, 0.0F);
  accumulate(how, g, false, first, n);
}

void round(const RowRounding& how, float* values, std::int64_t n, std::int64_t first) {
  if (how.round) how.round(values, n, first);
}

// The mask's and dropout's numbers of one row, from key `first` on; elements are `step` apart. Null: none.
struct MaskRow {
  const bool* visible = nullptr;
  const float* added = nullptr;
  std::int64_t step = 0;
};
struct Mask {
  Tensor tensor;
  MatrixBatch matrices;

  // A mask of one dim goes for all queries.
  explicit Mask(const Tensor& t) : tensor(t) {
    if (!t.defined()) return;
    matrices = {t.sizes(), t.strides()};
    while (matrices.sizes.size() < 2) matrices.insert_dim(0);
  }
  MaskRow row(std::int64_t i, const Shape& batch, std::int64_t query, std::int64_t first) const {
    if (!tensor.defined()) return {};
    const int n = matrices.sizes.size();
    std::int64_t at = matrices.offset(i, batch);
    if (matrices.sizes[n - 2] != 1) at += query * matrices.strides[n - 2];
    const std::int64_t step = matrices.sizes[n - 1] == 1 ? 0 : matrices.strides[n - 1];
    at += first * step;
    if (tensor.dtype() == DType::bool_) return {tensor.data<bool>() + at, nullptr, step};
    return {nullptr, tensor.data<float>() + at, step};
  }
};

// The score of each key: s scale + mask, -Inf for those from `seen` on. For vectorized().
void mask_scores(float* s, std::int64_t n, float scale, const MaskRow& mask, std::int64_t seen) {
  for (std::int64_t i = 0; i < n; ++i) s[i] *= scale;
  if (mask.visible)
    for (std::int64_t i = 0; i < n; ++i) s[i] = mask.visible[i * mask.step] ? s[i] : -kInf;
  if (mask.added)
    for (std::int64_t i = 0; i < n; ++i) s[i] += mask.added[i * mask.step];
  for (std::int64_t i = std::max<std::int64_t>(0, seen); i < n; ++i) s[i] = -kInf;
}

// The largest of n numbers; NaN if there is one.
float maximum_of(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;
  float most[kLanes];
  std::fill_n(most, kLanes, -kInf);
  std::int64_t at = 0;
  for (; at + kLanes <= n; at += kLanes)
    for (std::int64_t i = 0; i < kLanes; ++i) most[i] = math::maximum(most[i], x[at + i]);
  for (std::int64_t i = 0; at + i < n; ++i) most[i] = math::maximum(most[i], x[at + i]);
  for (std::int64_t i = 1; i < kLanes; ++i) most[0] = math::maximum(most[0], most[i]);
  return most[0];
}

// A maximum that occurs more than once moves up.
float moved(float most, const float* s, std::int64_t n, float beta_less_one) {
  std::int64_t times = 0;
  for (std::int64_t i = 0; i < n; ++i) times += s[i] == most ? 1 : 0;
  if (times <= 1 || !(most > -kInf)) return most;
  const float wanted = most > 0 ? most * beta_less_one : -most;
  return most + math::clamp(wanted, kLeastShift, kMostShift);
}

float finite(float maximum) { return maximum == -kInf ? 0 : maximum; }

// Rows of queries of one head in forward.
struct QueryBlock {
  const BlockAttention& call;
  const Mask& mask;
  const Mask& kept;
  std::int64_t queries;
  std::int64_t image;
  std::int64_t first;
  std::int64_t rows;
  float* scores = nullptr;   // [rows, keys], then P
  float* product = nullptr;  // P V [rows, D]
  float* o = nullptr;
  // of each row: the running maximum and the next one, the running sum and that of the block
  float* most = nullptr;
  float* higher = nullptr;
  float* sum = nullptr;
  float* in_block = nullptr;

  static std::int64_t room(const BlockAttention& call, std::int64_t keys) {
    return kQueries * (keys + 2 * call.values + 4);
  }
  void place(float* memory, std::int64_t keys) {
    scores = memory;
    product = scores + kQueries * keys;
    o = product + kQueries * call.values;
    most = o + kQueries * call.values;
    higher = most + kQueries;
    sum = higher + kQueries;
    in_block = sum + kQueries;
  }

  std::int64_t row_number() const { return image * queries + first; }

  void score(const Matrices& q, const ForwardBlock& b) const {
    const Matrices k(b.k);
    multiply(b.scores, rows, b.count, q.cols(), q.at(image, call.batch, first), turned(k.at(image, call.batch)), scores,
             row_number() * b.count);
    const auto scale = static_cast<float>(call.scale);
    const auto beta_less_one = static_cast<float>(call.beta - 1);
    const bool begins = b.first == 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const s = scores + i * b.count;
      const MaskRow row = mask.row(image, call.batch, first + i, b.first);
      const std::int64_t seen = call.causal ? first + i + 1 - b.first : b.count;
      const float before = begins ? 0 : most[i];
      const bool shifts = call.beta != 0;
      higher[i] = vectorized([=, n = b.count] {
        mask_scores(s, n, scale, row, seen);
        float largest = maximum_of(s, n);
        if (shifts) largest = moved(largest, s, n, beta_less_one);
        return begins ? largest : math::maximum(before, largest);
      });
    }
  }

  void round_maximum(const ForwardBlock& b) const {
    if (!b.maximum.round) return;
    float* const numbers = in_block;
    for (std::int64_t i = 0; i < rows; ++i) numbers[i] = finite(higher[i]);
    b.maximum.round(numbers, rows, row_number());
    for (std::int64_t i = 0; i < rows; ++i) higher[i] = higher[i] == -kInf ? -kInf : numbers[i];
  }

  void exponentials(const ForwardBlock& b) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const p = scores + i * b.count;
      const float less = finite(higher[i]);
      const MaskRow factors = kept.row(image, call.batch, first + i, b.first);
      in_block[i] = vectorized([=, n = b.count] {
        for (std::int64_t j = 0; j < n; ++j) p[j] = math::exp(p[j] - less);
        const float total = sum_of_row(p, n);
        if (factors.added)
          for (std::int64_t j = 0; j < n; ++j) p[j] *= factors.added[j * factors.step];
        return total;
      });
    }
    round(b.p, scores, rows * b.count, row_number() * b.count);
  }

  // Adds P V to O, and the sums of P to those of the earlier blocks.
  void add(const ForwardBlock& b) const {
    const std::int64_t width = call.values;
    const bool begins = b.first == 0;
    float* const pv = begins ? o : product;
    multiply(b.output, rows, width, b.count, row_major(scores, b.count), Matrices(b.v).at(image, call.batch), pv,
             row_number() * width);
    round(b.product, pv, rows * width, row_number() * width);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float shrink = begins ? 0 : math::exp(most[i] - finite(higher[i]));
      sum[i] = begins ? in_block[i] : shrink * sum[i] + in_block[i];
      most[i] = higher[i];
      if (begins) continue;
      float* const to = o + i * width;
      const float* const term = pv + i * width;
      vectorized([=] {
        for (std::int64_t j = 0; j < width; ++j) to[j] = shrink * to[j] + term[j];
      });
    }
    round(b.sum, sum, rows, row_number());
    if (!begins) round(b.running, o, rows * width, row_number() * width);
  }

  void finish(float* output, float* logsumexp) const {
    const std::int64_t width = call.values;
    for (std::int64_t i = 0; i < rows; ++i) {
      const bool blind = most[i] == -kInf;
      const float divisor = blind ? 1 : sum[i];
      logsumexp[row_number() + i] = blind ? 0 : most[i] + math::log(divisor);
      const float* const from = o + i * width;
      float* const to = output + (row_number() + i) * width;
      vectorized([=] {
        for (std::int64_t j = 0; j < width; ++j) to[j] = from[j] / divisor;
      });
    }
  }
};

std::int64_t most_keys(const auto& blocks) {
  std::int64_t most = 0;
  for (const auto& b : blocks) most = std::max(most, b.count);
  return most;
}

// to [columns, rows] = from [rows, columns] transposed.
void transpose(const float* from, std::int64_t rows, std::int64_t columns, float* to) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t i = 0; i < rows; i += kTile)
    for (std::int64_t j = 0; j < columns; j += kTile)
      for (std::int64_t c = j; c < std::min(columns, j + kTile); ++c)
        for (std::int64_t r = i; r < std::min(rows, i + kTile); ++r) to[c * rows + r] = from[r * columns + c];
}

// All queries of one head and a block of keys in backward.
struct Gradients {
  const BlockAttention& call;
  const BackwardOperands& operands;
  const Mask& mask;
  const Mask& kept;
  std::int64_t queries;
  std::int64_t image = 0;
  // [queries, keys]
  float* p = nullptr;
  float* ds = nullptr;
  float* rounded = nullptr;

  static std::int64_t room(std::int64_t queries, std::int64_t keys) { return 3 * queries * keys; }
  void place(float* memory, std::int64_t keys) {
    p = memory;
    ds = p + queries * keys;
    rounded = ds + queries * keys;
  }

  MatrixRef<float> of(const Tensor& t) const { return Matrices(t).at(image, call.batch); }

  void drop(float* values, const BackwardBlock& b) const {
    for (std::int64_t i = 0; kept.tensor.defined() && i < queries; ++i) {
      const MaskRow factors = kept.row(image, call.batch, i, b.first);
      float* const row = values + i * b.count;
      for (std::int64_t j = 0; j < b.count; ++j) row[j] *= factors.added[j * factors.step];
    }
  }

  void probabilities(const BackwardBlock& b) const {
    multiply(b.scores, queries, b.count, call.q.size(-1), of(call.q), turned(of(b.k)), p, image * queries * b.count);
    const auto scale = static_cast<float>(call.scale);
    const float* const logsumexp = operands.logsumexp.data<float>() + image * queries;
    for (std::int64_t i = 0; i < queries; ++i) {
      float* const s = p + i * b.count;
      const MaskRow row = mask.row(image, call.batch, i, b.first);
      const std::int64_t seen = call.causal ? i + 1 - b.first : b.count;
      const float less = logsumexp[i];
      vectorized([=, n = b.count] {
        mask_scores(s, n, scale, row, seen);
        for (std::int64_t j = 0; j < n; ++j) s[j] = math::exp(s[j] - less);
      });
    }
  }

  // `from` transposed, its columns rounded.
  MatrixRef<float> columns(const RowRounding& how, const float* from, const BackwardBlock& b) const {
    if (!how.round) return turned(row_major(from, b.count));
    if (how.each_alone) {
      std::copy_n(from, queries * b.count, rounded);
      round(how, rounded, queries * b.count, 0);
      return turned(row_major(rounded, b.count));
    }
    transpose(from, queries, b.count, rounded);
    round(how, rounded, queries * b.count, image * b.count * queries);
    return row_major(rounded, queries);
  }

  void values(const BackwardBlock& b, float* dv) const {
    const float* from = p;
    if (kept.tensor.defined()) {
      std::copy_n(p, queries * b.count, ds);
      drop(ds, b);
      from = ds;
    }
    multiply(b.dv, b.count, call.values, queries, columns(b.p_columns, from, b), of(operands.along_queries),
             dv + (image * call.keys + b.first) * call.values, image * b.count * call.values);
  }

  void scores(const BackwardBlock& b) const {
    multiply(b.dp, queries, b.count, call.values, of(operands.along_values), turned(of(b.v)), ds,
             image * queries * b.count);
    drop(ds, b);
    round(b.dp_rows, ds, queries * b.count, image * queries * b.count);
    const float* const delta = operands.delta.data<float>() + image * queries;
    for (std::int64_t i = 0; i < queries; ++i) {
      float* const row = ds + i * b.count;
      const float* const weights = p + i * b.count;
      const float less = delta[i];
      vectorized([=, n = b.count] {
        for (std::int64_t j = 0; j < n; ++j) row[j] = weights[j] * (row[j] - less);
      });
    }
  }

  void scaled(float* values, std::int64_t n) const {
    const auto scale = static_cast<float>(call.scale);
    vectorized([=] {
      for (std::int64_t i = 0; i < n; ++i) values[i] *= scale;
    });
  }

  // `part` [queries, E]: what the block adds to dQ.
  void queries_and_keys(const BackwardBlock& b, float* part, float* dk) const {
    const std::int64_t size = call.q.size(-1);
    float* const keys = dk + (image * call.keys + b.first) * size;
    const MatrixRef<float> across = columns(b.ds_columns, ds, b);
    multiply(b.dk, b.count, size, queries, across, of(operands.q), keys, image * b.count * size);
    scaled(keys, b.count * size);
    if (!b.ds_once) round(b.ds_rows, ds, queries * b.count, image * queries * b.count);
    const MatrixRef<float> along = b.ds_once ? turned(across) : row_major(ds, b.count);
    multiply(b.dq, queries, size, b.count, along, of(b.k_of_dq), part, image * queries * size);
    scaled(part, queries * size);
  }

  void run(const BackwardBlock& b, float* part, float* dk, float* dv) const {
    probabilities(b);
    values(b, dv);
    scores(b);
    queries_and_keys(b, part, dk);
  }
};

void add_to(float* to, const float* from, std::int64_t n) {
  vectorized([=] {
    for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
  });
}

}  // namespace

bool has_attention_blocks(Device device) { return device.is_cpu(); }

std::int64_t most_keys_of_block() { return kShortRow; }

void attend_in_blocks(const BlockAttention& call, const std::vector<ForwardBlock>& blocks, const Tensor& o,
                      const Tensor& logsumexp) {
  const CategoryScope workspace(Category::workspace);
  const Matrices q(call.q);
  const Mask mask(call.mask);
  const Mask kept(call.kept);
  const std::int64_t queries = q.rows();
  const std::int64_t each = (queries + kQueries - 1) / kQueries;
  const std::int64_t keys = most_keys(blocks);
  parallel_for(numel(call.batch) * each, 1, [&](std::int64_t task, std::int64_t end) {
    const Scratch memory(static_cast<std::size_t>(QueryBlock::room(call, keys)) * sizeof(float));
    for (; task < end; ++task) {
      const std::int64_t first = task % each * kQueries;
      QueryBlock rows{.call = call,
                      .mask = mask,
                      .kept = kept,
                      .queries = queries,
                      .image = task / each,
                      .first = first,
                      .rows = std::min(kQueries, queries - first)};
      rows.place(memory.as<float>(), keys);
      for (const ForwardBlock& b : blocks) {
        rows.score(q, b);
        rows.round_maximum(b);
        rows.exponentials(b);
        rows.add(b);
      }
      rows.finish(o.data<float>(), logsumexp.data<float>());
    }
  });
}

void attend_in_blocks_backward(const BlockAttention& call, const std::vector<BackwardBlock>& blocks,
                               const BackwardOperands& operands, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const CategoryScope workspace(Category::workspace);
  const Mask mask(call.mask);
  const Mask kept(call.kept);
  const std::int64_t queries = call.q.size(-2);
  const std::int64_t size = queries * call.q.size(-1);
  const std::int64_t keys = most_keys(blocks);
  const std::int64_t images = numel(call.batch);
  const auto room = static_cast<std::size_t>(Gradients::room(queries, keys)) * sizeof(float);
  const auto count = static_cast<std::int64_t>(blocks.size());
  const Gradients gradients{.call = call, .operands = operands, .mask = mask, .kept = kept, .queries = queries};
  const auto run = [&](std::int64_t image, std::int64_t block, float* memory, float* part) {
    Gradients one = gradients;
    one.image = image;
    one.place(memory, keys);
    one.run(blocks[static_cast<std::size_t>(block)], part, dk.data<float>(), dv.data<float>());
  };
  // Heads are shared by the threads if there are enough of them, else the blocks of one head after the other. Parts of
  // dQ are added in the order of the blocks either way.
  if (images >= num_threads() || count == 1) {
    parallel_for(images, 1, [&](std::int64_t image, std::int64_t end) {
      const Scratch memory(room);
      const Scratch part(static_cast<std::size_t>(size) * sizeof(float));
      for (; image < end; ++image) {
        float* const to = dq.data<float>() + image * size;
        run(image, 0, memory.as<float>(), to);
        for (std::int64_t block = 1; block < count; ++block) {
          run(image, block, memory.as<float>(), part.as<float>());
          add_to(to, part.as<float>(), size);
        }
      }
    });
    return;
  }
  const Scratch parts(static_cast<std::size_t>(count * size) * sizeof(float));
  for (std::int64_t image = 0; image < images; ++image) {
    parallel_for(count, 1, [&](std::int64_t block, std::int64_t end) {
      const Scratch memory(room);
      for (; block < end; ++block) run(image, block, memory.as<float>(), parts.as<float>() + block * size);
    });
    float* const to = dq.data<float>() + image * size;
    std::copy_n(parts.as<float>(), size, to);
    for (std::int64_t block = 1; block < count; ++block) add_to(to, parts.as<float>() + block * size, size);
  }
}

}  // namespace gradual::cpu
