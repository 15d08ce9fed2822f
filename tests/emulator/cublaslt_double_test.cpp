// The emulated cuBLASLt itself: it refuses what the documentation forbids.
#include <doctest/doctest.h>

#include <cstdint>

#include "../doubles/cublasLt.h"

namespace {

struct Call {
  cublasLtMatmulDescOpaque_t how{};
  cublasLtMatrixLayoutOpaque_t a{};
  cublasLtMatrixLayoutOpaque_t b{};
  cublasLtMatrixLayoutOpaque_t c{};
  Call(cudaDataType_t in, cudaDataType_t out, cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    cublasLtMatmulDescInit(&how, compute, compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F);
    cublasLtMatrixLayoutInit(&a, in, 16, 32, 16);
    cublasLtMatrixLayoutInit(&b, in, 32, 16, 32);
    cublasLtMatrixLayoutInit(&c, out, 16, 16, 16);
  }
  cublasStatus_t ask() {
    cublasLtHandle_t handle = nullptr;
    cublasLtCreate(&handle);
    cublasLtMatmulPreferenceOpaque_t preference{};
    cublasLtMatmulPreferenceInit(&preference);
    const std::uint64_t room = 1 << 20;
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, &how, &a, &b, &c, &c, &preference, 1, &result, &found);
    cublasLtDestroy(handle);
    CHECK((status == CUBLAS_STATUS_SUCCESS) == (found == 1));
    return status;
  }
};

TEST_CASE("the emulated library refuses what the documentation forbids") {
  alignas(16) static float memory[64];
  CHECK(Call(CUDA_R_16F, CUDA_R_16F).ask() == CUBLAS_STATUS_SUCCESS);
  CHECK(Call(CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F).ask() == CUBLAS_STATUS_SUCCESS);
  CHECK(Call(CUDA_R_16F, CUDA_R_16BF).ask() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Call(CUDA_R_64F, CUDA_R_64F).ask() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Call(CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F_FAST_TF32).ask() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Call(CUDA_R_8F_E4M3, CUDA_R_32F).ask() == CUBLAS_STATUS_NOT_SUPPORTED);  // not transposed
  Call call(CUDA_R_16F, CUDA_R_16F);
  call.a.ld = 15;
  CHECK(call.ask() == CUBLAS_STATUS_INVALID_VALUE);
  call = {CUDA_R_16F, CUDA_R_16F};
  call.a.cols = 31;
  CHECK(call.ask() == CUBLAS_STATUS_INVALID_VALUE);
  call = {CUDA_R_16F, CUDA_R_16F};
  call.how.a_scale = memory;  // of f8 alone
  CHECK(call.ask() == CUBLAS_STATUS_INVALID_VALUE);
  call = {CUDA_R_16F, CUDA_R_16F};
  call.how.epilogue = CUBLASLT_EPILOGUE_BIAS;
  CHECK(call.ask() == CUBLAS_STATUS_INVALID_VALUE);  // no bias
  call.how.bias = memory;
  CHECK(call.ask() == CUBLAS_STATUS_SUCCESS);
  call.how.bias_type = CUDA_R_32F;
  CHECK(call.ask() == CUBLAS_STATUS_NOT_SUPPORTED);
  call.how = {};
  cublasLtMatmulDescInit(&call.how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  call.how.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
  call.how.aux = memory;
  call.how.aux_ld = 16;
  CHECK(call.ask() == CUBLAS_STATUS_SUCCESS);
  call.how.aux_ld = 20;
  CHECK(call.ask() == CUBLAS_STATUS_INVALID_VALUE);
  call.how.aux_ld = 8;
  CHECK(call.ask() == CUBLAS_STATUS_INVALID_VALUE);
  call.how.aux_ld = 16;
  call.how.aux = memory + 1;
  CHECK(call.ask() == CUBLAS_STATUS_NOT_SUPPORTED);
  const std::int64_t wide = CUBLAS_OP_T;
  CHECK(cublasLtMatmulDescSetAttribute(&call.how, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide) ==
        CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
