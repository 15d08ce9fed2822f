// The elementwise kernels: accuracy of the f32 functions, special values, layouts, integers, rounding and counts.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "gradual/core/formats/cast_counts.h"
#include "gradual/core/ops/dispatch.h"
#include "gradual/core/support/error.h"
#include "gradual/core/support/philox.h"
#include "support/tensors.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

constexpr double kInf = INFINITY;

double spacing(double v) {  // of floats at v
  const double a = std::fabs(v);
  return a < 0x1p-126 ? 0x1p-149 : std::ldexp(1.0, std::ilogb(a) - 23);
}

struct UnaryFunction {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*reference)(double);
  double ulps;      // allowed where the result is normal
  double ulps_low;  // and where it is subnormal (in units of the least float)
};

double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

const UnaryFunction kFunctions[] = {
    {"exp", [](const Tensor& x) { return exp(x); }, [](double x) { return std::exp(x); }, 1.1, 1.1},
    {"log", [](const Tensor& x) { return log(x); }, [](double x) { return std::log(x); }, 1, 1},
    {"log1p", [](const Tensor& x) { return log1p(x); }, [](double x) { return std::log1p(x); }, 1.6, 1},
    {"sqrt", [](const Tensor& x) { return sqrt(x); }, [](double x) { return std::sqrt(x); }, 0.51, 0.51},
    {"rsqrt", [](const Tensor& x) { return rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); }, 1.5, 1},
    {"reciprocal", [](const Tensor& x) { return reciprocal(x); }, [](double x) { return 1 / x; }, 0.51, 0.51},
    {"sin", [](const Tensor& x) { return sin(x); }, [](double x) { return std::sin(x); }, 1, 1},
    {"cos", [](const Tensor& x) { return cos(x); }, [](double x) { return std::cos(x); }, 1, 1},
    {"tanh", [](const Tensor& x) { return tanh(x); }, [](double x) { return std::tanh(x); }, 1.5, 1},
    {"erf", [](const Tensor& x) { return erf(x); }, [](double x) { return std::erf(x); }, 1.5, 1},
    {"erfc", [](const Tensor& x) { return erfc(x); }, [](double x) { return std::erfc(x); }, 0.51, 0.51},
    {"log10", [](const Tensor& x) { return log10(x); }, [](double x) { return std::log10(x); }, 2, 1},
    {"asin", [](const Tensor& x) { return asin(x); }, [](double x) { return std::asin(x); }, 1, 1},
    {"acos", [](const Tensor& x) { return acos(x); }, [](double x) { return std::acos(x); }, 1, 1},
    {"atan", [](const Tensor& x) { return atan(x); }, [](double x) { return std::atan(x); }, 1, 1},
    {"asinh", [](const Tensor& x) { return asinh(x); }, [](double x) { return std::asinh(x); }, 2, 1},
    {"acosh", [](const Tensor& x) { return acosh(x); }, [](double x) { return std::acosh(x); }, 2, 1},
    {"atanh", [](const Tensor& x) { return atanh(x); }, [](double x) { return std::atanh(x); }, 2, 1},
    {"sigmoid", [](const Tensor& x) { return sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }, 2.5, 2},
    {"softplus", [](const Tensor& x) { return softplus(x); },
     [](double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }, 2.2, 2},
    // In the far left tail a factor is subnormal before the result is.
    {"silu", [](const Tensor& x) { return silu(x); }, [](double x) { return x == -kInf ? 0 : x / (1 + std::exp(-x)); },
     3, 60},
    {"gelu", [](const Tensor& x) { return gelu(x); },
     [](double x) { return x == -kInf ? 0 : x * normal_distribution(x); }, 9, 9},
};

