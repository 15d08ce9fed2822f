// Every way of scaling against its definition, element by element.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/core/quantize/quantizer.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <initializer_list>
#include <string>
#include <variant>

#include "../../../core/quantize/quantize_part.h"
#include "../../../core/quantize/quantizer_call.h"
#include "../../../core/support/philox.h"
#include "../formats/inputs.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

float global_of(const QuantizedTensor& q) { return q.global_scale.defined() ? q.global_scale.item<float>() : 1; }

// --- the definition (formats.md's formulas), on a matrix whose rows run along the contracted axis --------------------

// The options of scales that are max / amax.
struct FloatOptions {
  double margin = 0;
  bool power_of_two = false;
  ScaleOracle oracle = ScaleOracle::transformer_engine;
};
FloatOptions float_options(const Scaling& scaling) {
  return of_kind(
      scaling, FloatOptions(), [](const auto& kind) requires requires { kind.power_of_two; } {
        return FloatOptions{kind.margin, kind.power_of_two, kind.oracle};
      });
}

struct Factors {
  float forward = 1;
  float inverse = 1;
};

// One scale for a tensor, a row, or a block with an f32 scale.
Factors current(float amax, const Quantizer& q) {
  const FloatOptions s = float_options(q.scaling);
  const bool plain = amax > 0 && std::isfinite(amax);
  double scale = 1;
  if (s.oracle == ScaleOracle::torchao)
    scale = std::isnan(amax) ? static_cast<double>(amax) : q.format.max() / std::max<double>(amax, 1e-12);
  else if (plain) scale = static_cast<float>(q.format.max()) / amax;
  if (s.oracle == ScaleOracle::torchao || plain) scale *= std::exp2(-s.margin);
  auto forward = std::min(static_cast<float>(scale), FLT_MAX);
  if (s.power_of_two && forward > 0)
    forward = static_cast<float>(std::exp2(std::floor(std::log2(static_cast<double>(forward)))));
  return {forward, 1 / forward};
}

// The exponent of a block's scale: searched for, from the largest on down.
int exponent(float amax, const Quantizer& q) {
  const Format& f = q.format;
  const int emax = static_cast<int>(std::floor(std::log2(f.max())));
  const auto power = [](int e) { return std::ldexp(1.0, e); };
  int e = 140;
  switch (rule_of(q.scaling).value()) {
    case ScaleRule::least_squares:  // other tests
    case ScaleRule::floor:
      while (power(e) > amax) --e;
      return e - emax;
    case ScaleRule::ceil:
      while (power(e - 1) >= amax) --e;
      return e - emax;
    case ScaleRule::rceil:
      while (f.max() * power(e - 1) >= amax) --e;
      return e;
    case ScaleRule::even: {
      // amax = m * 2^e with 1 <= m < 2, and m rounded to the element's mantissa may be 2
      while (power(e) > amax) --e;
      const double units = std::ldexp(amax / power(e), f.mantissa_bits);
      const double rounded = std::nearbyint(units);
      return e + (rounded == std::ldexp(2, f.mantissa_bits) ? 1 : 0) - emax;
    }
  }
  return 0;
}

Factors of_block(float amax, float global, float inverse, const Quantizer& q) {
  const Scaling& s = q.scaling;
  if (is_any<RowScale, FloatBlocks>(s)) return current(amax, q);
  if (is_any<Nvfp4Blocks>(s)) {
    const Format e4m3 = format("e4m3fn");
    const bool exact = product_of(s) == ScaledProduct::exact;
    double wanted = exact ? static_cast<double>(amax) * global / q.format.max()
                          : static_cast<double>(amax * global / static_cast<float>(q.format.max()));
    if (oracle_of(s) == ScaleOracle::torchao && !std::isnan(wanted))
      wanted = std::max(0x1p-6F, amax / static_cast<float>(q.format.max()) / inverse);
    const auto code = reference::round<RoundingMode::nearest_even>(e4m3, Overflow::saturate, wanted).code;
    const auto scale = static_cast<float>(reference::decode(e4m3, code));
    return {scale == 0 ? 0 : global / scale, scale};
  }
  const bool infinite = std::isinf(amax);
  const auto& powers = std::get<PowerBlocks>(s);
  const bool torchao = powers.oracle == ScaleOracle::torchao;
  const bool rceil = powers.rule == ScaleRule::rceil;
  if (std::isnan(amax)) return {torchao && !rceil ? 0 : NAN, NAN};
  if (amax == 0 && powers.scale == ScaleFormat::power_of_two) return {};
  const int largest = torchao && !rceil ? 128 - q.format.max_exponent() : 127;
  const int e = infinite ? largest : amax == 0 ? -127 : std::clamp(exponent(amax, q), -127, 127);
  if (torchao && powers.scale == ScaleFormat::e8m0 && e == -127) return {rceil ? 1 : 0x1p126F, 0x1p-127F};
  return {std::ldexp(1.0F, -e), std::ldexp(1.0F, e)};
}

