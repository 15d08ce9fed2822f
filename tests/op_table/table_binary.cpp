// Elementwise ops of two inputs, and where.
#include <tuple>

#include "samples.h"

namespace gradual::test {
namespace {

using Fn = double (*)(double, double);
using OpFn = Tensor (*)(const Operand&, const Operand&);

struct Binary {
  OpFn op;
  Fn reference;
  // of the first
  double low = -3;
  double high = 3;
  // of the second
  double low2 = -3;
  double high2 = 3;
  std::vector<double> kinks{};  // of the second
  double scalar = 2;
  DType (*out)(DType) = [](DType d) { return d; };
  bool apart = false;  // the operands must differ (comparisons with a gradient)
};

DType to_bool(DType) { return DType::bool_; }
DType to_float(DType d) { return is_floating(d) ? d : DType::f32; }

Reference broadcast(const Binary& b) {
  return [b](const Arrays& in) -> Arrays {
    const Shape sizes = broadcast_shapes(in[0].sizes, in[1].sizes, "reference");
    return {tabulate(sizes, b.out(in[0].dtype), [&](const std::vector<std::int64_t>& i) {
      return b.reference(at_broadcast(in[0], i), at_broadcast(in[1], i));
    })};
  };
}
Reference with_scalar(const Binary& b, bool left) {
  return [b, left](const Arrays& in) -> Arrays {
    Array y = in[0];
    y.dtype = b.out(in[0].dtype);
    for (double& v : y.v) v = left ? b.reference(b.scalar, v) : b.reference(v, b.scalar);
    return {y};
  };
}

std::function<std::vector<Sample>(Draw&)> binary_samples(Binary b) {
  return [b](Draw& d) {
    std::vector<Sample> all;
    const Call call = two([b](const Tensor& x, const Tensor& y) { return b.op(x, y); });
    const auto add = [&](const char* label, const Shape& x, const Shape& y, bool large = false) {
      Tensor first = d.away(x, b.low, b.high, {});
      Tensor second = d.away(y, b.low2, b.high2, b.kinks);
      if (b.apart && d.dtype != DType::bool_) {  // shifted, by a different half for each, so that none are equal
        first = d.distinct(x);
        Array other = to_array(d.distinct(y));
        for (double& v : other.v) v += is_floating(d.dtype) ? 0.125 : 0;
        second = d.values(other.v, y);
      }
      all.push_back({label, {first, second}, call, broadcast(b), large});
    };
    add("same", {3, 4, 5}, {3, 4, 5});
    add("row", {3, 5}, {5});
    add("outer", {2, 1, 4}, {3, 1});
    add("0-d and 1-d", {}, {6});
    add("0-d", {}, {});
    add("empty", {0, 3}, {1, 3});
    if (!b.apart) {
      add("large", {300, 401}, {300, 401}, true);
      add("large row", {301, 400}, {400}, true);
      add("large column", {400, 301}, {400, 1}, true);
    }
    for (const bool left : {false, true}) {
      if (d.dtype == DType::bool_) continue;
      const double low = left ? b.low2 : b.low;
      const double high = left ? b.high2 : b.high;
      for (const Shape& sizes : {Shape{3, 5}, Shape{}, Shape{260, 411}}) {
        all.push_back({left ? "scalar left" : "scalar right",
                       {d.away(sizes, low, high, {0, b.scalar})},
                       one([b, left](const Tensor& x) { return left ? b.op(b.scalar, x) : b.op(x, b.scalar); }),
                       with_scalar(b, left),
                       sizes == Shape{260, 411}});
      }
    }
    all.push_back({"itself",
                   {d.away({4, 3}, std::max(b.low, b.low2), b.high2, {0})},
                   one([b](const Tensor& x) { return b.op(x, x); }),
                   [b](const Arrays& in) {
                     return broadcast(b)({in[0], in[0]});
                   },
                   false,
                   !b.apart});
    return all;
  };
}

// Special values of both operands against each other.
std::function<std::vector<Sample>(Draw&)> and_special(Binary b) {
  return [b](Draw& d) {
    std::vector<Sample> all = binary_samples(b)(d);
    if (!is_floating(d.dtype)) return all;
    const std::vector<double> v{0, 1, -2, INFINITY, -INFINITY, NAN};
    all.push_back({"special",
                   {d.values(v, {6, 1}), d.values(v, {6})},
                   two([b](const Tensor& x, const Tensor& y) { return b.op(x, y); }),
                   broadcast(b),
                   false,
                   false});
    return all;
  };
}

Row number(OpId op, const std::vector<DType>& dtypes, double roundings, const Binary& b) {
  return {.op = op, .policy = "promote", .dtypes = dtypes, .samples = and_special(b), .roundings = roundings};
}
Row comparison(OpId op, const char* policy, const Binary& b) {
  return {.op = op,
          .policy = policy,
          .dtypes = kAllButF8,
          .samples = and_special(b),
          .roundings = 0,
          .no_gradient = "the output is bool"};
}

std::vector<BadInput> broadcast_errors(const char* op, OpFn f) {
  return {{"shapes",
           [f] {
             f(ones({3, 4}), ones({3, 5}));
           },
           std::string(op) + ": [3, 4]"},
          {"undefined left", [f] { f(Tensor(), ones({3})); }, "undefined"},
          {"undefined right", [f] { f(ones({3}), Tensor()); }, "undefined"},
          {"two numbers", [f] { f(1.0, 2.0); }, op}};
}

Array select(const Array& condition, const Array& a, const Array& b, const Shape& sizes) {
  return tabulate(sizes, a.dtype, [&](const std::vector<std::int64_t>& i) {
    return at_broadcast(condition, i) != 0 ? at_broadcast(a, i) : at_broadcast(b, i);
  });
}

std::vector<Sample> where_samples(Draw& d) {
  std::vector<Sample> all;
  const auto add = [&](const char* label, const Shape& c, const Shape& a, const Shape& b, bool large = false) {
    all.push_back({label,
                   {d.mask(c), d.uniform(a, -3, 3), d.uniform(b, -3, 3)},
                   [](const Tensors& in) -> Tensors { return {where(in[0], in[1], in[2])}; },
                   [](const Arrays& in) -> Arrays {
                     const Shape sizes = broadcast_shapes(
                         in[0].sizes, broadcast_shapes(in[1].sizes, in[2].sizes, "reference"), "reference");
                     return {select(in[0], in[1], in[2], sizes)};
                   },
                   large});
  };
  add("same", {3, 4, 5}, {3, 4, 5}, {3, 4, 5});
  add("broadcast", {2, 1, 4}, {3, 1}, {4});
  add("0-d condition", {}, {3, 2}, {2});
  add("0-d", {}, {}, {});
  add("empty", {0, 3}, {1, 3}, {3});
  add("large", {301, 400}, {301, 400}, {400}, true);
  if (d.dtype == DType::bool_) return all;
  for (const bool left : {false, true}) {
    all.push_back({left ? "scalar left" : "scalar right",
                   {d.mask({3, 4}), d.uniform({4}, -3, 3)},
                   two([left](const Tensor& c, const Tensor& x) { return left ? where(c, 2, x) : where(c, x, 2); }),
                   [left](const Arrays& in) -> Arrays {
                     Array two = make_array({1}, in[1].dtype);
                     two[0] = 2;
                     return {left ? select(in[0], two, in[1], {3, 4}) : select(in[0], in[1], two, {3, 4})};
                   }});
  }
  return all;
}

double nan_max(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }
double nan_min(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); }

// What the rules of activations call: dy with the saved output or input.
double relu_slope(double y) { return y > 0 ? 1 : 0; }
double gelu_slope(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * 3.14159265358979323846);
}
double gelu_tanh_slope(double x) {
  const double k = std::sqrt(2 / 3.14159265358979323846);
  const double t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}