// Floats spread over all bit patterns, and every special one.
Tensor sample_floats() {
  std::vector<float> v{0.0f,           -0.0f,           INFINITY,  -INFINITY, NAN,      0x1p-149f,
                       -0x1p-149f,     0x1p-126f,       3.4e38f,   -3.4e38f,  1.0f,     -1.0f,
                       0x1.fffffep-1f, -0x1.fffffep-1f, 88.72284f, 88.7229f,  -103.97f, -104.0f};
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 60013)
    v.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (int i = -40000; i < 40000; ++i) v.push_back(static_cast<float>(i) * 0.00037f);
  const auto n = static_cast<std::int64_t>(v.size());
  return from_data(v, {n});
}

}  // namespace

TEST_CASE("f32 functions stay within a few ulps of double over all floats") {
  const Tensor x = sample_floats();
  for (const UnaryFunction& f : kFunctions) {
    const Tensor y = f.op(x);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double in = at(x, i);
      const double want = f.reference(in);
      const double got = at(y, i);
      const auto rounded = static_cast<float>(want);
      INFO(std::string(f.name) << "(" << in << ") = " << got << ", want " << want);
      if (std::isnan(want)) {
        REQUIRE(std::isnan(got));
      } else if (std::isinf(rounded)) {
        REQUIRE(std::fabs(got) >= 0x1.fffffep127);
        REQUIRE(std::signbit(got) == std::signbit(want));
      } else {
        const double error = std::fabs(got - want) / spacing(want);
        REQUIRE(error <= (std::fabs(want) < 0x1p-120 ? f.ulps_low : f.ulps));
      }
    }
  }
}

TEST_CASE("functions at the edges of their domains") {
  using Op = Tensor (*)(const Tensor&, Loc);
  const auto one = [](double v, DType d) { return full({1}, v, {.dtype = d}); };
  for (DType d : {DType::f32, DType::f64}) {
    CHECK(exp(one(-kInf, d)).item() == 0);
    CHECK(exp(one(kInf, d)).item() == kInf);
    CHECK(log(one(0, d)).item() == -kInf);
    CHECK(std::isnan(log(one(-1, d)).item()));
    CHECK(log1p(one(-1, d)).item() == -kInf);
    CHECK(log1p(one(1e-30, d)).item() == doctest::Approx(1e-30));
    CHECK(std::signbit(log1p(one(-0.0, d)).item()));
    CHECK(softplus(one(1e30, d)).item() == doctest::Approx(1e30));
    CHECK(softplus(one(-kInf, d)).item() == 0);
    CHECK(sigmoid(one(-kInf, d)).item() == 0);
    CHECK(sigmoid(one(kInf, d)).item() == 1);
    CHECK(tanh(one(kInf, d)).item() == 1);
    for (const auto& odd : {Op(tanh), Op(erf), Op(sin)}) {
      CHECK(std::signbit(odd(one(-0.0, d), Loc::current()).item()));
      CHECK(!std::signbit(odd(one(0.0, d), Loc::current()).item()));
    }
    CHECK(erf(one(-kInf, d)).item() == -1);
    CHECK(silu(one(-kInf, d)).item() == 0);
    for (Gelu form : {Gelu::exact, Gelu::tanh}) {
      CHECK(gelu(one(-kInf, d), form).item() == 0);
      CHECK(gelu(one(kInf, d), form).item() == kInf);
      CHECK(std::isnan(gelu(one(NAN, d), form).item()));
    }
    CHECK(gelu(one(1.5, d), Gelu::tanh).item() ==
          doctest::Approx(0.75 * (1 + std::tanh(std::sqrt(2 / M_PI) * (1.5 + 0.044715 * 3.375)))).epsilon(1e-6));
    CHECK(std::isnan(relu(one(NAN, d)).item()));
    CHECK(std::isnan(clamp(one(NAN, d), 0, 1).item()));
    CHECK(clamp(one(5, d), 3, 1).item() == 1);  // high wins
    CHECK(std::isnan(maximum(one(NAN, d), 1.0).item()));
    CHECK(std::isnan(maximum(1.0, one(NAN, d)).item()));
    CHECK(std::isnan(minimum(one(NAN, d), 1.0).item()));
    CHECK(std::isnan(minimum(1.0, one(NAN, d)).item()));
    CHECK(sign(one(0, d)).item() == 0);
    CHECK(sign(one(-3, d)).item() == -1);
    CHECK(leaky_relu(one(-2, d), 0.25).item() == -0.5);
    CHECK(one(-2, d).leaky_relu(0.25).item() == -0.5);
    CHECK(std::signbit(neg(one(0, d)).item()));
    CHECK(!std::signbit(abs(one(-0.0, d)).item()));
    for (double base : {0.0, -0.0, -2.0, 2.0, kInf, -kInf})
      for (double power : {0.0, 2.0, 3.0, -1.0, 0.5, kInf}) {
        const double want = std::pow(base, power);
        const double got = pow(one(base, d), power).item();
        CAPTURE(base);
        CAPTURE(power);
        CHECK((got == want || (std::isnan(want) ? std::isnan(got) : got == doctest::Approx(want))));
      }
  }
}

