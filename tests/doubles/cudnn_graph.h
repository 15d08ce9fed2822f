// Graphs of operations of the emulated cuDNN: the finished graph (cudnn_graph.cpp checks it) and its run.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cudnn.h"

namespace gradual::cuda::emulator {

struct GraphTensor {
  std::int64_t id = 0;
  cudnnDataType_t type{};
  std::array<std::int64_t, 4> sizes{};
  std::array<std::int64_t, 4> strides{};
  bool is_virtual = false;
  bool by_value = false;
  bool in_memory() const { return !is_virtual && !by_value; }
  std::int64_t numel() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};

struct GraphOperation {
  cudnnBackendDescriptorType_t kind;
  cudnnPointwiseMode_t mode{};
  cudnnReduceTensorOp_t reduction{};
  std::int64_t axis = -1;
  // ids; x and b are the operands of a product, y the result
  std::int64_t x = 0;
  std::int64_t b = 0;
  std::int64_t t = 0;
  std::int64_t y = 0;
  // of a convolution
  std::array<std::int64_t, 2> stride{};
  std::array<std::int64_t, 2> padding{};
  std::array<std::int64_t, 2> dilation{};
  bool adds = false;  // the result is added to the old contents
};
inline bool is_convolution(const GraphOperation& op) {
  return op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
         op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
         op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

// Operations in an order in which all operands are made before use.
struct Graph {
  std::unordered_map<std::int64_t, GraphTensor> tensors;
  std::vector<GraphOperation> operations;
};

using GraphData = std::unordered_map<std::int64_t, void*>;     // of tensors in memory
using GraphNumbers = std::unordered_map<std::int64_t, float>;  // by value
void run_graph(const Graph& graph, const GraphData& data, const GraphNumbers& numbers);

// Graphs of one convolution (cudnn_conv.cpp). Error if the sizes of x, w and y do not fit.
void check_sizes(const GraphTensor& x, const GraphTensor& w, const GraphTensor& y, const GraphOperation& how);
bool has_convolution_engine(const Graph& graph);
void run_convolution(const Graph& graph, const GraphData& data, bool tensor_cores);

}  // namespace gradual::cuda::emulator
