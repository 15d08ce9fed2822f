// Zero points: q = clamp(round(x / scale) + z), as in PyTorch's documentation of quantize_per_tensor and
// MinMaxObserver, and two's complement's lowest value.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <gradual/core/formats/format_table.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/quantize/quantizer.h>

namespace gradual {
namespace {

struct Whole {
  const char* format;
  int low, high;
};
constexpr Whole kWhole[] = {{"uint8", 0, 255}, {"int8tc", -128, 127}, {"int8", -127, 127},
                            {"uint4", 0, 15},  {"int4tc", -8, 7},     {"int4", -7, 7},
                            {"int2tc", -2, 1}, {"uint1", 0, 1},       {"int16", -32767, 32767}};

Tensor random(const Shape& sizes, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {}, g);
}
Tensor row(const std::vector<float>& values) { return from_data(values, {static_cast<std::int64_t>(values.size())}); }
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.to_vector<float>() == b.to_vector<float>();
}

// By the formula: scale and zero point of a range, and each element's integer.
struct Affine {
  float scale = 1;
  int zero = 0;
  Affine(const std::vector<float>& x, const Whole& f) {
    float low = 0;
    float high = 0;
    for (const float v : x) {
      low = std::fmin(low, v);
      high = std::fmax(high, v);
    }
    scale = std::fmax((high - low) / static_cast<float>(f.high - f.low), 0x1p-23F);
    zero = f.low - static_cast<int>(std::nearbyint(low / scale));
    zero = std::min(std::max(zero, f.low), f.high);
  }
  int code(float x, const Whole& f) const {
    const double inverse = 1 / scale;  // the product is exact
    return std::min(std::max(static_cast<int>(std::nearbyint(x * inverse)) + zero, f.low), f.high);
  }
};

// The values of a code's bits as integers.
std::vector<int> integers(const QuantizedTensor& q) {
  std::vector<int> out;
  for (const float v : q.decode().to_vector<float>()) out.push_back(static_cast<int>(v));
  return out;
}

TEST_CASE("zero points of a tensor, of rows, blocks and tiles, by the formula") {
  // Shifted, so that ranges have one sign more or less; one is all zeros, one all equal.
  const Tensor base = random({12, 24}, 1);
  const std::pair<Scaling, Shape> kinds[] = {{TensorRange{}, {12, 24}},
                                             {RowRange{}, {1, 24}},
                                             {RangeBlocks{.block = 10}, {1, 10}},
                                             {RangeBlocks{.block = 8, .square = true}, {8, 8}}};
  for (const Whole& f : kWhole)
    for (const auto& [scaling, block] : kinds)
      for (const float shift : {0.0F, 0.7F, 5.0F, -5.0F})
        for (const Tensor& x : {base + shift, base * 0 + shift}) {
          const Quantizer q{.format = format(f.format), .scaling = scaling};
          CAPTURE(describe(q));
          const QuantizedTensor codes = quantize(x, q);
          const Tensor values = fake_quantize(x, q);
          CHECK(same_bits(codes.dequantize(), values));
          const QuantizedOperand operand = quantize_operand(x, q);
          CHECK(same_bits(operand.scale.defined() ? operand.values * operand.scale : operand.values, values));
          const std::vector<int> got = integers(codes);
          const auto all = values.to_vector<float>();
          int wrong = 0;
          for (std::int64_t r = 0; r < 12; r += block[0])
            for (std::int64_t c = 0; c < 24; c += block[1]) {
              const auto rows = std::min(block[0], 12 - r);
              const auto cols = std::min(block[1], 24 - c);
              const Tensor part = x.narrow(0, r, rows).narrow(1, c, cols).contiguous();
              const auto elements = part.to_vector<float>();
              const Affine a(elements, f);
              for (std::int64_t i = 0; i < part.numel(); ++i) {
                const auto at = static_cast<std::size_t>((r + i / cols) * 24 + c + i % cols);
                const int code = a.code(elements[static_cast<std::size_t>(i)], f);
                wrong += got[at] != code || all[at] != static_cast<float>(code - a.zero) * a.scale;
              }
            }
          CHECK(wrong == 0);
        }
}