TEST_CASE("every layout gives what its elements give") {
  for (DType d : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    for (const Tensor& x : layouts(d)) {
      CAPTURE(to_string(d));
      CAPTURE(to_string(x.sizes()));
      CAPTURE(to_string(x.strides()));
      const Tensor y = x + 2;
      const Tensor z = x * x;
      const Tensor c = x > 1;
      const Tensor w = where(c, x, 7);
      REQUIRE(y.sizes() == x.sizes());
      REQUIRE(y.dtype() == d);
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        const double v = at(x, i);
        Tensor exact = full({2}, v * v, {.dtype = d});  // one rounding
        REQUIRE(at(y, i) == full({1}, v + 2, {.dtype = d}).item());
        REQUIRE(at(z, i) == at(exact, 0));
        REQUIRE(at(c, i) == (v > 1 ? 1 : 0));
        REQUIRE(at(w, i) == (v > 1 ? v : 7));
      }
    }
  }
}

TEST_CASE("operands of different layouts broadcast") {
  const Tensor x = randn({4, 3, 5});
  const Tensor others[] = {randn({5}),
                           randn({3, 1}),
                           randn({4, 1, 1}),
                           randn({}),
                           randn({5, 3, 4}).permute({2, 1, 0}),
                           randn({1, 3, 1}),
                           randn({10}).index({Slice{0, {}, 2}}),
                           randn({2, 4, 3, 5})};
  for (const Tensor& y : others) {
    for (bool swap : {false, true}) {
      const Tensor z = swap ? y - x : x - y;
      for (std::int64_t i = 0; i < z.numel(); ++i) {
        const float a = static_cast<float>(broadcast_at(x, z.sizes(), i));
        const float b = static_cast<float>(broadcast_at(y, z.sizes(), i));
        REQUIRE(at(z, i) == (swap ? b - a : a - b));
      }
    }
  }
  CHECK_THROWS_WITH_AS(x + randn({4}), doctest::Contains("add: "), Error);
}

TEST_CASE("elementwise outputs keep the input's stride order") {
  const Tensor x = randn({2, 5, 6, 3}).permute({0, 3, 1, 2});  // channels last
  CHECK(relu(x).strides() == x.strides());
  CHECK((x + randn({1, 3, 1, 1})).strides() == x.strides());
  CHECK((randn({2, 3, 5, 6}) + x).strides() == x.strides());
  CHECK(call_row(OpId::relu_backward, {}, randn({2, 3, 5, 6}), x)[0].strides() == x.strides());
  CHECK(x.to(DType::f16).strides() == x.strides());
  CHECK(x.clone().is_contiguous());
}

