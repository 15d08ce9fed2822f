// New tensors, random ones by the thread's generator, and what Python computes with sizes.
#include <algorithm>
#include <cmath>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

Value filled_sizes(const Arguments& a, double value, int dtype) {
  return full(a.sizes(0), value, a.options(dtype, a.real()));
}
Value zeros_row(const Arguments& a) { return filled_sizes(a, 0, 1); }
Value ones_row(const Arguments& a) { return filled_sizes(a, 1, 1); }

// The dtype of a number of Python.
DType dtype_of_number(const Arguments& a, int i) {
  if (a.is_floating_number(i)) return a.real();
  return a[i].get<bool>() ? DType::bool_ : DType::i64;
}
Value full_row(const Arguments& a) { return full(a.sizes(0), a.number(1), a.options(2, dtype_of_number(a, 1))); }
Value scalar_tensor(const Arguments& a) { return full({}, a.number(0), a.options(1, a.real())); }

Tensor like(const Arguments& a, double value) {
  const Tensor& x = a.tensor(0);
  return full(x.sizes(), value, TensorOptions{.dtype = a.dtype(1).value_or(x.dtype()), .device = x.device()});
}
Value zeros_like_row(const Arguments& a) { return like(a, 0); }
Value ones_like_row(const Arguments& a) { return like(a, 1); }
Value full_like_row(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  return full(x.sizes(), a.number(1), TensorOptions{.dtype = a.dtype(2).value_or(x.dtype()), .device = x.device()});
}
Tensor made_new(const Arguments& a, double value, int dtype) {
  const Tensor& x = a.tensor(0);
  return full(a.sizes(1), value, TensorOptions{.dtype = a.dtype(dtype).value_or(x.dtype()), .device = x.device()});
}
Value new_zeros(const Arguments& a) { return made_new(a, 0, 2); }
Value new_ones(const Arguments& a) { return made_new(a, 1, 2); }
Value new_full(const Arguments& a) { return made_new(a, a.number(2), 3); }

Tensor range(const Arguments& a, int start, int end, int step, int dtype) {
  bool floating_range = false;
  for (const int i : {start, end, step})
    if (i >= 0) floating_range = floating_range || a.is_floating_number(i);
  const double from = start >= 0 ? a.number(start) : 0;
  const double by = step >= 0 ? a.number(step) : 1;
  return arange(from, a.number(end), by, a.options(dtype, floating_range ? a.real() : DType::i64));
}
Value arange_end(const Arguments& a) { return range(a, -1, 0, -1, 1); }
Value arange_start(const Arguments& a) { return range(a, 0, 1, -1, 2); }
Value arange_step(const Arguments& a) { return range(a, 0, 1, 2, 3); }
Value linspace_row(const Arguments& a) {
  return linspace(a.number(0), a.number(1), a.integer(2), a.options(3, a.real()));
}
Value eye_row(const Arguments& a) { return eye(a.integer(0), a.options(1, a.real())); }

Value fill(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  if (a.is_tensor(1)) return expand(cast(a.tensor(1), x.dtype()), x.sizes());
  return full(x.sizes(), a.number(1), options_of(x));
}
Value zero(const Arguments& a) { return zeros(a.tensor(0).sizes(), options_of(a.tensor(0))); }

// --- random ----------------------------------------------------------------------------------------------------------

Value rand_row(const Arguments& a) { return rand(a.sizes(0), a.options(1, a.real())); }
Value randn_row(const Arguments& a) { return randn(a.sizes(0), a.options(1, a.real())); }
TensorOptions options_like(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  return {.dtype = a.dtype(1).value_or(x.dtype()), .device = x.device()};
}
Value rand_like_row(const Arguments& a) { return rand(a.tensor(0).sizes(), options_like(a)); }
Value randn_like_row(const Arguments& a) { return randn(a.tensor(0).sizes(), options_like(a)); }
Value randint_high(const Arguments& a) { return randint(0, a.integer(0), a.sizes(1), a.options(2, DType::i64)); }
Value randint_low(const Arguments& a) {
  return randint(a.integer(0), a.integer(1), a.sizes(2), a.options(3, DType::i64));
}
Value randperm_row(const Arguments& a) { return randperm(a.integer(0)); }
Value bernoulli_row(const Arguments& a) { return bernoulli(a.tensor(0)); }
Value bernoulli_p(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  return cast(lt(rand(x.sizes(), {.dtype = DType::f32, .device = x.device()}), a.number(1)), x.dtype());
}
Value uniform(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  return empty_like(x).uniform_(a.number(1), a.number(2));
}
Value normal(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  return empty_like(x).normal_(a.number(1), a.number(2));
}
Value multinomial_row(const Arguments& a) { return multinomial(a.tensor(0), a.integer(1), a.flag(2)); }

