// Scales: the numbers of Transformer Engine, torchao, MX and NVFP4.
#include <doctest/doctest.h>
#include <gradual/core/quantize/quantizer.h>
#include <gradual/core/quantize/quantizer_kernels.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>

#include "../formats/inputs.h"
#include "support/source_dir.h"
#include "support/tensors.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

float global_of(const QuantizedTensor& q) { return q.global_scale.defined() ? q.global_scale.item<float>() : 1; }

}  // namespace

TEST_CASE("one scale of zeros, Inf and NaN, as Transformer Engine and torchao have it") {
  const auto scale = [](ScaleOracle oracle, float value) {
    const Quantizer q{.format = format("e4m3fn"), .scaling = TensorScale{.oracle = oracle}};
    return quantize(full({4}, value), q).scales.item();
  };
  for (const float value : {0.0F, INFINITY, NAN}) CHECK(scale(ScaleOracle::transformer_engine, value) == 1);
  CHECK(scale(ScaleOracle::torchao, 0) == 1 / static_cast<float>(448 / 1e-12));
  CHECK(scale(ScaleOracle::torchao, INFINITY) == INFINITY);
  CHECK(std::isnan(scale(ScaleOracle::torchao, NAN)));
  const auto e8m0 = [](ScaleOracle oracle, float value) {
    const Quantizer q{.format = format("e4m3fn"), .scaling = PowerBlocks{.oracle = oracle}};
    return static_cast<int>(quantize(full({32}, value), q).scales.item());
  };
  CHECK(e8m0(ScaleOracle::transformer_engine, 0) == 0x00);
  CHECK(e8m0(ScaleOracle::transformer_engine, INFINITY) == 0xfe);
  CHECK(e8m0(ScaleOracle::transformer_engine, NAN) == 0xff);
  CHECK(e8m0(ScaleOracle::torchao, 0) == 0x00);
  CHECK(e8m0(ScaleOracle::torchao, INFINITY) == 0xf7);
  CHECK(e8m0(ScaleOracle::torchao, NAN) == 0xff);
  // a scale beyond f32's range
  const Quantizer q{.format = format("e5m2"), .scaling = TensorScale{}};
  CHECK(quantize(full({4}, 1e-44), q).scales.item() == 1 / FLT_MAX);
}

TEST_CASE("MX and NVFP4 scales and codes of torchao") {
  std::map<int, std::vector<float>> blocks;
  std::ifstream file(source_dir() + "/tests/golden/torchao.csv");
  int checked = 0;
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) cells.push_back(cell);
    const auto hex = [](const std::string& list) {
      std::vector<std::uint32_t> all;
      std::istringstream numbers(list);
      for (std::string n; numbers >> n;) all.push_back(static_cast<std::uint32_t>(std::stoul(n, nullptr, 16)));
      return all;
    };
    if (cells[0] == "block") {
      for (const std::uint32_t b : hex(cells[2])) blocks[std::stoi(cells[1])].push_back(std::bit_cast<float>(b));
      continue;
    }
    const bool mx = cells[0] == "mx";
    const int block = std::stoi(cells[mx ? 3 : 2]);
    Quantizer q{.format = format(mx ? cells[1] : "e2m1fn"),
                .scaling = PowerBlocks{.block = 32, .oracle = ScaleOracle::torchao}};
    for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::rceil, ScaleRule::ceil, ScaleRule::even})
      if (to_string(rule) == cells[2]) set_rule(q.scaling, rule);
    if (!mx && cells[1] == "1") q.scaling = CodedBlocks{.block = 16, .oracle = ScaleOracle::torchao};
    else if (!mx) q.scaling = Nvfp4Blocks{.block = 16, .oracle = ScaleOracle::torchao};
    const QuantizedTensor ours = quantize(from_data(blocks[block], {1, 32}), q);
    const auto scales = hex(cells[mx ? 4 : 3]);
    const auto codes = hex(cells[mx ? 5 : 4]);
    for (std::size_t i = 0; i < scales.size(); ++i)
      if (ours.scales.data<std::uint8_t>()[i] != scales[i]) FAIL_CHECK(line.substr(0, 40), " scale ", i);
    const Tensor unpacked = ours.unpack();
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto code = static_cast<std::uint32_t>(unpacked.data<std::int32_t>()[i]);
      // Under a scale that is NaN codes say nothing, and a format without NaN has none to say.
      const bool nan = q.format.nan == NanEncoding::none
                           ? scales[0] == 0xff && mx
                           : std::isnan(q.format.decode(code)) && std::isnan(q.format.decode(codes[i]));
      if (code != codes[i] && !nan)
        FAIL_CHECK(line.substr(0, 40), " element ", i, " of ", blocks[block][i], ": ", code, ", not ", codes[i]);
    }
    ++checked;
  }
  CHECK(checked > 550);
}