void add_slope_samples(std::vector<Sample>& out, Draw& d, OpId op, const Attrs& attrs, double (*slope)(double),
                       const std::string& label) {
  const Call call = [=](const Tensors& in) -> Tensors { return {call_row(op, attrs, in[0], in[1])[0]}; };
  // the terms of a slope near its zero are about one
  const Reference reference = [=](const Arrays& in) -> Arrays {
    return {tabulate_sums(in[0].sizes, in[0].dtype, 0, [&](const std::vector<std::int64_t>& i) {
      const std::int64_t at = flat_index(in[0].sizes, i);
      const double dy = in[0][at];
      return ValueAndSize{dy * slope(in[1][at]), std::fabs(dy)};
    })};
  };
  const auto add_sample = [&](const std::string& what, const Shape& sizes, bool large) {
    out.push_back({label + what, {d.uniform(sizes, -3, 3), d.away(sizes, -4, 4, {0})}, call, reference, large});
  };
  add_sample("3-d", {3, 4, 5}, false);
  add_sample("empty", {2, 0}, false);
  add_sample("scalar", {}, false);
  add_sample("large", {300, 300}, true);
}
std::vector<Sample> relu_backward_samples(Draw& d) {
  std::vector<Sample> out;
  add_slope_samples(out, d, OpId::relu_backward, {}, relu_slope, "");
  return out;
}
std::vector<Sample> gelu_backward_samples(Draw& d) {
  std::vector<Sample> out;
  add_slope_samples(out, d, OpId::gelu_backward, Gelu::exact, gelu_slope, "exact ");
  add_slope_samples(out, d, OpId::gelu_backward, Gelu::tanh, gelu_tanh_slope, "tanh ");
  return out;
}

