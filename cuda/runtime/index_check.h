// Index values lie on the device, where a kernel finds those out of range: it skips them (what would be read is zero) and
// leaves word in memory that the host sees too. The Error comes when the host next waits for the device: at a copy to or
// from the CPU, item() included, or at synchronize(). So a launch never waits, and can be captured in a graph.
#pragma once

#include "../../core/ops/op.h"
#include "launch.h"

namespace gradual::cuda {

// The first value out of range since the last one that was told.
struct IndexFault {
  unsigned taken = 0, ready = 0;  // being written; whole
  OpId op = {};
  SourceLocation where;
  std::int64_t index = 0, element = 0, size = 0;
};

struct IndexCheck {
  IndexFault* fault;
  OpId op;
  SourceLocation where;
  std::int64_t size;  // allowed are 0 to size - 1

  // Whether a value, element `element` of the index in row-major order, is in range.
  __device__ bool operator()(std::int64_t index, std::int64_t element) const {
    if (index >= 0 && index < size) return true;
    report(index, element);
    return false;
  }
  __device__ void report(std::int64_t index, std::int64_t element) const;
};
#if defined(__CUDACC__) || defined(GRADUAL_CUDA_EMULATED)
__device__ inline void IndexCheck::report(std::int64_t index, std::int64_t element) const {
  if (atomicOr(&fault->taken, 1u) != 0) return;
  fault->op = op;
  fault->where = where;
  fault->index = index;
  fault->element = element;
  fault->size = size;
  __threadfence_system();
  *static_cast<volatile unsigned*>(&fault->ready) = 1;
}
#endif
IndexCheck index_check(const OpCall& call, std::int64_t size);

// Error if a kernel of this thread's device that is done met an index out of range.
void raise_index_fault();

}  // namespace gradual::cuda