TEST_CASE("f64 is multiplied by its scale as f64 and rounded once") {
  const double x = 17 + 1e-12;  // above the tie between 16 and 18
  const Tensor t = from_data(std::vector<double>{x, -x, 3, 0}, {1, 4}, {.dtype = DType::f64});
  for (const Scaling& s : std::initializer_list<Scaling>{NoScale{}, FixedScale{.value = 2}, FixedScale{.value = 0.5},
                                                         PowerBlocks{.block = 4}}) {
    Quantizer q{.format = format("e4m3fn"), .scaling = s};
    CHECK(fake_quantize(t, q).to(DType::f64).to_vector<double>() == std::vector<double>{18, -18, 3, 0});
    CHECK(quantize(t, q).dequantize().to_vector<float>() == std::vector<float>{18, -18, 3, 0});
  }
}

TEST_CASE("max / amax takes the largest element to the largest value at most, where rounding may go up and overflow") {
  int exceeded = 0;
  for (int i = 1; i <= 2000; ++i) {
    const float amax = static_cast<float>(i) * 0.37F;
    const Tensor x = full({4}, amax);
    exceeded += static_cast<double>(amax) * (448.0F / amax) > 448 ? 1 : 0;
    for (const RoundingMode mode : {RoundingMode::up, RoundingMode::to_odd, RoundingMode::stochastic})
      for (const Scaling& scaling : std::initializer_list<Scaling>{TensorScale{}, RowScale{}}) {
        const Quantizer q{
            .format = format("e4m3fn"), .rounding = {mode}, .overflow = Overflow::ieee, .scaling = scaling};
        if (!std::isfinite(fake_quantize(x, q).select(0, 0).item())) FAIL_CHECK("amax ", amax, ", ", to_string(mode));
      }
  }
  CHECK(exceeded > 100);
}

TEST_CASE("a negative margin does not take the largest element beyond: the scale is that of margin 0") {
  const auto scale = [](double amax, double margin, bool power_of_two) {
    const Quantizer q{.format = format("e4m3fn"),
                      .rounding = {RoundingMode::up},
                      .overflow = Overflow::ieee,
                      .scaling = TensorScale{.margin = margin, .power_of_two = power_of_two}};
    return quantize(full({4}, amax), q).scales.item<float>();
  };
  for (const double margin : {-1.0, -64.0})
    for (const double amax : {0.37, 448.0, 449.0, 3e38, 1e-40}) {
      CAPTURE(margin);
      CAPTURE(amax);
      CHECK(scale(amax, margin, false) == scale(amax, 0, false));
      int exponent = 0;
      CHECK(std::frexp(scale(amax, margin, true), &exponent) == 0.5F);
      CHECK(scale(amax, margin, true) == scale(amax, 0, true));
    }
}

TEST_CASE("the scale that fits is the first one down that takes the amax to the largest value at most") {
  const auto one_by_one = [](float scale, float least, double amax, double most) {
    while (scale > least && amax * scale > most) scale = std::nextafter(scale, 0.0F);
    return scale;
  };
  Generator generator(3);
  const std::vector<double> drawn = rand({300}, {.dtype = DType::f64}, generator).to_vector<double>();
  int moved = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i)
    for (const double most : {6.0, 448.0, 57344.0, 16777215.0, static_cast<double>(FLT_MAX)})
      for (const double size : {1e-44, 1e-30, 1.0, 1e30}) {
        const double amax = i % 2 == 0 ? drawn[i] * size : static_cast<float>(drawn[i] * size);
        float scale = static_cast<float>(most / amax);
        for (std::size_t k = 0; k < i % 40; ++k) scale = std::nextafter(scale, INFINITY);
        if (!(amax > 0) || !(scale <= FLT_MAX)) continue;
        const float least = i % 3 == 0 ? scale * (1 - 0x1p-21F) : detail::kLeastScale;
        if (scale < least) continue;
        const float want = one_by_one(scale, least, amax, most);
        if (detail::fitting_scale(scale, least, amax, most) != want) FAIL_CHECK(amax, ", ", most, ", ", scale);
        moved += want < scale ? 1 : 0;
      }
  CHECK(moved > 1000);
}

