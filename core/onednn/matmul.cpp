// matmul and linear: f32, bf16 where the CPU multiplies it, f8 as exact bf16, all others as f32; sums in f32.
#include <algorithm>
#include <memory>
#include <optional>

#include "../cpu/fast/attention_blocks.h"
#include "../cpu/fast/bf16_gemm.h"
#include "../cpu/fast/f32_gemm.h"
#include "../cpu/gemm.h"
#include "../cpu/kernels.h"
#include "../formats/accumulator.h"
#include "../kernels/contraction_operand.h"
#include "../kernels/copies.h"
#include "../kernels/loops.h"
#include "../kernels/matrix_batch.h"
#include "../ops/cpu_backend.h"
#include "../support/failf.h"
#include "../support/parallel.h"
#include "kernels.h"
#include "primitive.h"

namespace gradual::onednn {
namespace {

inline constexpr std::int64_t kPart = 256;  // rows or columns of a part, at most, in deterministic mode
// Parts of products by our kernels are multiples of this many rows or columns, at least as many as their tiles have.
std::int64_t own_part(DType in) { return in == DType::bf16 ? 32 : 48; }

// A tensor's matrices in the dtype they are multiplied in, with one stride of 1: where they lie, or copied.
struct Operand : cpu::MatrixBatch {
  Tensor tensor;
  Operand(const Tensor& t, DType dtype) : tensor(t) {
    const bool tf32 = cpu::rounds_to_tf32(t.dtype());
    if (t.dtype() != dtype || tf32 || !readable(t)) tensor = cpu::copied(t, dtype);
    if (tf32) cpu::round_tf32(tensor.data<float>(), tensor.numel());
    sizes = tensor.sizes();
    strides = tensor.strides();
  }
  // oneDNN takes rows or columns without gaps inside; a stride of 0 (expanded) is none it knows.
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
  // Strides of one matrix as oneDNN wants them also where a size is 1.
  Shape matrix_strides() const {
    const int n = sizes.size();
    Shape s{strides[n - 2], strides[n - 1]};
    if (rows() == 1 && cols() == 1) return {1, 1};
    if (rows() == 1 && s[1] == 1) s[0] = cols();
    if (cols() == 1 && (s[0] == 1 || s[1] == 0)) s[1] = s[0] == 1 ? rows() : 1;
    return s;
  }
};

// c [m, n] (rows `across` apart) = a [m, k] b [k, n] + bias [n].
struct Product {
  std::int64_t m, n, k, across;
  Shape a_strides, b_strides;
  DType in, out;
  bool bias;
  int threads;
  bool ours = false;   // for our kernel, whose bits are the same however it is cut
  bool sgemm = false;  // for oneDNN's function of that name
  bool relu = false;   // of bf16 products that are ours: with relu over c
};

Primitive* primitive_of(const Product& p) {
  Key key(static_cast<std::int64_t>(OpId::matmul));
  key.add(p.m).add(p.n).add(p.k).add(p.across).add(p.a_strides).add(p.b_strides);
  key.add(static_cast<int>(p.in)).add(static_cast<int>(p.out)).add(p.bias).add(p.threads);
  return find(key, [&]() -> std::unique_ptr<Primitive> {
    const dnnl::memory::desc a = layout_of({p.m, p.k}, p.a_strides, p.in);
    const dnnl::memory::desc b = layout_of({p.k, p.n}, p.b_strides, p.in);
    const dnnl::memory::desc c = layout_of({p.m, p.n}, {p.across, 1}, p.out);
    const dnnl::memory::desc bias = layout_of({1, p.n}, {p.n, 1}, DType::f32);
    const auto how = p.bias ? describe<dnnl::matmul>(a, b, bias, c) : describe<dnnl::matmul>(a, b, c);
    if (!is_fast(how.impl_info_str())) return nullptr;
    std::vector<Primitive::Argument> arguments{{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    if (p.bias) arguments.push_back({DNNL_ARG_BIAS, bias});
    return std::make_unique<Primitive>(dnnl::matmul(how), how.scratchpad_desc(), arguments);
  });
}

// oneDNN 2.6's sgemm is faster than its matmul on processors with AMX (bench/results/compare_amx.md) for large products whose
// rows are not short. oneDNN 3 was not measured there.
bool is_sgemm(const Product& p) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 27, kShort = 512;
  return p.in == DType::f32 && p.out == DType::f32 && p.n >= kShort && p.m * p.n * p.k >= kLarge &&
         DNNL_VERSION_MAJOR == 2 && cpu_isa() == CpuIsa::amx;
}

void run_sgemm(const Product& p, const char* a, const char* b, float* c, const float* bias) {
  const auto across = [](const Shape& strides) { return strides[1] == 1 ? strides[0] : strides[1]; };
  const auto order = [](const Shape& strides) { return strides[1] == 1 ? 'N' : 'T'; };
  if (bias)
    parallel_for(p.m, std::max<std::int64_t>(1, cpu::kGrain / p.n), [&](std::int64_t i, std::int64_t end) {
      for (; i < end; ++i) std::copy_n(bias, p.n, c + i * p.across);
    });
  const dnnl::status status = dnnl::sgemm(
      order(p.a_strides), order(p.b_strides), p.m, p.n, p.k, 1, reinterpret_cast<const float*>(a), across(p.a_strides),
      reinterpret_cast<const float*>(b), across(p.b_strides), bias ? 1 : 0, c, p.across);
  if (status != dnnl::status::success) failf("oneDNN's sgemm failed with status {}", static_cast<int>(status));
}

// By AVX512-BF16 only small ones are ours: large ones were up to 5% slower than oneDNN's (bench/results/compare_zen4.md).
bool is_ours(const Product& p) {
  constexpr std::int64_t kSmall = 1 << 19;
  if (p.in == DType::bf16) return cpu::has_bf16_product() && (cpu_isa() == CpuIsa::amx || p.m * p.n * p.k <= kSmall);
  return p.out == DType::f32 && cpu::suits_f32_product(p.m, p.n, p.k);
}

template <class Tc> void run_bf16(const Product& p, const char* a, const char* b, char* c, const float* bias) {
  const auto matrix = [](const char* data, const Shape& strides) {
    return cpu::MatrixRef<BFloat16>{reinterpret_cast<const BFloat16*>(data), strides[0], strides[1]};
  };
  cpu::bf16_product<Tc>({p.m, p.n, p.k, matrix(a, p.a_strides), matrix(b, p.b_strides), bias, reinterpret_cast<Tc*>(c),
                         p.across, p.relu});
}

// One product, by one primitive if it is not ours. False where oneDNN has none.
bool run(const Product& p, const char* a, const char* b, char* c, const float* bias) {
  if (p.ours && p.in == DType::bf16) {
    if (p.out == DType::bf16) run_bf16<BFloat16>(p, a, b, c, bias);
    else run_bf16<float>(p, a, b, c, bias);
    return true;
  }
  if (p.ours) {
    const auto floats = [](const char* data, const Shape& strides) {
      return cpu::MatrixRef<float>{reinterpret_cast<const float*>(data), strides[0], strides[1]};
    };
    cpu::f32_product(
        {p.m, p.n, p.k, floats(a, p.a_strides), floats(b, p.b_strides), bias, reinterpret_cast<float*>(c), p.across});
    return true;
  }
  const Team team(p.threads);
  if (p.sgemm) {
    run_sgemm(p, a, b, reinterpret_cast<float*>(c), bias);
    return true;
  }
  Primitive* const primitive = primitive_of(p);
  if (!primitive) return false;
  if (bias) primitive->run({a, b, c, bias});
  else primitive->run({a, b, c});
  return true;
}

// All products of a batch, each on one thread. One alone is oneDNN's on all of them, or cut: ours for the threads there are, as
// that changes no bit; oneDNN's by its shape where bits must not depend on them. *relu: whether it is wanted; then whether it is
// left to do.
bool products(Operand& a, const Operand& b, Shape batch, const float* bias, char* c, DType in, DType out,
              bool* relu = nullptr) {
  cpu::merge_rows(a, b, batch);
  const std::int64_t count = numel(batch);
  const auto width = static_cast<std::int64_t>(size_of(out));
  Product whole{a.rows(),           b.cols(), a.cols(), b.cols(),        a.matrix_strides(),
                b.matrix_strides(), in,       out,      bias != nullptr, 1};
  const std::int64_t work = std::max<std::int64_t>(1, whole.m * whole.n * whole.k);
  const int threads = work < 2 * cpu::kWorthThreads ? 1 : num_threads();
  whole.ours = is_ours(whole);
  whole.sgemm = !whole.ours && is_sgemm(whole);
  if (relu && *relu && whole.ours && in == DType::bf16) whole.relu = true, *relu = false;
  if (count == 1 && (whole.ours ? threads == 1 : !deterministic())) {
    whole.threads = threads;
    return run(whole, a.at(0), b.at(0), c, bias);
  }
  // Rows are cut, or columns where the first operand's are the ones without gaps; of ours the longer side.
  const bool by_columns = whole.ours ? whole.n > whole.m : whole.a_strides[1] != 1;
  const std::int64_t whole_side = by_columns ? whole.n : whole.m;
  const std::int64_t own = own_part(in), share = (whole_side + threads - 1) / threads;
  const std::int64_t side = count > 1    ? whole_side
                            : whole.ours ? (share + own - 1) / own * own
                                         : cpu::even_part(whole_side, kPart);
  const std::int64_t parts = (whole_side + side - 1) / side;
  const std::int64_t grain = std::max<std::int64_t>(1, cpu::kWorthThreads * parts / work);
  const auto cut = [&](std::int64_t first) {
    Product part = whole;
    (by_columns ? part.n : part.m) = std::min(side, whole_side - first);
    return part;
  };
  if (!whole.ours && !whole.sgemm) {
    const Team one(1);
    if (!primitive_of(cut(0)) || !primitive_of(cut((parts - 1) * side))) return false;
  }
  const auto task = [&](std::int64_t i) {
    const std::int64_t first = i % parts * side;
    const Product part = cut(first);
    const std::int64_t at_a = a.offset(i / parts, batch) + (by_columns ? 0 : first * whole.a_strides[0]);
    const std::int64_t at_b = b.offset(i / parts, batch) + (by_columns ? first * whole.b_strides[1] : 0);
    const std::int64_t at_c = i / parts * whole.m * whole.n + first * (by_columns ? 1 : whole.across);
    return run(part, a.at(at_a), b.at(at_b), c + at_c * width, bias && by_columns ? bias + first : bias);
  };
  parallel_for(count * parts, grain, [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i)
      if (!task(i)) fail("internal: oneDNN multiplies one part of a product and not another");
  });
  return true;
}

// The matrix of narrower numbers whose rows, or columns, a product takes a block of at a time as f32: `side` numbers of them,
// `step` elements apart, each with k numbers `k_step` apart. One step is 1.
struct LongSide {
  const char* data;
  DType dtype;
  std::int64_t side, step, k, k_step;

