#include "arguments.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <string>

#include "../core/support/throwf.h"

namespace gradual::pt2 {

void Arguments::fail(int i, const char* wanted) const {
  const std::string name = site_.names ? site_.names[i] : fmt::format("{}", i);
  throwf("argument {} is {}; allowed is {}", name, describe((*this)[i]), wanted);
}

const Tensor& Arguments::tensor(int i) const {
  const Tensor* const t = (*this)[i].get<Tensor>();
  if (!t || !t->defined()) fail(i, "a tensor");
  return *t;
}

Tensor Arguments::optional_tensor(int i) const { return none(i) ? Tensor() : tensor(i); }

std::vector<Tensor> Arguments::tensors(int i) const {
  const Value::List* const list = (*this)[i].get<Value::List>();
  if (!list) fail(i, "a list of tensors");
  std::vector<Tensor> all;
  for (const Value& v : *list) {
    const Tensor* const t = v.get<Tensor>();
    if (!t && !v.none()) fail(i, "a list of tensors");
    all.push_back(t ? *t : Tensor());
  }
  return all;
}

double Arguments::number(int i) const {
  const Value& v = (*this)[i];
  if (const double* x = v.get<double>()) return *x;
  if (const std::int64_t* n = v.get<std::int64_t>()) return static_cast<double>(*n);
  if (const bool* b = v.get<bool>()) return *b ? 1 : 0;
  if (const Tensor* t = v.get<Tensor>(); t && t->defined() && t->numel() == 1) return t->item();
  fail(i, "a number");
}

std::optional<double> Arguments::optional_number(int i) const {
  return none(i) ? std::nullopt : std::optional(number(i));
}

Operand Arguments::operand(int i) const {
  if (is_tensor(i)) return {tensor(i)};
  return {number(i)};
}

std::int64_t Arguments::integer(int i) const {
  const Value& v = (*this)[i];
  if (const std::int64_t* n = v.get<std::int64_t>()) return *n;
  if (const bool* b = v.get<bool>()) return *b ? 1 : 0;
  fail(i, "an integer");
}

std::optional<std::int64_t> Arguments::optional_integer(int i) const {
  return none(i) ? std::nullopt : std::optional(integer(i));
}

int Arguments::dim(int i) const {
  const std::int64_t n = integer(i);
  if (n < INT_MIN || n > INT_MAX) fail(i, "a dim");
  return static_cast<int>(n);
}

bool Arguments::flag(int i) const {
  const Value& v = (*this)[i];
  if (const bool* b = v.get<bool>()) return *b;
  if (const std::int64_t* n = v.get<std::int64_t>()) return *n != 0;
  fail(i, "true or false");
}

const std::string& Arguments::text(int i) const {
  const std::string* const s = (*this)[i].get<std::string>();
  if (!s) fail(i, "a text");
  return *s;
}

std::vector<std::int64_t> Arguments::integers(int i) const {
  const Value& v = (*this)[i];
  if (v.none()) return {};
  if (const std::int64_t* n = v.get<std::int64_t>()) return {*n};
  const Value::List* const list = v.get<Value::List>();
  if (!list) fail(i, "a list of integers");
  std::vector<std::int64_t> all;
  for (const Value& item : *list) {
    const std::int64_t* const n = item.get<std::int64_t>();
    if (!n) fail(i, "a list of integers");
    all.push_back(*n);
  }
  return all;
}

Shape Arguments::sizes(int i) const { return {integers(i)}; }

Size2 Arguments::pair(int i, Size2 otherwise) const {
  const std::vector<std::int64_t> given = integers(i);
  if (given.empty()) return otherwise;
  if (given.size() > 2) fail(i, "one or two integers");
  return {given.front(), given.back()};
}

std::optional<DType> Arguments::dtype(int i) const {
  if (none(i)) return std::nullopt;
  const DType* const d = (*this)[i].get<DType>();
  if (!d) fail(i, "a dtype that Gradual has");
  return *d == DType::f32 ? real() : *d;
}

TensorOptions Arguments::options(int i, DType otherwise) const {
  return {.dtype = dtype(i).value_or(otherwise), .device = device()};
}

// --- promotion -------------------------------------------------------------------------------------------------------

namespace {

struct Typed {
  DType dtype;
  int priority;  // 2: a tensor with dims, 1: a 0-d tensor, 0: a number
};

Typed typed(const Arguments& a, int i) {
  if (a.is_tensor(i)) return {a.tensor(i).dtype(), a.tensor(i).dim() > 0 ? 2 : 1};
  if (a[i].get<bool>()) return {DType::bool_, 0};
  return {a.is_floating_number(i) ? a.real() : DType::i64, 0};
}

Operand converted(const Arguments& a, int i, DType to, Tensor& storage) {
  if (!a.is_tensor(i)) return {a.number(i)};
  storage = cast(a.tensor(i), to);
  return {storage};
}

Tensor binary_as(const Arguments& a, BinaryFn op, int i, int j, DType to) {
  Tensor left;
  Tensor right;
  const Operand x = converted(a, i, to, left);
  const Operand y = converted(a, j, to, right);
  if (x.is_number() && y.is_number()) {
    const TensorOptions options{.dtype = to, .device = a.device()};
    return op({full({}, a.number(i), options)}, y);
  }
  return op(x, y);
}

}  // namespace

DType result_type(const Arguments& a, std::initializer_list<int> arguments) {
  std::optional<DType> by_priority[3];
  for (const int i : arguments) {
    if (a.none(i)) continue;
    const Typed t = typed(a, i);
    std::optional<DType>& of = by_priority[t.priority];
    of = of ? promote(*of, t.dtype) : t.dtype;
  }
  std::optional<DType> result;
  for (const std::optional<DType>& next : by_priority)  // from numbers up
    if (next && (!result || kind_rank(*result) <= kind_rank(*next))) result = next;
  return result.value_or(a.real());
}

Tensor binary(const Arguments& a, BinaryFn op, int i, int j) { return binary_as(a, op, i, j, result_type(a, {i, j})); }

Tensor floating_binary(const Arguments& a, BinaryFn op, int i, int j) {
  const DType common = result_type(a, {i, j});
  return binary_as(a, op, i, j, is_floating(common) ? common : a.real());
}

Tensor floating(const Arguments& a, const Tensor& x) { return x.is_floating() ? x : cast(x, a.real()); }

// Gradual's clamp passes the gradient at the bounds.
Tensor clamp_strictly(const Tensor& x, double low, double high) {
  if (!x.requires_grad()) return clamp(x, low, high);
  Tensor y = x;
  if (low == 0) y = relu(y);
  else if (low > -INFINITY) y = where(le(y, low), low, y);
  if (high < INFINITY || low > high) y = where(ge(y, high), high, y);
  return y;
}

Tensor as_index(const Tensor& index) { return cast(index, DType::i64); }

}  // namespace gradual::pt2
