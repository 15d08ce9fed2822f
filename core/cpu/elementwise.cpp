// Elementwise and comparison kernels: functors.h on the loops of loops.h.
#include <cmath>
#include <string>

#include "../dispatch.h"
#include "../functors.h"
#include "kernels.h"
#include "loops.h"

namespace gradual::cpu {
namespace {

template <class C, int N, class F> void run(const OpCall& c, Outputs& out, const F& f, C scalar) {
  run_elementwise<C>(out[0], c.inputs.data(), N, scalar, block_of<C, N, F>, &f);
}

// The number in place of an undefined operand. Integers take integers only: a fraction would be cut in silence.
template <class C> C scalar_of(const OpCall& c, int inputs) {
  bool absent = false;
  for (int i = 0; i < inputs; ++i) absent = absent || !c[i].defined();
  if (!absent) return C{};
  const double value = c.get<ScalarAttrs>().value;
  if constexpr (std::is_same_v<C, std::int64_t>) {
    if (value != std::trunc(value) || std::fabs(value) >= 0x1p63)
      fail(describe(c) + ": the number " + std::to_string(value) +
           " is not an integer of 64 bits; cast the tensor with to(DType::f32)");
  }
  return static_cast<C>(value);
}

template <class F> F make(const OpCall& c) {
  if constexpr (std::is_constructible_v<F, const ScalarAttrs&>) return F(c.get<ScalarAttrs>());
  else return F{};
}

template <template <class> class F> void unary_number(const OpCall& c, Outputs& out) {
  visit_compute(c[0].dtype(), [&]<class C>(C) { run<C, 1>(c, out, make<F<C>>(c), C{}); });
}
template <template <class> class F> void unary_float(const OpCall& c, Outputs& out) {
  visit_floating(c[0].dtype(), [&]<class C>(C) { run<C, 1>(c, out, make<F<C>>(c), C{}); });
}
void gelu(const OpCall& c, Outputs& out) {
  c.get<GeluAttrs>().tanh ? unary_float<functors::GeluTanh>(c, out) : unary_float<functors::Gelu>(c, out);
}

// The first defined tensor among the operands says what the numbers are: promotion has made all alike.
DType operand_dtype(const OpCall& c, int first = 0) {
  return c[first].defined() ? c[first].dtype() : c[first + 1].dtype();
}

template <template <class> class F> void binary_number(const OpCall& c, Outputs& out) {
  visit_compute(operand_dtype(c), [&]<class C>(C) { run<C, 2>(c, out, F<C>{}, scalar_of<C>(c, 2)); });
}
template <template <class> class F> void binary_float(const OpCall& c, Outputs& out) {
  visit_floating(operand_dtype(c), [&]<class C>(C) { run<C, 2>(c, out, F<C>{}, scalar_of<C>(c, 2)); });
}

// Integers against a fraction compare as doubles.
template <template <class> class F> void comparison(const OpCall& c, Outputs& out) {
  const bool scalar = !c[0].defined() || !c[1].defined();
  const double value = scalar ? c.get<ScalarAttrs>().value : 0;
  if (scalar && !is_floating(operand_dtype(c)) && !(value == std::trunc(value) && std::fabs(value) < 0x1p63))
    return run<double, 2>(c, out, F<double>{}, value);
  binary_number<F>(c, out);
}

// Operands of any dtypes, each by itself true where not zero. Doubles hold that for every dtype but i64, whose values
// round, yet never to zero.
template <template <class> class F, int N> void logical(const OpCall& c, Outputs& out) {
  if constexpr (N == 1) run<double, 1>(c, out, F<double>{}, 0.0);
  else run<double, 2>(c, out, F<double>{}, scalar_of<double>(c, 2));
}

void where(const OpCall& c, Outputs& out) {
  visit_compute(operand_dtype(c, 1), [&]<class C>(C) { run<C, 3>(c, out, functors::Where<C>{}, scalar_of<C>(c, 3)); });
}

}  // namespace

void register_elementwise() {
  using namespace functors;
  const auto set = [](OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; };
  set(OpId::neg, unary_number<Neg>);
  set(OpId::abs, unary_number<Abs>);
  set(OpId::sign, unary_number<Sign>);
  set(OpId::square, unary_number<Square>);
  set(OpId::relu, unary_number<Relu>);
  set(OpId::clamp, unary_number<Clamp>);
  set(OpId::leaky_relu, unary_float<LeakyRelu>);
  set(OpId::exp, unary_float<Exp>);
  set(OpId::log, unary_float<Log>);
  set(OpId::log1p, unary_float<Log1p>);
  set(OpId::sqrt, unary_float<Sqrt>);
  set(OpId::rsqrt, unary_float<Rsqrt>);
  set(OpId::reciprocal, unary_float<Reciprocal>);
  set(OpId::sin, unary_float<Sin>);
  set(OpId::cos, unary_float<Cos>);
  set(OpId::tanh, unary_float<Tanh>);
  set(OpId::sigmoid, unary_float<Sigmoid>);
  set(OpId::erf, unary_float<Erf>);
  set(OpId::gelu, gelu);
  set(OpId::silu, unary_float<Silu>);
  set(OpId::softplus, unary_float<Softplus>);
  set(OpId::logical_not, logical<LogicalNot, 1>);
  set(OpId::add, binary_number<Add>);
  set(OpId::sub, binary_number<Sub>);
  set(OpId::mul, binary_number<Mul>);
  set(OpId::div, binary_float<Div>);
  set(OpId::pow, binary_float<Pow>);
  set(OpId::maximum, binary_number<Maximum>);
  set(OpId::minimum, binary_number<Minimum>);
  set(OpId::eq, comparison<Eq>);
  set(OpId::ne, comparison<Ne>);
  set(OpId::lt, comparison<Lt>);
  set(OpId::le, comparison<Le>);
  set(OpId::gt, comparison<Gt>);
  set(OpId::ge, comparison<Ge>);
  set(OpId::logical_and, logical<LogicalAnd, 2>);
  set(OpId::logical_or, logical<LogicalOr, 2>);
  set(OpId::logical_xor, logical<LogicalXor, 2>);
  set(OpId::where, where);
}

}  // namespace gradual::cpu