float largest(const std::vector<float>& x) {
  float most = 0;
  for (const float v : x) most = std::isnan(v) || std::isnan(most) ? NAN : std::max(most, std::abs(v));
  return most;
}

struct Defined {
  std::vector<std::uint32_t> codes;
  std::vector<float> values;    // with the scales taken out again; finite where the factors are
  std::vector<float> products;  // the same, but a scale apart from the values may take them beyond f32
  std::vector<double> scaled;   // as they were rounded
  std::vector<float> scales;    // of the grid, row by row: what codes are multiplied by
  std::int64_t grid_rows = 0;
  std::int64_t grid_cols = 0;
  float global = 1;
  float inverse = 1;
  CastCounts counts;
};

// The blocks of a quantizer, [rows, columns].
std::pair<std::int64_t, std::int64_t> block_of(const Quantizer& q, std::int64_t rows, std::int64_t k) {
  const Scaling& s = q.scaling;
  if (is_any<RowScale>(s)) return {1, std::max<std::int64_t>(k, 1)};
  if (const int block = block_size(s)) return {has_tiles(s) ? block : 1, block};
  return {std::max<std::int64_t>(rows, 1), std::max<std::int64_t>(k, 1)};
}

Defined define(const std::vector<float>& x, std::int64_t rows, std::int64_t k, const Quantizer& q,
               const AmaxHistory& history) {
  const Scaling& s = q.scaling;
  const auto [height, width] = block_of(q, rows, k);
  Defined d;
  d.grid_rows = (rows + height - 1) / height;
  d.grid_cols = (k + width - 1) / width;
  if (is_any<Nvfp4Blocks>(s)) {
    const float amax = largest(x);
    const float encode = static_cast<float>(448 * q.format.max()) / amax;  // 2688 for e2m1
    d.global = amax == 0 || encode == 0 ? 1 : std::min(encode, FLT_MAX);
    d.inverse = 1 / d.global;
    if (oracle_of(s) == ScaleOracle::torchao) {
      d.inverse = amax / static_cast<float>(448 * q.format.max());
      d.global = 1 / d.inverse;
      if (d.global > FLT_MAX) {
        d.global = 1;
        d.inverse = 1;
      }
    }
  }
  std::vector<Factors> factors;
  for (std::int64_t i = 0; i < d.grid_rows; ++i)
    for (std::int64_t j = 0; j < d.grid_cols; ++j) {
      std::vector<float> inside;
      for (std::int64_t r = i * height; r < std::min(rows, (i + 1) * height); ++r)
        for (std::int64_t c = j * width; c < std::min(k, (j + 1) * width); ++c)
          inside.push_back(x[static_cast<std::size_t>(r * k + c)]);
      Factors f;
      if (const auto* fixed = std::get_if<FixedScale>(&s))
        f = {static_cast<float>(fixed->value), 1 / static_cast<float>(fixed->value)};
      else if (is_any<DelayedScale>(s)) f = {history.scale, 1 / history.scale};
      else if (is_any<TensorScale>(s)) f = current(largest(inside), q);
      else if (!is_any<NoScale>(s)) f = of_block(largest(inside), d.global, d.inverse, q);
      factors.push_back(f);
      d.scales.push_back(f.inverse);
    }
  const auto round = reference::round_function(q.rounding.mode);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c) {
      const Factors f = factors[static_cast<std::size_t>(r / height * d.grid_cols + c / width)];
      const float source = x[static_cast<std::size_t>(r * k + c)];
      const bool exact = product_of(s) == ScaledProduct::exact;
      d.scaled.push_back(exact ? static_cast<double>(source) * f.forward : static_cast<double>(source * f.forward));
      const reference::Result result = round(q.format, q.overflow, d.scaled.back(), {});
      reference::count(result.kind, d.counts);
      d.codes.push_back(result.code);
      const auto value = static_cast<float>(reference::decode(q.format, result.code));
      const bool finite = std::isfinite(value) && std::isfinite(f.inverse);
      const float in_block = value * f.inverse;
      const float kept = finite ? std::clamp(in_block, -FLT_MAX, FLT_MAX) : in_block;
      const bool apart = unit_of(s) != ScaleUnit::block;
      d.products.push_back((apart ? in_block : kept) * d.inverse);
      const float all = kept * d.inverse;
      d.values.push_back(finite && std::isfinite(d.inverse) ? std::clamp(all, -FLT_MAX, FLT_MAX) : all);
    }
  return d;
}

// --- what is tried ---------------------------------------------------------------------------------------------------

