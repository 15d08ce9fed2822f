// cuDNN as the files that call it use it: statuses, handles, descriptors.
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
inline bool has_cudnn_type(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// What cuDNN makes and destroys.
template <class T, cudnnStatus_t (*create)(T*), cudnnStatus_t (*destroy)(T)> class Owned : Pinned {
 public:
  Owned() { check(create(&value_), "cuDNN: creating a handle or descriptor"); }
  ~Owned() { destroy(value_); }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};
using CudnnTensor = Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;

// alpha or beta of a call: double for f64, float for all else.
class Factor {
 public:
  Factor(double value, DType dtype) : f64_(dtype == DType::f64), wide_(value), single_(static_cast<float>(value)) {}
  const void* get() const { return f64_ ? static_cast<const void*>(&wide_) : &single_; }

 private:
  bool f64_;
  double wide_;
  float single_;
};

}  // namespace gradual::cuda
