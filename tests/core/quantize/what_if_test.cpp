#include <doctest/doctest.h>
#include <gradual/core/quantize/quantizer.h>
#include <gradual/core/quantize/what_if.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/tensors.h"

using namespace gradual;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double db(double signal, double noise) { return 10 * std::log10(signal / noise); }
// For sums of positive terms in any order: each of n additions and of the few operations a term is off by at most
// 2^-53.
double close_db(std::int64_t n) { return 20 / std::log(10.0) * static_cast<double>(n + 8) * 0x1p-53; }

Tensor values(const std::vector<double>& v, DType dtype = DType::f32) {
  return from_data(v, {static_cast<std::int64_t>(v.size())}, {.dtype = dtype});
}
// Magnitudes over 30 binades, mantissas of all kinds.
Tensor spread(std::int64_t n, DType dtype = DType::f32) {
  Generator g(3);
  const Tensor wide = exp(rand({n}, {.dtype = DType::f64}, g) * 20 - 14) * randn({n}, {.dtype = DType::f64}, g);
  return wide.to(dtype);
}
const ScaleLoss& at(const FormatLoss& f, double scale) {
  for (const ScaleLoss& l : f.sweep)
    if (l.scale == scale) return l;
  FAIL("no such scale in the sweep");
  return f.unscaled;
}

}  // namespace

TEST_CASE("what_if: eight numbers in e2m1, by hand") {
  // e2m1 has 0, 0.5, 1, 1.5, 2, 3, 4, 6
  const WhatIf w = what_if(values({1, 3, 0.25, 100, 0, kNan, kInf, -2.4}, DType::f64));
  CHECK(w.elements == 8);
  CHECK(w.zeros == 1);
  CHECK(w.nan == 1);
  CHECK(w.inf == 1);
  CHECK(w.amax == 100);
  CHECK(w.amin == 0.25);
  const FormatLoss& f = w.of("e2m1");
  CHECK(f.name == "e2m1fn");
  const double signal = 1 + 9.0625 + 10000 + 5.76;
  CHECK(f.unscaled.scale == 1);
  CHECK(f.unscaled.underflow == 0.2);  // 0.25, a tie
  CHECK(f.unscaled.overflow == 0.2);   // 100, to 6
  CHECK(f.unscaled.subnormal == 0);
  CHECK(std::abs(f.unscaled.sqnr_db - db(signal, 0.0625 + 94 * 94 + 0.16)) < close_db(8));
  // at 2^-4 100 is 6.25 and becomes 6, that is 96; the others vanish. 2^-5 loses as much, and is farther from 1
  CHECK(f.best.scale == 0x1p-4);
  CHECK(f.best.underflow == 0.8);
  CHECK(f.best.overflow == 0);
  CHECK(std::abs(f.best.sqnr_db - db(signal, 1 + 9.0625 + 16 + 5.76)) < close_db(8));
  CHECK(at(f, 0x1p-5).sqnr_db == f.best.sqnr_db);
  CHECK(f.sweep.size() == 9);  // 2^-5, at which 100 fits, to 2^3; 1 is among them
  // at 0.06 they are 0.06, 0.18, 0.015, 6 and -0.144
  CHECK(f.amax.scale == static_cast<float>(6) / 100);
  CHECK(f.amax.underflow == 0.8);
  CHECK(std::abs(f.amax.sqnr_db - db(signal, 1 + 9.0625 + 5.76)) < 1e-5);  // the scale is an f32
  // 2.4 has an infinite expansion: only f32's own values would be exact
  CHECK(w.of("fp32").unscaled.sqnr_db < 200);
  CHECK(w.of("fp32").unscaled.sqnr_db > 140);
}

TEST_CASE("what_if: a headroom that no scale has is refused") {
  for (const int headroom : {-1, 65})
    CHECK_THROWS_WITH_AS(what_if(ones({2}), {.headroom = headroom}), doctest::Contains("a headroom is 0 to 64"), Error);
}

TEST_CASE("what_if: the loss scale leaves the headroom, and one power of two more would not") {
  for (const double amax : {1.0, 0x1p-20, 65504.0, 65505.0, 0.3, 1e-12, 1e9, 1.9990234375, 2.0}) {
    CAPTURE(amax);
    for (const int headroom : {0, 3}) {
      const WhatIf w = what_if(values({amax, -amax / 3}, DType::f64), {.headroom = headroom});
      CHECK(w.loss_scale == std::exp2(std::floor(std::log2(65504 / amax)) - headroom));
      CHECK(amax * w.loss_scale * std::exp2(headroom) <= 65504);
      CHECK(amax * w.loss_scale * std::exp2(headroom + 1) > 65504);
    }
  }
  CHECK(what_if(values({1})).loss_scale == 4096);  // 2^(15 - 3)
}