std::vector<Quantizer> quantizers() {
  const Format e4m3 = format("e4m3fn");
  const Format e5m2 = format("e5m2");
  const Format e2m1 = format("e2m1");
  const auto make = [](const Format& f, const Scaling& scaling, Overflow overflow = Overflow::saturate) {
    return Quantizer{.format = f, .overflow = overflow, .scaling = scaling};
  };
  std::vector<Quantizer> all = {
      make(e4m3, NoScale{}),
      make(format("fp16"), NoScale{}, Overflow::ieee),
      make(e2m1, {}),
      make(format("e2m3"), {}),
      make(format("e6m9"), {}, Overflow::ieee),
      make(format("e8m12"), {}),  // 21 bits, stored in 32
      make(e4m3, FixedScale{.value = 4}),
      make(e5m2, FixedScale{.value = 0.3}, Overflow::ieee),
      make(e4m3, TensorScale{}),
      make(e5m2, TensorScale{.margin = 1}),
      make(e4m3, TensorScale{.power_of_two = true}),
      make(e4m3, TensorScale{.oracle = ScaleOracle::torchao}),
      make(e4m3, DelayedScale{}),
      make(e4m3, RowScale{}),
      make(e4m3, RowScale{.power_of_two = true, .oracle = ScaleOracle::torchao}),
      make(e2m1, RowScale{}),
      make(e4m3, FloatBlocks{.block = 128}),
      make(e4m3, FloatBlocks{.power_of_two = true, .block = 7}),
      make(e4m3, FloatBlocks{.block = 4, .square = true}),
      make(e5m2, PowerBlocks{.block = 5, .scale = ScaleFormat::power_of_two, .rule = ScaleRule::rceil}),
      make(e4m3, PowerBlocks{.block = 1}),
      make(e2m1, PowerBlocks{.block = 3, .square = true}),
      make(e2m1, Nvfp4Blocks{.block = 16}),
      make(e2m1, Nvfp4Blocks{.block = 16, .square = true}),
      make(e4m3, Nvfp4Blocks{.block = 6}),
  };
  for (const std::string_view element : {"e4m3fn", "e5m2", "e2m3", "e3m2", "e2m1"})
    for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::rceil, ScaleRule::ceil, ScaleRule::even})
      all.push_back(make(format(element), PowerBlocks{.block = 32, .rule = rule}));
  for (std::size_t i = 0, n = all.size(); i < n; ++i) {
    if (is_any<NoScale>(all[i].scaling)) continue;
    all.push_back(all[i]);
    set_product(all.back().scaling, ScaledProduct::rounded);
  }
  return all;
}

// Numbers of many sizes; some blocks are zero, and some largest numbers are just below and at powers of two.
Tensor numbers(const Shape& sizes, std::uint64_t stream = 0) {
  const Tensor t = empty(sizes);
  auto* p = t.data<float>();
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const auto word = philox_word(31, stream, static_cast<std::uint64_t>(i));
    const int e = static_cast<int>(philox_word(31, stream, static_cast<std::uint64_t>(i / 37)) % 60) - 40;
    const float size = word % 11 == 0 ? std::nextafter(2.0F, 1.0F) : word % 7 == 0 ? 1.0F : 1 + uniform01(word);
    p[i] = i / 32 % 5 == 3 ? 0.0F : std::ldexp(word % 2 == 0 ? size : -size, e - static_cast<int>(word % 5));
  }
  return t;
}

struct Input {
  std::string what;
  Tensor x;
  int axis;
};
std::vector<Input> inputs() {
  std::vector<Input> all = {
      {"matrix", numbers({5, 37}), -1},
      {"matrix, first axis", numbers({37, 5}), 0},
      {"whole blocks", numbers({6, 64}), 1},
      {"three dims", numbers({3, 4, 33}), 2},
      {"three dims, middle", numbers({3, 40, 5}), 1},
      {"three dims, first", numbers({35, 4, 3}), 0},
      {"vector", numbers({70}), 0},
      {"number", numbers({}), 0},
      {"transposed", numbers({40, 9}).t(), 1},
      {"transposed, first axis", numbers({40, 9}).t(), 0},
      {"strided", numbers({9, 80}).index({Slice{0, {}, 2}, Slice{1, {}, 2}}), 1},
      {"broadcast", numbers({1, 33}).expand({4, 33}), 0},
      {"threads", numbers({300, 301}), 1},
      {"one long row", numbers({1, 96 * 1024}), 1},
      {"empty rows", numbers({0, 4}), 1},
      {"empty columns", numbers({4, 0}), 1},
      {"zeros", zeros({3, 40}), 1},
  };
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64})
    all.push_back({std::string(to_string(dtype)), numbers({5, 37}).to(dtype), 1});
  return all;
}

// [rows, k] with the axis last.
Tensor rows_of(const Tensor& x, int axis) {
  if (x.dim() == 0) return x.reshape({1, 1});
  Shape order;
  const int last = axis < 0 ? axis + x.dim() : axis;
  for (int d = 0; d < x.dim(); ++d)
    if (d != last) order.push_back(d);
  order.push_back(last);
  return x.permute(order);
}
std::vector<float> floats(const Tensor& x) {
  std::vector<float> out;
  for (const double v : values(x)) out.push_back(static_cast<float>(v));
  return out;
}
int differences(const std::vector<float>& a, const std::vector<float>& b) {
  int n = a.size() != b.size() ? 1 : 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    n += reference::value_bits(a[i]) != reference::value_bits(b[i]);
  return n;
}

