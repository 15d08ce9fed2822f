// docs/special-values.md: the errors of the formulas of f32 over the range of floats, of values and of slopes.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/autograd/autograd.h>
#include <gradual/core/ops/ops.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "page_part.h"

namespace gradual::test {
namespace {

using Real = long double;

constexpr double kInf = std::numeric_limits<double>::infinity();

// A bound for the arguments from low to high, in ulps of the exact result or in multiples of 2^-24.
enum class Unit { ulp, absolute };
struct Claim {
  double bound;
  Unit unit = Unit::ulp;
  double low = -kInf;
  double high = kInf;
};
struct Formula {
  const char* name;
  Tensor (*of)(const Tensor& x);
  Real (*value)(Real x);
  Real (*slope)(Real x);
  std::vector<Claim> of_value;
  std::vector<Claim> of_slope;
};

// --- references ------------------------------------------------------------------------------------------------------

constexpr Real kLn2 = 0.693147180559945309417232121458L;
constexpr Real kTwiceRoot = 1.59576912160573071175978423973L;  // 2 sqrt(2/pi)
constexpr Real kRootHalf = 0.707106781186547524400844362105L;
constexpr Real kInvRootTwoPi = 0.398942280401432677939946059934L;
constexpr Real kTwoInvRootPi = 1.12837916709551257389615890312L;
constexpr Real kCube = 0.044715L;

Real logistic(Real x) { return 1 / (1 + std::exp(-x)); }
// x / 2 erfc(-x / sqrt 2), and its derivative.
Real gelu_value(Real x) { return std::isinf(x) ? std::max(x, Real{0}) : x / 2 * std::erfc(-x * kRootHalf); }
Real gelu_slope(Real x) {
  if (std::fabs(x) > 1000) return x < 0 ? 0 : 1;
  return std::erfc(-x * kRootHalf) / 2 + x * std::exp(-x * x / 2) * kInvRootTwoPi;
}
Real gelu_tanh_value(Real x) {
  if (std::fabs(x) > 1000) return std::max(x, Real{0});
  return x * logistic(kTwiceRoot * (x + kCube * x * x * x));
}
Real gelu_tanh_slope(Real x) {
  if (std::fabs(x) > 1000) return x < 0 ? 0 : 1;
  const Real v = kTwiceRoot * (x + kCube * x * x * x);
  return logistic(v) * (1 + x * logistic(-v) * kTwiceRoot * (1 + 3 * kCube * x * x));
}
Real silu_value(Real x) { return std::isinf(x) ? std::max(x, Real{0}) : x * logistic(x); }
Real silu_slope(Real x) {
  if (std::fabs(x) > 10000) return x < 0 ? 0 : 1;
  return logistic(x) * (1 + x * logistic(-x));
}
Real softplus_value(Real x) { return std::max(x, Real{0}) + std::log1p(std::exp(-std::fabs(x))); }
Real tanh_slope(Real x) { return 1 / (std::cosh(x) * std::cosh(x)); }
Real erf_slope(Real x) { return std::exp(-x * x) * kTwoInvRootPi; }

const std::vector<Formula>& formulas() {
  static const std::vector<Formula> all{
      {"exp",
       [](const Tensor& x) { return exp(x); },
       [](Real x) { return std::exp(x); },
       [](Real x) { return std::exp(x); },
       {{1}},
       {{1}}},
      {"exp2",
       [](const Tensor& x) { return exp2(x); },
       [](Real x) { return std::exp2(x); },
       [](Real x) { return std::exp2(x) * kLn2; },
       {{1}},
       {{1.5}}},
      {"expm1",
       [](const Tensor& x) { return expm1(x); },
       [](Real x) { return std::expm1(x); },
       [](Real x) { return std::exp(x); },
       {{1}},
       {{1}}},
      {"log",
       [](const Tensor& x) { return log(x); },
       [](Real x) { return std::log(x); },
       [](Real x) { return 1 / x; },
       {{1}},
       {{0.5}}},
      {"log2",
       [](const Tensor& x) { return log2(x); },
       [](Real x) { return std::log2(x); },
       [](Real x) { return 1 / (x * kLn2); },
       {{1}},
       {{1.5, Unit::ulp, 0x1p-126, kInf}, {5, Unit::ulp, 0, 0x1p-126}}},
      {"log1p",
       [](const Tensor& x) { return log1p(x); },
       [](Real x) { return std::log1p(x); },
       [](Real x) { return 1 / (1 + x); },
       {{1.5}},
       {{1.5}}},
      {"sqrt",
       [](const Tensor& x) { return sqrt(x); },
       [](Real x) { return std::sqrt(x); },
       [](Real x) { return 1 / (2 * std::sqrt(x)); },
       {{0.5}},
       {{1.5}}},
      {"rsqrt",
       [](const Tensor& x) { return rsqrt(x); },
       [](Real x) { return 1 / std::sqrt(x); },
       [](Real x) { return -1 / (2 * x * std::sqrt(x)); },
       {{1.5}},
       {{5}}},
      {"reciprocal",
       [](const Tensor& x) { return reciprocal(x); },
       [](Real x) { return 1 / x; },
       [](Real x) { return -1 / (x * x); },
       {{0.5}},
       {{2}}},
      {"sin",
       [](const Tensor& x) { return sin(x); },
       [](Real x) { return std::sin(x); },
       [](Real x) { return std::cos(x); },
       {{1}},
       {{1}}},
      {"cos",
       [](const Tensor& x) { return cos(x); },
       [](Real x) { return std::cos(x); },
       [](Real x) { return -std::sin(x); },
       {{1}},
       {{1}}},
      {"tanh",
       [](const Tensor& x) { return tanh(x); },
       [](Real x) { return std::tanh(x); },
       tanh_slope,
       {{1.25}},
       {{3, Unit::ulp, -0.5, 0.5}, {2, Unit::absolute}}},
      {"sigmoid",
       [](const Tensor& x) { return sigmoid(x); },
       logistic,
       [](Real x) { return logistic(x) * logistic(-x); },
       {{2.5}},
       {{2.5, Unit::ulp, -kInf, 0}, {2, Unit::absolute, 0, kInf}}},
      {"erf",
       [](const Tensor& x) { return erf(x); },
       [](Real x) { return std::erf(x); },
       erf_slope,
       {{1.25}},
       {{4, Unit::ulp, -1, 1}, {64}}},
      {"silu",
       [](const Tensor& x) { return silu(x); },
       silu_value,
       silu_slope,
       {{3, Unit::ulp, -87, kInf}, {52, Unit::ulp, -kInf, -87}},
       {{8, Unit::ulp, -1, kInf}, {0.5, Unit::absolute, -2, -1}, {4, Unit::ulp, -87, -2}, {52, Unit::ulp, -kInf, -87}}},
      {"softplus", [](const Tensor& x) { return softplus(x); }, softplus_value, logistic, {{2}}, {{2.5}}},
      {"gelu",
       [](const Tensor& x) { return gelu(x); },
       gelu_value,
       gelu_slope,
       {{8}},
       {{8, Unit::ulp, -0.5, kInf}, {2, Unit::absolute, -1, -0.5}, {10, Unit::ulp, -kInf, -1}}},
      {"gelu, tanh form",
       [](const Tensor& x) { return gelu(x, Gelu::tanh); },
       gelu_tanh_value,
       gelu_tanh_slope,
       {{2.5, Unit::ulp, -1, kInf}, {160, Unit::ulp, -kInf, -1}},
       {{4, Unit::ulp, -0.5, kInf}, {1, Unit::absolute, -1, -0.5}, {160, Unit::ulp, -kInf, -1}}},
  };
  return all;
}

// --- measurement -----------------------------------------------------------------------------------------------------

// Every 40,009th float by its bits, without NaN: all exponents alike.
const std::vector<float>& arguments() {
  static const std::vector<float> all = [] {
    std::vector<float> v;
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 40009) {
      const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      if (x == x) v.push_back(x);
    }
    return v;
  }();
  return all;
}

double ulp(Real of) {
  int exponent = 0;
  std::frexp(static_cast<double>(of), &exponent);
  return std::ldexp(1.0, std::max(exponent, -125) - 24);
}

double error(float got, Real want, Unit unit) {
  const auto off = static_cast<double>(std::fabs(static_cast<Real>(got) - want));
  return unit == Unit::ulp ? off / ulp(want) : off * 0x1p24;
}

// The claims hold and are no more than four times the errors found; every finite result has a claim.
void check_claims(const std::string& name, const std::vector<Claim>& claims, const std::vector<float>& got,
                  const std::vector<Real>& want) {
  std::vector<double> worst(claims.size(), 0);
  std::vector<float> worst_at(claims.size(), 0);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float x = arguments()[i];
    if (!std::isfinite(static_cast<float>(want[i]))) continue;
    const auto claim = std::ranges::find_if(claims, [&](const Claim& c) { return c.low <= x && x <= c.high; });
    REQUIRE_MESSAGE(claim != claims.end(), name << ": no claim for " << x);
    const auto k = static_cast<std::size_t>(claim - claims.begin());
    const double e = std::isfinite(got[i]) ? error(got[i], want[i], claim->unit) : kInf;
    if (e <= worst[k]) continue;
    worst[k] = e;
    worst_at[k] = x;
  }
  for (std::size_t k = 0; k < claims.size(); ++k) {
    CHECK_MESSAGE(worst[k] <= claims[k].bound,
                  name << ": " << worst[k] << " at " << worst_at[k] << ", claimed " << claims[k].bound);
    CHECK_MESSAGE(worst[k] >= claims[k].bound / 4, name << ": claims " << claims[k].bound << ", finds " << worst[k]);
  }
}