TEST_CASE("what_if: gradients that f16 loses at scale 1 and keeps at the proposed one") {
  // 2^-25 is half of f16's smallest value and becomes zero, 2^-24 stays; 1.5 * 2^-24 is a tie that becomes 2^-23
  const WhatIf w = what_if(values({0x1p-25, 0x1p-24, 0x1.8p-24, 0x1p-14}));
  const FormatLoss& f = w.of("f16");
  CHECK(f.unscaled.underflow == 0.25);
  CHECK(f.unscaled.subnormal == 0.5);
  CHECK(std::abs(f.unscaled.sqnr_db - db(0x1p-50 + 0x1p-48 + 0x1.2p-47 + 0x1p-28, 0x1p-50 + 0x1p-50)) < close_db(4));
  CHECK(f.best.scale == 2);  // the first at which all are held
  CHECK(f.best.sqnr_db == kInf);
  CHECK(w.loss_scale == 0x1p26);  // 65504 / 2^-14 is less than 2^30
}

TEST_CASE("what_if: every scale is what quantize makes of it") {
  constexpr std::int64_t kCount = 3000;
  const Tensor x = spread(kCount);
  const std::vector<float> source = x.to_vector<float>();
  const Format own = {.exponent_bits = 3, .mantissa_bits = 3, .bias = 4};
  const WhatIf w = what_if(x, {.also = {own, Format::ieee(5, 2)}});
  double signal = 0;
  for (const float v : source) signal += static_cast<double>(v) * v;
  CHECK(static_cast<std::ptrdiff_t>(w.formats.size()) ==
        std::ranges::count(
            named_formats(), true,
            &NamedFormat::common));  // 1 without a zero, 1 also  // without e8m0, with a custom format; e5m2 was there
  for (const FormatLoss& f : w.formats) {
    CAPTURE(f.name);
    CHECK(f.sweep.size() >= (f.format.exponent_bits == 8 ? 1 : 9));
    std::vector<ScaleLoss> all = f.sweep;
    all.push_back(f.amax);
    for (const ScaleLoss& l : all) {
      CAPTURE(l.scale);
      CastCounts counts;
      const Quantizer q{.format = f.format, .scaling = FixedScale{.value = l.scale}};
      const std::vector<float> rounded = fake_quantize(x, q, {.stats = {.counts = &counts}}).to_vector<float>();
      double noise = 0;
      for (std::size_t i = 0; i < source.size(); ++i) noise += std::pow(static_cast<double>(source[i]) - rounded[i], 2);
      CHECK(l.underflow == static_cast<double>(counts.underflow) / kCount);
      CHECK(l.subnormal == static_cast<double>(counts.subnormal) / kCount);
      CHECK(l.overflow == static_cast<double>(counts.overflow) / kCount);
      // q is divided by max / amax in f32 there: off by 2^-23 of x, against an error of up to 2^-m-1 of it
      const double slack =
          l.scale == f.amax.scale ? 20 * std::log10(1 + 0x1p-22 * std::exp2(f.format.mantissa_bits)) : 0;
      if (noise == 0) CHECK(l.sqnr_db == kInf);
      else if (f.format.mantissa_bits < 20)
        CHECK(std::abs(l.sqnr_db - db(signal, noise)) <= close_db(kCount) + 10 * slack);
    }
  }
}

TEST_CASE("what_if: the best scale is one of the sweep, and without overflow a larger scale is never worse") {
  const WhatIf w = what_if(spread(5000));
  for (const FormatLoss& f : w.formats) {
    CAPTURE(f.name);
    double before = -kInf;
    for (const ScaleLoss& l : f.sweep) {
      CAPTURE(l.scale);
      CHECK(l.sqnr_db <= f.best.sqnr_db);
      if (l.overflow > 0) continue;
      CHECK(l.sqnr_db >= before);
      before = l.sqnr_db;
    }
    CHECK(at(f, f.best.scale).sqnr_db == f.best.sqnr_db);
    CHECK(at(f, 1).sqnr_db == f.unscaled.sqnr_db);
  }
  // f32's exponents leave nothing to scale
  CHECK(w.of("bf16").sweep.size() == 1);
  CHECK(w.of("fp32").unscaled.sqnr_db == kInf);
}

TEST_CASE("what_if: the same bits for any layout and any number of threads") {
  const Tensor x = spread(300 * 400).reshape({300, 400});
  const WhatIf expected = what_if(x);
  const auto same = [&](const WhatIf& w) {
    REQUIRE(w.formats.size() == expected.formats.size());
    for (std::size_t i = 0; i < w.formats.size(); ++i)
      for (std::size_t k = 0; k < w.formats[i].sweep.size(); ++k)
        CHECK(w.formats[i].sweep[k].sqnr_db == expected.formats[i].sweep[k].sqnr_db);
    CHECK(to_string(w) == to_string(expected));
  };
  testing::for_thread_counts([&] { return what_if(x); }, same);
  same(what_if(x.t().contiguous().t()));
  const WhatIf rounded = what_if(x.to(DType::f16));
  CHECK(rounded.of("fp16").unscaled.sqnr_db == kInf);
  CHECK(rounded.of("e5m10").unscaled.sqnr_db == kInf);  // the same format
}

