// Products of matrices by cuBLASLt (cuBLAS documentation, "Using the cuBLASLt API"). cuBLASLt's matrices are
// column-major and Gradual's are row-major: the same memory is the transposed matrix there. The calls ask for c^T = b^T
// a^T, so cuBLASLt's A is b here.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <limits>
#include <map>
#include <span>

#include "../../core/support/throwf.h"
#include "../../core/tensor/device_recording.h"
#include "../kernels/gemm.h"
#include "../runtime/memory.h"
#include "../runtime/profiling.h"
#include "../runtime/runtime.h"
#include "../runtime/thread_resources.h"

namespace gradual::cuda {
namespace {

constexpr std::size_t kMostWorkspace = 32 << 20;  // bytes; NVIDIA's recommendation for Hopper
constexpr int kCandidates = 16;                   // candidates that the library proposes, best first
constexpr std::size_t kMostChoices = 4096;        // per thread
constexpr int kMostDoubts = 16;  // checks without a result (as with overflowing gradients): each one waits for the GPU
constexpr std::int64_t kMostBatch = 32768;  // in one call: a grid has at most 65,535 blocks along the dim of the batch

// The library may do work at the first call of a product that a capture forbids.
constexpr const char* kWarmUp = "; it may be one that only a captured stream meets: run the step once before capture()";

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throwf("{}: {} ({}){}", call, cublasLtGetStatusString(status), cublasLtGetStatusName(status),
           device::capturing() ? kWarmUp : "");
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f8e4m3fn: return CUDA_R_8F_E4M3;
    case DType::f8e5m2: return CUDA_R_8F_E5M2;
    default: throwf("internal: cuBLASLt multiplies no {}", to_string(dtype));
  }
}

