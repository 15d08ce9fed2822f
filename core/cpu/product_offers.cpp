#include "product_offers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "../formats/accumulator.h"
#include "../kernels/contraction_operand.h"
#include "../kernels/copies.h"
#include "../kernels/loops.h"
#include "../kernels/matrix_batch.h"
#include "../ops/cpu_backend.h"
#include "../support/error.h"
#include "../support/parallel.h"
#include "gemm.h"

namespace gradual::cpu {
namespace {

inline constexpr std::int64_t kPart = 256;  // rows or columns of a part, at most, in deterministic mode
inline constexpr std::int64_t kTile = 16;   // else parts are multiples of this many rows or columns
// For kernels with `same_bits`, parts are multiples of this many rows or columns: about a tile of the fast kernels.
std::int64_t whole_tiles(DType in) { return in == DType::bf16 ? 32 : 48; }

// The matrices of a tensor in the dtype of the multiplication, with a stride of 1: the tensor itself or a copy.
struct MatrixOperand : MatrixBatch {
  Tensor tensor;
  MatrixOperand(const Tensor& t, DType dtype) : tensor(t) {
    const bool tf32 = rounds_to_tf32(t.dtype());
    if (t.dtype() != dtype || tf32 || !readable(t)) tensor = copied(t, dtype);
    if (tf32) round_tf32(tensor.data<float>(), tensor.numel());
    sizes = tensor.sizes();
    strides = tensor.strides();
  }
  // True if the elements of each row, or of each column, are adjacent and rows (columns) do not overlap. Expanded
  // tensors, with a stride of 0, are copied.
  static bool readable(const Tensor& t) {
    const int n = t.dim();
    if (t.is_contiguous() || n < 2) return t.is_contiguous();
    const Shape& size = t.sizes();
    const Shape& stride = t.strides();
    return (stride[n - 1] == 1 && stride[n - 2] >= size[n - 1]) || (stride[n - 2] == 1 && stride[n - 1] >= size[n - 2]);
  }
  const char* at(std::int64_t offset) const {
    return static_cast<const char*>(tensor.raw()) + offset * static_cast<std::int64_t>(size_of(tensor.dtype()));
  }
  // Strides of one matrix. Where a size is 1, they are changed to strides that oneDNN accepts.
  Strides matrix_strides() const {
    const int n = sizes.size();
    Strides s{strides[n - 2], strides[n - 1]};
    if (rows() == 1 && cols() == 1) return {1, 1};
    if (rows() == 1 && s[1] == 1) s[0] = cols();
    if (cols() == 1 && (s[0] == 1 || s[1] == 0)) s[1] = s[0] == 1 ? rows() : 1;
    return s;
  }
};

[[noreturn, gnu::noinline]] void fail_part() {
  throw_error("internal: a kernel multiplies one part of a product and not another");
}

// True if columns are cut instead of rows. With `same_bits` the longer side is cut. Otherwise columns are cut if a is
// transposed, else rows: so cut, small products of oneDNN have the bits of one thread. Outside deterministic mode the
// longer side is cut if the other is too short for the threads, or if the product is large, since each part reads the
// other operand whole.
bool cuts_columns(const Multiplier& kernel, const Product& p, int threads) {
  constexpr std::int64_t kWide = 128;  // rows or columns per thread
  const bool longer = p.n > p.m;
  const bool columns = p.a_strides[1] != 1;
  if (kernel.same_bits) return longer;
  if (deterministic() || columns == longer) return columns;
  return (columns ? p.n : p.m) < kTile * threads || std::max(p.m, p.n) >= kWide * threads ? longer : columns;
}

// All products of a batch, each on one thread. A single product is cut into parts: by its shape alone in deterministic
// mode if a cut may change bits, else by the number of threads. *relu says whether relu is wanted; it becomes false if
// the kernel applies it. False, with nothing written, if the kernel does not suit.
bool products(const Multiplier& kernel, MatrixOperand& a, const MatrixOperand& b, Shape batch, const float* bias,
              char* c, DType in, DType out, bool* relu = nullptr) {
  merge_rows(a, b, batch);
  const std::int64_t count = numel(batch);
  const std::int64_t width = static_cast<std::int64_t>(size_of(out));
  const std::int64_t m = a.rows();
  const std::int64_t n = b.cols();
  const std::int64_t k = a.cols();
  const std::int64_t work = std::max<std::int64_t>(1, m * n * k);
  const DType stored = a.tensor.dtype();
  Product whole{m, n, k, n, a.matrix_strides(), b.matrix_strides(), in, out, stored, bias != nullptr, work};
  const int threads = work < 2 * kWorthThreads ? 1 : num_threads();
  const bool cuts = count > 1 || threads > 1 || (!kernel.same_bits && deterministic());
  const bool by_columns = cuts_columns(kernel, whole, threads);
  const std::int64_t whole_side = by_columns ? whole.n : whole.m;
  const std::int64_t tile = kernel.same_bits ? whole_tiles(in) : kTile;
  const std::int64_t share = (whole_side + threads - 1) / threads;
  const std::int64_t side = count > 1 || !cuts                     ? whole_side
                            : kernel.same_bits || !deterministic() ? (share + tile - 1) / tile * tile
                                                                   : even_part(whole_side, kPart);
  const std::int64_t parts = (whole_side + side - 1) / side;
  const std::int64_t grain = std::max<std::int64_t>(1, kWorthThreads * parts / whole.work);
  const auto cut = [&](std::int64_t first) {
    Product part = whole;
    (by_columns ? part.n : part.m) = std::min(side, whole_side - first);
    return part;
  };
  if (kernel.same_bits ? !kernel.suits(whole)
                       : cuts && !(kernel.suits(cut(0)) && kernel.suits(cut((parts - 1) * side))))
    return false;
  if (relu && kernel.same_bits) whole.relu = std::exchange(*relu, false);
  if (!cuts) return kernel.run(whole, a.at(0), b.at(0), c, bias);
  parallel_for(count * parts, grain, [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i) {
      const std::int64_t first = i % parts * side;
      const std::int64_t at_a = a.offset(i / parts, batch) + (by_columns ? 0 : first * whole.a_strides[0]);
      const std::int64_t at_b = b.offset(i / parts, batch) + (by_columns ? first * whole.b_strides[1] : 0);
      const std::int64_t at_c = i / parts * whole.m * whole.n + first * (by_columns ? 1 : whole.across);
      if (!kernel.run(cut(first), a.at(at_a), b.at(at_b), c + at_c * width, bias && by_columns ? bias + first : bias))
        fail_part();
    }
  });
  return true;
}

// An operand of a narrower dtype, which is converted to f32 a block of lines at a time. Its `side` lines (rows of a or
// columns of b) are `step` elements apart; each has k elements, `k_step` apart. One of the steps is 1.
struct LongSide {
  const char* data;
  DType dtype;
  std::int64_t side, step, k, k_step;