TEST_CASE("the scales of MX") {
  const auto mx = [](std::string_view element, double amax, ScaleRule rule) {
    const Quantizer q{.format = format(element), .scaling = PowerBlocks{.rule = rule}};
    const QuantizedTensor t = quantize(full({32}, amax), q);
    return std::pair(t.scale_values().item(), t.dequantize().select(0, 0).item());
  };
  using enum ScaleRule;
  using Pair = std::pair<double, double>;
  CHECK(mx("e4m3fn", 448, floor) == Pair(1, 448));
  CHECK(mx("e4m3fn", 448, rceil) == Pair(1, 448));
  CHECK(mx("e4m3fn", 449, floor) == Pair(1, 448));
  CHECK(mx("e4m3fn", 449, rceil) == Pair(2, 448));
  CHECK(mx("e4m3fn", 500, floor) == Pair(1, 448));  // clips
  CHECK(mx("e4m3fn", 500, rceil) == Pair(2, 512));  // 250 rounds to 256
  CHECK(mx("e4m3fn", 500, ceil) == Pair(2, 512));
  CHECK(mx("e4m3fn", 150, floor) == Pair(0.5, 144));  // 300 rounds to 288
  CHECK(mx("e4m3fn", 150, rceil) == Pair(0.5, 144));
  CHECK(mx("e2m1", 7, floor) == Pair(1, 6));
  CHECK(mx("e2m1", 7, rceil) == Pair(2, 8));  // 3.5 rounds to 4
  CHECK(mx("e2m1", 7, even) == Pair(2, 8));   // 1.75 * 4 rounds to 2 * 4
  CHECK(mx("e2m1", 6.9, even) == Pair(1, 6));
  CHECK(mx("e5m2", 57344, floor) == Pair(1, 57344));
  CHECK(mx("e5m2", 1, floor).first == 0x1p-15);
  CHECK(mx("e3m2", 28, floor).first == 1);
  CHECK(mx("e2m3", 7.5, floor).first == 1);
  // rows and columns differ: transposed codes are not the codes of the transposed
  Generator generator(1);
  const Tensor x = randn({32, 32}, {}, generator);
  const Quantizer q{.format = format("e2m1"), .scaling = PowerBlocks{}};
  CHECK(!same_bits(fake_quantize(x, q).t(), fake_quantize(x.t(), q)));
  CHECK(same_bits(fake_quantize(x, q, {.axis = 0}).t(), fake_quantize(x.t(), q)));
}

TEST_CASE("the formulas of NVFP4") {
  // amax 12 gives 2688 / 12 = 224; a block of amax 3 has the scale e4m3(3 * 224 / 6) = 112, and 112 / 224 = 1/2.
  std::vector<float> x(32, 0.0F);
  x[0] = 12;
  x[1] = -6;
  x[16] = 3;
  x[17] = 0.25F;
  x[18] = -1.25F;
  const Quantizer q{.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16}};
  const QuantizedTensor t = quantize(from_data(x, {32}), q);
  CHECK(global_of(t) == 1 / 224.0F);
  CHECK(values(t.scale_values()) == std::vector<double>{448, 112});
  const auto back = values(t.dequantize());
  CHECK(back[0] == doctest::Approx(12).epsilon(1e-6));
  CHECK(back[1] == doctest::Approx(-6).epsilon(1e-6));
  CHECK(back[16] == doctest::Approx(3).epsilon(1e-6));
  CHECK(back[17] == doctest::Approx(0.25).epsilon(1e-6));  // 0.5 times 1/2
  CHECK(back[18] == doctest::Approx(-1).epsilon(1e-6));    // 2.5 is a tie, to 2
  CHECK(t.codes.nbytes() == 16);
  CHECK(t.scales.nbytes() == 2);
  CHECK(t.nbytes() == 18);
  CHECK(global_of(quantize(full({16}, 1e-38), q)) == 1 / FLT_MAX);
  // The scales of the smallest blocks end at FLT_MAX: zeros stay zeros.
  std::vector<float> tiny(32, 0.0F);
  tiny[0] = 1e-37F;
  tiny[16] = 1e-39F;
  const auto small = values(fake_quantize(from_data(tiny, {32}), q));
  CHECK(small[16] > 0);
  CHECK(small[16] <= 2e-39);
  for (std::size_t i = 0; i < 32; ++i)
    if (i % 16 != 0) CHECK(small[i] == 0);
  CHECK(global_of(quantize(zeros({16}), q)) == 1);
}