TEST_CASE("16-bit results are the exact ones, rounded once") {
  for (DType d : {DType::f16, DType::bf16}) {
    const Tensor x = (randn({5000}) * 10).to(d);
    const Tensor y = randn({5000}).to(d);
    const auto check = [&](const Tensor& got, const std::function<double(double, double)>& f) {
      for (std::int64_t i = 0; i < x.numel(); ++i)
        REQUIRE(at(got, i) == full({1}, f(at(x, i), at(y, i)), {.dtype = d}).item());
    };
    check(x + y, [](double a, double b) { return a + b; });
    check(x - y, [](double a, double b) { return a - b; });
    check(x * y, [](double a, double b) { return a * b; });
    check(x / y, [](double a, double b) { return a / b; });
    check(sqrt(abs(x)), [](double a, double) { return std::sqrt(std::fabs(a)); });
  }
  // The number stays as exact as the compute type: it is not rounded to f16 first.
  CHECK((full({1}, 3, {.dtype = DType::f16}) * 0.33333).item() == doctest::Approx(1.0).epsilon(1e-4));
  CHECK((full({1}, 65504, {.dtype = DType::f16}) * 1e-8).item() == doctest::Approx(65504e-8).epsilon(1e-3));
}

TEST_CASE("integers wrap and take no fractions") {
  const Tensor u = from_data(std::vector<std::int64_t>{0, 1, 200, 255}, {4}, {.dtype = DType::u8});
  CHECK(values(neg(u)) == std::vector<double>{0, 255, 56, 1});
  CHECK(values(abs(u)) == std::vector<double>{0, 1, 200, 255});
  CHECK(values(u + 100) == std::vector<double>{100, 101, 44, 99});
  CHECK(values(u * u) == std::vector<double>{0, 1, 64, 1});
  const Tensor i = from_data(std::vector<std::int64_t>{INT32_MAX, INT32_MIN}, {2}, {.dtype = DType::i32});
  CHECK(values(i + 1) == std::vector<double>{INT32_MIN, INT32_MIN + 1.0});
  CHECK(values(neg(i)) == std::vector<double>{-INT32_MAX, INT32_MIN});
  const Tensor l = from_data(std::vector<std::int64_t>{INT64_MAX, INT64_MIN}, {2});
  CHECK((l + 1)[0].item<std::int64_t>() == INT64_MIN);
  CHECK(abs(l)[1].item<std::int64_t>() == INT64_MIN);
  CHECK(square(l)[0].item<std::int64_t>() == 1);
  CHECK_THROWS_WITH_AS(i + 0.5, doctest::Contains("is not an integer"), Error);
  CHECK_THROWS_WITH_AS(i.clone().mul_(0.5), doctest::Contains("is not an integer"), Error);
  CHECK(values(i > 0.5) == std::vector<double>{1, 0});
  CHECK(values(full({2}, 0, {.dtype = DType::i64}) < 0.5) == std::vector<double>{1, 1});
  CHECK(values(l < kInf) == std::vector<double>{1, 1});
  const Tensor s = arange(-3, 4);
  CHECK(values(clamp(s, -1.5, 1.5)) == std::vector<double>{-1, -1, -1, 0, 1, 1, 1});
  CHECK(values(clamp(s, -kInf, 2)) == std::vector<double>{-3, -2, -1, 0, 1, 2, 2});
}

