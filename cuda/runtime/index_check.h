// Checks of index values on the device. A kernel skips a value out of range (a read gives zero) and writes a report to
// memory that the host can read. The Error comes when the host next waits for the device: at a copy to or from the CPU,
// item() included, or at synchronize(). A launch therefore never waits, and can be captured in a graph.
#pragma once

#include "../../core/ops/op.h"
#include "launch.h"

namespace gradual::cuda {

// The first value out of range since the last report.
struct IndexFault {
  // being written; complete
  unsigned taken = 0;
  unsigned ready = 0;
  OpId op = {};
  SourceLocation where;
  std::int64_t index = 0;
  std::int64_t element = 0;
  std::int64_t size = 0;
};

struct IndexCheck {
  IndexFault* fault;
  OpId op;
  SourceLocation where;
  std::int64_t size;  // allowed are 0 to size - 1

  // True if a value, element `element` of the index in row-major order, is in range.
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

// Error if a finished kernel of this thread's device found an index out of range.
void raise_index_fault();

}  // namespace gradual::cuda
