// The operands and results of contractions as plain arrays of the compute type T (double for f64, else float).
#pragma once

#include <cstdint>
#include <optional>

#include "../ops/op.h"
#include "../tensor/memory.h"
#include "../tensor/tensor.h"

namespace gradual::cpu {

// A tensor's elements as T. A tensor of T is read in place; any other is converted once into workspace memory, which
// keeps the order in memory if the tensor has no gaps. In TF32 mode an operand's f32 elements are rounded to TF32. A
// rows tensor is always row-major.
template <class T> class Loaded {
 public:
  enum class As { operand, rows };
  explicit Loaded(const Tensor& t, As as = As::operand);
  const T* data() const { return data_; }            // null for an undefined tensor
  const Shape& strides() const { return strides_; }  // in elements; 0 in broadcast dims

 private:
  Tensor tensor_;
  Shape strides_;
  const T* data_ = nullptr;
};

// The memory into which a kernel writes T for a dense output, in the order of the output's memory: the output itself,
// or scratch memory that store() rounds into the output once.
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

// Rounds n values in place to 10 mantissa bits, to nearest even. NaN and Inf stay.
void round_tf32(float* values, std::int64_t n);
bool rounds_to_tf32(DType dtype);

}  // namespace gradual::cpu
