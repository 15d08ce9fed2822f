// Stands in for the CUDA backend in a build without it: tensors cannot be made there, and the error says why.
#include "../core/device.h"
#include "../core/error.h"

namespace gradual {

void fail_no_cuda(Device device) {
  fail("no CUDA in this version of the library: tensors live on cpu, asked for " + to_string(device));
}

}  // namespace gradual