constexpr OpRow kCreationRows[] = {
    {"aten.zeros.default", "size dtype=None layout=None device=None pin_memory=None", zeros_row},
    {"aten.ones.default", "size dtype=None layout=None device=None pin_memory=None", ones_row},
    {"aten.empty.memory_format", "size dtype=None layout=None device=None pin_memory=None memory_format=None",
     zeros_row},
    {"aten.full.default", "size fill_value dtype=None layout=None device=None pin_memory=None", full_row},
    {"aten.scalar_tensor.default", "s dtype=None layout=None device=None pin_memory=None", scalar_tensor},
    {"aten.zeros_like.default", "self dtype=None layout=None device=None pin_memory=None memory_format=None",
     zeros_like_row},
    {"aten.ones_like.default", "self dtype=None layout=None device=None pin_memory=None memory_format=None",
     ones_like_row},
    {"aten.empty_like.default", "self dtype=None layout=None device=None pin_memory=None memory_format=None",
     zeros_like_row},
    {"aten.full_like.default", "self fill_value dtype=None layout=None device=None pin_memory=None memory_format=None",
     full_like_row},
    {"aten.new_zeros.default", "self size dtype=None layout=None device=None pin_memory=None", new_zeros},
    {"aten.new_ones.default", "self size dtype=None layout=None device=None pin_memory=None", new_ones},
    {"aten.new_empty.default", "self size dtype=None layout=None device=None pin_memory=None", new_zeros},
    {"aten.new_full.default", "self size fill_value dtype=None layout=None device=None pin_memory=None", new_full},
    {"aten.arange.default", "end dtype=None layout=None device=None pin_memory=None", arange_end},
    {"aten.arange.start", "start end dtype=None layout=None device=None pin_memory=None", arange_start},
    {"aten.arange.start_step", "start end step=1 dtype=None layout=None device=None pin_memory=None", arange_step},
    {"aten.linspace.default", "start end steps dtype=None layout=None device=None pin_memory=None", linspace_row},
    {"aten.eye.default", "n dtype=None layout=None device=None pin_memory=None", eye_row},
    {"aten.fill.Scalar", "self value", fill},
    {"aten.fill.Tensor", "self value", fill},
    {"aten.zero.default", "self", zero},
    {"aten.rand.default", "size dtype=None layout=None device=None pin_memory=None", rand_row},
    {"aten.randn.default", "size dtype=None layout=None device=None pin_memory=None", randn_row},
    {"aten.rand_like.default", "self dtype=None layout=None device=None pin_memory=None memory_format=None",
     rand_like_row},
    {"aten.randn_like.default", "self dtype=None layout=None device=None pin_memory=None memory_format=None",
     randn_like_row},
    {"aten.randint.default", "high size dtype=None layout=None device=None pin_memory=None", randint_high},
    {"aten.randint.low", "low high size dtype=None layout=None device=None pin_memory=None", randint_low},
    {"aten.randperm.default", "n dtype=None layout=None device=None pin_memory=None", randperm_row},
    {"aten.bernoulli.default", "self generator=None", bernoulli_row},
    {"aten.bernoulli.p", "self p generator=None", bernoulli_p},
    {"aten.bernoulli.float", "self p=0.5 generator=None", bernoulli_p},  // the functional form of bernoulli_.float
    {"aten.uniform.default", "self from=0 to=1 generator=None", uniform},
    {"aten.normal.default", "self mean=0 std=1 generator=None", normal},
    {"aten.multinomial.default", "self num_samples replacement=False generator=None", multinomial_row},
};

// --- Python's arithmetic on sizes ------------------------------------------------------------------------------------

Value size_of_dim(const Arguments& a) { return a.tensor(0).size(a.dim(1)); }
Value element_count(const Arguments& a) { return a.tensor(0).numel(); }
Value item(const Arguments& a) {
  const Tensor& t = a.tensor(0);
  if (t.is_floating()) return t.item();
  if (t.dtype() == DType::bool_) return t.item() != 0;
  return t.item<std::int64_t>();
}
Value getitem(const Arguments& a) {
  const Value::List* const list = a[0].get<Value::List>();
  if (!list) a.fail(0, "a list");
  const std::int64_t i = a.integer(1) < 0 ? a.integer(1) + std::ssize(*list) : a.integer(1);
  if (i < 0 || i >= std::ssize(*list)) throwf("place {} of a list of {}", a.integer(1), list->size());
  return (*list)[static_cast<std::size_t>(i)];
}

