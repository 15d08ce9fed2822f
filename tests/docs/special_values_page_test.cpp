// docs/special-values.md: values and first and second derivatives where floats are special. The tables below are limits
// in exact arithmetic.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/autograd/autograd.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/ops/derived_ops.h>
#include <gradual/core/ops/ops.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <regex>

#include "page_part.h"

namespace gradual::test {
namespace {

using Real = long double;
using Function = Tensor (*)(const Tensor& x);

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLn2 = std::numbers::ln2;
constexpr double kLn10 = std::numbers::ln10;
constexpr double kHalfPi = std::numbers::pi / 2;

std::string number(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v < 0 ? "-Inf" : "Inf";
  return fmt::format("{:.4g}", v == 0 ? 0.0 : v);
}

// --- what is measured ------------------------------------------------------------------------------------------------

struct Derivatives {
  std::vector<double> value, slope, recorded_slope, second;
};

// The value, the gradient of its sum by the fused rules and by the recorded ones (create_graph), and the gradient of
// the sum of the latter.
Derivatives derivatives(Function f, const Tensor& at) {
  const auto numbers = [](const Tensor& t) { return t.detach().to_vector<double>(); };
  Derivatives d;
  const Tensor x = at.clone().set_requires_grad();
  const Tensor y = f(x);
  d.value = numbers(y);
  const Tensor ones = ones_like(y);
  d.slope = numbers(autograd::grad({y}, {x}, {ones}, {.retain_graph = true})[0]);
  const Tensor slope = autograd::grad({y}, {x}, {ones}, {.create_graph = true})[0];
  d.recorded_slope = numbers(slope);
  const bool constant = !slope.requires_grad();
  const Tensor second =
      constant ? Tensor() : autograd::grad({slope}, {x}, {ones_like(slope)}, {.allow_unused = true})[0];
  d.second = second.defined() ? numbers(second) : std::vector<double>(d.slope.size(), 0);
  return d;
}

// Within 64 ulps of the dtype; subnormal numbers within 64 of the smallest.
bool near(double got, Real want, DType dtype) {
  std::vector<double> rounded{static_cast<double>(want)};
  if (dtype != DType::f64)
    rounded = from_data(rounded, {1}, {.dtype = DType::f64}).to(dtype).to(DType::f64).to_vector<double>();
  if (!std::isfinite(rounded[0]) || !std::isfinite(got))
    return std::isnan(rounded[0]) ? std::isnan(got) : got == rounded[0];
  const FloatInfo& info = float_info(dtype);
  return std::fabs(got - rounded[0]) <= 64 * (info.epsilon * std::fabs(rounded[0]) + info.min_subnormal);
}

// --- functions of one number -----------------------------------------------------------------------------------------

struct Triple {
  double value, slope, second;
};
// Limits, and formulas for finite numbers other than 0. `at_nan` and `at_minus_zero` differ from NaN and `at_zero` only
// where they are given.
struct Unary {
  const char* name;
  Function of;
  Triple at_minus_inf, at_zero, at_inf;
  Real (*value)(Real x);
  Real (*slope)(Real x);
  Real (*second)(Real x);
  Triple at_nan = {kNan, kNan, kNan};
  std::optional<Triple> at_minus_zero = {};
};

Real none(Real) { return 0; }
Real one(Real) { return 1; }
Real step(Real x) { return x > 0 ? 1 : 0; }
Real positive(Real x) { return x > 0 ? x : 0; }
Real same(Real x) { return x; }
// Beyond this every function below with a transition at 0 has reached its limit; the subnormals are at 0.
Real at_zero_or(Real x, Real zero, Real below, Real above) {
  return std::fabs(x) < 1e-4L ? zero : x < 0 ? below : above;
}

const std::vector<Unary>& unary() {
  const double gauss = std::sqrt(2 / std::numbers::pi);   // 2 phi(0)
  const double erf_slope = 2 * std::numbers::inv_sqrtpi;  // erf's slope at 0
  static const std::vector<Unary> all{
      {"neg",
       [](const Tensor& x) { return neg(x); },
       {kInf, -1, 0},
       {0, -1, 0},
       {-kInf, -1, 0},
       [](Real x) -> Real { return -x; },
       [](Real x) -> Real { return x - x - 1; },
       none,
       {kNan, -1, 0}},
      {"abs",
       [](const Tensor& x) { return abs(x); },
       {kInf, -1, 0},
       {0, 0, 0},
       {kInf, 1, 0},
       [](Real x) -> Real { return std::fabs(x); },
       [](Real x) -> Real { return x < 0 ? -1 : 1; },
       none,
       {kNan, 0, 0}},
      {"sign",
       [](const Tensor& x) { return sign(x); },
       {-1, 0, 0},
       {0, 0, 0},
       {1, 0, 0},
       [](Real x) -> Real { return x < 0 ? -1 : 1; },
       none,
       none,
       {0, 0, 0}},
      {"floor",
       [](const Tensor& x) { return floor(x); },
       {-kInf, 0, 0},
       {0, 0, 0},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::fabs(x) > 1 ? x
                                   : x < 0          ? -1
                                                    : 0; },
       none,
       none,
       {kNan, 0, 0}},
      {"ceil",
       [](const Tensor& x) { return ceil(x); },
       {-kInf, 0, 0},
       {0, 0, 0},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::fabs(x) > 1 ? x
                                   : x > 0          ? 1
                                                    : 0; },
       none,
       none,
       {kNan, 0, 0}},
      {"round",
       [](const Tensor& x) { return round(x); },
       {-kInf, 0, 0},
       {0, 0, 0},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::fabs(x) > 1 ? x : 0; },
       none,
       none,
       {kNan, 0, 0}},
      {"trunc",
       [](const Tensor& x) { return trunc(x); },
       {-kInf, 0, 0},
       {0, 0, 0},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::trunc(x); },
       none,
       none,
       {kNan, 0, 0}},
      {"exp",
       [](const Tensor& x) { return exp(x); },
       {0, 0, 0},
       {1, 1, 1},
       {kInf, kInf, kInf},
       [](Real x) -> Real { return std::exp(x); },
       [](Real x) -> Real { return std::exp(x); },
       [](Real x) -> Real { return std::exp(x); }},
      {"exp2",
       [](const Tensor& x) { return exp2(x); },
       {0, 0, 0},
       {1, kLn2, kLn2 * kLn2},
       {kInf, kInf, kInf},
       [](Real x) -> Real { return std::exp2(x); },
       [](Real x) -> Real { return std::exp2(x) * kLn2; },
       [](Real x) -> Real { return std::exp2(x) * kLn2 * kLn2; }},
      {"expm1",
       [](const Tensor& x) { return expm1(x); },
       {-1, 0, 0},
       {0, 1, 1},
       {kInf, kInf, kInf},
       [](Real x) -> Real { return std::expm1(x); },
       [](Real x) -> Real { return std::exp(x); },
       [](Real x) -> Real { return std::exp(x); }},
      {"log",
       [](const Tensor& x) { return log(x); },
       {kNan, 0, 0},
       {-kInf, kInf, -kInf},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::log(x); },
       [](Real x) -> Real { return 1 / x; },
       [](Real x) -> Real { return -1 / (x * x); },
       {kNan, kNan, kNan},
       Triple{-kInf, -kInf, -kInf}},
      {"log2",
       [](const Tensor& x) { return log2(x); },
       {kNan, 0, 0},
       {-kInf, kInf, -kInf},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::log2(x); },
       [](Real x) -> Real { return 1 / (x * kLn2); },
       [](Real x) -> Real { return -1 / (x * x * kLn2); },
       {kNan, kNan, kNan},
       Triple{-kInf, -kInf, -kInf}},
      {"log1p",
       [](const Tensor& x) { return log1p(x); },
       {kNan, 0, 0},
       {0, 1, -1},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::log1p(x); },
       [](Real x) -> Real { return 1 / (1 + x); },
       [](Real x) -> Real { return -1 / ((1 + x) * (1 + x)); }},
      {"log10",
       [](const Tensor& x) { return log10(x); },
       {kNan, 0, 0},
       {-kInf, kInf, -kInf},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::log10(x); },
       [](Real x) -> Real { return 1 / (x * kLn10); },
       [](Real x) -> Real { return -1 / (x * x * kLn10); },
       {kNan, kNan, kNan},
       Triple{-kInf, -kInf, -kInf}},
      {"asin",
       [](const Tensor& x) { return asin(x); },
       {kNan, kNan, kNan},
       {0, 1, 0},
       {kNan, kNan, kNan},
       [](Real x) -> Real { return at_zero_or(x, x, kNan, kNan); },
       [](Real x) -> Real { return at_zero_or(x, 1, kNan, kNan); },
       [](Real x) -> Real { return at_zero_or(x, x, kNan, kNan); }},
      {"acos",
       [](const Tensor& x) { return acos(x); },
       {kNan, kNan, kNan},
       {kHalfPi, -1, 0},
       {kNan, kNan, kNan},
       [](Real x) -> Real { return at_zero_or(x, kHalfPi, kNan, kNan); },
       [](Real x) -> Real { return at_zero_or(x, -1, kNan, kNan); },
       [](Real x) -> Real { return at_zero_or(x, -x, kNan, kNan); }},
      {"atan",
       [](const Tensor& x) { return atan(x); },
       {-kHalfPi, 0, 0},
       {0, 1, 0},
       {kHalfPi, 0, 0},
       [](Real x) -> Real { return std::atan(x); },
       [](Real x) -> Real { return 1 / (1 + x * x); },
       [](Real x) -> Real { return at_zero_or(x, -2 * x, 0, 0); }},
      {"asinh",
       [](const Tensor& x) { return asinh(x); },
       {-kInf, 0, 0},
       {0, 1, 0},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::asinh(x); },
       [](Real x) -> Real { return 1 / std::sqrt(1 + x * x); },
       [](Real x) -> Real { return -x / std::pow(1 + x * x, Real(1.5)); }},
      {"acosh",
       [](const Tensor& x) { return acosh(x); },
       {kNan, kNan, kNan},
       {kNan, kNan, kNan},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::acosh(x); },
       [](Real x) -> Real { return x < 1 ? kNan : 1 / std::sqrt(x * x - 1); },
       [](Real x) -> Real { return x < 1 ? kNan : -x / std::pow(x * x - 1, Real(1.5)); }},
      {"atanh",
       [](const Tensor& x) { return atanh(x); },
       {kNan, 0, 0},
       {0, 1, 0},
       {kNan, 0, 0},
       [](Real x) -> Real { return std::atanh(x); },
       [](Real x) -> Real { return 1 / (1 - x * x); },
       [](Real x) -> Real { return 2 * x / ((1 - x * x) * (1 - x * x)); }},
      {"sqrt",
       [](const Tensor& x) { return sqrt(x); },
       {kNan, kNan, kNan},
       {0, kInf, -kInf},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::sqrt(x); },
       [](Real x) -> Real { return 1 / (2 * std::sqrt(x)); },
       [](Real x) -> Real { return -1 / (4 * x * std::sqrt(x)); },
       {kNan, kNan, kNan},
       Triple{0, -kInf, kInf}},
      {"rsqrt",
       [](const Tensor& x) { return rsqrt(x); },
       {kNan, kNan, kNan},
       {kInf, -kInf, kInf},
       {0, 0, 0},
       [](Real x) -> Real { return 1 / std::sqrt(x); },
       [](Real x) -> Real { return -1 / (2 * x * std::sqrt(x)); },
       [](Real x) -> Real { return 3 / (4 * x * x * std::sqrt(x)); },
       {kNan, kNan, kNan},
       Triple{-kInf, kInf, -kInf}},
      {"reciprocal",
       [](const Tensor& x) { return reciprocal(x); },
       {0, 0, 0},
       {kInf, -kInf, kInf},
       {0, 0, 0},
       [](Real x) -> Real { return 1 / x; },
       [](Real x) -> Real { return -1 / (x * x); },
       [](Real x) -> Real { return 2 / (x * x * x); },
       {kNan, kNan, kNan},
       Triple{-kInf, -kInf, -kInf}},
      {"1 / x",
       [](const Tensor& x) { return 1 / x; },
       {0, 0, 0},
       {kInf, -kInf, kInf},
       {0, 0, 0},
       [](Real x) -> Real { return 1 / x; },
       [](Real x) -> Real { return -1 / (x * x); },
       [](Real x) -> Real { return 2 / (x * x * x); },
       {kNan, kNan, kNan},
       Triple{-kInf, -kInf, -kInf}},
      {"square",
       [](const Tensor& x) { return square(x); },
       {kInf, -kInf, 2},
       {0, 0, 2},
       {kInf, kInf, 2},
       [](Real x) -> Real { return x * x; },
       [](Real x) -> Real { return 2 * x; },
       [](Real x) -> Real { return x - x + 2; },
       {kNan, kNan, 2}},
      {"pow(x, 0.5)",
       [](const Tensor& x) { return pow(x, 0.5); },
       {kInf, 0, 0},
       {0, kInf, -kInf},
       {kInf, 0, 0},
       [](Real x) -> Real { return std::pow(x, 0.5L); },
       [](Real x) -> Real { return 0.5L * std::pow(x, -0.5L); },
       [](Real x) -> Real { return -0.25L * std::pow(x, -1.5L); }},
      {"pow(x, 1.5)",
       [](const Tensor& x) { return pow(x, 1.5); },
       {kInf, kInf, 0},
       {0, 0, kInf},
       {kInf, kInf, 0},
       [](Real x) -> Real { return std::pow(x, 1.5L); },
       [](Real x) -> Real { return 1.5L * std::pow(x, 0.5L); },
       [](Real x) -> Real { return 0.75L * std::pow(x, -0.5L); }},
      {"pow(x, 2)",
       [](const Tensor& x) { return pow(x, 2); },
       {kInf, -kInf, 2},
       {0, 0, 2},
       {kInf, kInf, 2},
       [](Real x) -> Real { return x * x; },
       [](Real x) -> Real { return 2 * x; },
       [](Real x) -> Real { return x - x + 2; },
       {kNan, kNan, 2}},
      {"pow(x, 3)",
       [](const Tensor& x) { return pow(x, 3); },
       {-kInf, kInf, -kInf},
       {0, 0, 0},
       {kInf, kInf, kInf},
       [](Real x) -> Real { return x * x * x; },
       [](Real x) -> Real { return 3 * x * x; },
       [](Real x) -> Real { return 6 * x; }},
      {"pow(2, x)",
       [](const Tensor& x) { return pow(2, x); },
       {0, 0, 0},
       {1, kLn2, kLn2 * kLn2},
       {kInf, kInf, kInf},
       [](Real x) -> Real { return std::exp2(x); },
       [](Real x) -> Real { return std::exp2(x) * kLn2; },
       [](Real x) -> Real { return std::exp2(x) * kLn2 * kLn2; }},
      {"tanh",
       [](const Tensor& x) { return tanh(x); },
       {-1, 0, 0},
       {0, 1, 0},
       {1, 0, 0},
       [](Real x) -> Real { return std::tanh(x); },
       [](Real x) -> Real { return at_zero_or(x, 1, 0, 0); },
       [](Real x) -> Real { return at_zero_or(x, -2 * x, 0, 0); }},
      {"sigmoid",
       [](const Tensor& x) { return sigmoid(x); },
       {0, 0, 0},
       {0.5, 0.25, 0},
       {1, 0, 0},
       [](Real x) -> Real { return 1 / (1 + std::exp(-x)); },
       [](Real x) -> Real { return at_zero_or(x, 0.25L, 0, 0); },
       [](Real x) -> Real { return at_zero_or(x, -x / 8, 0, 0); }},
      {"erf",
       [](const Tensor& x) { return erf(x); },
       {-1, 0, 0},
       {0, erf_slope, 0},
       {1, 0, 0},
       [](Real x) -> Real { return std::erf(x); },
       [](Real x) -> Real { return at_zero_or(x, 1.12837916709551257L, 0, 0); },
       [](Real x) -> Real { return at_zero_or(x, -2 * 1.12837916709551257L * x, 0, 0); }},
      {"erfc",
       [](const Tensor& x) { return erfc(x); },
       {2, 0, 0},
       {1, -erf_slope, 0},
       {0, 0, 0},
       [](Real x) -> Real { return std::erfc(x); },
       [](Real x) -> Real { return at_zero_or(x, -1.12837916709551257L, 0, 0); },
       [](Real x) -> Real { return at_zero_or(x, 2 * 1.12837916709551257L * x, 0, 0); }},
      {"relu",
       [](const Tensor& x) { return relu(x); },
       {0, 0, 0},
       {0, 0, 0},
       {kInf, 1, 0},
       positive,
       step,
       none,
       {kNan, 1, 0}},
      {"leaky_relu",
       [](const Tensor& x) { return leaky_relu(x); },
       {-kInf, 0.01, 0},
       {0, 0.01, 0},
       {kInf, 1, 0},
       [](Real x) -> Real { return x < 0 ? x * 0.01L : x; },
       [](Real x) -> Real { return x < 0 ? 0.01L : 1; },
       none,
       {kNan, 0.01, 0}},
      {"gelu",
       [](const Tensor& x) { return gelu(x); },
       {0, 0, 0},
       {0, 0.5, gauss},
       {kInf, 1, 0},
       [](Real x) -> Real { return at_zero_or(x, x / 2, 0, x); },
       [](Real x) -> Real { return at_zero_or(x, 0.5L, 0, 1); },
       [](Real x) -> Real { return at_zero_or(x, 0.797884560802865356L, 0, 0); }},
      {"gelu, tanh form",
       [](const Tensor& x) { return gelu(x, Gelu::tanh); },
       {0, 0, 0},
       {0, 0.5, gauss},
       {kInf, 1, 0},
       [](Real x) -> Real { return at_zero_or(x, x / 2, 0, x); },
       [](Real x) -> Real { return at_zero_or(x, 0.5L, 0, 1); },
       [](Real x) -> Real { return at_zero_or(x, 0.797884560802865356L, 0, 0); }},
      {"silu",
       [](const Tensor& x) { return silu(x); },
       {0, 0, 0},
       {0, 0.5, 0.5},
       {kInf, 1, 0},
       [](Real x) -> Real { return at_zero_or(x, x / 2, 0, x); },
       [](Real x) -> Real { return at_zero_or(x, 0.5L, 0, 1); },
       [](Real x) -> Real { return at_zero_or(x, 0.5L, 0, 0); }},
      {"softplus",
       [](const Tensor& x) { return softplus(x); },
       {0, 0, 0},
       {kLn2, 0.5, 0.25},
       {kInf, 1, 0},
       [](Real x) -> Real { return at_zero_or(x, 0.693147180559945309L, 0, x); },
       [](Real x) -> Real { return at_zero_or(x, 0.5L, 0, 1); },
       [](Real x) -> Real { return at_zero_or(x, 0.25L, 0, 0); }},
      {"clamp(x, -1, 2)",
       [](const Tensor& x) { return clamp(x, -1, 2); },
       {-1, 0, 0},
       {0, 1, 0},
       {2, 0, 0},
       [](Real x) -> Real { return at_zero_or(x, x, -1, 2); },
       [](Real x) -> Real { return at_zero_or(x, 1, 0, 0); },
       none,
       {kNan, 0, 0}},
      {"minimum(x, 0)",
       [](const Tensor& x) { return minimum(x, 0); },
       {-kInf, 1, 0},
       {0, 0.5, 0},
       {0, 0, 0},
       [](Real x) -> Real { return x < 0 ? x : 0; },
       [](Real x) -> Real { return x < 0 ? 1 : 0; },
       none,
       {kNan, 1, 0}},
      {"where(x > 0, x, 0)",
       [](const Tensor& x) { return where(x > 0, x, 0); },
       {0, 0, 0},
       {0, 0, 0},
       {kInf, 1, 0},
       positive,
       step,
       none,
       {0, 0, 0}},
      {"x + 1",
       [](const Tensor& x) { return x + 1; },
       {-kInf, 1, 0},
       {1, 1, 0},
       {kInf, 1, 0},
       [](Real x) -> Real { return x + 1; },
       one,
       none,
       {kNan, 1, 0}},
      {"x - 1",
       [](const Tensor& x) { return x - 1; },
       {-kInf, 1, 0},
       {-1, 1, 0},
       {kInf, 1, 0},
       [](Real x) -> Real { return x - 1; },
       one,
       none,
       {kNan, 1, 0}},
      {"maximum(x, 0)",
       [](const Tensor& x) { return maximum(x, 0); },
       {0, 0, 0},
       {0, 0.5, 0},
       {kInf, 1, 0},
       positive,
       step,
       none,
       {kNan, 1, 0}},
      {"sin",
       [](const Tensor& x) { return sin(x); },
       {kNan, kNan, kNan},
       {0, 1, 0},
       {kNan, kNan, kNan},
       [](Real x) -> Real { return std::sin(x); },
       [](Real x) -> Real { return std::cos(x); },
       [](Real x) -> Real { return -std::sin(x); }},
      {"cos",
       [](const Tensor& x) { return cos(x); },
       {kNan, kNan, kNan},
       {1, 0, -1},
       {kNan, kNan, kNan},
       [](Real x) -> Real { return std::cos(x); },
       [](Real x) -> Real { return -std::sin(x); },
       [](Real x) -> Real { return -std::cos(x); }},
      {"x * 1",
       [](const Tensor& x) { return x * 1; },
       {-kInf, 1, 0},
       {0, 1, 0},
       {kInf, 1, 0},
       same,
       one,
       none,
       {kNan, 1, 0}},
  };
  return all;
}