cublasLtEpilogue_t epilogue_of(const Gemm& g) {
  if (g.row_sums) return CUBLASLT_EPILOGUE_BGRADB;  // cuBLASLt's B is a here
  switch (g.activation) {
    case Activation::relu: return g.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::gelu: return g.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Activation::none: break;
  }
  return g.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

cublasComputeType_t compute_of(const Gemm& g) {
  if (g.a.dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  return g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// The largest power of two, up to 256, that divides an address.
std::int64_t alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return address == 0 ? 256 : std::min<std::int64_t>(256, std::int64_t{1} << std::countr_zero(address));
}

// One for each thread and device.
cublasLtHandle_t handle() {
  using Handles = std::array<cublasLtHandle_t, device::kMost>;
  cublasLtHandle_t& mine = inherited<Handles>()[static_cast<std::size_t>(current_device())];
  if (!mine) check(cublasLtCreate(&mine), "cublasLtCreate");
  return mine;
}

// The descriptors of a product: plain values that need no destruction.
class GemmDescriptors {
 public:
  explicit GemmDescriptors(const Gemm& g) {
    const bool f64 = g.a.dtype == DType::f64;
    check(cublasLtMatmulDescInit(&product_, compute_of(g), f64 ? CUDA_R_64F : CUDA_R_32F), "cublasLtMatmulDescInit");
    set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<std::int32_t>(g.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<std::int32_t>(g.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue_of(g)));
    if (g.bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
      if (g.bias_dtype() != g.c_dtype)
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(g.bias_dtype())));
    }
    if (g.row_sums) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.row_sums);
    if (g.before) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.before);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.ldc);
      if (g.batch > 1) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, g.c_batch_stride);
    }
    if (g.b.scale) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.b.scale);
    if (g.a.scale) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.a.scale);
    lay_out(b_, g.b, g.k, g.n, g.batch);
    lay_out(a_, g.a, g.m, g.k, g.batch);
    lay_out(c_, {.data = g.c, .dtype = g.c_dtype, .ld = g.ldc, .batch_stride = g.c_batch_stride}, g.m, g.n, g.batch);
  }

  // The best algorithm that remains after `refused` refusals, or none. Algorithms that split k add the parts in the
  // compute type in a separate step, with one rounding and reproducible bits. But such an algorithm may run the
  // epilogue in one more step, which reads c.
  cublasLtMatmulHeuristicResult_t choose(const Gemm& g, int refused_ones = 0) {
    cublasLtMatmulPreferenceOpaque_t preference{};
    check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    const auto least = [](std::int64_t bytes) { return static_cast<std::uint32_t>(bytes); };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kMostWorkspace});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, least(alignment(g.b.data)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, least(alignment(g.a.data)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, least(alignment(g.c)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, least(alignment(g.c)));
    const bool reads_c = size_of(g.c_dtype) < size_of(DType::f32) && (g.bias || g.activation == Activation::gelu);
    const auto parts = reads_c ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    // First all algorithms; if none of the best is allowed, only the allowed ones.
    for (const std::uint32_t schemes : {CUBLASLT_REDUCTION_SCHEME_MASK, parts}) {
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
      std::array<cublasLtMatmulHeuristicResult_t, kCandidates> best{};
      int found = 0;
      const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(), &product_, &b_, &a_, &c_, &c_, &preference,
                                                                   static_cast<int>(best.size()), best.data(), &found);
      if (refused(g, status)) continue;
      check(status, "cublasLtMatmulAlgoGetHeuristic");
      for (const auto& how : std::span(best).first(static_cast<std::size_t>(found)))
        if (allowed(how, parts) && refused_ones-- == 0) return how;
    }
    cublasLtMatmulHeuristicResult_t none{};
    none.state = CUBLAS_STATUS_NOT_SUPPORTED;
    return none;
  }

  // `factor` times the product. False if the library refuses it after all; then nothing was enqueued.
  bool run(const Gemm& g, const cublasLtMatmulHeuristicResult_t& how, double factor = 1) {
    const Workspace scratch(how.workspaceSize);
    const double zero = 0;
    const float factor_f32 = static_cast<float>(factor);
    const float zero_f32 = 0;
    const bool f64 = g.a.dtype == DType::f64;
    const void* const alpha = f64 ? static_cast<const void*>(&factor) : &factor_f32;
    const void* const beta = f64 ? static_cast<const void*>(&zero) : &zero_f32;
    const cublasStatus_t status =
        cublasLtMatmul(handle(), &product_, alpha, g.b.data, &b_, g.a.data, &a_, beta, g.c, &c_, g.c, &c_, &how.algo,
                       scratch.as<void>(), how.workspaceSize, current_stream());
    if (refused(g, status)) return false;
    check(status, "cublasLtMatmul");
    note_call("cublasLtMatmul");
    return true;
  }

 private:
  // The library may report an epilogue or scales that it lacks for these types as invalid.
  static bool refused(const Gemm& g, cublasStatus_t status) {
    const bool more = epilogue_of(g) != CUBLASLT_EPILOGUE_DEFAULT || g.a.scale || g.b.scale;
    return status == CUBLAS_STATUS_NOT_SUPPORTED || (more && status == CUBLAS_STATUS_INVALID_VALUE);
  }
  // An algorithm that does not report how it adds parts of k is not allowed.
  static bool allowed(const cublasLtMatmulHeuristicResult_t& how, std::uint32_t parts) {
    std::uint32_t scheme = 0;
    std::size_t written = 0;
    if (how.state != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoConfigGetAttribute(&how.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                                             &written) != CUBLAS_STATUS_SUCCESS)
      return false;
    return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == parts;
  }
  template <class T> void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(&product_, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  // A row-major matrix [rows, cols] is a column-major matrix [cols, rows].
  static void lay_out(cublasLtMatrixLayoutOpaque_t& layout, const Matrix& x, std::int64_t rows, std::int64_t cols,
                      std::int64_t batch) {
    if (x.transposed) std::swap(rows, cols);
    check(cublasLtMatrixLayoutInit(&layout, type_of(x.dtype), static_cast<std::uint64_t>(cols),
                                   static_cast<std::uint64_t>(rows), x.ld),
          "cublasLtMatrixLayoutInit");
    if (batch == 1) return;
    const auto count = static_cast<std::int32_t>(batch);
    check(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
          "cublasLtMatrixLayoutSetAttribute");
    check(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x.batch_stride,
                                           sizeof x.batch_stride),
          "cublasLtMatrixLayoutSetAttribute");
  }

  cublasLtMatmulDescOpaque_t product_{};
  cublasLtMatrixLayoutOpaque_t a_{};
  cublasLtMatrixLayoutOpaque_t b_{};
  cublasLtMatrixLayoutOpaque_t c_{};
};

// All that the choice of an algorithm depends on.
struct Key {
  int device;
  std::array<std::int64_t, 10> numbers;
  std::array<std::int64_t, 6> alignments;
  std::array<DType, 3> dtypes;
  std::array<bool, 7> flags;
  Activation activation;
  auto operator<=>(const Key&) const = default;