void check_against_definition(const Quantizer& q, const Input& in) {
  const Tensor matrix = rows_of(in.x, in.axis);
  const std::int64_t k = matrix.dim() ? matrix.size(-1) : 1;
  const std::int64_t rows = k ? matrix.numel() / k : matrix.size(0);
  const std::vector<float> x = floats(matrix);
  AmaxHistory history;
  history.scale = 3;
  const Defined d = define(x, rows, k, q, history);

  CastCounts fake_counts, counts;
  ExponentHistogram exponents, scaled_exponents, expected_exponents, expected_scaled;
  expected_exponents.add(x.data(), static_cast<std::int64_t>(x.size()));
  expected_scaled.add(d.scaled.data(), static_cast<std::int64_t>(d.scaled.size()));
  const Tensor fake = fake_quantize(
      in.x, q,
      {.axis = in.axis, .history = &history, .stats = {&fake_counts, &scaled_exponents}, .scaled_exponents = true});
  const QuantizedTensor codes =
      quantize(in.x, q, {.axis = in.axis, .history = &history, .stats = {&counts, &exponents}});
  const QuantizedOperand operand = quantize_operand(in.x, q, {.axis = in.axis, .history = &history});

  CHECK(fake.sizes() == in.x.sizes());
  CHECK(differences(floats(rows_of(fake, in.axis)), d.values) == 0);
  const Tensor back = codes.dequantize();
  CHECK(back.sizes() == in.x.sizes());
  CHECK(differences(floats(rows_of(back, in.axis)), d.values) == 0);
  const Tensor product = operand.scale.defined() ? mul(operand.values, operand.scale) : operand.values;
  CHECK(differences(floats(rows_of(product, in.axis)), d.products) == 0);

  std::vector<std::uint32_t> got;
  for (const double code : values(rows_of(codes.unpack(), in.axis)))
    got.push_back(static_cast<std::uint32_t>(static_cast<std::int64_t>(code)));
  CHECK(got == d.codes);
  const std::int64_t bits = q.format.storage_bits();
  CHECK(static_cast<std::int64_t>(codes.codes.nbytes()) == (in.x.numel() * bits + 7) / 8);
  CHECK(codes.scales.defined() == (!is_any<NoScale>(q.scaling)));
  if (codes.scales.defined()) {
    CHECK(codes.scale_values().sizes() == Shape{d.grid_rows, d.grid_cols});
    CHECK(differences(floats(codes.scale_values()), d.scales) == 0);
  }
  CHECK(reference::value_bits(global_of(codes)) == reference::value_bits(d.inverse));
  CHECK(reference::as_vector(counts) == reference::as_vector(d.counts));
  CHECK(reference::as_vector(fake_counts) == reference::as_vector(d.counts));
  CHECK(exponents.bins == expected_exponents.bins);
  CHECK(scaled_exponents.bins == expected_scaled.bins);
}

}  // namespace

TEST_CASE("every quantizer follows its definition, in every layout and dtype") {
  for (const Input& in : inputs())
    for (const Quantizer& q : quantizers()) {
      const std::string what = in.what + ": " + describe(q);
      CAPTURE(what);
      check_against_definition(q, in);
    }
}

TEST_CASE("zeros, Inf and NaN in every quantizer and by both oracles") {
  std::vector<float> x = floats(numbers({6, 64}));
  for (std::size_t i = 128; i < 192; ++i) x[i] = i % 2 == 0 ? 0.0F : -0.0F;
  x[5] = INFINITY;
  x[70] = NAN;
  x[200] = -INFINITY;
  x[201] = NAN;
  x[260] = 1e-44F;
  x[330] = FLT_MAX;
  const Tensor special = from_data(x, {6, 64});
  std::vector<Input> all = {{"special", special, 1}, {"special, first axis", special, 0}};
  for (const float only : {INFINITY, NAN, 0.0F, 1e-44F, FLT_MAX}) {
    const Tensor t = zeros({2, 32});
    t.data<float>()[7] = only;
    all.push_back({fmt::format("only {}", only), t, 1});
  }
  for (const Input& in : all)
    for (Quantizer q : quantizers())
      for (const ScaleOracle oracle : {ScaleOracle::transformer_engine, ScaleOracle::torchao}) {
        set_oracle(q.scaling, oracle);
        const std::string what = in.what + ": " + describe(q) + " " + std::string(to_string(oracle));
        CAPTURE(what);
        check_against_definition(q, in);
      }
}