// --- quotients and bits ----------------------------------------------------------------------------------------------

// Written by the quotient rounded down or toward zero, for numbers near 1.
double floor_quotient(double a, double b) { return std::floor(a / b); }
double trunc_quotient(double a, double b) { return std::trunc(a / b); }
double floor_rest(double a, double b) { return std::fma(-std::floor(a / b), b, a); }
double trunc_rest(double a, double b) { return std::fma(-std::trunc(a / b), b, a); }

// Numbers whose quotient by one near `divisor` lies between two integers, where the derivative exists.
Tensor between_steps(Draw& d, const Shape& sizes, double divisor) {
  constexpr double kSteps = 4;
  const double lowest = d.dtype == DType::u8 ? 0 : -3;
  std::vector<double> v(static_cast<std::size_t>(numel(sizes)));
  for (double& x : v) {
    const double steps = lowest + std::floor((kSteps - lowest) * d.next());
    x = divisor * (steps + 0.4 + 0.2 * d.next());
    if (is_integral(d.dtype)) x = std::floor(x);
  }
  return d.values(v, sizes);
}

std::function<std::vector<Sample>(Draw&)> quotient_samples(OpFn op, Fn reference) {
  return [op, reference](Draw& d) {
    const Binary b{.op = op, .reference = reference};
    std::vector<Sample> all;
    const Call call = two([op](const Tensor& x, const Tensor& y) { return op(x, y); });
    const auto add = [&](const char* label, const Shape& x, const Shape& y, bool large = false) {
      all.push_back({label, {between_steps(d, x, 2.3), d.uniform(y, 2.2, 2.4)}, call, broadcast(b), large});
      if (large || d.dtype == DType::u8) return;
      all.push_back({label, {between_steps(d, x, 2.3), d.uniform(y, -2.4, -2.2)}, call, broadcast(b)});
    };
    add("same", {3, 4, 5}, {3, 4, 5});
    add("row", {3, 5}, {5});
    add("0-d", {}, {});
    add("empty", {0, 3}, {1, 3});
    add("large", {300, 401}, {300, 401}, true);
    for (const Shape& sizes : {Shape{3, 5}, Shape{260, 411}}) {
      const bool large = sizes != Shape{3, 5};
      all.push_back({"scalar right",
                     {between_steps(d, sizes, 2)},
                     one([op](const Tensor& x) { return op(x, 2); }),
                     with_scalar(b, false),
                     large});
      all.push_back({"scalar left",
                     {d.uniform(sizes, 2.1, 2.5)},
                     one([op](const Tensor& x) { return op(2, x); }),
                     with_scalar(b, true),
                     large});
    }
    return all;
  };
}