void check_point(const Unary& u, double x, DType dtype, const Real (&want)[3]) {
  CAPTURE(std::string(u.name));
  CAPTURE(number(x));
  CAPTURE(to_string(dtype));
  const Derivatives d = derivatives(u.of, from_data(std::vector<double>{x}, {1}, {.dtype = dtype}));
  CHECK_MESSAGE(near(d.value[0], want[0], dtype), "value " << d.value[0] << ", expected " << want[0]);
  CHECK_MESSAGE(near(d.slope[0], want[1], dtype), "slope " << d.slope[0] << ", expected " << want[1]);
  CHECK_MESSAGE(near(d.recorded_slope[0], want[1], dtype),
                "recorded slope " << d.recorded_slope[0] << ", expected " << want[1]);
  CHECK_MESSAGE(near(d.second[0], want[2], dtype), "second " << d.second[0] << ", expected " << want[2]);
}

// A large and a subnormal number of the dtype, exact in it.
double large(DType dtype) { return dtype == DType::f64 ? 0x1p1000 : dtype == DType::f16 ? 0x1p15 : 0x1p100; }
double subnormal(DType dtype) { return 4 * float_info(dtype).min_subnormal; }

std::string triple(const Triple& t) { return number(t.value) + ", " + number(t.slope) + ", " + number(t.second); }