TEST_CASE("packed codes") {
  for (const int bits : {4, 6, 8})
    for (std::int64_t n = 0; n <= 33; ++n) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
      std::vector<std::uint8_t> again(codes.size(), 99);
      for (std::size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<std::uint8_t>(philox_word(2, 0, i) & ((1U << bits) - 1));
      const std::int64_t bytes = packed_bytes(n, bits);
      CHECK(bytes == (n * bits + 7) / 8);
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes) + 1, 0xaa);
      pack_codes(codes.data(), n, bits, packed.data());
      CHECK(packed.back() == 0xaa);  // nothing is written beyond
      unpack_codes(packed.data(), n, bits, again.data());
      CHECK(again == codes);
      // bit `bits` * i of the whole, counted from the first byte's lowest
      for (std::int64_t bit = 0; bit < 8 * bytes; ++bit) {
        const bool set = (packed[static_cast<std::size_t>(bit / 8)] >> (bit % 8) & 1) != 0;
        const bool expected = bit < n * bits && (codes[static_cast<std::size_t>(bit / bits)] >> (bit % bits) & 1) != 0;
        if (set != expected) FAIL_CHECK(fmt::format("{} bits, {} codes: bit {}", bits, n, bit));
      }
    }
  CHECK(quantize(zeros({1000}), format("e2m1"), {}, Overflow::ieee).codes.nbytes() == 500);
  CHECK(quantize(zeros({1000}), format("e3m2"), {}, Overflow::ieee).codes.nbytes() == 750);
  CHECK(quantize(zeros({1000}), format("e2m2"), {}, Overflow::ieee).codes.nbytes() == 750);  // 5 bits lie in 6
}

TEST_CASE("doubles are rounded once") {
  const double x = 1 + 0x1p-11 + 0x1p-40;  // as a float a tie
  const Tensor t = from_data(std::vector<double>{x, -x}, {2}, {.dtype = DType::f64});
  const Tensor y = fake_quantize(t, format("fp16"), {}, Overflow::ieee);
  CHECK(y.dtype() == DType::f64);
  CHECK(values(y) == std::vector<double>{1 + 0x1p-10, -1 - 0x1p-10});
  CHECK(values(quantize(t, format("fp16"), {}, Overflow::ieee).unpack()) == std::vector<double>{0x3c01, 0xbc01});
}

TEST_CASE("hadamard16 is orthogonal and keeps products") {
  const std::uint16_t signs = 0x5a31;
  const Tensor h = hadamard16(eye(16), signs);
  for (std::int64_t i = 0; i < 256; ++i) CHECK(std::abs(at(h, i)) == 0.25);
  const Tensor unit = matmul(h, h.t());  // sums of 1/16: exact
  for (std::int64_t i = 0; i < 256; ++i) CHECK(at(unit, i) == (i % 17 == 0 ? 1 : 0));
  // row i of H has the sign of bit i, and without signs H is symmetric
  const Tensor plain = hadamard16(eye(16), 0);
  CHECK(same_bits(plain, plain.t().contiguous()));
  for (std::int64_t i = 0; i < 256; ++i) CHECK(at(h, i) == at(plain, i) * ((signs >> (i / 16) & 1) != 0 ? -1 : 1));
  // integers up to 31: every sum is exact in f32, so products do not change at all
  const Tensor a = empty({5, 48});
  const Tensor b = empty({7, 48});
  for (std::int64_t i = 0; i < a.numel(); ++i) a.data<float>()[i] = static_cast<float>(i * 7 % 63 - 31);
  for (std::int64_t i = 0; i < b.numel(); ++i) b.data<float>()[i] = static_cast<float>(i * 11 % 63 - 31);
  CHECK(same_bits(matmul(hadamard16(a, signs), hadamard16(b, signs).t()), matmul(a, b.t())));
  CHECK(test::contains(test::message_of([] {
                         hadamard16(zeros({2, 24}), 0);
                       }),
                       "the last dim must be a multiple of 16"));
}

// --- one rounding of the product -------------------------------------------------------------------------------------

TEST_CASE("a scaled element is rounded once, or by way of f32 by choice") {
  // -0x1.26p-1 * 0x1.24924ap+7 is -84.0000003: to -88. As an f32 it is -84, a tie: to -80.
  const double x = -0x1.26p-1;
  Quantizer q{.format = format("e4m3fn"), .scaling = FixedScale{.value = 0x1.24924ap+7}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    CAPTURE(to_string(dtype));
    const Tensor t = full({3}, x, {.dtype = dtype});
    set_product(q.scaling, ScaledProduct::exact);
    CHECK(at(quantize(t, q).decode(), 1) == -88);
    CHECK(at(quantize_operand(t, q).values, 1) == -88);
    CHECK(at(fake_quantize(t, q), 1) == -88 * (1 / 0x1.24924ap+7F));
    set_product(q.scaling, ScaledProduct::rounded);
    CHECK(at(quantize(t, q).decode(), 1) == (dtype == DType::f64 ? -88 : -80));
  }
}

namespace {

// The exact product rounded to odd in f64: a rounding to a format with at most 50 bits is that of the product.
double exact_product(double x, float by) {
  __extension__ using Wide = __float128;
  const Wide exact = static_cast<Wide>(x) * static_cast<Wide>(by);
  const auto near = static_cast<double>(exact);
  if (static_cast<Wide>(near) == exact || std::bit_cast<std::uint64_t>(near) % 2 == 1) return near;
  const bool larger = static_cast<Wide>(near) < exact;
  return std::nextafter(near, larger ? HUGE_VAL : -HUGE_VAL);
}

int wrong_codes(const Tensor& x, const Quantizer& q) {
  const RandomKey key{.seed = 5, .stream = 9};
  std::vector<double> products;
  for (const double v : values(x))
    products.push_back(exact_product(v, static_cast<float>(std::get<FixedScale>(q.scaling).value)));
  std::vector<std::uint8_t> expected(products.size() * static_cast<std::size_t>(code_bytes(q.format)));
  const Rounder rounder{q.format, q.rounding, q.overflow, key};
  rounder.encode(products.data(), expected.data(), static_cast<std::int64_t>(products.size()));
  std::vector<float> decoded(products.size());
  decode(q.format, expected.data(), decoded.data(), static_cast<std::int64_t>(products.size()));
  return differences(floats(quantize(x, q, {.key = key}).decode()), decoded);
}

}  // namespace