// The numbers are those of PyTorch 2.15.
TEST_CASE("rounded quotients and what they leave, at both signs and beyond the range") {
  const auto is = [](const Tensor& got, const std::vector<double>& want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double v = at(got, static_cast<std::int64_t>(i));
      CAPTURE(i);
      CHECK((std::isnan(want[i]) ? std::isnan(v) : v == want[i] && std::signbit(v) == std::signbit(want[i])));
    }
  };
  for (DType d : {DType::f32, DType::f64}) {
    CAPTURE(to_string(d));
    const Tensor x = from_data(std::vector<double>{7, -7, 7, -7, 1, -1, 0, -0.0, kInf, 1, -1}, {11}, {.dtype = d});
    const Tensor y = from_data(std::vector<double>{2, 2, -2, -2, kInf, kInf, 0, 3, 2, 0, 0}, {11}, {.dtype = d});
    is(floor_divide(x, y), {3, -4, -4, 3, 0, -1, NAN, -0.0, NAN, kInf, -kInf});
    CHECK(trunc_divide(ones({1}, {.dtype = DType::f64}), 0.1).item() == 10);  // the rounded quotient, cut off
    is(trunc_divide(x, y), {3, -3, -3, 3, 0, -0.0, NAN, -0.0, kInf, kInf, -kInf});
    is(remainder(x, y), {1, 1, -1, -1, 1, kInf, NAN, -0.0, NAN, NAN, NAN});
    is(fmod(x, y), {1, -1, 1, -1, 1, -1, NAN, -0.0, NAN, NAN, NAN});
    CHECK(std::isnan(floor_divide(full({1}, NAN, {.dtype = d}), 1).item()));
  }
  // The quotient 9.99.. rounds to 10.
  CHECK(floor_divide(ones({1}, {.dtype = DType::f64}), 0.1).item() == 9);
  CHECK(floor_divide(full({1}, 1e20), 3).item() == 0x1.ce97cap64);
  const Tensor l = from_data(std::vector<std::int64_t>{INT64_MIN, INT64_MAX, -7}, {3});
  CHECK(floor_divide(l, -1).to_vector<std::int64_t>() == std::vector<std::int64_t>{INT64_MIN, -INT64_MAX, 7});
  CHECK(remainder(l, -1).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 0, 0});
  CHECK(floor_divide(l, 2).to_vector<std::int64_t>() == std::vector<std::int64_t>{INT64_MIN / 2, INT64_MAX / 2, -4});
}

TEST_CASE("shifts by more than the width, and by less than nothing, give what is left then") {
  using Numbers = std::vector<std::int64_t>;
  const Numbers by{0, 1, 31, 32, 63, 64, -1};
  const Tensor b = from_data(by, {7});
  const Tensor one = ones({7}, {.dtype = DType::i64});
  CHECK(shift_left(one, b).to_vector<std::int64_t>() ==
        Numbers{1, 2, std::int64_t{1} << 31, std::int64_t{1} << 32, INT64_MIN, 0, 0});
  CHECK(shift_right(neg(one) * 5, b).to_vector<std::int64_t>() == Numbers{-5, -3, -1, -1, -1, -1, -1});
  const Tensor narrow = ones({7}, {.dtype = DType::i32});
  CHECK(shift_left(narrow, b.to(DType::i32)).to_vector<std::int64_t>() == Numbers{1, 2, INT32_MIN, 0, 0, 0, 0});
  const Tensor byte = from_data(Numbers{200, 200}, {2}, {.dtype = DType::u8});
  const Tensor of_byte = from_data(Numbers{1, 8}, {2}, {.dtype = DType::u8});
  CHECK(values(shift_left(byte, of_byte)) == std::vector<double>{144, 0});
  CHECK(values(shift_right(byte, of_byte)) == std::vector<double>{100, 0});
  const Tensor mask = from_data(Numbers{1, 0}, {2}, {.dtype = DType::bool_});
  CHECK(values(bitwise_xor(mask, ones({2}, {.dtype = DType::bool_}))) == std::vector<double>{0, 1});
  CHECK(bitwise_and(mask, mask).dtype() == DType::bool_);
  CHECK(values(bitwise_xor(byte, -1)) == std::vector<double>{55, 55});
}

TEST_CASE("logical ops take any dtypes") {
  const Tensor x = from_data(std::vector<double>{0, -0.0, 1e-300, NAN}, {4}, {.dtype = DType::f64});
  const Tensor y = from_data(std::vector<std::int64_t>{1, 0, INT64_MIN, 0}, {4});
  CHECK(values(logical_and(x, y)) == std::vector<double>{0, 0, 1, 0});
  CHECK(values(logical_or(x, y)) == std::vector<double>{1, 0, 1, 1});
  CHECK(values(logical_xor(x, y)) == std::vector<double>{1, 0, 0, 1});
  CHECK(values(logical_not(x)) == std::vector<double>{1, 1, 0, 0});
  CHECK(logical_not(y).dtype() == DType::bool_);
  CHECK(values(logical_and(x, 1)) == std::vector<double>{0, 0, 1, 1});
}