std::vector<float> numbers(const Tensor& t) { return t.to_vector<float>(); }

std::string cell(const std::vector<Claim>& claims) {
  std::string text;
  for (const Claim& c : claims) {
    const std::string bound = c.unit == Unit::ulp ? fmt::format("{} ulp", c.bound) : fmt::format("{} * 2^-24", c.bound);
    const std::string where = c.low == -kInf && c.high == kInf ? (claims.size() == 1 ? "" : " elsewhere")
                              : c.low == -kInf                 ? fmt::format(" below {:.3g}", c.high)
                              : c.high == kInf                 ? fmt::format(" from {:.3g} on", c.low)
                                                               : fmt::format(" from {:.3g} to {:.3g}", c.low, c.high);
    text += (text.empty() ? "" : "; ") + bound + where;
  }
  return text;
}

// Of the arguments whose value is finite as a float; elsewhere Inf.
std::vector<Real> slopes_wanted(const Formula& f) {
  std::vector<Real> all;
  for (const float v : arguments()) all.push_back(std::isfinite(static_cast<float>(f.value(v))) ? f.slope(v) : kInf);
  return all;
}

TEST_CASE("docs/special-values.md: the formulas' errors over the range of floats") {
  const Tensor x = from_data(arguments(), {static_cast<std::int64_t>(arguments().size())});
  std::string table = table_head({"function", "value", "slope"});
  for (const Formula& f : formulas()) {
    const Tensor leaf = x.clone().set_requires_grad();
    const Tensor y = f.of(leaf);
    y.sum().backward();
    std::vector<Real> values_wanted;
    for (const float v : arguments()) values_wanted.push_back(f.value(v));
    check_claims(std::string(f.name) + "'s value", f.of_value, numbers(y.detach()), values_wanted);
    check_claims(std::string(f.name) + "'s slope", f.of_slope, numbers(leaf.grad()), slopes_wanted(f));
    table += table_row({f.name, cell(f.of_value), cell(f.of_slope)});
  }
  check_part("special-values.md", "formulas", table);
}