// Integers stay integers; a float makes the result one.
template <class Whole, class Real> Value arithmetic(const Arguments& a, const Whole& whole, const Real& real) {
  if (a.is_floating_number(0) || a.is_floating_number(1))
    return Value(static_cast<double>(real(a.number(0), a.number(1))));
  return Value(static_cast<std::int64_t>(whole(a.integer(0), a.integer(1))));
}
[[noreturn]] void too_large() { throw_error("the integer is too large"); }
std::int64_t plus(std::int64_t x, std::int64_t y) {
  std::int64_t n = 0;
  if (__builtin_add_overflow(x, y, &n)) too_large();
  return n;
}
std::int64_t minus(std::int64_t x, std::int64_t y) {
  std::int64_t n = 0;
  if (__builtin_sub_overflow(x, y, &n)) too_large();
  return n;
}
std::int64_t times(std::int64_t x, std::int64_t y) {
  std::int64_t n = 0;
  if (__builtin_mul_overflow(x, y, &n)) too_large();
  return n;
}
std::int64_t floored(std::int64_t x, std::int64_t y) {
  if (y == 0 || (y == -1 && x == INT64_MIN)) throwf("{} // {}", x, y);
  const std::int64_t q = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? q - 1 : q;
}
Value sym_add(const Arguments& a) {
  return arithmetic(a, plus, [](double x, double y) { return x + y; });
}
Value sym_sub(const Arguments& a) {
  return arithmetic(a, minus, [](double x, double y) { return x - y; });
}
Value sym_mul(const Arguments& a) {
  return arithmetic(a, times, [](double x, double y) { return x * y; });
}
Value sym_floordiv(const Arguments& a) {
  return arithmetic(a, floored, [](double x, double y) { return std::floor(x / y); });
}
Value sym_truediv(const Arguments& a) { return a.number(0) / a.number(1); }
Value sym_mod(const Arguments& a) {
  return arithmetic(
      a, [](std::int64_t x, std::int64_t y) { return minus(x, times(floored(x, y), y)); },
      [](double x, double y) { return x - std::floor(x / y) * y; });
}
// x without its fraction. Error from 9e15 on, and for NaN.
std::int64_t whole(double x) {
  if (!(std::abs(x) < 9e15)) throwf("int({})", x);
  return static_cast<std::int64_t>(x);
}
Value sym_pow(const Arguments& a) {
  const double power = std::pow(a.number(0), a.number(1));
  if (a.is_floating_number(0) || a.is_floating_number(1) || a.number(1) < 0) return power;
  return whole(power);
}
Value sym_max(const Arguments& a) {
  return arithmetic(
      a, [](auto x, auto y) { return std::max(x, y); }, [](auto x, auto y) { return std::max(x, y); });
}
Value sym_min(const Arguments& a) {
  return arithmetic(
      a, [](auto x, auto y) { return std::min(x, y); }, [](auto x, auto y) { return std::min(x, y); });
}
Value sym_neg(const Arguments& a) {
  return a.is_floating_number(0) ? Value(-a.number(0)) : Value(minus(0, a.integer(0)));
}
Value sym_int(const Arguments& a) { return whole(a.number(0)); }
Value sym_ceil(const Arguments& a) { return whole(std::ceil(a.number(0))); }
Value sym_floor(const Arguments& a) { return whole(std::floor(a.number(0))); }
Value sym_float(const Arguments& a) { return a.number(0); }
Value sym_not(const Arguments& a) { return !a.flag(0); }
template <class F> Value comparison(const Arguments& a, F f) {
  return Value(static_cast<bool>(f(a.number(0), a.number(1))));
}

constexpr OpRow kPythonRows[] = {
    {"aten.sym_size.int", "self dim", size_of_dim},
    {"aten.size.int", "self dim", size_of_dim},
    {"aten.sym_numel.default", "self", element_count},
    {"aten.item.default", "self", item},
    {"aten._local_scalar_dense.default", "self", item},
    {"_operator.getitem", "a b", getitem},
    {"_operator.add", "a b", sym_add},
    {"_operator.sub", "a b", sym_sub},
    {"_operator.mul", "a b", sym_mul},
    {"_operator.floordiv", "a b", sym_floordiv},
    {"_operator.truediv", "a b", sym_truediv},
    {"_operator.mod", "a b", sym_mod},
    {"_operator.pow", "a b", sym_pow},
    {"_operator.neg", "a", sym_neg},
    {"_operator.eq", "a b", [](const Arguments& a) { return comparison(a, std::equal_to<>()); }},
    {"_operator.ne", "a b", [](const Arguments& a) { return comparison(a, std::not_equal_to<>()); }},
    {"_operator.lt", "a b", [](const Arguments& a) { return comparison(a, std::less<>()); }},
    {"_operator.le", "a b", [](const Arguments& a) { return comparison(a, std::less_equal<>()); }},
    {"_operator.gt", "a b", [](const Arguments& a) { return comparison(a, std::greater<>()); }},
    {"_operator.ge", "a b", [](const Arguments& a) { return comparison(a, std::greater_equal<>()); }},
    {"_operator.and_", "a b", [](const Arguments& a) -> Value { return a.flag(0) && a.flag(1); }},
    {"_operator.or_", "a b", [](const Arguments& a) -> Value { return a.flag(0) || a.flag(1); }},
    {"torch.sym_max", "a b", sym_max},
    {"torch.sym_min", "a b", sym_min},
    {"torch.sym_int", "a", sym_int},
    {"torch.sym_float", "a", sym_float},
    {"torch.sym_not", "a", sym_not},
    {"math.trunc", "a", sym_int},
    {"math.ceil", "a", sym_ceil},
    {"math.floor", "a", sym_floor},
};

}  // namespace

std::span<const OpRow> creation_rows() { return kCreationRows; }
std::span<const OpRow> python_rows() { return kPythonRows; }

}  // namespace gradual::pt2