  explicit Key(const Gemm& g)
      : device(current_device()),
        numbers{g.m, g.n, g.k, g.batch, g.a.ld, g.b.ld, g.ldc, g.a.batch_stride, g.b.batch_stride, g.c_batch_stride},
        alignments{alignment(g.a.data), alignment(g.b.data), alignment(g.c),
                   alignment(g.bias),   alignment(g.before), alignment(g.row_sums)},
        dtypes{g.a.dtype, g.b.dtype, g.c_dtype},
        flags{g.a.transposed,    g.b.transposed,       g.tf32, g.a.scale != nullptr, g.b.scale != nullptr,
              g.bias != nullptr, g.row_sums != nullptr},
        activation(g.activation) {}
};

// An algorithm, or none, and whether a check has confirmed the properties that its documentation leaves open.
struct Choice {
  cublasLtMatmulHeuristicResult_t how;
  bool trusted = false;
  int doubts = 0;   // checks without a result
  int refused = 0;  // algorithms that the library proposed and did not run
  bool usable() const { return how.state == CUBLAS_STATUS_SUCCESS; }
  void reject() { how.state = CUBLAS_STATUS_NOT_SUPPORTED; }
};

Choice& choice_of(const Gemm& g, GemmDescriptors& problem) {
  thread_local std::map<Key, Choice> choices;
  if (choices.size() >= kMostChoices) choices.clear();
  const Key key(g);
  auto at = choices.find(key);
  if (at == choices.end()) at = choices.emplace(key, Choice{problem.choose(g)}).first;
  return at->second;
}

// True if relu keeps NaN. The check makes every sum NaN by a NaN factor.
bool relu_keeps_nan(const Gemm& g, GemmDescriptors& problem, const Choice& choice) {
  return problem.run(g, choice.how, std::numeric_limits<double>::quiet_NaN()) && all_nan(g);
}

// True if the sizes fit the 32 bits of the documentation.
bool countable(const Gemm& g) { return std::max({g.m, g.n, g.k}) <= std::numeric_limits<std::int32_t>::max(); }

// Computes the product by the library. False if the library does not compute it; then the output is undefined.
bool run_library(const Gemm& g) {
  if (!countable(g)) return false;
  GemmDescriptors problem(g);
  Choice& choice = choice_of(g, problem);
  if (!choice.usable()) return false;
  const bool looked_at = g.activation == Activation::relu || g.row_sums;  // its result is checked
  const bool in_doubt = !choice.trusted && looked_at;
  if (in_doubt && device::capturing()) return false;
  if (in_doubt && g.activation == Activation::relu && !relu_keeps_nan(g, problem, choice)) choice.reject();
  if (!choice.usable()) return false;
  while (!problem.run(g, choice.how)) {
    if (looked_at) choice.reject();
    else choice.how = problem.choose(g, ++choice.refused);
    if (!choice.usable()) return false;
  }
  if (!in_doubt || !g.row_sums) return choice.trusted = true;
  const Verdict sums = check_row_sums(g);
  choice.trusted = sums == Verdict::right;
  if (sums == Verdict::wrong || (sums == Verdict::unknown && ++choice.doubts == kMostDoubts)) choice.reject();
  return choice.trusted;
}

// The products of a batch from `begin` on, as many as one call takes. Addresses keep their alignment.
Gemm part_of(const Gemm& g, std::int64_t begin) {
  Gemm part = g;
  part.batch = std::min(kMostBatch, g.batch - begin);
  for (Matrix* x : {&part.a, &part.b})
    x->data =
        static_cast<const char*>(x->data) + begin * x->batch_stride * static_cast<std::int64_t>(size_of(x->dtype));
  part.c = static_cast<char*>(g.c) + begin * g.c_batch_stride * static_cast<std::int64_t>(size_of(g.c_dtype));
  return part;
}

}  // namespace

bool multiplies_f8(const Gemm& g) {
  const bool two_wide = g.a.dtype == DType::f8e5m2 && g.b.dtype == DType::f8e5m2;
  const bool wide_rows = g.n % 16 == 0 && g.k % 16 == 0 && g.a.ld % 16 == 0 && g.b.ld % 16 == 0 &&
                         g.a.batch_stride % 16 == 0 && g.b.batch_stride % 16 == 0;
  return !two_wide && wide_rows && !g.a.transposed && g.b.transposed && alignment(g.a.data) >= 16 &&
         alignment(g.b.data) >= 16;
}

void gemm(const Gemm& g) {
  if (g.batch > kMostBatch) {
    for (std::int64_t begin = 0; begin < g.batch; begin += kMostBatch) gemm(part_of(g, begin));
    return;
  }
  if (!run_library(g)) plain_gemm(g);
}

bool fused_gemm(const Gemm& g) { return g.batch <= kMostBatch && (!g.before || g.ldc % 8 == 0) && run_library(g); }

}  // namespace gradual::cuda
