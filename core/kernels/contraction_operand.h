// What contractions read and write: tensors as plain arrays of the compute type T (float; double for f64).
#pragma once

#include <cstdint>
#include <optional>

#include "../ops/op.h"
#include "../tensor/memory.h"
#include "../tensor/tensor.h"

namespace gradual::cpu {

// A tensor's numbers as T. In place where they are T already, else converted once into workspace memory, which keeps the order
// in memory where the tensor has no gaps. An operand's f32 numbers are rounded to TF32 where that mode is on; a rows
// tensor always is row-major.
template <class T> class Loaded {
 public:
  enum class As { operand, rows };
  explicit Loaded(const Tensor& t, As as = As::operand);
  const T* data() const { return data_; }            // null of an undefined tensor
  const Shape& strides() const { return strides_; }  // elements; broadcast dims stay 0

 private:
  Tensor tensor_;
  Shape strides_;
  const T* data_ = nullptr;
};

// Where a kernel leaves T for a dense output in the order of its memory: the output itself, or scratch that store()
// rounds into it, once.
template <class T> class Result {
 public:
  explicit Result(Tensor& out);
  T* data() const { return data_; }
  void store() const;

 private:
  Tensor& out_;
  std::optional<Scratch> scratch_;
  T* data_;
};

// To 10 mantissa bits, nearest, ties to even; NaN and Inf stay.
void round_tf32(float* values, std::int64_t n);
bool rounds_to_tf32(DType dtype);

}  // namespace gradual::cpu