Row quotient_row(OpId op, OpFn call, Fn reference) {
  Row row{.op = op, .policy = "promote", .dtypes = kNumbers, .samples = quotient_samples(call, reference), .ulps = 1};
  row.bad = broadcast_errors(std::string(to_string(op)).c_str(), call);
  row.bad.push_back({"an integer by 0",
                     [call] { call(ones({2}, {.dtype = DType::i64}), zeros({2}, {.dtype = DType::i64})); },
                     "an integer is divided by 0"});
  row.bad.push_back({"an integer by the number 0", [call] { call(ones({2}, {.dtype = DType::i32}), 0); },
                     "an integer is divided by 0"});
  return row;
}

Row bits_row(OpId op, OpFn call, Fn reference, double high2, double scalar) {
  const Binary b{.op = call, .reference = reference, .low = 0, .high = 90, .low2 = 0, .high2 = high2, .scalar = scalar};
  Row row{.op = op,
          .policy = "pass",
          .dtypes = {DType::i64, DType::i32, DType::u8},
          .samples = binary_samples(b),
          .roundings = 0,
          .no_gradient = "integers have no gradient"};
  row.bad = broadcast_errors(std::string(to_string(op)).c_str(), call);
  row.bad.push_back({"floats", [call] { call(ones({2}), ones({2})); }, "takes integers and bool only"});
  return row;
}

std::int64_t whole(double x) { return static_cast<std::int64_t>(x); }

}  // namespace

#define GRADUAL_BOOL(expression) [](double a, double b) { return static_cast<double>(expression); }