TEST_CASE("zero points, by hand: PyTorch's example of an asymmetric range") {
  // torch.quantize_per_tensor(x, 3 / 255, 85, quint8) for x from -1 to 2
  const Tensor x = row({-1, 0, 0.6F, 2});
  const QuantizedTensor q = quantize(x, {.format = format("uint8"), .scaling = TensorRange{}});
  CHECK(q.unpack().to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 85, 136, 255});
  CHECK(q.scales.item<float>() == 3.0F / 255);
  CHECK(q.zero_points.item<float>() == 85);
}

TEST_CASE("zero points: NaN, Inf, doubles, other layouts, chance") {
  const Quantizer q{.format = format("uint8"), .scaling = TensorRange{}};
  const auto unlike = fake_quantize(row({-1, NAN, 1}), q).to_vector<float>();
  CHECK(unlike[0] == doctest::Approx(-1).epsilon(0.01));
  CHECK(unlike[2] == doctest::Approx(1).epsilon(0.01));
  CHECK(fake_quantize(row({-3, HUGE_VALF, 1}), q).to_vector<float>() == std::vector<float>{0, 255, 1});
  const Tensor x = random({6, 10}, 3);
  CHECK(same_bits(fake_quantize(x.t(), q), fake_quantize(x, q).t()));
  CHECK(same_bits(fake_quantize(x.to(DType::f64), q), fake_quantize(x, q)));
  Quantizer chance = q;
  chance.rounding = {.mode = RoundingMode::stochastic};
  const Tensor quarter = cat({full({40000}, 0.25 / 255), row({0, 1})}, 0);
  const double mean_of = mean(fake_quantize(quarter, chance, {.key = {7, 0}}).narrow(0, 0, 40000)).item() * 255;
  CHECK(std::abs(mean_of - 0.25) < 5 * std::sqrt(0.25 * 0.75 / 40000));
}

TEST_CASE("zero points go with integers") {
  const auto refused = [](const Quantizer& q) {
    try {
      check_valid(q);
    } catch (const Error& e) { return std::string(e.what()).find("zero points go with") != std::string::npos; }
    return false;
  };
  CHECK(refused({.format = format("e4m3fn"), .scaling = TensorRange{}}));
  CHECK(refused({.format = format("nf4"), .scaling = TensorRange{}}));
  CHECK(refused({.format = format("q1.6"), .scaling = RowRange{}}));
  CHECK(refused({.format = format("int20"), .scaling = RangeBlocks{}}));
  CHECK_FALSE(refused({.format = format("int8tc"), .scaling = RowRange{}}));
  CHECK(describe(Quantizer{.format = format("uint8"), .scaling = RowRange{}}) ==
        "uint8, one scale per row with a zero point");
}

TEST_CASE("two's complement: every code, and the lowest value") {
  for (const int bits : {8, 4, 2}) {
    const Format f = format("int" + std::to_string(bits) + "tc");
    const int half = 1 << (bits - 1);
    CHECK(f.bits() == bits);
    CHECK(f.min() == -half);
    CHECK(f.max() == half - 1);
    for (int v = -half; v < half; ++v)
      CHECK(f.decode(static_cast<std::uint32_t>(v) & (2u * static_cast<unsigned>(half) - 1)) == v);
    const Tensor x = row({-1000, -half - 0.25F, -half + 0.5F, 0.5F, 1000});
    const auto q = fake_quantize(x, {.format = f}).to_vector<float>();
    const auto low = static_cast<float>(-half);  // -half + 0.5 is a tie, and -half is even
    CHECK(q == std::vector<float>{low, low, low, 0, static_cast<float>(half - 1)});
  }
  CHECK(format("int8").min() == -127);
}

}  // namespace
}  // namespace gradual