TEST_CASE("where does not touch the side it does not take") {
  const Tensor c = from_data(std::vector<std::int64_t>{1, 0}, {2}, {.dtype = DType::bool_});
  const Tensor x = from_data(std::vector<double>{1, NAN}, {2});
  CHECK(values(where(c, x, -kInf)) == std::vector<double>{1, -kInf});
  CHECK(values(where(c, 1, 2.5)) == std::vector<double>{1, 2.5});
  CHECK_THROWS_AS(where(x, x, x), Error);
}

TEST_CASE("stores into narrower floats are counted, by any number of threads alike") {
  const Tensor x = randn({200000}).to(DType::f16);
  for_thread_counts(
      [&] {
        CastCounts counts;
        const CountScope scope(&counts);
        static_cast<void>(x * 1e-5);
        return counts;
      },
      [&](const CastCounts& c) {
        const Tensor exact = x.to(DType::f64) * static_cast<double>(1e-5f);
        std::uint64_t lost = 0;
        for (std::int64_t i = 0; i < exact.numel(); ++i)
          lost += at(exact, i) != 0 && std::fabs(at(exact, i)) <= 0x1p-25;
        CHECK(c.elements == 200000);
        CHECK(c.underflow == lost);
        CHECK(lost > 0);
      });
  CastCounts none;
  const CountScope scope(&none);
  static_cast<void>(x.to(DType::f32) * 2);
  static_cast<void>(x > 0);
  CHECK(none.elements == 0);
  static_cast<void>((x * 1e6).to(DType::f32));
  CHECK(none.overflow > 0);
}

TEST_CASE("dropout draws its mask by row-major index") {
  Generator g(3);
  const Tensor x = randn({37, 41});
  const RandomKey key = g.state();
  const Tensor y = dropout(x, 0.3, g);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const bool kept = uniform01(philox_word(key.seed, key.stream, static_cast<std::uint64_t>(i))) >= 0.3;
    REQUIRE(at(y, i) == (kept ? static_cast<float>(at(x, i)) * static_cast<float>(1 / 0.7) : 0));
  }
  g.set_state(key);
  CHECK(same_bits(dropout(x.t().clone().t(), 0.3, g), y));
  g.set_state(key);
  CHECK(same_bits(dropout(x.index({Slice{0, {}, 1}, Slice{}}), 0.3, g), y));
  const Tensor infinite = full({100}, kInf);
  for (double v : values(dropout(infinite, 1))) CHECK(v == 0);
  CHECK(same_bits(dropout(infinite, 0), infinite));
  CHECK_THROWS_WITH_AS(dropout(x, 1.5), doctest::Contains("allowed are 0 to 1"), Error);
}

TEST_CASE("elementwise bits do not depend on the number of threads") {
  const Tensor x = randn({300001});
  const Tensor y = randn({300001}).to(DType::f16);
  Generator g(1);
  const RandomKey key = g.state();
  const auto run = [&] {
    g.set_state(key);
    return std::vector<Tensor>{gelu(x) * 3, (y + 1) * y, dropout(x, 0.5, g)};
  };
  const ThreadsScope scope(1);
  const std::vector<Tensor> want = run();
  for_thread_counts(run, [&](const std::vector<Tensor>& got) {
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(got[i], want[i]));
  });
}