  bool readable() const { return k_step == 1 || step == 1; }
  const char* at(std::int64_t i) const { return data + i * static_cast<std::int64_t>(size_of(dtype)); }
  // Converts lines [first, first + n) in their memory order: adjacent lines of k, or k lines of n.
  void load(std::int64_t first, std::int64_t n, float* to) const {
    for (std::int64_t i = 0; k_step == 1 && i < n; ++i)
      gradual::fetch_and_cast(dtype, at((first + i) * step), 1, to + i * k, k);
    for (std::int64_t i = 0; k_step != 1 && i < k; ++i)
      gradual::fetch_and_cast(dtype, at(first + i * k_step), 1, to + i * n, n);
  }
};

// A large f32 product of two matrices of a narrower dtype, cut along its longer side into blocks. Only the operand of
// the shorter side is converted to f32 as a whole. Each thread has memory for a block of the other operand and for a
// block of the result. A kernel that reads the dtype needs the latter alone.
struct Blocks {
  std::int64_t m, n, k, size, blocks;  // size: lines per block; the last may have fewer
  bool by_columns;
  LongSide wide;

  // Empty unless the call is one large product of two matrices of the same dtype.
  static std::optional<Blocks> of(const OpCall& call, bool linear) {
    // f32 elements, at least; lines per block, about
    constexpr std::int64_t kLarge = 1 << 20;
    constexpr std::int64_t kBlock = 512;
    if (call[0].dim() < 2 || call[1].dim() != 2 || call[0].dtype() != call[1].dtype()) return {};
    MatrixBatch a{call[0].sizes(), call[0].strides()};
    MatrixBatch b{call[1].sizes(), call[1].strides()};
    if (linear) b.transpose();
    Shape batch = call[0].sizes().first(call[0].dim() - 2);
    merge_rows(a, b, batch);
    if (numel(batch) != 1 || a.sizes.size() != 2) return {};
    const std::int64_t m = a.rows();
    const std::int64_t n = b.cols();
    const std::int64_t k = a.cols();
    const bool by_columns = n > m;
    const auto data = [&](int i) { return static_cast<const char*>(call[i].raw()); };
    const LongSide wide = by_columns ? LongSide{data(1), call[1].dtype(), n, b.strides[1], k, b.strides[0]}
                                     : LongSide{data(0), call[0].dtype(), m, a.strides[0], k, a.strides[1]};
    if (wide.side < 2 * kBlock || wide.side * k + m * n < kLarge || !wide.readable()) return {};
    const std::int64_t share = deterministic() ? kBlock : (wide.side + num_threads() - 1) / num_threads();
    const std::int64_t tile = whole_tiles(DType::f32);
    const std::int64_t most = even_part(wide.side, std::min(kBlock, share));
    const std::int64_t size = (most + tile - 1) / tile * tile;
    return Blocks{m, n, k, size, (wide.side + size - 1) / size, by_columns, wide};
  }
  std::int64_t lines(std::int64_t block) const { return std::min(size, wide.side - block * size); }
  // The product of a block of `count` lines, `step` apart, with the other operand, whose strides are `whole`.
  Product part(std::int64_t count, std::int64_t step, std::int64_t k_step, const Strides& whole, DType stored,
               bool direct, bool bias) const {
    Product p{m, n, k, n, whole, whole, DType::f32, DType::f32, stored, bias, m * n * k};
    if (by_columns) {
      p.n = count;
      p.b_strides = {k_step, step};
    } else {
      p.m = count;
      p.a_strides = {step, k_step};
    }
    if (!direct) p.across = p.n;
    p.work = p.m * p.n * k;
    return p;
  }
};

// `stored` is f32, or the operands' dtype if the kernel reads it; then nothing is converted here.
bool product_in_blocks(const Multiplier& kernel, const OpCall& call, Tensor& y, DType stored, bool linear,
                       const float* bias) {
  const std::optional<Blocks> found = Blocks::of(call, linear);
  if (!found) return false;
  const Blocks& b = *found;
  const bool direct = y.dtype() == DType::f32;
  const bool converts = stored == DType::f32;
  MatrixOperand whole(call[b.by_columns ? 0 : 1], stored);
  if (linear && !b.by_columns) whole.transpose();
  const Strides strides = whole.matrix_strides();
  const auto lines_apart = [&](std::int64_t count) {  // step and k_step of a block
    if (!converts) return std::pair{b.wide.step, b.wide.k_step};
    return b.wide.k_step == 1 ? std::pair{b.k, std::int64_t{1}} : std::pair{std::int64_t{1}, count};
  };
  for (const std::int64_t count : {b.lines(0), b.lines(b.blocks - 1)}) {
    const auto [step, k_step] = lines_apart(count);
    if (!kernel.suits(b.part(count, step, k_step, strides, stored, direct, bias))) return false;
  }
  const auto width = static_cast<std::int64_t>(size_of(y.dtype()));
  parallel_counted(b.blocks, 1, DType::f32, y.dtype(), [&](std::int64_t i, std::int64_t end, CastCounts* counts) {
    const Scratch memory(static_cast<std::size_t>(converts ? b.size * b.k : 0) * sizeof(float));
    const Scratch sums(static_cast<std::size_t>(direct ? 0 : b.size * (b.by_columns ? b.m : b.n)) * sizeof(float));
    for (; i < end; ++i) {
      const std::int64_t first = i * b.size;
      const std::int64_t count = b.lines(i);
      if (converts) b.wide.load(first, count, memory.as<float>());
      const auto [step, k_step] = lines_apart(count);
      const Product part = b.part(count, step, k_step, strides, stored, direct, bias);
      char* const to = static_cast<char*>(y.raw()) + (b.by_columns ? first : first * b.n) * width;
      const char* const block = converts ? memory.as<char>() : b.wide.at(first * step);
      const char* const other = whole.at(0);
      if (!kernel.run(part, b.by_columns ? other : block, b.by_columns ? block : other, direct ? to : sums.as<char>(),
                      bias && b.by_columns ? bias + first : bias))
        fail_part();
      if (direct) continue;
      const std::int64_t rows = b.by_columns ? b.m : 1;
      const std::int64_t numbers = b.by_columns ? count : count * b.n;
      for (std::int64_t row = 0; row < rows; ++row)
        cast_and_store(y.dtype(), sums.as<float>() + row * numbers, to + row * b.n * width, 1, numbers, counts);
    }
  });
  return true;
}

// One small product of two matrices that the kernel reads in place, on this thread, without the overhead of batches and
// cuts. False, with nothing written, for other calls.
bool multiply_in_place(const Multiplier& kernel, const OpCall& call, Tensor& y, DType in, DType stored, bool linear,
                       const float* bias, bool relu) {
  const Tensor& a = call[0];
  const Tensor& b = call[1];
  const auto reads = [stored](const Tensor& t) {
    return t.dim() == 2 && t.dtype() == stored && MatrixOperand::readable(t);
  };
  if (!kernel.same_bits || rounds_to_tf32(in) || !reads(a) || !reads(b)) return false;
  const std::int64_t m = a.sizes()[0];
  const std::int64_t k = a.sizes()[1];
  const std::int64_t n = b.sizes()[linear ? 0 : 1];
  const Strides of_a{a.strides()[0], a.strides()[1]};
  const Strides of_b{b.strides()[linear ? 1 : 0], b.strides()[linear ? 0 : 1]};
  const Product p{m, n, k, n, of_a, of_b, in, y.dtype(), stored, bias != nullptr, m * n * k, relu};
  if (p.work >= 2 * kWorthThreads || !kernel.suits(p)) return false;
  return kernel.run(p, static_cast<char*>(a.raw()), static_cast<char*>(b.raw()), static_cast<char*>(y.raw()), bias);
}

}  // namespace

