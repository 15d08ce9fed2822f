// Rows rounded a few at a time have the bits of the tensor rounded as a whole.
#include "../../../core/quantize/row_quantizer.h"

#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

using namespace gradual;

namespace {

std::vector<Quantizer> quantizers() {
  std::vector<Quantizer> all;
  for (const Scaling& scaling :
       {Scaling(NoScale()), Scaling(FixedScale{.value = 37}), Scaling(RowScale()), Scaling(RowRange()),
        Scaling(PowerBlocks{.block = 8}), Scaling(FloatBlocks{.block = 7}), Scaling(CodedBlocks{.block = 8}),
        Scaling(CodedBlocks{.block = 8, .rule = CodedRule::stochastic}), Scaling(RangeBlocks{.block = 8}),
        Scaling(PowerParts{.block = 8, .part = 2}), Scaling(CodedParts{.block = 8, .part = 4})})
    for (const RoundingMode mode : {RoundingMode::nearest_even, RoundingMode::stochastic}) {
      const bool range = has_zero_points(scaling);
      all.push_back({.format = format(range ? "int8" : "e4m3fn"), .rounding = {mode}, .scaling = scaling});
    }
  for (const int outer : {40, 16})
    all.push_back({.format = format("e4m3fn"), .scaling = DoubleBlocks{.block = 8, .outer = outer}});
  all.push_back({.format = format("bf16")});
  all.push_back({.format = format("e8m22"), .scaling = RowScale()});
  return all;
}

}  // namespace

TEST_CASE("row quantizer: the bits of fake_quantize, wherever the rows are cut") {
  constexpr std::int64_t kRows = 9;
  constexpr std::int64_t kLength = 40;
  Generator g(1);
  const Tensor x = randn({kRows, kLength}, {}, g) * 3.0;
  const RandomKey key{5, 6};
  for (const Quantizer& q : quantizers()) {
    CAPTURE(describe(q));
    REQUIRE(RowQuantizer::suits(q));
    const Tensor whole = fake_quantize(x, q, {.key = key});
    const RowQuantizer rows(q, kLength, key);
    for (const std::int64_t together : {1, 4, 9}) {
      const Tensor parts = x.clone();
      for (std::int64_t row = 0; row < kRows; row += together) {
        const std::int64_t n = std::min(together, kRows - row) * kLength;
        rows.round(parts.data<float>() + row * kLength, n, row * kLength);
      }
      CHECK(std::memcmp(parts.raw(), whole.raw(), whole.nbytes()) == 0);
    }
    CHECK(std::memcmp(x.raw(), whole.raw(), whole.nbytes()) != 0);
  }
}

TEST_CASE("row quantizer: scales of more than a row do not suit") {
  for (const Scaling& scaling : {Scaling(TensorScale()), Scaling(TensorRange()), Scaling(DelayedScale()),
                                 Scaling(Nvfp4Blocks()), Scaling(PowerBlocks{.square = true})})
    CHECK_FALSE(RowQuantizer::suits({.format = format("e4m3fn"), .scaling = scaling}));
  CHECK_FALSE(RowQuantizer::suits({.format = format("bf16"), .hadamard = true}));
}