TEST_CASE("one rounding of the exact product: every rounding, format and source") {
  std::vector<double> numbers;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const auto word = philox_word(8, 0, i);
    const double size = std::ldexp(1 + uniform01(philox_word(8, 1, i)), static_cast<int>(word % 40) - 20);
    numbers.push_back((word & 64 ? size : -size) * (1 + (i % 3 == 0 ? 0x1p-30 * uniform01(philox_word(8, 2, i)) : 0)));
  }
  for (const double v : {0x1.26p-1, 1e-38, 1e-45, 3e38, 0.0, -0.0}) numbers.push_back(v);
  const auto n = static_cast<std::int64_t>(numbers.size());
  const Tensor doubles = from_data(numbers, {n}, {.dtype = DType::f64});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const std::string_view target :
         {"e4m3fn", "e5m2", "e2m1", "bf16", "fp16", "e8m21", "e8m22", "fp32", "e4m0", "int8", "nf4", "posit16"})
      for (const std::string_view rounding :
           {"nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic", "stochastic:8"})
        for (const double scale : {0x1.24924ap+7, 0x1.8p-3, 3e-38, 8e37}) {
          const Quantizer q{.format = format(target),
                            .rounding = rounding_from_name(rounding),
                            .overflow = Overflow::ieee,
                            .scaling = FixedScale{.value = scale}};
          const bool wide = dtype == DType::f64 && q.rounding.mode == RoundingMode::stochastic &&
                            q.format.mantissa_bits + q.rounding.random_bits > 50;
          if (wide) continue;  // the exact product has more bits than a double
          const std::string what = fmt::format("{} to {} {} by {}", to_string(dtype), target, rounding, scale);
          CAPTURE(what);
          CHECK(wrong_codes(doubles.to(dtype), q) == 0);
        }
}

TEST_CASE("the amax of doubles is theirs") {
  const auto doubles = [](double v) { return full({32}, v, {.dtype = DType::f64}); };
  CHECK(absmax(doubles(-1e300)) == 1e300);
  CHECK(absmax(doubles(1e-60)) == 1e-60);
  CHECK(absmax(doubles(1 - 0x1p-40)) == 1 - 0x1p-40);
  CHECK(absmax_tensor(doubles(1e300)).item<double>() == 1e300);
  const auto e8m0 = [&](const char* element, ScaleRule rule, double v) {
    const Quantizer q{.format = format(element), .scaling = PowerBlocks{.rule = rule}};
    return quantize(doubles(v), q).scale_values().item<double>();
  };
  CHECK(e8m0("e4m3fn", ScaleRule::floor, 1 - 0x1p-40) == 0x1p-9);
  CHECK(e8m0("e4m3fn", ScaleRule::ceil, 1 + 0x1p-40) == 0x1p-7);
  CHECK(e8m0("e2m1", ScaleRule::rceil, 1.5 + 0x1p-40) == 0.5);
  CHECK(e8m0("e4m3fn", ScaleRule::even, 1.9375 - 0x1p-40) == 0x1p-8);
  CHECK(e8m0("e4m3fn", ScaleRule::floor, 1e300) == 0x1p127);
  CHECK(e8m0("e4m3fn", ScaleRule::floor, 1e-60) == 0x1p-127);
  for (const Scaling& scaling :
       std::initializer_list<Scaling>{TensorScale{}, RowScale{}, PowerBlocks{}, Nvfp4Blocks{}}) {
    const Quantizer q{.format = format("e4m3fn"), .scaling = scaling};
    CHECK(at(fake_quantize(doubles(1e300), q), 3) > 0x1p126);
    CHECK(std::isfinite(at(fake_quantize(doubles(1e300), q), 3)));
  }
  ExponentHistogram exponents;
  const Quantizer q{.format = format("e4m3fn"), .scaling = FixedScale{.value = 2}};
  fake_quantize(doubles(1 - 0x1p-40), q, {.stats = {nullptr, &exponents}});
  CHECK(exponents.bins[126] == 32);
  // of products of f32 that are beyond f32, and of those that are not
  const Quantizer large{.format = format("e4m3fn"), .scaling = FixedScale{.value = 0x1p100}};
  for (const float x : {0x1p27F, 0x1p28F}) {
    ExponentHistogram scaled;
    fake_quantize(full({8}, x), large, {.stats = {nullptr, &scaled}, .scaled_exponents = true});
    CHECK(scaled.bins[x < 0x1p28F ? 254 : 255] == 8);
  }
  AmaxHistory history;
  history.stage(1e300);
  CHECK(history.staged == FLT_MAX);
}