bool multiply(const Multiplier& kernel, const OpCall& call, Outputs& out, bool linear, bool relu) {
  Tensor& y = out[0];
  if (y.dtype() == DType::f64 || current_accumulator() || y.numel() == 0 || call[0].numel() == 0) return false;
  const DType in = kernel.dtype(call[0].dtype());
  const Loaded<float> bias(linear ? call[2] : Tensor(), Loaded<float>::As::rows);
  const bool stores =
      y.dtype() == DType::f32 || (y.dtype() == in && !counts_for(DType::f32, in));  // else sums are rounded below
  const DType dtype = call[0].dtype();
  const DType stored = kernel.reads && dtype == call[1].dtype() && kernel.reads(dtype) ? dtype : in;
  if (stores && multiply_in_place(kernel, call, y, in, stored, linear, bias.data(), relu)) return true;
  if (in == DType::f32 && dtype != in && product_in_blocks(kernel, call, y, stored, linear, bias.data())) {
    if (relu) relu_in_place(y);
    return true;
  }
  MatrixOperand a(call[0], stored);
  MatrixOperand b(call[1], stored);
  const Shape batch = as_matrices(a, b, linear, y.sizes());
  bool left = relu;
  if (stores) {
    if (!products(kernel, a, b, batch, bias.data(), static_cast<char*>(y.raw()), in, y.dtype(), &left)) return false;
  } else {
    const Result<float> sums(y);
    if (!products(kernel, a, b, batch, bias.data(), reinterpret_cast<char*>(sums.data()), in, DType::f32)) return false;
    sums.store();
  }
  if (left) relu_in_place(y);  // oneDNN's own relu would turn NaN into 0
  return true;
}

}  // namespace gradual::cpu
