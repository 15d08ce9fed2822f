// Which calls cuDNN itself has plans for on an H200. It makes them by a description of the GPU, and compiles their
// kernels; no GPU is needed, and none is used, so that what the kernels compute is not seen here.
#include <cudnn.h>
#include <doctest/doctest.h>

#include <string>

#include <gradual/gradual.h>

#include "../../cuda/kernels/attention.h"
#include "../../cuda/kernels/conv.h"
#include "../../cuda/libraries/cudnn_graph.h"

namespace gradual {
namespace {

constexpr std::size_t kDescribes = 91100;  // the cuDNN that makes plans by descriptions
constexpr std::size_t kAnyLength = 91600;  // the one whose backward takes any number of keys

// By NVIDIA's tables for compute capability 9.0 (CUDA C++ programming guide), and by what PyTorch and nvidia-smi print
// of an H200: 132 multiprocessors, 60 MB of L2, 143156 MB, 1980 and 3201 MHz.
std::string h200(int capability = 900) {
  return R"({"deviceName":"NVIDIA H200","cudaDeviceId":0,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
         R"("driverVer":13000,"multiProcessorCount":132,"smClockRateKHz":1980000,"memClockRateKHz":3201000,)"
         R"("totalGlobalMem":150109945856,"l2CacheSize":62914560,"maxSharedMemoryPerBlock":49152,)"
         R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"regsPerBlock":65536,)"
         R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)"
         R"("warpSize":32,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"deviceVer":)" +
         std::to_string(capability) + "}";
}

bool describes_gpus() {
  if (cudnnGetVersion() >= kDescribes) return true;
  MESSAGE("skipped: cuDNN makes plans for a described GPU from 9.11 on, and this one is " << cudnnGetVersion());
  return false;
}

struct Case {
  DType dtype;
  std::int64_t queries, keys, size;
  bool causal;
};
const Case kCases[] = {{DType::bf16, 1024, 1024, 64, true},
                       {DType::f16, 100, 100, 128, false},
                       {DType::bf16, 64, 384, 32, false},
                       {DType::f16, 129, 1000, 72, true},
                       {DType::bf16, 1, 77, 8, false}};

// Heads as a projection gives them, views of [batch, length, parts * heads * size].
cuda::Attention attention(const Case& c, bool backward) {
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kHeads = 4;
  const auto heads = [&](std::int64_t length, std::int64_t parts) {
    const Tensor all = empty({kBatch, length, parts * kHeads * c.size}, {.dtype = c.dtype});
    return transpose(reshape(narrow(all, 2, 0, kHeads * c.size), {kBatch, length, kHeads, c.size}), 1, 2);
  };
  const Tensor logsumexp = empty({kBatch, kHeads, c.queries, 1});
  cuda::Attention a{c.causal, 1, heads(c.queries, 3), heads(c.keys, 3), heads(c.keys, 3), heads(c.queries, 1),
                    logsumexp};
  if (!backward) return a;
  a.dy = heads(c.queries, 1);
  a.dq = heads(c.queries, 1);
  a.dk = heads(c.keys, 1);
  a.dv = heads(c.keys, 1);
  return a;
}

}  // namespace

TEST_CASE("cuDNN has plans for attention on an H200, forward and backward") {
  if (!describes_gpus()) return;
  const cuda::DescribedGpu gpu(h200());
  for (const Case& c : kCases)
    for (const bool backward : {false, true}) {
      if (backward && c.keys % 128 != 0 && cudnnGetVersion() < kAnyLength) continue;
      CAPTURE(c.queries);
      CAPTURE(c.keys);
      CAPTURE(c.size);
      CAPTURE(backward);
      CHECK(cuda::has_plan(attention(c, backward), gpu));
    }
}

TEST_CASE("cuDNN has no plan for attention on a GPU of compute capability 7.0") {
  if (!describes_gpus()) return;
  const cuda::DescribedGpu gpu(h200(700));
  for (const bool backward : {false, true}) CHECK_FALSE(cuda::has_plan(attention(kCases[0], backward), gpu));
}

namespace {

struct Layer {
  Shape x, w;
  ConvAttrs attrs;
};
// Of CNNs (28x28, ResNet-20): first layers, 3x3, strides, 1x1; then sizes that no vector fits, groups, dilation.
const Layer kLayers[] = {{{64, 1, 28, 28}, {32, 1, 3, 3}, {{.padding = 1}}},
                         {{128, 3, 32, 32}, {16, 3, 3, 3}, {{.padding = 1}}},
                         {{128, 32, 16, 16}, {32, 32, 3, 3}, {{.padding = 1}}},
                         {{128, 16, 32, 32}, {32, 16, 3, 3}, {{.stride = 2, .padding = 1}}},
                         {{128, 16, 32, 32}, {32, 16, 1, 1}, {{.stride = 2}}},
                         {{3, 5, 9, 7}, {7, 5, 3, 2}, {{.stride = {2, 1}, .padding = {0, 1}}}},
                         {{4, 8, 17, 15}, {8, 1, 3, 3}, {{.padding = 1, .groups = 8}}},
                         {{2, 12, 20, 20}, {6, 4, 5, 5}, {{.padding = 4, .dilation = 2, .groups = 3}}}};

cuda::Convolution convolution(const Layer& layer, OpId op, DType dtype, bool tf32, bool channels_last) {
  Shape y{layer.x[0], layer.w[0], 0, 0};
  for (int i = 0; i < 2; ++i) {
    const ConvAttrs& a = layer.attrs;
    y[2 + i] = (layer.x[2 + i] + 2 * a.padding[i] - a.dilation[i] * (layer.w[2 + i] - 1) - 1) / a.stride[i] + 1;
  }
  return {op, layer.attrs, dtype, tf32, channels_last, layer.x, layer.w, y, false};
}

}  // namespace

TEST_CASE("cuDNN has plans for convolutions and their gradients on an H200, in every dtype and layout") {
  if (!describes_gpus()) return;
  const cuda::DescribedGpu gpu(h200());
  struct Type {
    DType dtype;
    bool tf32;
  };
  for (const Layer& layer : kLayers)
    for (const Type type : {Type{DType::f64, false}, Type{DType::f32, false}, Type{DType::f32, true},
                            Type{DType::f16, false}, Type{DType::bf16, false}})
      for (const bool channels_last : {false, true})
        for (const OpId op : {OpId::conv2d, OpId::conv2d_backward_input, OpId::conv2d_backward_weight}) {
          CAPTURE(to_string(layer.x));
          CAPTURE(to_string(layer.w));
          CAPTURE(to_string(type.dtype));
          CAPTURE(type.tf32);
          CAPTURE(channels_last);
          CAPTURE(static_cast<int>(op));
          cuda::Convolution c = convolution(layer, op, type.dtype, type.tf32, channels_last);
          CHECK(cuda::has_plan(c, gpu));
          c.adds = true;
          if (op == OpId::conv2d) CHECK(cuda::has_plan(c, gpu));
        }
}

TEST_CASE("a convolution whose result is of another size is an Error of cuDNN") {
  if (!describes_gpus()) return;
  const cuda::DescribedGpu gpu(h200());
  cuda::Convolution c = convolution(kLayers[0], OpId::conv2d, DType::f32, false, false);
  ++c.y[2];
  CHECK_THROWS_AS(cuda::has_plan(c, gpu), Error);
}

TEST_CASE("a description of a GPU that lacks a property is an Error") {
  if (!describes_gpus()) return;
  CHECK_THROWS_AS(cuda::DescribedGpu("{}"), Error);
}

}  // namespace gradual
