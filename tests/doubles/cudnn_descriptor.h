// Descriptors of the emulated cuDNN's graph interface, and the graphs made of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cudnn_graph.h"

struct cudnnBackendDescriptor {
  struct Value {
    cudnnBackendAttributeType_t type{};
    std::int64_t count = 0;
    std::vector<std::byte> bytes{};
  };
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, Value> values{};
  std::shared_ptr<const gradual::cuda::emulator::Graph> graph{};  // of a graph, and of descriptors made of it
  std::size_t engine = 0;                                         // of kEngines (cudnn_descriptor.cpp)
  std::shared_ptr<const int> kernels{};                           // of a plan, freed with it

  bool has(cudnnBackendAttributeName_t name) const { return values.count(name) != 0; }
  template <class T> std::span<const T> all(cudnnBackendAttributeName_t name) const {
    const Value& v = values.at(name);
    return {reinterpret_cast<const T*>(v.bytes.data()), static_cast<std::size_t>(v.count)};
  }
  template <class T> T get(cudnnBackendAttributeName_t name) const { return all<T>(name)[0]; }
  template <class T> T get_or(cudnnBackendAttributeName_t name, T otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }
};

namespace gradual::cuda::emulator {

using Descriptor = cudnnBackendDescriptor_t;
constexpr const char* kFinalize = "cudnnBackendFinalize";

// Checks a descriptor when it is finalized (cudnn_graph.cpp). Error if a rule is broken.
void check_tensor(const cudnnBackendDescriptor& d);
GraphOperation operation_of(const cudnnBackendDescriptor& d);
// Sorts the operations. Exactly one operation must make each virtual tensor, and at most one any other.
std::shared_ptr<Graph> graph_of(const cudnnBackendDescriptor& d);
// A convolution; or fused attention, forward or backward (two products, or five): of f16 or bf16, heads of at most 128
// numbers in whole vectors of eight.
bool has_engine(const Graph& graph);

}  // namespace gradual::cuda::emulator