TEST_CASE("docs/special-values.md: functions of one number at Inf, 0, NaN, large and subnormal numbers") {
  std::string table = table_head({"function", "at -Inf", "at 0", "at Inf", "at NaN"});
  for (const Unary& u : unary()) {
    const Triple minus_zero = u.at_minus_zero.value_or(u.at_zero);
    const std::pair<double, Triple> points[] = {
        {-kInf, u.at_minus_inf}, {-0.0, minus_zero}, {0.0, u.at_zero}, {kInf, u.at_inf}, {kNan, u.at_nan}};
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (const auto& [x, t] : points) check_point(u, x, dtype, {t.value, t.slope, t.second});
      for (const double x : {-large(dtype), -subnormal(dtype), subnormal(dtype), large(dtype)})
        check_point(u, x, dtype, {u.value(x), u.slope(x), u.second(x)});
    }
    table += table_row({u.name, triple(u.at_minus_inf),
                        triple(u.at_zero) + (u.at_minus_zero ? "; at -0: " + triple(minus_zero) : ""), triple(u.at_inf),
                        triple(u.at_nan)});
  }
  check_part("special-values.md", "functions", table);
}

// --- functions of several numbers ------------------------------------------------------------------------------------

// second: the gradient of the sum of the slopes.
struct Case {
  const char* call;
  Function of;
  std::vector<double> x, value, slope, second;
};

