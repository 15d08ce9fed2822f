#include "host_functions.h"

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../autograd/function.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::pt2 {
namespace {

using SlopeFn = Tensor (*)(const Tensor& x);

Tensor like(const Tensor& x, const std::vector<double>& values) {
  return from_data(values, x.sizes(), {.dtype = x.dtype()}).to(x.device());
}

class HostFunction : public Function {
 public:
  HostFunction(double (*f)(double), SlopeFn slope) : f_(f), slope_(slope) {}

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    save_for_backward({inputs[0]});
    std::vector<double> values = inputs[0].to_vector<double>();
    for (double& v : values) v = f_(v);
    return {like(inputs[0], values)};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    return {mul(grads[0], slope_(saved()[0]))};
  }
  std::string name() const override { return "host_function"; }

 private:
  double (*f_)(double);
  SlopeFn slope_;
};

class Atan2 : public Function {
 public:
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    save_for_backward(inputs);
    std::vector<double> values = inputs[0].to_vector<double>();
    const std::vector<double> x = inputs[1].to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::atan2(values[i], x[i]);
    return {like(inputs[0], values)};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    const Tensor& y = saved()[0];
    const Tensor& x = saved()[1];
    const Tensor scaled = div(grads[0], add(square(x), square(y)));
    return {mul(scaled, x), neg(mul(scaled, y))};
  }
  std::string name() const override { return "atan2"; }
};

// --- quotients -------------------------------------------------------------------------------------------------------

// The quotient follows from the remainder, which is exact, so that rounding never lifts it to the next integer.
template <class T> T quotient(T x, T y, Toward by) {
  if (by == Toward::zero) return std::trunc(x / y);
  if (y == 0) return x / y;
  const T rest = std::fmod(x, y);
  T near = (x - rest) / y;
  if (rest != 0 && (y < 0) != (rest < 0)) near -= 1;
  if (near == 0) return std::copysign(T(0), x / y);
  const T below = std::floor(near);
  return near - below > T(0.5) ? below + 1 : below;
}
template <class T> T rest_of(T x, T y, Toward by) {
  const T rest = std::fmod(x, y);
  const bool other_side = rest != 0 && (y < 0) != (rest < 0);
  return by == Toward::floor && other_side ? rest + y : rest;
}

std::int64_t quotient(std::int64_t x, std::int64_t y, Toward by) {
  if (y == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(x));
  const std::int64_t q = x / y;
  const bool other_side = x % y != 0 && (x < 0) != (y < 0);
  return by == Toward::floor && other_side ? q - 1 : q;
}
std::int64_t rest_of(std::int64_t x, std::int64_t y, Toward by) {
  if (y == -1) return 0;
  const std::int64_t rest = x % y;
  const bool other_side = rest != 0 && (rest < 0) != (y < 0);
  return by == Toward::floor && other_side ? rest + y : rest;
}

struct QuotientOf {
  template <class T> T operator()(T x, T y, Toward by) const { return quotient(x, y, by); }
};
struct RestOf {
  template <class T> T operator()(T x, T y, Toward by) const { return rest_of(x, y, by); }
};

template <class F> Tensor of_integers(const Tensor& x, const Tensor& y, Toward by, const F& f) {
  std::vector<std::int64_t> values = x.to_vector<std::int64_t>();
  const std::vector<std::int64_t> divisors = y.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (divisors[i] == 0) throwf("{} is divided by the integer 0", values[i]);
    values[i] = f(values[i], divisors[i], by);
  }
  return cast(from_data(values, x.sizes(), {.dtype = DType::i64}), x.dtype()).to(x.device());
}

template <class F> Tensor each(const Tensor& x, const Tensor& y, Toward by, const F& f) {
  if (!x.is_floating()) return of_integers(x, y, by, f);
  std::vector<double> values = x.to_vector<double>();
  const std::vector<double> divisors = y.to_vector<double>();
  const bool wide = x.dtype() == DType::f64;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = wide ? f(values[i], divisors[i], by)
                     : static_cast<double>(f(static_cast<float>(values[i]), static_cast<float>(divisors[i]), by));
  return like(x, values);
}

class RoundedQuotient : public Function {
 public:
  explicit RoundedQuotient(Toward by) : by_(by) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    return {each(inputs[0], inputs[1], by_, QuotientOf())};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    return {zeros(grads[0].sizes(), options_of(grads[0])), zeros(grads[0].sizes(), options_of(grads[0]))};
  }
  std::string name() const override { return "rounded_quotient"; }

 private:
  Toward by_;
};

// d (x - q y): q is constant between its steps.
class Remainder : public Function {
 public:
  explicit Remainder(Toward by) : by_(by) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    save_for_backward({each(inputs[0], inputs[1], by_, QuotientOf())});
    return {each(inputs[0], inputs[1], by_, RestOf())};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    return {grads[0], neg(mul(grads[0], saved()[0]))};
  }
  std::string name() const override { return "remainder"; }

 private:
  Toward by_;
};

}  // namespace

Tensor host_function(const Tensor& x, double (*f)(double), SlopeFn slope) {
  return apply(std::make_shared<HostFunction>(f, slope), {x})[0];
}
Tensor host_atan2(const Tensor& y, const Tensor& x) { return apply(std::make_shared<Atan2>(), {y, x})[0]; }
Tensor host_integers(const Tensor& x, const Tensor& y, std::int64_t (*f)(std::int64_t, std::int64_t)) {
  std::vector<std::int64_t> values = x.to_vector<std::int64_t>();
  const std::vector<std::int64_t> others = y.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = f(values[i], others[i]);
  return cast(from_data(values, x.sizes(), {.dtype = DType::i64}), x.dtype()).to(x.device());
}
Tensor rounded_quotient(const Tensor& x, const Tensor& y, Toward by) {
  if (!x.is_floating()) return each(x, y, by, QuotientOf());
  return apply(std::make_shared<RoundedQuotient>(by), {x, y})[0];
}
Tensor remainder_of(const Tensor& x, const Tensor& y, Toward by) {
  if (!x.is_floating()) return each(x, y, by, RestOf());
  return apply(std::make_shared<Remainder>(by), {x, y})[0];
}

}  // namespace gradual::pt2