TEST_CASE("what is finite stays finite through scales") {
  std::vector<Scaling> scalings = {TensorScale{}, RowScale{}, Nvfp4Blocks{.block = 16}};
  scalings.push_back(TensorScale{.power_of_two = true});
  scalings.push_back(TensorScale{.oracle = ScaleOracle::torchao});
  scalings.push_back(FloatBlocks{});
  scalings.push_back(CodedBlocks{.scale_format = format("bf16")});
  for (const ScaleRule rule :
       {ScaleRule::floor, ScaleRule::rceil, ScaleRule::ceil, ScaleRule::even, ScaleRule::least_squares})
    for (const ScaleOracle oracle : {ScaleOracle::transformer_engine, ScaleOracle::torchao})
      scalings.push_back(PowerBlocks{.rule = rule, .oracle = oracle});
  Tensor x = zeros({2, 32});
  for (const std::int64_t i : {1, 7, 40}) x.data<float>()[i] = i == 7 ? -FLT_MAX : FLT_MAX;
  for (const char* target : {"e4m3fn", "e5m2", "e2m1", "int8", "nf4", "binary8p3"})
    for (const Scaling& scaling : scalings)
      for (const Overflow overflow : {Overflow::saturate, Overflow::saturate_finite}) {
        const Quantizer q{.format = format(target), .overflow = overflow, .scaling = scaling};
        if (is_any<Nvfp4Blocks>(scaling) && q.format.table) continue;
        CAPTURE(describe(q));
        for (const Tensor& y : {fake_quantize(x, q), quantize(x, q).dequantize()}) {
          CHECK(at(y, 0) == 0);
          CHECK(at(y, 1) >= 0x1p126);
          CHECK(at(y, 7) == -at(y, 1));
          CHECK(std::isfinite(at(y, 1)));
          CHECK(std::isfinite(at(y, 40)));
        }
      }
}

TEST_CASE("rows without elements have the scale 1") {
  const Quantizer q{.format = format("e4m3fn"), .scaling = RowScale{}};
  for (int again = 0; again < 3; ++again) {
    { const Tensor used = full({4, 1}, 7); }
    CHECK(quantize_operand(zeros({4, 0}), q).scale.to_vector<float>() == std::vector<float>(4, 1));
  }
}

// Numbers that become codes are scaled, rounded, counted and scaled back one after the other.
TEST_CASE("one pass has the bits of separate ones, up to the largest and down to the smallest numbers") {
  const Scaling scalings[] = {NoScale{},
                              FixedScale{.value = 0x1p100},
                              FixedScale{.value = 0x1p-100},
                              FixedScale{.value = 3e37},
                              FixedScale{.value = 3e-37},
                              FixedScale{.value = 3e37, .product = ScaledProduct::rounded},
                              FixedScale{.value = 0x1p100, .product = ScaledProduct::rounded},
                              PowerBlocks{.block = 16},
                              FloatBlocks{.block = 16},
                              FloatBlocks{.block = 7, .product = ScaledProduct::rounded},
                              Nvfp4Blocks{.block = 16}};
  std::vector<std::pair<Rounding, Scaling>> choices;
  for (const Rounding& rounding : {Rounding(), Rounding{RoundingMode::stochastic},
                                   Rounding{RoundingMode::stochastic, 6}, Rounding{RoundingMode::stochastic, 23}})
    for (const Scaling& scaling : scalings) choices.emplace_back(rounding, scaling);
  Generator g(8);
  const Tensor digits = randn({8, 32}, {}, g);
  for (const std::int64_t zero : {0, 17, 40}) digits.data<float>()[zero] = 0;
  for (const char* target : {"e2m1", "e4m3fn", "e5m2", "fp16", "bf16", "e7m2", "e8m2"})
    for (const Overflow overflow : {Overflow::ieee, Overflow::saturate, Overflow::saturate_finite})
      for (const auto& [rounding, scaling] : choices) {
        const Quantizer q{.format = format(target), .rounding = rounding, .overflow = overflow, .scaling = scaling};
        if (is_any<Nvfp4Blocks>(scaling) && q.format.bits() > 8) continue;
        CAPTURE(describe(q));
        for (int exponent = -140; exponent <= 120; exponent += 10) {
          CAPTURE(exponent);
          Tensor x = digits.clone();
          for (std::int64_t i = 0; i < x.numel(); ++i)
            x.data<float>()[i] = std::ldexp(x.data<float>()[i], exponent + static_cast<int>(i % 6));
          CastCounts counts, counts_apart;
          ExponentHistogram exponents, exponents_apart;
          QuantizeOptions options{.key = {3, 4}, .stats = {&counts_apart, &exponents_apart}, .scaled_exponents = true};
          const Tensor apart = quantize(x, q, options).dequantize();
          options.stats = {&counts, &exponents};
          CHECK(same_bits(fake_quantize(x, q, options), apart));
          CHECK(same_bits(fake_quantize(x, q, {.key = {3, 4}}), apart));
          CHECK(counts == counts_apart);
          CHECK(exponents.bins == exponents_apart.bins);
        }
      }
}