Tensor targets(const Tensor& like, const std::vector<double>& v) {
  return from_data(v, like.sizes(), options_of(like));
}

Tensor of_first_class(const Tensor& x) { return cross_entropy(x.unsqueeze(0), zeros({1}, {.dtype = DType::i64})); }

const std::vector<Case>& cases() {
  constexpr double kStd = 0.85391256382996653;  // of 1, -1, 0.5, 0
  constexpr double kMost = std::numeric_limits<float>::max();
  static const std::vector<Case> all{
      {"max(x)", [](const Tensor& x) { return max(x); }, {1, 3, 3}, {3}, {0, 0.5, 0.5}, {0, 0, 0}},
      {"max(x)", [](const Tensor& x) { return max(x); }, {1, kNan, 3}, {kNan}, {0, 1, 0}, {0, 0, 0}},
      {"max(x)", [](const Tensor& x) { return max(x); }, {1, kInf, -kInf}, {kInf}, {0, 1, 0}, {0, 0, 0}},
      {"min(x)", [](const Tensor& x) { return min(x); }, {1, kNan, 3}, {kNan}, {0, 1, 0}, {0, 0, 0}},
      {"norm(x)", [](const Tensor& x) { return norm(x); }, {0, 0}, {0}, {0, 0}, {0, 0}},
      {"norm(x)", [](const Tensor& x) { return norm(x); }, {3e30, 4e30}, {5e30}, {0.6, 0.8}, {3.2e-32, -2.4e-32}},
      {"norm(x, 20)", [](const Tensor& x) { return norm(x, 20); }, {1e30, 0}, {1e30}, {1, 0}, {0, 0}},
      {"norm(x, 1)", [](const Tensor& x) { return norm(x, 1); }, {0, -2}, {2}, {0, -1}, {0, 0}},
      {"norm(x, 0.5)",
       [](const Tensor& x) { return norm(x, 0.5); },
       {0, 1, 2},
       {5.8284271247461898},
       {0, 2.4142135623730949, 1.7071067811865475},
       {0, -0.35355339059327384, 0.1767766952966367}},
      {"norm(x, 1.5)",
       [](const Tensor& x) { return norm(x, 1.5); },
       {0, 1, 2},
       {2.4472608147714756},
       {0, 0.63923400786523243, 0.90401340345312153},
       {0, 0.11806590200055772, -0.059032951000278888}},
      {"norm(x, 3)",
       [](const Tensor& x) { return norm(x, 3); },
       {0, 1, 2},
       {2.0800838230519041},
       {0, 0.23112042478354489, 0.92448169913417955},
       {0, 0.2054403775853732, -0.10272018879268674}},
      {"norm(x, 1.5)", [](const Tensor& x) { return norm(x, 1.5); }, {0, 0}, {0}, {0, 0}, {0, 0}},
      {"norm(x, Inf)", [](const Tensor& x) { return norm(x, INFINITY); }, {1, -3, 3}, {3}, {0, -0.5, 0.5}, {0, 0, 0}},
      {"stddev(x)", [](const Tensor& x) { return stddev(x); }, {5, 5, 5}, {0}, {0, 0, 0}, {0, 0, 0}},
      {"stddev(x, {}, false, 0)", [](const Tensor& x) { return stddev(x, {}, false, 0); }, {3}, {0}, {0}, {0}},
      {"stddev(x)",
       [](const Tensor& x) { return stddev(x); },
       {1e30, -1e30, 5e29, 0},
       {kStd * 1e30},
       {0.34156502553198664, -0.43915503282683993, 0.14638501094227999, -0.048795003647426664},
       {0, 0, 0, 0}},
      {"stddev(x)",
       [](const Tensor& x) { return stddev(x); },
       {1e-30, -1e-30, 5e-31, 0},
       {kStd * 1e-30},
       {0.34156502553198664, -0.43915503282683993, 0.14638501094227999, -0.048795003647426664},
       {}},
      {"var(x)", [](const Tensor& x) { return var(x); }, {5, 5, 5}, {0}, {0, 0, 0}, {0, 0, 0}},
      {"sum(x)", [](const Tensor& x) { return sum(x); }, {1, kInf}, {kInf}, {1, 1}, {0, 0}},
      {"mean(x)", [](const Tensor& x) { return mean(x); }, {1, kInf}, {kInf}, {0.5, 0.5}, {0, 0}},
      {"logsumexp(x)", [](const Tensor& x) { return logsumexp(x); }, {0, kInf}, {kInf}, {0, 1}, {0, 0}},
      {"logsumexp(x)", [](const Tensor& x) { return logsumexp(x); }, {kMost, kInf}, {kInf}, {0, 1}, {0, 0}},
      {"logsumexp(x)", [](const Tensor& x) { return logsumexp(x); }, {kInf, kInf, 1}, {kInf}, {0.5, 0.5, 0}, {0, 0, 0}},
      {"logsumexp(x)", [](const Tensor& x) { return logsumexp(x); }, {0, -kInf}, {0}, {1, 0}, {0, 0}},
      {"logsumexp(x)",
       [](const Tensor& x) { return logsumexp(x); },
       {-kInf, -kInf},
       {-kInf},
       {kNan, kNan},
       {kNan, kNan}},
      {"prod(x)", [](const Tensor& x) { return prod(x); }, {0, 2, 3}, {0}, {6, 0, 0}, {5, 3, 2}},
      {"prod(x)", [](const Tensor& x) { return prod(x); }, {0, 0, 3}, {0}, {0, 0, 0}, {3, 3, 0}},
      {"cumsum(x, 0)",
       [](const Tensor& x) { return cumsum(x, 0); },
       {1, kInf, 2},
       {1, kInf, kInf},
       {3, 2, 1},
       {0, 0, 0}},
      {"softmax(x, 0)", [](const Tensor& x) { return softmax(x, 0); }, {3e38, -3e38}, {1, 0}, {0, 0}, {0, 0}},
      {"log_softmax(x, 0)",
       [](const Tensor& x) { return log_softmax(x, 0); },
       {1e30, -1e30},
       {0, -2e30},
       {-1, 1},
       {0, 0}},
      {"log_softmax(x, 0)", [](const Tensor& x) { return log_softmax(x, 0); }, {0, -kInf}, {0, -kInf}, {-1, 1}, {0, 0}},
      {"cross_entropy(x, 0)", of_first_class, {0, -kInf}, {0}, {0, 0}, {0, 0}},
      {"cross_entropy(x, 0)", of_first_class, {-1e30, 1e30}, {2e30}, {-1, 1}, {0, 0}},
      {"pow(x, 0)",
       [](const Tensor& x) { return pow(x, zeros_like(x)); },
       {0, 2, -kInf},
       {1, 1, 1},
       {0, 0, 0},
       {0, 0, 0}},
      {"pow(0, x)", [](const Tensor& x) { return pow(0, x); }, {0, 2}, {1, 0}, {0, 0}, {0, 0}},
      {"atan2(x, 2)",
       [](const Tensor& x) { return atan2(x, 2); },
       {0, 2, -2},
       {0, kHalfPi / 2, -kHalfPi / 2},
       {0.5, 0.25, 0.25},
       {0, -0.125, 0.125}},
      {"floor_divide(x, 2)",
       [](const Tensor& x) { return floor_divide(x, 2); },
       {7, -7, kInf},
       {3, -4, kNan},
       {0, 0, 0},
       {0, 0, 0}},
      {"trunc_divide(x, 2)",
       [](const Tensor& x) { return trunc_divide(x, 2); },
       {7, -7, kInf},
       {3, -3, kInf},
       {0, 0, 0},
       {0, 0, 0}},
      {"remainder(x, -4)",
       [](const Tensor& x) { return remainder(x, -4); },
       {7, -7, kInf},
       {-1, -3, kNan},
       {1, 1, 1},
       {0, 0, 0}},
      {"fmod(x, -4)", [](const Tensor& x) { return fmod(x, -4); }, {7, -7, kInf}, {3, -3, kNan}, {1, 1, 1}, {0, 0, 0}},
      {"maximum(x, {1, 1, 1})",
       [](const Tensor& x) { return maximum(x, ones_like(x)); },
       {1, kNan, kInf},
       {1, kNan, kInf},
       {0.5, 1, 1},
       {0, 0, 0}},
      {"clamp(x, -1, 2)",
       [](const Tensor& x) { return clamp(x, -1, 2); },
       {-1, 2, 3},
       {-1, 2, 2},
       {1, 1, 0},
       {0, 0, 0}},
      {"mse_loss(x, {1, 1}), none",
       [](const Tensor& x) { return mse_loss(x, ones_like(x), Reduction::none); },
       {1, 1e30},
       {0, 1e60},
       {0, 2e30},
       {2, 2}},
      {"l1_loss(x, {1, 1}), none",
       [](const Tensor& x) { return l1_loss(x, ones_like(x), Reduction::none); },
       {1, kInf},
       {0, kInf},
       {0, 1},
       {0, 0}},
      {"huber_loss(x, {0, 0, 0}), none",
       [](const Tensor& x) { return huber_loss(x, zeros_like(x), Reduction::none); },
       {0, 1, kInf},
       {0, 0.5, kInf},
       {0, 1, 1},
       {1, 1, 0}},
      {"bce_with_logits_loss(x, {1, 0, 0}), none",
       [](const Tensor& x) {
         return bce_with_logits_loss(x, targets(x, {1, 0, 0}), Reduction::none);
       },
       {kInf, -kInf, kInf},
       {0, 0, kInf},
       {0, 0, 1},
       {0, 0, 0}},
      {"bce_loss(x, {1, 0}), none",
       [](const Tensor& x) {
         return bce_loss(x, targets(x, {1, 0}), Reduction::none);
       },
       {1, 0},
       {0, 0},
       {-1, 1},
       {1, 1}},
      {"layer_norm(x, 1)",
       [](const Tensor& x) { return layer_norm(x, 1); },
       {1e30, -1e30, 5e29, 0},
       {1.1832159566199232, -1.52127765851133, 0.50709255283711, -0.1690308509457033},
       {0, 0, 0, 0},
       {0, 0, 0, 0}},
      {"layer_norm(x, 1)", [](const Tensor& x) { return layer_norm(x, 1); }, {3e38, -3e38}, {1, -1}, {0, 0}, {0, 0}},
      {"layer_norm(x, 1)", [](const Tensor& x) { return layer_norm(x, 1); }, {2, 2}, {0, 0}, {0, 0}, {0, 0}},
      {"batch_norm(x)",
       [](const Tensor& x) {
         return batch_norm(x.reshape({-1, 1}), {}, {}, {}, {}, true).y;
       },
       {1e30, -1e30, 5e29, 0},
       {1.1832159566199232, -1.52127765851133, 0.50709255283711, -0.1690308509457033},
       {0, 0, 0, 0},
       {0, 0, 0, 0}},
      {"rms_norm(x, 1)", [](const Tensor& x) { return rms_norm(x, 1); }, {0, 0}, {0, 0}, {1000, 1000}, {0, 0}},
  };
  return all;
}

