// cublasLtMatmul by loops, with the checks of its documentation (cuBLAS, "cublasLtMatmul()": tables of types,
// "Tensor Core Usage", and the attributes' descriptions). D = epilogue(alpha op(A) op(B) + beta C), column-major.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "../../core/formats/cast_element.h"
#include "../../core/ops/compute_mode.h"
#include "../../cuda/emulator/stream.h"
#include "cublaslt_switches.h"

using namespace gradual;

struct cublasLtContext {};

namespace gradual::cuda::emulator {
CublasLt& cublaslt() {
  thread_local CublasLt switches;
  return switches;
}
}  // namespace gradual::cuda::emulator

namespace {

using cuda::emulator::cublaslt;

constexpr std::int32_t kMostBatch = 65535;  // the limit of a grid's third dim; the documentation names none
constexpr std::size_t kWorkspace = 1024;

DType dtype_of_type(std::int32_t type) {
  switch (type) {
    case CUDA_R_64F: return DType::f64;
    case CUDA_R_16F: return DType::f16;
    case CUDA_R_16BF: return DType::bf16;
    case CUDA_R_8F_E4M3: return DType::f8e4m3fn;
    case CUDA_R_8F_E5M2: return DType::f8e5m2;
    default: return DType::f32;
  }
}
bool is_f8_type(std::int32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
std::int64_t bytes_of(std::int32_t type) { return static_cast<std::int64_t>(size_of(dtype_of_type(type))); }

double load(std::int32_t type, const void* p, std::int64_t at) {
  double value = 0;
  visit_dtype(dtype_of_type(type), [&]<class T> { value = cast_element<double>(static_cast<const T*>(p)[at]); });
  return value;
}
// Rounds once, from the compute type.
template <class C> void store(std::int32_t type, C value, void* p, std::int64_t at) {
  visit_dtype(dtype_of_type(type), [&]<class T> { static_cast<T*>(p)[at] = cast_element<T>(value); });
}

// --- checks ---------------------------------------------------------------------------------------------------------

struct MatmulCall {
  cublasLtMatmulDescOpaque_t how;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  bool trans_a() const { return how.trans_a == CUBLAS_OP_T; }
  bool trans_b() const { return how.trans_b == CUBLAS_OP_T; }
  auto m() const { return static_cast<std::int64_t>(d.rows); }
  auto n() const { return static_cast<std::int64_t>(d.cols); }
  auto k() const { return static_cast<std::int64_t>(trans_a() ? a.rows : a.cols); }
  bool f8() const { return is_f8_type(a.type) || is_f8_type(b.type); }
  bool has(cublasLtEpilogue_t bit) const { return how.epilogue & bit; }
  bool has_aux() const { return how.epilogue & 128; }
  bool sums_rows() const { return how.epilogue == CUBLASLT_EPILOGUE_BGRADB; }
  // Products of f8 with f32 results take a bias in bf16.
  std::int32_t table_bias_type() const { return f8() && d.type == CUDA_R_32F ? CUDA_R_16BF : d.type; }
  std::int32_t bias_type() const { return how.bias_type == -1 ? d.type : how.bias_type; }
};

bool types_supported(const MatmulCall& p) {
  if (p.c.type != p.d.type) return false;
  const std::int32_t a = p.a.type;
  const std::int32_t b = p.b.type;
  const std::int32_t d = p.d.type;
  if (p.how.compute == CUBLAS_COMPUTE_64F)
    return p.how.scale == CUDA_R_64F && a == CUDA_R_64F && b == CUDA_R_64F && d == CUDA_R_64F;
  if (p.how.scale != CUDA_R_32F) return false;
  if (p.how.compute == CUBLAS_COMPUTE_32F_FAST_TF32) return a == CUDA_R_32F && b == CUDA_R_32F && d == CUDA_R_32F;
  if (is_f8_type(a) && is_f8_type(b))
    return !(a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2) && (d == CUDA_R_32F || d == CUDA_R_16F || d == CUDA_R_16BF);
  return a == b && (a == CUDA_R_32F || a == CUDA_R_16F || a == CUDA_R_16BF) && (d == a || d == CUDA_R_32F);
}

bool sizes_agree(const MatmulCall& p) {
  const auto inner_b = static_cast<std::int64_t>(p.trans_b() ? p.b.cols : p.b.rows);
  const auto rows_a = static_cast<std::int64_t>(p.trans_a() ? p.a.cols : p.a.rows);
  const auto cols_b = static_cast<std::int64_t>(p.trans_b() ? p.b.rows : p.b.cols);
  if (rows_a != p.m() || cols_b != p.n() || inner_b != p.k() || p.c.rows != p.d.rows || p.c.cols != p.d.cols)
    return false;
  for (const auto* x : {&p.a, &p.b, &p.c, &p.d})
    if (x->rows == 0 || x->cols == 0 || x->ld < static_cast<std::int64_t>(x->rows) ||
        x->batch_count != p.d.batch_count || x->batch_count < 1 || x->batch_stride < 0)
      return false;
  const std::int64_t apart = p.d.ld * (p.n() - 1) + p.m();  // results must not overlap
  return p.d.batch_count == 1 || p.d.batch_stride >= apart;
}

// f8: A transposed, B not, and everything in multiples of 16 bytes.
bool f8_supported(const MatmulCall& p) {
  return p.trans_a() && !p.trans_b() && p.k() % 16 == 0 && p.m() * bytes_of(p.d.type) % 16 == 0 && p.a.ld % 16 == 0 &&
         p.b.ld % 16 == 0 && p.d.ld * bytes_of(p.d.type) % 16 == 0 && p.a.batch_stride % 16 == 0 &&
         p.b.batch_stride % 16 == 0;
}

cublasStatus_t epilogue_status(const MatmulCall& p) {
  switch (p.how.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU: return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS: break;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      if (!p.how.aux || p.how.aux_ld % 8 != 0 || p.how.aux_ld < p.m() || p.how.aux_batch_stride % 8 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
      if (p.d.batch_count > 1 && p.how.aux_batch_stride < p.how.aux_ld * (p.n() - 1) + p.m())
        return CUBLAS_STATUS_INVALID_VALUE;
      if (reinterpret_cast<std::uintptr_t>(p.how.aux) % 16 != 0 || p.f8()) return CUBLAS_STATUS_NOT_SUPPORTED;
      if (!p.has(CUBLASLT_EPILOGUE_BIAS)) return CUBLAS_STATUS_SUCCESS;
      break;
    case CUBLASLT_EPILOGUE_BGRADB:  // documented for single products of the types that networks train in
      if (p.f8() || p.d.batch_count > 1 || p.d.type == CUDA_R_64F) return CUBLAS_STATUS_NOT_SUPPORTED;
      break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!p.how.bias || reinterpret_cast<std::intptr_t>(p.how.bias) % bytes_of(p.bias_type()) != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  return p.bias_type() == p.table_bias_type() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t status_of(const MatmulCall& p) {
  if (!sizes_agree(p)) return CUBLAS_STATUS_INVALID_VALUE;
  if ((p.how.a_scale || p.how.b_scale) && !p.f8()) return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_supported(p) || p.d.batch_count > kMostBatch || (p.f8() && !f8_supported(p)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return epilogue_status(p);
}

bool is_aligned(const void* p, std::uint32_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

// --- the product -----------------------------------------------------------------------------------------------------

struct Data {
  const void* a;
  const void* b;
  const void* c;
  void* d;
  bool in_parts;  // sums of parts of k are added in a separate step
};

// Matrix `index` of a batch as a dense row-major [rows, cols].
template <class C>
std::vector<C> dense(const cublasLtMatrixLayoutOpaque_t& x, const void* data, std::int64_t index, bool transposed,
                     bool tf32) {
  const auto rows = static_cast<std::int64_t>(transposed ? x.cols : x.rows);
  const auto cols = static_cast<std::int64_t>(transposed ? x.rows : x.cols);
  std::vector<C> values(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      const std::int64_t at = transposed ? i * x.ld + j : j * x.ld + i;
      auto value = static_cast<C>(load(x.type, data, index * x.batch_stride + at));
      if constexpr (sizeof(C) == 4)
        if (tf32) value = round_tf32(value);
      values[static_cast<std::size_t>(i * cols + j)] = value;
    }
  return values;
}

template <class C> C relu_of(C x, bool drops_nan) { return drops_nan ? std::fmax(x, C{0}) : (x < 0 ? C{0} : x); }
template <class C> C gelu_of(C x) {
  return C{0.5} * x * (C{1} + std::tanh(C{0.79788456} * (x + C{0.044715} * x * x * x)));
}

// The epilogue of element (i, j).
template <class C>
C finished(const MatmulCall& p, C value, std::int64_t index, std::int64_t i, std::int64_t j, bool drops) {
  if (p.has(CUBLASLT_EPILOGUE_BIAS)) value += static_cast<C>(load(p.bias_type(), p.how.bias, i));
  if (p.has_aux()) store(p.d.type, value, p.how.aux, index * p.how.aux_batch_stride + j * p.how.aux_ld + i);
  if (p.has(CUBLASLT_EPILOGUE_GELU)) value = gelu_of(value);
  return p.has(CUBLASLT_EPILOGUE_RELU) ? relu_of(value, drops) : value;
}

// The sums of the columns of op(B).
template <class C> void sum_columns(const MatmulCall& p, const std::vector<C>& b, bool narrow) {
  for (std::int64_t j = 0; j < p.n(); ++j) {
    C sum = 0;
    for (std::int64_t l = 0; l < p.k(); ++l) {
      sum += b[static_cast<std::size_t>(l * p.n() + j)];
      store(p.bias_type(), sum, p.how.bias, j);
      if (narrow) sum = static_cast<C>(load(p.bias_type(), p.how.bias, j));
    }
  }
}

template <class C>
void multiply(const MatmulCall& p, const Data& data, C alpha, C beta, const cuda::emulator::CublasLt& faults) {
  const bool tf32 = p.how.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (p.how.a_scale) alpha *= static_cast<C>(load(CUDA_R_32F, p.how.a_scale, 0));
  if (p.how.b_scale) alpha *= static_cast<C>(load(CUDA_R_32F, p.how.b_scale, 0));
  std::vector<C> row(static_cast<std::size_t>(p.n()));
  for (std::int64_t index = 0; index < p.d.batch_count; ++index) {
    const std::vector<C> a = dense<C>(p.a, data.a, index, p.trans_a(), tf32);
    const std::vector<C> b = dense<C>(p.b, data.b, index, p.trans_b(), tf32);
    for (std::int64_t i = 0; i < p.m(); ++i) {
      std::ranges::fill(row, C{0});
      for (std::int64_t l = 0; l < p.k(); ++l)
        for (std::int64_t j = 0; j < p.n(); ++j)
          row[static_cast<std::size_t>(j)] +=
              a[static_cast<std::size_t>(i * p.k() + l)] * b[static_cast<std::size_t>(l * p.n() + j)];
      for (std::int64_t j = 0; j < p.n(); ++j) {
        const std::int64_t at = index * p.d.batch_stride + j * p.d.ld + i;
        C value = alpha * row[static_cast<std::size_t>(j)];
        if (beta != 0) value += beta * static_cast<C>(load(p.c.type, data.c, at));
        if (data.in_parts) {  // stored, and read again by the epilogue
          store(p.d.type, value, data.d, at);
          value = static_cast<C>(load(p.d.type, data.d, at));
        }
        store(p.d.type, finished(p, value, index, i, j, faults.relu_drops_nan), data.d, at);
      }
    }
    if (p.sums_rows()) sum_columns(p, b, faults.narrow_row_sums);
  }
}

// Copies an attribute if its size is the documented one.
template <class T> cublasStatus_t take(T& to, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// --- the interface ---------------------------------------------------------------------------------------------------

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "?";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality is not supported";
  }
  return "?";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type, std::uint64_t rows,
                                        std::uint64_t cols, std::int64_t ld) {
  *layout = {type, rows, cols, ld, 1, 0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(layout->batch_count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(layout->batch_stride, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t product, cublasComputeType_t compute, cudaDataType_t scale) {
  *product = {.compute = compute,
              .scale = scale,
              .trans_a = CUBLAS_OP_N,
              .trans_b = CUBLAS_OP_N,
              .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
              .bias = nullptr,
              .bias_type = -1,
              .aux = nullptr,
              .aux_ld = 0,
              .aux_batch_stride = 0,
              .a_scale = nullptr,
              .b_scale = nullptr};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(product->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(product->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(product->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(product->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(product->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(product->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return take(product->aux_batch_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return take(product->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return take(product->b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(product->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(preference->reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t, void* value,
                                                    std::size_t bytes, std::size_t* written) {
  if (!value || bytes != sizeof algo->reduction_scheme) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &algo->reduction_scheme, bytes);
  if (written) *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

// Three algorithms: one rounds parts of a sum to the output's type (the caller must not take it), one adds them in the
// compute type and rounds before it adds a bias, and one does not split sums.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  ++cublaslt().heuristics;
  *found = 0;
  if (!handle || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (cublaslt().fails_in_capture && cuda::emulator::captures() > 0) return CUBLAS_STATUS_INTERNAL_ERROR;
  const MatmulCall p{*product, *a, *b, *c, *d};
  if (const cublasStatus_t status = status_of(p); status != CUBLAS_STATUS_SUCCESS) return status;
  if (cublaslt().calls_scales_invalid && (p.how.a_scale || p.how.b_scale)) return CUBLAS_STATUS_INVALID_VALUE;
  if (cublaslt().calls_bias_invalid && p.has(CUBLASLT_EPILOGUE_BIAS)) return CUBLAS_STATUS_INVALID_VALUE;
  const std::uint32_t* const least = preference->alignments;
  if (cublaslt().knows_no_algorithm || preference->workspace < kWorkspace ||
      (p.f8() && std::any_of(least, least + 4, [](std::uint32_t bytes) { return bytes < 16; })))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const std::uint32_t scheme : {CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                     CUBLASLT_REDUCTION_SCHEME_NONE}) {
    if (*found == wanted || (scheme & preference->reduction_schemes) != scheme) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    result = {.algo = {scheme, {}, kWorkspace},
              .workspaceSize = kWorkspace,
              .state = CUBLAS_STATUS_SUCCESS,
              .wavesCount = 1,
              .reserved = {}};
    std::copy_n(least, 4, result.algo.alignments);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const MatmulCall p{*product, *a_layout, *b_layout, *c_layout, *d_layout};
  if (!handle || !alpha || !beta || !a || !b || !c || !d || !algo) return CUBLAS_STATUS_INVALID_VALUE;
  if (!workspace || workspace_bytes < algo->workspace || !is_aligned(workspace, 16)) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t status = status_of(p); status != CUBLAS_STATUS_SUCCESS) return status;
  if (c == d && (c_layout->ld != d_layout->ld || c_layout->batch_stride != d_layout->batch_stride))
    return CUBLAS_STATUS_INVALID_VALUE;
  const void* const pointers[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (!is_aligned(pointers[i], algo->alignments[i])) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (algo->reduction_scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE || cublaslt().refuses_to_run)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (algo->reduction_scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && cublaslt().refuses_best)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  // Kernels may read 16 bytes of a bias at a time. On a GPU this bias is a misaligned address.
  if (p.has(CUBLASLT_EPILOGUE_BIAS) && !is_aligned(p.how.bias, 16)) return CUBLAS_STATUS_EXECUTION_FAILED;
  ++cublaslt().products;
  const Data data{a, b, c, d, algo->reduction_scheme != CUBLASLT_REDUCTION_SCHEME_NONE};
  const auto run = [&](auto one) {
    using C = decltype(one);
    const C scale = *static_cast<const C*>(alpha);
    const C old = *static_cast<const C*>(beta);
    cuda::emulator::enqueue(stream, [=, faults = cublaslt()] {
      std::memset(workspace, 0xff, workspace_bytes);
      multiply<C>(p, data, scale, old, faults);
    });
  };
  if (p.how.scale == CUDA_R_64F) run(double{});
  else run(float{});
  return CUBLAS_STATUS_SUCCESS;
}