// |v| rounded to a multiple of the format's step by the random bits of a word; the definition, in f64.
static double by_chance(double v, const Format& f, int random_bits, std::uint32_t word) {
  const double step = std::ldexp(1.0, std::max(std::ilogb(v), std::ilogb(f.min_normal())) - f.mantissa_bits);
  const double units = std::floor(std::fabs(v) / step * std::ldexp(1.0, random_bits));
  const double sum = units + static_cast<double>(word >> (32 - random_bits));
  return std::copysign(std::min(std::floor(std::ldexp(sum, -random_bits)) * step, f.max()), v);
}

TEST_CASE("products next to a number where the random word decides are rounded as exact ones") {
  constexpr std::int64_t kCount = 4096;
  for (const char* target : {"e2m1", "e4m3fn", "e5m2", "fp16"})
    for (const int random_bits : {4, 6, 12, 32})
      for (const double scale : {0.7, 3.0, 1.0 / 3, 1e10, 1.0, 5.0, 1.1, 7.0}) {
        const Format f = format(target);
        const Quantizer q{.format = f,
                          .rounding = {RoundingMode::stochastic, random_bits},
                          .overflow = Overflow::saturate,
                          .scaling = FixedScale{.value = scale}};
        CAPTURE(describe(q));
        const auto by = static_cast<float>(scale);
        Tensor x = empty({kCount});
        for (std::int64_t i = 0; i < kCount; ++i) {
          const double unit = std::ldexp(f.min_normal(), static_cast<int>(i % 3) - f.mantissa_bits - random_bits / 2);
          const double power = std::ldexp(f.min_normal(), static_cast<int>(i % 3));  // a product may round up to it
          const auto near = static_cast<float>((i < kCount / 2 ? static_cast<double>(i) * unit : power) / by);
          x.data<float>()[i] = i % 2 == 0 ? near : -near;
        }
        const Tensor y = quantize_operand(x, q, {.key = {3, 4}}).values;
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < kCount; ++i) {
          const double v = static_cast<double>(at(x, i)) * by;
          const std::uint32_t word = philox_word(3, 4, static_cast<std::uint64_t>(i));
          wrong += at(y, i) != by_chance(v, f, random_bits, word) ? 1 : 0;
        }
        CHECK(wrong == 0);
      }
}

TEST_CASE("rows of several dims are rounded as the same rows in memory") {
  struct Told final : Observer {
    void quantized(const QuantizerCall& call) override {
      from = call.from.contiguous();
      axis = call.axis;
    }
    Tensor from;
    int axis = 7;
  };
  // Windows of 3 x 2 pixels of five channels.
  const Quantizer kinds[] = {
      {.format = format("e4m3fn"), .scaling = RowScale{}},
      {.format = format("e4m3fn"), .scaling = PowerBlocks{.block = 8}},
      {.format = format("e2m1"), .scaling = Nvfp4Blocks{}},
      {.format = format("e3m2"), .rounding = {.mode = RoundingMode::stochastic}, .scaling = FloatBlocks{.block = 7}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Generator g(3);
    const Tensor field = randn({6, 40, 41, 5}, {}, g).to(dtype);
    for (const std::int64_t dilation : {1, 2}) {
      const std::int64_t* const s = field.strides().begin();
      const Tensor windows =
          as_strided(field, {6, 19, 39, 3, 2, 5}, {s[0], 2 * s[1], s[2], s[1], dilation * s[2], s[3]}, field.offset());
      const Tensor rows = windows.contiguous().reshape({6 * 19 * 39, 30});
      for (const Quantizer& q : kinds)
        for (const int axis : {1, 0}) {
          CAPTURE(describe(q));
          CAPTURE(axis);
          CastCounts counts[2];
          ExponentHistogram exponents[2];
          QuantizeOptions options{.axis = axis, .key = {.seed = 5, .stream = 2}, .scaled_exponents = true};
          const PartOf part{.first_element = 30 * 7, .amax = absmax_tensor(field)};
          options.stats = {&counts[0], &exponents[0]};
          const QuantizedOperand want = quantize_part(axis == 1 ? rows : rows.t(), q, options, part);
          Told told;
          PartOf several = part;
          several.row_dims = 3;
          options.stats = {&counts[1], &exponents[1]};
          QuantizedOperand got;
          {
            const ObserverScope scope(told);
            got = quantize_part(windows, q, options, several);
          }
          CHECK(same_bits(got.values, want.values));
          REQUIRE(got.scale.defined() == want.scale.defined());
          if (got.scale.defined()) CHECK(same_bits(got.scale, want.scale));
          CHECK(same_bits(told.from, axis == 1 ? rows : rows.t()));
          CHECK(told.axis == axis);
          CHECK(counts[0] == counts[1]);
          CHECK(exponents[0].bins == exponents[1].bins);
        }
    }
  }
}