std::string list(const std::vector<double>& v) {
  std::string text;
  for (const double x : v) text += (text.empty() ? "" : ", ") + number(x);
  return text;
}

// The differences from the expected numbers are at most 64 ulps of the largest of them that is finite.
bool all_near(const std::vector<double>& got, const std::vector<double>& want, DType dtype) {
  double largest = 0;
  for (const double w : want) largest = std::isfinite(w) ? std::max(largest, std::fabs(w)) : largest;
  bool good = got.size() == want.size();
  for (std::size_t i = 0; good && i < got.size(); ++i) {
    const bool finite = std::isfinite(want[i]) && std::isfinite(got[i]);
    good = finite ? std::fabs(got[i] - want[i]) <= 64 * float_info(dtype).epsilon * std::max(largest, 1e-30)
                  : near(got[i], want[i], dtype);
  }
  return good;
}

TEST_CASE("docs/special-values.md: functions of several numbers at ties, zeros, Inf, NaN and large numbers") {
  std::string table = table_head({"call", "x", "value", "slope", "second"});
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE(std::string(c.call));
      CAPTURE(list(c.x));
      CAPTURE(to_string(dtype));
      const Derivatives d =
          derivatives(c.of, from_data(c.x, {static_cast<std::int64_t>(c.x.size())}, {.dtype = dtype}));
      CHECK_MESSAGE(all_near(d.value, c.value, dtype), "value " << list(d.value) << ", expected " << list(c.value));
      CHECK_MESSAGE(all_near(d.slope, c.slope, dtype), "slope " << list(d.slope) << ", expected " << list(c.slope));
      CHECK_MESSAGE(all_near(d.recorded_slope, c.slope, dtype),
                    "recorded slope " << list(d.recorded_slope) << ", expected " << list(c.slope));
      if (!c.second.empty())
        CHECK_MESSAGE(all_near(d.second, c.second, dtype),
                      "second " << list(d.second) << ", expected " << list(c.second));
    }
    table += table_row({c.call, list(c.x), list(c.value), list(c.slope), c.second.empty() ? "" : list(c.second)});
  }
  check_part("special-values.md", "several", table);
}

