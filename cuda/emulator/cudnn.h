// cuDNN on the CPU: as much of its interface as cuda/ uses, names and values as in NVIDIA's headers (cuDNN 9), so that our
// calls of it run without a GPU. What its documentation does not support is answered by NOT_SUPPORTED. A call that breaks
// a rule (a null pointer, sizes that do not fit, a workspace too small) is our mistake: it throws an Error that says which.
//
// The environment variable GRADUAL_EMULATED_CUDNN_REFUSES makes calls answer NOT_SUPPORTED: a list, separated by commas, of
// convolution, channels_last, narrow (f16 and bf16), batch_norm, pooling, softmax, graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_runtime.h"

#define CUDNN_VERSION 91900

enum cudnnStatus_t {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_BAD_PARAM = 2000,
  CUDNN_STATUS_NOT_SUPPORTED = 3000,
  CUDNN_STATUS_NOT_SUPPORTED_SHAPE = 3002,
  CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE = 3003,
  CUDNN_STATUS_NOT_SUPPORTED_LAYOUT = 3004,
};
#define CUDNN_STATUS_CATEGORY(status) ((status) / 1000 * 1000)

struct cudnnContext;
using cudnnHandle_t = cudnnContext*;
std::size_t cudnnGetVersion();
const char* cudnnGetErrorString(cudnnStatus_t status);
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);

// --- descriptors ---------------------------------------------------------------------------------------------------------

enum cudnnDataType_t {
  CUDNN_DATA_FLOAT = 0,
  CUDNN_DATA_DOUBLE = 1,
  CUDNN_DATA_HALF = 2,
  CUDNN_DATA_INT32 = 4,
  CUDNN_DATA_BFLOAT16 = 9,
  CUDNN_DATA_INT64 = 10,
  CUDNN_DATA_BOOLEAN = 11,
};
enum cudnnMathType_t { CUDNN_DEFAULT_MATH = 0, CUDNN_TENSOR_OP_MATH = 1, CUDNN_FMA_MATH = 3 };
enum cudnnTensorFormat_t { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1 };
enum cudnnNanPropagation_t { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 };

struct cudnnTensorStruct;
using cudnnTensorDescriptor_t = cudnnTensorStruct*;
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor);
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c, int h,
                                           int w, int n_stride, int c_stride, int h_stride, int w_stride);

struct cudnnFilterStruct;
using cudnnFilterDescriptor_t = cudnnFilterStruct*;
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter);
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w);

// --- convolutions --------------------------------------------------------------------------------------------------------

enum cudnnConvolutionMode_t { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 };
enum cudnnConvolutionFwdAlgo_t {
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0,
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1,
};
enum cudnnConvolutionBwdDataAlgo_t {
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0,  // adds atomically
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1,
};
enum cudnnConvolutionBwdFilterAlgo_t {
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0,  // adds atomically
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1,
};

struct cudnnConvolutionStruct;
using cudnnConvolutionDescriptor_t = cudnnConvolutionStruct*;
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution);
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute_type);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math);

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t how,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algorithm,
                                                      std::size_t* bytes);
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t how,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, std::size_t* bytes);
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t how,
    cudnnFilterDescriptor_t dw, cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t* bytes);
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_desc,
                                      const void* x, cudnnFilterDescriptor_t w_desc, const void* w,
                                      cudnnConvolutionDescriptor_t how, cudnnConvolutionFwdAlgo_t algorithm,
                                      void* workspace, std::size_t workspace_bytes, const void* beta,
                                      cudnnTensorDescriptor_t y_desc, void* y);
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t w_desc,
                                           const void* w, cudnnTensorDescriptor_t dy_desc, const void* dy,
                                           cudnnConvolutionDescriptor_t how, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void* workspace, std::size_t workspace_bytes, const void* beta,
                                           cudnnTensorDescriptor_t dx_desc, void* dx);
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_desc,
                                             const void* x, cudnnTensorDescriptor_t dy_desc, const void* dy,
                                             cudnnConvolutionDescriptor_t how,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             std::size_t workspace_bytes, const void* beta,
                                             cudnnFilterDescriptor_t dw_desc, void* dw);