// The slopes that a second backward multiplies gradients by: those of the recorded formula, not of the fused one.
std::vector<float> recorded_slopes(const Formula& f, const Tensor& x) {
  const Tensor leaf = x.clone().set_requires_grad();
  const Tensor dy = ones_like(x).set_requires_grad();
  const Tensor dx = autograd::grad({f.of(leaf)}, {leaf}, {dy}, {.create_graph = true})[0];
  return numbers(autograd::grad({dx}, {dy}, {ones_like(dx)})[0]);
}

TEST_CASE("recorded slopes have the errors of the fused ones") {
  const Tensor x = from_data(arguments(), {static_cast<std::int64_t>(arguments().size())});
  for (const Formula& f : formulas())
    check_claims(std::string(f.name) + "'s recorded slope", f.of_slope, recorded_slopes(f, x), slopes_wanted(f));
}

Real gelu_second(Real x) { return std::fabs(x) > 1000 ? 0 : std::exp(-x * x / 2) * kInvRootTwoPi * (2 - x * x); }

TEST_CASE("gelu's second derivative keeps its accuracy in both tails") {
  const Tensor at = from_data(arguments(), {static_cast<std::int64_t>(arguments().size())});
  const Tensor x = at.clone().set_requires_grad();
  const Tensor slope = autograd::grad({gelu(x).sum()}, {x}, {}, {.create_graph = true})[0];
  std::vector<Real> wanted;
  for (const float v : arguments()) wanted.push_back(gelu_second(v));
  const std::vector<Claim> claims{{2, Unit::absolute, -2, 2}, {100}};
  check_claims("gelu's second derivative", claims, numbers(autograd::grad({slope.sum()}, {x})[0]), wanted);
}

}  // namespace
}  // namespace gradual::test