  bool readable() const { return k_step == 1 || step == 1; }
  // A block as it lies: the steps of what was written.
  std::pair<std::int64_t, std::int64_t> load(std::int64_t first, std::int64_t n, float* to) const {
    const auto at = [&](std::int64_t i) { return data + i * static_cast<std::int64_t>(size_of(dtype)); };
    if (k_step == 1) {
      for (std::int64_t i = 0; i < n; ++i) gradual::load(dtype, at((first + i) * step), 1, to + i * k, k);
      return {k, 1};
    }
    for (std::int64_t i = 0; i < k; ++i) gradual::load(dtype, at(first + i * k_step), 1, to + i * n, n);
    return {1, n};
  }
};

// A large product in f32 of two matrices of narrower numbers, cut along its longer side: beside them lie as f32 the operand of
// the shorter side and, for each thread, a block of the other and of the result. False, with nothing written, for others.
bool product_in_blocks(const OpCall& call, Tensor& y, bool linear, const float* bias) {
  constexpr std::int64_t kLarge = 1 << 20, kBlock = 512;  // elements that would be f32 at once; rows or columns
  if (call[0].dim() < 2 || call[1].dim() != 2 || call[0].dtype() != call[1].dtype()) return false;
  cpu::MatrixBatch a{call[0].sizes(), call[0].strides()}, b{call[1].sizes(), call[1].strides()};
  if (linear) b.transpose();
  Shape batch = call[0].sizes().first(call[0].dim() - 2);
  cpu::merge_rows(a, b, batch);
  if (numel(batch) != 1 || a.sizes.size() != 2) return false;
  const std::int64_t m = a.rows(), n = b.cols(), k = a.cols();
  const bool by_columns = n > m;
  const auto data = [&](int i) { return static_cast<const char*>(call[i].raw()); };
  const LongSide wide = by_columns ? LongSide{data(1), call[1].dtype(), n, b.strides[1], k, b.strides[0]}
                                   : LongSide{data(0), call[0].dtype(), m, a.strides[0], k, a.strides[1]};
  if (wide.side < 2 * kBlock || wide.side * k + m * n < kLarge || !wide.readable()) return false;
  const std::int64_t share = deterministic() ? kBlock : (wide.side + num_threads() - 1) / num_threads();
  const std::int64_t own = own_part(DType::f32), most = cpu::even_part(wide.side, std::min(kBlock, share));
  const std::int64_t block = (most + own - 1) / own * own;

  Operand whole(call[by_columns ? 0 : 1], DType::f32);
  if (linear && !by_columns) whole.transpose();
  const Shape whole_strides = whole.matrix_strides();
  const bool direct = y.dtype() == DType::f32;
  const auto part_of = [&](std::int64_t count, std::int64_t step, std::int64_t k_step) {
    Product part{m, n, k, n, whole_strides, whole_strides, DType::f32, DType::f32, bias != nullptr, 1};
    if (by_columns) part.n = count, part.b_strides = {k_step, step};
    else part.m = count, part.a_strides = {step, k_step};
    if (!direct) part.across = part.n;
    part.ours = is_ours(part);
    part.sgemm = !part.ours && is_sgemm(part);
    return part;
  };
  const std::int64_t blocks = (wide.side + block - 1) / block;
  for (const std::int64_t count : {block, wide.side - (blocks - 1) * block}) {
    const Product part = wide.k_step == 1 ? part_of(count, k, 1) : part_of(count, 1, count);
    const Team one(1);
    if (!part.ours && !part.sgemm && !primitive_of(part)) return false;
  }
  const auto width = static_cast<std::int64_t>(size_of(y.dtype()));
  cpu::parallel_counted(blocks, 1, DType::f32, y.dtype(), [&](std::int64_t i, std::int64_t end, CastCounts* counts) {
    const Scratch memory(static_cast<std::size_t>(block * k) * sizeof(float));
    const Scratch sums(static_cast<std::size_t>(direct ? 0 : block * (by_columns ? m : n)) * sizeof(float));
    for (; i < end; ++i) {
      const std::int64_t first = i * block, count = std::min(block, wide.side - first);
      const auto [step, k_step] = wide.load(first, count, memory.as<float>());
      const Product part = part_of(count, step, k_step);
      char* const to = static_cast<char*>(y.raw()) + (by_columns ? first : first * n) * width;
      char* const c = direct ? to : sums.as<char>();
      const char *const own_data = memory.as<char>(), *const other = whole.at(0);
      if (!run(part, by_columns ? other : own_data, by_columns ? own_data : other, c,
               bias && by_columns ? bias + first : bias))
        fail("internal: oneDNN multiplies one part of a product and not another");
      if (direct) continue;
      const std::int64_t rows = by_columns ? m : 1, numbers = by_columns ? count : count * n;
      for (std::int64_t row = 0; row < rows; ++row)
        store(y.dtype(), sums.as<float>() + row * numbers, to + row * n * width, 1, numbers, counts);
    }
  });
  return true;
}

// Sums whose rounding is counted, or that are rounded to what oneDNN does not write, come as f32 first.
bool contraction(const OpCall& call, Outputs& out, bool linear, bool relu = false) {
  Tensor& y = out[0];
  if (cpu::small_f32_product(call, y, linear, relu)) return true;
  if (y.dtype() == DType::f64 || current_accumulator() || y.numel() == 0 || call[0].numel() == 0) return false;
  const DType in = product_dtype(call[0].dtype());
  const cpu::Loaded<float> bias(linear ? call[2] : Tensor(), cpu::Loaded<float>::As::rows);
  if (in == DType::f32 && call[0].dtype() != DType::f32 && product_in_blocks(call, y, linear, bias.data())) {
    if (relu) cpu::relu_in_place(y);
    return true;
  }
  Operand a(call[0], in);
  Operand b(call[1], in);
  if (linear) b.transpose();
  if (call[0].dim() == 1) a.insert_dim(0);
  if (!linear && call[1].dim() == 1) b.insert_dim(1);
  Shape batch = y.sizes();
  if (call[0].dim() > 1) batch.erase(batch.size() - 1);
  if (linear || call[1].dim() > 1) batch.erase(batch.size() - 1);
  const bool counted = cpu::counts_for(DType::f32, y.dtype()) != nullptr;
  bool left = relu;
  if (y.dtype() == DType::f32 || (y.dtype() == DType::bf16 && in == DType::bf16 && !counted)) {
    if (!products(a, b, batch, bias.data(), static_cast<char*>(y.raw()), in, y.dtype(), &left)) return false;
  } else {
    const cpu::Result<float> sums(y);
    if (!products(a, b, batch, bias.data(), reinterpret_cast<char*>(sums.data()), in, DType::f32)) return false;
    sums.store();
  }
  if (left) cpu::relu_in_place(y);  // not by oneDNN's own, which makes 0 of NaN
  return true;
}

bool matmul(const OpCall& call, Outputs& out) { return contraction(call, out, false); }
bool linear(const OpCall& call, Outputs& out) { return contraction(call, out, true); }
bool linear_relu(const OpCall& call, Outputs& out) { return contraction(call, out, true, true); }

bool linear_gelu(const OpCall& call, Outputs& out) {
  Outputs before{{out[1]}};
  if (!linear(call, before)) return false;
  cpu::gelu_of(out[1], call.get<Gelu>(), out[0]);
  return true;
}
bool linear_backward_weight(const OpCall& call, Outputs& out) { return cpu::linear_gradients(call, out, matmul); }

}  // namespace

void register_contractions() {
  set_offer(OpId::matmul, matmul);
  set_offer(OpId::linear, linear);
  set_offer(OpId::linear_relu, linear_relu);
  set_offer(OpId::linear_gelu, linear_gelu);
  set_offer(OpId::linear_backward_weight, linear_backward_weight);
  columns().suits_flash_attention = cpu::suits_attention_blocks;
  columns().onednn_description = description;
  set_offer(OpId::flash_attention, cpu::attention_blocks);  // products, too, though by kernels of ours
  set_offer(OpId::flash_attention_backward, cpu::attention_blocks_backward);
}

}  // namespace gradual::onednn
