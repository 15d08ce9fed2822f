// cuDNN as the files that call it use it: statuses, handles, data types.
#pragma once

#include <cudnn.h>

#include "../../core/formats/dtype.h"
#include "../../core/support/scoped.h"
#include "../cuda.h"

namespace gradual::cuda {

// Throws an Error that names the call and cuDNN's reason, unless all went well.
void check(cudnnStatus_t status, const char* call);
// False where cuDNN says that it does not do that: the caller has another way. It may call a combination that it does not
// know a bad parameter. The emulated cuDNN throws for what really is one.
bool supported(cudnnStatus_t status, const char* call);
// The same, and notes the call where it is supported.
bool done(cudnnStatus_t status, const char* call);

// One for each thread and device, on the thread's stream.
cudnnHandle_t cudnn_handle();

// f64, f32, f16, bf16.
cudnnDataType_t cudnn_type(DType dtype);

}  // namespace gradual::cuda