TEST_CASE("what_if: f64 is rounded once, from its own bits and its own range") {
  // 1 + 2^-8 + 2^-40 is above bf16's tie between 1 and 1 + 2^-7; as f32 it would be the tie, and go down to 1
  const WhatIf w = what_if(values({1 + 0x1p-8 + 0x1p-40}, DType::f64));
  const double x = 1 + 0x1p-8 + 0x1p-40;
  const double error = 1 + 0x1p-7 - x;
  CHECK(std::abs(w.of("bf16").unscaled.sqnr_db - db(x * x, error * error)) < close_db(1));
  const WhatIf large = what_if(values({1e200, 1}, DType::f64));
  CHECK(large.of("bf16").unscaled.overflow == 0.5);
  CHECK(large.of("e5m2").unscaled.overflow == 0.5);
  CHECK(large.of("e5m2").unscaled.sqnr_db < 1e-9);
}

TEST_CASE("what_if: f32 gives what the same numbers give as f64, at the ends of the range too") {
  const Tensor x = spread(4000);
  for (const double factor : {1.0, 0x1p-110, 0x1p110}) {
    CAPTURE(factor);
    const Tensor narrow = x * factor;
    const WhatIf a = what_if(narrow);
    const WhatIf b = what_if(narrow.to(DType::f64));
    CHECK(a.loss_scale == b.loss_scale);
    for (std::size_t f = 0; f < a.formats.size(); ++f) {
      CAPTURE(a.formats[f].name);
      REQUIRE(a.formats[f].sweep.size() == b.formats[f].sweep.size());
      CHECK(a.formats[f].best.scale == b.formats[f].best.scale);
      for (std::size_t k = 0; k < a.formats[f].sweep.size(); ++k) {
        const ScaleLoss& l = a.formats[f].sweep[k];
        const ScaleLoss& m = b.formats[f].sweep[k];
        CAPTURE(l.scale);
        CHECK(l.scale == m.scale);
        CHECK(l.underflow == m.underflow);
        CHECK(l.subnormal == m.subnormal);
        CHECK(l.overflow == m.overflow);
        CHECK(l.sqnr_db == m.sqnr_db);
      }
    }
  }
}

TEST_CASE("what_if: nothing to lose") {
  for (const Tensor& x : {zeros({5}), empty({0}), values({kNan, kInf, -kInf, 0})}) {
    const WhatIf w = what_if(x);
    CHECK(w.amax == 0);
    CHECK(w.amin == 0);
    CHECK(w.loss_scale == 1);
    for (const FormatLoss& f : w.formats) {
      CHECK(f.best.scale == 1);
      CHECK(f.amax.scale == 1);
      CHECK(f.unscaled.underflow == 0);
      CHECK(f.unscaled.overflow == 0);
      CHECK(f.unscaled.sqnr_db == kInf);
    }
  }
  CHECK(to_string(what_if(values({kNan, 0}))) == "2 elements: 1 zero, 1 NaN, 0 Inf; nothing else\n");
}

TEST_CASE("what_if: stochastic rounding saves small numbers on average") {
  const WhatIf w = what_if(full({100000}, 0x1p-12), {.rounding = {.mode = RoundingMode::stochastic}});
  // a quarter of e4m3's smallest subnormal 2^-10 * 2 is what 2^-12 * 2 lies at: 1 in 8 becomes 2^-9
  const double sigma = std::sqrt(0.125 * 0.875 / 100000);
  CHECK(std::abs(w.of("e4m3fn").unscaled.underflow - 0.875) < 5 * sigma);
}

TEST_CASE("what_if: tables for people") {
  const WhatIf w = what_if(values({1, 3, 0.25, 100, 0, kNan, kInf, -2.4}));
  const std::string text = to_string(w);
  CHECK(text.find("8 elements: 1 zero, 1 NaN, 1 Inf, the others from 0.25 to 100 in magnitude") != std::string::npos);
  CHECK(text.find("e2m1fn    |       20%        0%       20%    0.5 |   2^-4") != std::string::npos);
  CHECK(text.find("loss scale 2^6 = 2^(floor(log2(65504 / 100)) - 3)") != std::string::npos);
  CHECK(scale_text(0.25) == "2^-2");
  CHECK(scale_text(3) == "3");
}

