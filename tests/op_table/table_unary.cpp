// Elementwise ops of one input.
#include "samples.h"

namespace gradual::test {
namespace {

constexpr double kInf = INFINITY;

struct Unary {
  Call call;
  double (*reference)(double) = nullptr;
  double low = -3;
  double high = 3;
  std::vector<double> kinks{};
  double (*size)(double) = nullptr;  // magnitude of the terms where they cancel
  DType (*out)(DType) = float_of;
  bool special = true;  // what inf, NaN and zeros give follows from the formula
};

Reference map(const Unary& u) {
  return [u](const Arrays& in) -> Arrays {
    Array y = make_array(in[0].sizes, u.out(in[0].dtype));
    if (u.size) y.magnitude.resize(y.v.size());
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      y[i] = u.reference(in[0][i]);
      if (u.size) y.mag(i) = u.size(in[0][i]);
    }
    return {y};
  };
}

std::function<std::vector<Sample>(Draw&)> unary_samples(Unary u) {
  return [u](Draw& d) {
    std::vector<Sample> all;
    const auto add = [&](const char* label, const Shape& sizes, bool large = false) {
      all.push_back({label, {d.away(sizes, u.low, u.high, u.kinks)}, u.call, map(u), large});
    };
    add("3-d", {2, 3, 5});
    add("4-d", {2, 3, 4, 5});
    add("1-d", {37});
    add("0-d", {});
    add("empty", {0, 3});
    add("large", {130, 1031}, true);
    if (u.special && is_floating(d.dtype) && !is_f8(d.dtype))
      all.push_back(
          {"special", {d.values({0, -0.0, kInf, -kInf, NAN, 3e-5, -3e-5}, {7})}, u.call, map(u), false, false});
    return all;
  };
}

double same(double x) { return x; }
double absolute(double x) { return std::fabs(x); }
double gelu_size(double x) { return std::isinf(x) ? 0 : std::fabs(x); }
double sigmoid_of(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
// At -inf the limit stands, where the formula gives -inf * 0.
double silu_of(double x) { return x == -kInf ? 0 : x / (1 + std::exp(-x)); }
double gelu_exact(double x) { return x == -kInf ? 0 : 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh(double x) {
  return x == -kInf ? 0 : 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
DType unchanged(DType d) { return d; }
DType to_bool(DType) { return DType::bool_; }

Row exact(OpId op, const std::vector<DType>& dtypes, const Unary& u) {
  return {.op = op, .policy = "pass", .dtypes = dtypes, .samples = unary_samples(u), .roundings = 0};
}
Row rounded(OpId op, const char* policy, double ulps, const Unary& u) {
  std::vector<DType> dtypes = kFloats;
  dtypes.push_back(DType::i32);
  return {.op = op, .policy = policy, .dtypes = dtypes, .samples = unary_samples(u), .ulps = ulps};
}

std::vector<Sample> gelu_samples(Draw& d) {
  // 1 + erf(x) cancels for negative x, so the error is relative to x; the tanh form cancels alike.
  std::vector<Sample> all =
      unary_samples({one([](const Tensor& x) { return gelu(x); }), gelu_exact, -3, 3, {}, gelu_size})(d);
  for (Sample& s :
       unary_samples({one([](const Tensor& x) { return gelu(x, Gelu::tanh); }), gelu_tanh, -3, 3, {}, gelu_size})(d)) {
    s.label = "tanh " + s.label;
    all.push_back(s);
  }
  return all;
}

std::vector<Sample> clamp_samples(Draw& d) {
  std::vector<Sample> all;
  const auto with = [&](const char* label, double low, double high) {
    const Unary u{one([=](const Tensor& x) { return clamp(x, low, high); }), nullptr};
    const Reference ref = [=](const Arrays& in) -> Arrays {
      Array y = in[0];
      for (double& v : y.v) v = v < low ? low : v > high ? high : v;  // NaN stays
      return {y};
    };
    for (const Shape& sizes : {Shape{3, 7}, Shape{}, Shape{0}, Shape{2, 3, 2, 5}})
      all.push_back({label, {d.away(sizes, -3, 3, {low, high})}, u.call, ref});
    all.push_back({label, {d.away({300, 401}, -3, 3, {low, high})}, u.call, ref, true});
  };
  with("both", -1, 2);
  with("low", 1, kInf);
  with("high", -kInf, 1);
  return all;
}

std::vector<Sample> cast_samples(Draw& d) {
  std::vector<Sample> all;
  for (DType to : kAll) {
    if (to == d.dtype) continue;
    // The values are whole numbers of few bits, so that every dtype holds them; conversions have tests of
    // their own.
    const Reference ref = [to](const Arrays& in) -> Arrays {
      Array y = in[0];
      y.dtype = to;
      if (to == DType::bool_)
        for (double& v : y.v) v = v != 0;
      return {y};
    };
    for (const Shape& sizes : {Shape{3, 4}, Shape{}, Shape{2, 0}, Shape{200, 500}}) {
      Draw whole = d.with(DType::u8);
      const Array v = to_array(whole.uniform(sizes, 0, 7));
      all.push_back({"to " + std::string(to_string(to)),
                     {d.values(v.v, sizes)},
                     one([to](const Tensor& x) { return cast(x, to); }),
                     ref,
                     sizes == Shape{200, 500}});
    }
  }
  return all;
}

}  // namespace

#define GRADUAL_UNARY(f) one([](const Tensor& x) { return f(x); })

std::vector<Row> unary_rows() {
  std::vector<DType> signed_numbers = kNumbers;
  std::erase(signed_numbers, DType::u8);
  std::vector<Row> rows;
  rows.push_back(exact(OpId::neg, signed_numbers,
                       {GRADUAL_UNARY(neg), [](double x) { return -x; }, -3, 3, {}, nullptr, unchanged}));
  rows.push_back(exact(OpId::abs, kNumbers, {GRADUAL_UNARY(abs), absolute, -3, 3, {0}, nullptr, unchanged}));
  rows.push_back(exact(OpId::sign, kNumbers,
                       {GRADUAL_UNARY(sign),
                        [](double x) { return static_cast<double>((x > 0) - (x < 0)); },
                        -3,
                        3,
                        {0},
                        nullptr,
                        unchanged,
                        false}));
  const auto steps = [&](OpId op, const Call& call, double (*reference)(double)) {
    rows.push_back(exact(op, kNumbers, {call, reference, -3, 3, {-3, -2, -1, 0, 1, 2, 3}, nullptr, unchanged, false}));
  };
  steps(OpId::floor, GRADUAL_UNARY(floor), std::floor);
  steps(OpId::ceil, GRADUAL_UNARY(ceil), std::ceil);
  steps(OpId::round, GRADUAL_UNARY(round), std::nearbyint);
  steps(OpId::trunc, GRADUAL_UNARY(trunc), std::trunc);
  rows.push_back(exact(OpId::relu, kNumbers,
                       {GRADUAL_UNARY(relu), [](double x) { return x < 0 ? 0 : x; }, -3, 3, {0}, nullptr, unchanged}));
  rows.push_back(exact(
      OpId::logical_not, kAllButF8,
      {GRADUAL_UNARY(logical_not), [](double x) { return static_cast<double>(x == 0); }, -1, 1, {}, nullptr, to_bool}));
  rows.back().no_gradient = "the output is bool";
  rows.push_back(exact(OpId::clone, kAll, {GRADUAL_UNARY(clone), same, -3, 3, {}, nullptr, unchanged}));

  rows.push_back(rounded(OpId::exp, "fp32", 4, {GRADUAL_UNARY(exp), std::exp}));
  rows.push_back(rounded(OpId::log, "fp32", 4, {GRADUAL_UNARY(log), std::log, 0.2, 5}));
  rows.push_back(rounded(OpId::exp2, "fp32", 4, {GRADUAL_UNARY(exp2), std::exp2}));
  rows.push_back(rounded(OpId::expm1, "fp32", 4, {GRADUAL_UNARY(expm1), std::expm1}));
  rows.push_back(rounded(OpId::log2, "fp32", 4, {GRADUAL_UNARY(log2), std::log2, 0.2, 5}));
  rows.push_back(rounded(OpId::log1p, "fp32", 4, {GRADUAL_UNARY(log1p), std::log1p, -0.8, 4}));
  rows.push_back(rounded(OpId::log10, "fp32", 4, {GRADUAL_UNARY(log10), std::log10, 0.2, 5}));
  rows.push_back(rounded(OpId::asin, "fp32", 4, {GRADUAL_UNARY(asin), std::asin, -0.9, 0.9}));
  rows.push_back(rounded(OpId::acos, "fp32", 4, {GRADUAL_UNARY(acos), std::acos, -0.9, 0.9}));
  rows.push_back(rounded(OpId::atan, "pass", 4, {GRADUAL_UNARY(atan), std::atan}));
  rows.push_back(rounded(OpId::asinh, "pass", 4, {GRADUAL_UNARY(asinh), std::asinh}));
  rows.push_back(rounded(OpId::acosh, "pass", 4, {GRADUAL_UNARY(acosh), std::acosh, 1.2, 5}));
  rows.push_back(rounded(OpId::atanh, "pass", 4, {GRADUAL_UNARY(atanh), std::atanh, -0.9, 0.9}));
  rows.push_back(rounded(OpId::sqrt, "pass", 1, {GRADUAL_UNARY(sqrt), std::sqrt, 0.2, 5}));
  rows.push_back(
      rounded(OpId::rsqrt, "fp32", 2, {GRADUAL_UNARY(rsqrt), [](double x) { return 1 / std::sqrt(x); }, 0.2, 5}));
  rows.push_back(
      rounded(OpId::reciprocal, "fp32", 1, {GRADUAL_UNARY(reciprocal), [](double x) { return 1 / x; }, -3, 3, {0}}));
  rows.push_back(rounded(OpId::sin, "pass", 4, {GRADUAL_UNARY(sin), std::sin, -6, 6}));
  rows.push_back(rounded(OpId::cos, "pass", 4, {GRADUAL_UNARY(cos), std::cos, -6, 6}));
  rows.push_back(rounded(OpId::tanh, "pass", 4, {GRADUAL_UNARY(tanh), std::tanh}));
  rows.push_back(rounded(OpId::sigmoid, "pass", 4, {GRADUAL_UNARY(sigmoid), sigmoid_of, -6, 6}));
  rows.push_back(rounded(OpId::erf, "pass", 4, {GRADUAL_UNARY(erf), std::erf}));
  rows.push_back(rounded(OpId::erfc, "pass", 4, {GRADUAL_UNARY(erfc), std::erfc}));
  rows.push_back(rounded(OpId::leaky_relu, "pass", 1,
                         {one([](const Tensor& x) { return leaky_relu(x, 0.2); }),
                          [](double x) { return x < 0 ? 0.2 * x : x; },
                          -3,
                          3,
                          {0}}));
  rows.push_back(rounded(OpId::gelu, "pass", 6, {}));
  rows.back().samples = gelu_samples;
  rows.push_back(rounded(OpId::silu, "pass", 6, {GRADUAL_UNARY(silu), silu_of, -6, 6}));
  rows.push_back(rounded(OpId::softplus, "fp32", 6,
                         {GRADUAL_UNARY(softplus), [](double x) { return std::log1p(std::exp(x)); }, -30, 30}));

  rows.push_back(exact(OpId::square, kNumbers,
                       {GRADUAL_UNARY(square), [](double x) { return x * x; }, -3, 3, {}, nullptr, unchanged}));
  rows.back().roundings = 0.5;
  rows.push_back(exact(OpId::clamp, kNumbers, {}));
  rows.back().samples = clamp_samples;
  rows.push_back(exact(OpId::cast, kAll, {}));
  rows.back().samples = cast_samples;
  // One device in this build: the copy that the public to_device() leaves out.
  rows.push_back(
      exact(OpId::to_device, kAll,
            {one([](const Tensor& x) { return dispatch1(OpId::to_device, {&x}, Device::cpu(), Loc::current()); }),
             same,
             -3,
             3,
             {},
             nullptr,
             unchanged}));
  for (Row& row : rows)
    if (row.bad.empty()) row.no_bad = "undefined, f8 and bool tensors are tried on every row";
  return rows;
}

}  // namespace gradual::test
