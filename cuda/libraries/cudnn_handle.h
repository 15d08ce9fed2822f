// cuDNN for the files that call it: statuses, handles, data types.
#pragma once

#include <cudnn.h>

#include "../../core/formats/dtype.h"
#include "../../core/support/scoped.h"
#include "../cuda.h"

namespace gradual::cuda {

// Throws an Error that names the call and cuDNN's reason, unless the status is success.
void check(cudnnStatus_t status, const char* call);
// False if cuDNN does not support the call; the caller has an alternative. cuDNN may report an unknown combination as a
// bad parameter. The emulated cuDNN throws for real bad parameters.
bool supported(cudnnStatus_t status, const char* call);
// The same; also reports the call to an active Watch if it is supported.
bool done(cudnnStatus_t status, const char* call);

// One for each thread and device, on the thread's stream.
cudnnHandle_t cudnn_handle();

// f64, f32, f16, bf16.
cudnnDataType_t cudnn_type(DType dtype);

}  // namespace gradual::cuda