TEST_CASE("what_if: bad input says what is allowed") {
  CHECK_THROWS_WITH(what_if(arange(0, 3)), "what_if: takes a floating tensor, not i64");
  CHECK_THROWS_WITH(what_if(ones({2}), {.also = {format("e8m0")}}),
                    "what_if: e8m0fnu has no zero: it holds scales, not values");
  CHECK_THROWS_WITH(what_if(ones({2}), {.above = -1}),
                    "what_if: the sweep goes 0 to 256 powers of two beyond the first overflow, not -1");
  CHECK_THROWS_WITH(what_if(ones({2})).of("e4m2"),
                    "what_if: e4m2 was not among the formats; they are fp32, tf32, bf16, fp16, e4m3fn, e5m2, e4m3fnuz, "
                    "e5m2fnuz, e2m3fn, e3m2fn, e2m1fn, and those of WhatIfOptions::also");
  CHECK_THROWS_AS(what_if(ones({2})).of("float9"), Error);
}

TEST_CASE("what_if: one outlier decides SQNR alone; the other criteria keep the rest") {
  Generator g(5);
  std::vector<double> v = randn({1000}, {.dtype = DType::f64}, g).to_vector<double>();
  v[17] = 3e30;
  const WhatIf w = what_if(values(v));
  const FormatLoss& f = w.of("e5m2");
  CHECK(f.best.kept() < 0.01);  // the outlier fits, and the rest vanishes
  CHECK(f.best_by(Criterion::sqnr).scale == f.best.scale);
  for (const Criterion c : {Criterion::kept, Criterion::median}) {
    const ScaleLoss& l = f.best_by(c);
    CHECK(l.kept() > 0.99);
    CHECK(l.median_error < 0.07);  // 2 bits of mantissa
    for (const ScaleLoss& other : f.sweep)
      CHECK((c == Criterion::kept ? other.kept() <= l.kept() : other.median_error >= l.median_error));
  }
  const std::string text = to_string(w);
  CHECK(text.find("best by kept") != std::string::npos);
  CHECK(text.find("best by median") != std::string::npos);
}

TEST_CASE("what_if: the median error, by hand") {
  // in e2m1: 1 stays, 1.25 is 1 (0.2), 7 is 6 (1/7), 0.1 vanishes (1), 5 is 4 (0.2)
  const WhatIf w = what_if(values({1, 1.25, 7, 0.1, 5, 0, kNan}));
  CHECK(w.of("e2m1").unscaled.median_error == 0.25 / 1.25);
  CHECK(w.of("e2m1").unscaled.kept() == doctest::Approx(0.6));
  CHECK(w.of("fp32").unscaled.median_error == 0);
  CHECK(what_if(values({0, kInf})).of("fp16").unscaled.median_error == 0);
}

TEST_CASE("what_if: block formats as their quantizers round") {
  const Tensor x = spread(64 * 48).reshape({64, 48});
  Tensor with_inf = x.clone();
  with_inf.data<float>()[5] = INFINITY;
  const WhatIf w = what_if(with_inf);
  REQUIRE(w.blocks.size() == block_quantizers().size());
  with_inf.data<float>()[5] = 0;
  for (const BlockLoss& b : w.blocks) {
    const Tensor rounded = fake_quantize(with_inf, b.quantizer);
    double signal = 0;
    double noise = 0;
    double lost = 0;
    double kept = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double from = with_inf.data<float>()[i];
      const double to = rounded.contiguous().data<float>()[i];
      signal += from * from;
      noise += (from - to) * (from - to);
      lost += from != 0 && to == 0;
      kept += from != 0;
    }
    CAPTURE(b.name);
    CHECK(b.loss.sqnr_db == doctest::Approx(db(signal, noise)));
    CHECK(b.loss.underflow == doctest::Approx(lost / kept));
    CHECK(b.loss.median_error > 0);
    CHECK(to_string(w).find("\n" + b.name) != std::string::npos);
  }
}

TEST_CASE("what_if: tables are swept like other formats") {
  const Tensor x = spread(500);
  const WhatIf w = what_if(x, {.also = {format("nf4"), format("posit8"), format("int8")}, .blocks = {}});
  for (const char* name : {"nf4", "posit8", "int8"}) {
    const FormatLoss& f = w.of(name);
    CHECK(f.sweep.size() > 5);
    for (const ScaleLoss& l : f.sweep) {
      const Quantizer q{.format = format(name), .scaling = FixedScale{.value = l.scale}};
      CastCounts counts;
      fake_quantize(x, q, {.stats = {.counts = &counts}});
      CHECK(l.underflow * static_cast<double>(counts.elements - counts.zeros) ==
            doctest::Approx(static_cast<double>(counts.underflow)));
    }
  }
  CHECK(w.blocks.empty());
}
