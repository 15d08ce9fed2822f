// The arguments of one call of an aten op, in the order of its row (ops_table.h). Accessors convert as PyTorch's
// schemas do and fail with an Error naming the argument, what was given and what is allowed.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "../core/ops/ops.h"
#include "value.h"

namespace gradual::pt2 {

// The order of the kinds of numbers in promotion: 0 bool, 1 integer, 2 floating.
inline int kind_rank(DType d) {
  if (is_floating(d)) return 2;
  return is_integral(d) ? 1 : 0;
}

// Where a call runs.
struct CallSite {
  bool training = true;     // the module's mode: batch norm, dropout and attention obey it
  DType real = DType::f32;  // f64 in a module that was converted to f64: stands for f32 wherever the graph says it
  Device device = Device::cpu();       // of the module's parameters: new tensors are made there
  const std::string* names = nullptr;  // of the arguments, in the row's order
};

class Arguments {
 public:
  Arguments(std::vector<Value>& values, const CallSite& site) : values_(values), site_(site) {}

  int size() const { return static_cast<int>(values_.size()); }
  const Value& operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  bool none(int i) const { return (*this)[i].none(); }

  const Tensor& tensor(int i) const;
  Tensor optional_tensor(int i) const;       // undefined for none
  std::vector<Tensor> tensors(int i) const;  // a list; undefined where it has none
  // A tensor or a number. A number is exact up to 2^53.
  Operand operand(int i) const;
  bool is_tensor(int i) const { return (*this)[i].get<Tensor>() != nullptr; }
  double number(int i) const;  // an integer, a number, a bool or a tensor of one element
  std::optional<double> optional_number(int i) const;
  bool is_floating_number(int i) const { return (*this)[i].get<double>() != nullptr; }
  std::int64_t integer(int i) const;
  std::optional<std::int64_t> optional_integer(int i) const;
  int dim(int i) const;
  bool flag(int i) const;
  const std::string& text(int i) const;
  Shape sizes(int i) const;  // one integer or a list; none: empty
  std::vector<std::int64_t> integers(int i) const;
  // Height and width from one integer or two; `otherwise` for none and an empty list.
  Size2 pair(int i, Size2 otherwise) const;
  std::optional<DType> dtype(int i) const;  // f32 becomes real()

  bool training() const { return site_.training; }
  DType real() const { return site_.real; }
  Device device() const { return site_.device; }
  // Options of a new tensor: the dtype of argument i, or `otherwise`.
  TensorOptions options(int i, DType otherwise) const;

  [[noreturn]] void fail(int i, const char* wanted) const;

 private:
  std::vector<Value>& values_;
  const CallSite& site_;
};

// The dtype of an operation on these arguments by PyTorch's rules: tensors with dims prevail over 0-d ones, and those
// over numbers, unless the others are of a higher kind (bool < integer < floating). Arguments that are none do not
// count.
DType result_type(const Arguments& a, std::initializer_list<int> arguments);
// op on arguments i and j, cast to `to` where they are tensors of another dtype.
using BinaryFn = Tensor (*)(const Operand&, const Operand&);
Tensor binary(const Arguments& a, BinaryFn op, int i = 0, int j = 1);
// The same; integers and bool become floating before.
Tensor floating_binary(const Arguments& a, BinaryFn op, int i = 0, int j = 1);
// x, or x cast to a.real() if it is not floating.
Tensor floating(const Arguments& a, const Tensor& x);
// min(max(x, low), high) with PyTorch's gradient: none at and beyond a bound.
Tensor clamp_strictly(const Tensor& x, double low, double high);
// `index` as i64.
Tensor as_index(const Tensor& index);

}  // namespace gradual::pt2