TEST_CASE("the gradient of a target of bce_with_logits_loss is the negated logit") {
  const Tensor x = from_data(std::vector<double>{2, -3, 4}, {3}, {.dtype = DType::f64});
  const Tensor y = from_data(std::vector<double>{1, 0, 0.25}, {3}, {.dtype = DType::f64}).set_requires_grad();
  bce_with_logits_loss(x, y, Reduction::sum).backward();
  CHECK(y.grad().to_vector<double>() == std::vector<double>{-2, 3, -4});
}

// True if a name of a table has `op` as a word.
bool listed(const std::string& op) {
  static const std::map<std::string, std::string> operators{
      {"add", "x + 1"}, {"sub", "x - 1"}, {"mul", "x * 1"}, {"div", "1 / x"}};
  const auto found = operators.find(op);
  const std::regex word("\\b" + op + "\\b");
  const auto names = [&](const std::string& name) {
    return found != operators.end() ? name == found->second : std::regex_search(name, word);
  };
  return std::ranges::any_of(unary(), names, &Unary::name) || std::ranges::any_of(cases(), names, &Case::call);
}

TEST_CASE("every function of floats whose special values matter is in a table") {
  int checked = 0;
  for (const OpInfo& info : kOpInfos) {
    const std::string name(info.name);
    const bool gradient = name.find("_backward") != std::string::npos;
    const bool loss = name.ends_with("_loss") || name == "cross_entropy";
    const bool kind = info.kind == OpKind::Elementwise || info.kind == OpKind::Transcendental ||
                      info.kind == OpKind::Reduction || info.kind == OpKind::Normalization;
    const bool integer = name == "argmax" || name == "argmin" || info.dtype_rule == DTypeRule::Integer;
    if (gradient || integer || !(kind || loss)) continue;
    CHECK_MESSAGE(listed(name), name << " is in no table");
    ++checked;
  }
  for (const char* derived : {"stddev", "cumsum", "prod", "huber_loss"}) CHECK_MESSAGE(listed(derived), derived);
  CHECK(checked > 50);
}

}  // namespace
}  // namespace gradual::test