std::vector<Row> binary_rows() {
  std::vector<DType> signed_numbers = kNumbers;
  std::erase(signed_numbers, DType::u8);
  std::vector<Row> rows;
  rows.push_back(number(OpId::add, kNumbers, 0.5, {add, [](double a, double b) { return a + b; }}));
  rows.back().bad = broadcast_errors("add", add);
  rows.push_back(number(OpId::sub, signed_numbers, 0.5, {sub, [](double a, double b) { return a - b; }}));
  rows.back().bad = broadcast_errors("sub", sub);
  rows.push_back(number(OpId::mul, kNumbers, 0.5, {mul, [](double a, double b) { return a * b; }}));
  rows.back().bad = broadcast_errors("mul", mul);
  rows.push_back(
      number(OpId::div, kAllButF8, 0.5,
             {.op = div, .reference = [](double a, double b) { return a / b; }, .kinks = {0}, .out = to_float}));
  rows.back().ulps = 1;
  rows.back().bad = broadcast_errors("div", div);
  rows.back().bad.push_back(
      {"integers in place", [] { ones({2}, {.dtype = DType::i64}) /= 2; }, "cannot be written into"});
  // exp(b log a) multiplies the error of the logarithm by |b log a|, at most 3 log 3 here.
  rows.push_back({.op = OpId::pow,
                  .policy = "fp32",
                  .dtypes = kFloats,
                  .samples = binary_samples({pow, [](double a, double b) { return std::pow(a, b); }, 0.3, 3, -3, 3}),
                  .ulps = 8,
                  .bad = broadcast_errors("pow", pow)});
  rows.back().bad.push_back({"integers",
                             [] { pow(ones({2}, {.dtype = DType::i64}), ones({2}, {.dtype = DType::i64})); },
                             "takes floats only"});
  rows.push_back({.op = OpId::atan2,
                  .policy = "promote",
                  .dtypes = kFloats,
                  .samples = and_special({atan2, [](double a, double b) { return std::atan2(a, b); }, 0.3, 3, 0.5, 3}),
                  .ulps = 4,
                  .bad = broadcast_errors("atan2", atan2)});
  rows.push_back(quotient_row(OpId::floor_divide, floor_divide, floor_quotient));
  rows.push_back(quotient_row(OpId::trunc_divide, trunc_divide, trunc_quotient));
  rows.push_back(quotient_row(OpId::remainder, remainder, floor_rest));
  rows.push_back(quotient_row(OpId::fmod, fmod, trunc_rest));
  const auto bits = [&](OpId op, OpFn call, Fn reference, double high2 = 90, double scalar = 3) {
    rows.push_back(bits_row(op, call, reference, high2, scalar));
  };
  bits(OpId::bitwise_and, bitwise_and, [](double a, double b) { return double(whole(a) & whole(b)); });
  bits(OpId::bitwise_or, bitwise_or, [](double a, double b) { return double(whole(a) | whole(b)); });
  bits(OpId::bitwise_xor, bitwise_xor, [](double a, double b) { return double(whole(a) ^ whole(b)); });
  const Fn doubled = [](double a, double b) { return a * std::exp2(b); };
  const Fn halved = [](double a, double b) { return std::floor(a * std::exp2(-b)); };
  bits(OpId::shift_left, shift_left, doubled, 1, 1);  // a byte holds 90 * 2
  bits(OpId::shift_right, shift_right, halved, 6);
  const Tensor masks = ones({2}, {.dtype = DType::bool_});
  for (const OpFn shift : {OpFn(shift_left), OpFn(shift_right)})
    rows.back().bad.push_back({"masks", [=] { shift(masks, masks); }, "takes numbers, not bool"});
  rows.push_back(number(OpId::maximum, kNumbers, 0, {.op = maximum, .reference = nan_max, .apart = true}));
  rows.back().bad = broadcast_errors("maximum", maximum);
  rows.push_back(number(OpId::minimum, kNumbers, 0, {.op = minimum, .reference = nan_min, .apart = true}));
  rows.back().bad = broadcast_errors("minimum", minimum);

  rows.push_back(comparison(OpId::eq, "promote", {.op = eq, .reference = GRADUAL_BOOL(a == b), .out = to_bool}));
  rows.push_back(comparison(OpId::ne, "promote", {.op = ne, .reference = GRADUAL_BOOL(a != b), .out = to_bool}));
  rows.push_back(comparison(OpId::lt, "promote", {.op = lt, .reference = GRADUAL_BOOL(a < b), .out = to_bool}));
  rows.push_back(comparison(OpId::le, "promote", {.op = le, .reference = GRADUAL_BOOL(a <= b), .out = to_bool}));
  rows.push_back(comparison(OpId::gt, "promote", {.op = gt, .reference = GRADUAL_BOOL(a > b), .out = to_bool}));
  rows.push_back(comparison(OpId::ge, "promote", {.op = ge, .reference = GRADUAL_BOOL(a >= b), .out = to_bool}));
  rows.push_back(comparison(OpId::logical_and, "pass",
                            {.op = logical_and, .reference = GRADUAL_BOOL(a != 0 && b != 0), .out = to_bool}));
  rows.push_back(comparison(OpId::logical_or, "pass",
                            {.op = logical_or, .reference = GRADUAL_BOOL(a != 0 || b != 0), .out = to_bool}));
  rows.push_back(comparison(OpId::logical_xor, "pass",
                            {.op = logical_xor, .reference = GRADUAL_BOOL((a != 0) != (b != 0)), .out = to_bool}));
  for (Row& row : rows)
    if (row.bad.empty())
      row.bad = {{"shapes",
                  [op = row.op] {
                    const Tensor a = ones({3, 4});
                    const Tensor b = ones({3, 5});
                    dispatch1(op, {&a, &b}, {}, SourceLocation::current());
                  },
                  std::string(to_string(row.op)) + ": [3, 4]"}};

  rows.push_back({.op = OpId::where,
                  .policy = "promote",
                  .dtypes = kAllButF8,
                  .samples = where_samples,
                  .roundings = 0,
                  .bad = {{"condition", [] { where(ones({2}), 1, ones({2})); }, "condition must be bool"},
                          {"shapes", [] { where(ones({2}, {.dtype = DType::bool_}), ones({3}), 1); }, "where: [2]"}}});
  const std::vector<BadInput> integers{
      {"integers",
       [] { call_row(OpId::relu_backward, {}, ones({2}, {.dtype = DType::i64}), ones({2}, {.dtype = DType::i64})); },
       "takes floating tensors"}};
  rows.push_back({.op = OpId::relu_backward,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = relu_backward_samples,
                  .roundings = 0,
                  .constant_inputs = {1},
                  .bad = integers});
  rows.push_back({.op = OpId::gelu_backward,
                  .policy = "pass",
                  .dtypes = kFloats,
                  .samples = gelu_backward_samples,
                  .ulps = 12,
                  .bad = integers,
                  .no_gradient = "a fused backward: under create_graph the composed form runs in its place"});
  return rows;
}

}  // namespace gradual::test