TEST_CASE("in-place rows write through strides") {
  const Tensor base = zeros({4, 6});
  const Tensor view = base.t().index({Slice{1, {}, 2}, Slice{0, 3}});  // [3, 3]
  const std::uint32_t version = base.version();
  view.fill_(1).add_(arange(0, 9, 1, {.dtype = DType::f32}).reshape({3, 3})).mul_(2);
  CHECK(base.version() == version + 3);
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 6; ++j) CHECK(at(base, i * 6 + j) == (j % 2 == 1 && i < 3 ? 2 * (j / 2 * 3 + i + 1) : 0));
  const Tensor x = ones({2, 3});
  x.add_(arange(0, 3, 1, {.dtype = DType::f32}), -0.5);
  CHECK(values(x) == std::vector<double>{1, 0.5, 0, 1, 0.5, 0});
  x.copy_(arange(0, 3));
  CHECK(values(x) == std::vector<double>{0, 1, 2, 0, 1, 2});
  CHECK_THROWS_WITH_AS(ones({3, 1}).expand({3, 2}).fill_(0), doctest::Contains("expanded tensor"), Error);
  CHECK_THROWS_WITH_AS(ones({2}).add_(ones({2, 2})), doctest::Contains("larger"), Error);
  CHECK_THROWS_WITH_AS(arange(0, 2).add_(ones({2})), doctest::Contains("floating operand"), Error);
  const Tensor none = zeros({0, 3});
  CHECK(none.add_(1).numel() == 0);
}

TEST_CASE("an operand that overlaps what is written is read first") {
  const auto square = [] { return arange(0, 400, 1, {.dtype = DType::f32}).reshape({20, 20}); };
  const Tensor a = square();
  a.copy_(a.t());
  const Tensor b = square();
  b.add_(b.t(), 2);
  for (int i = 0; i < 20; ++i)
    for (int j = 0; j < 20; ++j) {
      CHECK(at(a, i * 20 + j) == j * 20 + i);
      CHECK(at(b, i * 20 + j) == i * 20 + j + 2 * (j * 20 + i));
    }
  const Tensor c = arange(0, 5000, 1, {.dtype = DType::f32});
  c.narrow(0, 1, 4999).copy_(c.narrow(0, 0, 4999));
  for (std::int64_t i = 1; i < 5000; ++i) CHECK(at(c, i) == static_cast<double>(i - 1));
  const Tensor d = square();
  d.mul_(d[3]);
  CHECK(at(d, 19 * 20 + 5) == 385.0 * 65.0);
  const Tensor e = square();
  e.add_(e);
  CHECK(at(e, 399) == 798);
}

TEST_CASE("in-place sums are computed in the wider dtype and rounded once") {
  const Tensor h = full({1}, 1, {.dtype = DType::f16});
  h.add_(full({1}, 0x1p-11 + 0x1p-22));  // in f16 the operand alone would round to a tie
  CHECK(h.item() == 1 + 0x1p-10);
  const Tensor f = full({1}, 1);
  f.add_(full({1}, 0x1p-24 + 0x1p-50, {.dtype = DType::f64}));
  CHECK(f.item() == 1 + 0x1p-23);
}

TEST_CASE("relu's gradient in f16 and bf16 has the bits of one that is converted, for all patterns") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor all = empty({1 << 16}, {.dtype = dtype});
    Tensor ones_of = full({1 << 16}, 1, {.dtype = dtype});
    for (std::size_t i = 0; i < 1 << 16; ++i) static_cast<std::uint16_t*>(all.raw())[i] = static_cast<std::uint16_t>(i);
    const auto gradient = [](const Tensor& dy, const Tensor& y) { return call_row(OpId::relu_backward, {}, dy, y)[0]; };
    for (const auto& [dy, y] : {std::pair{all, ones_of}, {ones_of, all}, {all, all}}) {
      const Tensor bits = gradient(dy, y);
      const auto images = [](const Tensor& t) { return channels_last(t.reshape({4, 8, 32, 64})); };
      CHECK(same_bits(gradient(images(dy), images(y)), images(bits)));
      CHECK(same_bits(gradient(images(dy).contiguous(), images(y)), images(bits)));  // goes by floats
      CastCounts counts;
      const CountScope counting(&counts);
      const Tensor converted = gradient(dy, y);
      CHECK(counts.elements == 1 << 16);  // this one goes by floats
      CHECK(std::memcmp(bits.raw(), converted.raw(), bits.nbytes()) == 0);
    }
  }
}
