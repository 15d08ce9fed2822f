// The errors of bad quantizers.
#include <doctest/doctest.h>
#include <gradual/core/quantize/quantizer.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/files.h"

using namespace gradual;
using test::contains;
using test::message_of;

TEST_CASE("errors of invalid quantizers") {
  const auto message = [](auto change, QuantizeOptions o = {}, const Tensor& x = zeros({2, 3})) {
    Quantizer q{.format = format("e4m3fn")};
    change(q);
    const std::string first = message_of([&] { fake_quantize(x, q, o); });
    CHECK(!contains(message_of([&] { quantize(x, q, o); }), "nothing was thrown"));
    return first;
  };
  CHECK(contains(message([](Quantizer& q) { q.format.exponent_bits = 9; }), "9 exponent bits; allowed are 1 to 8"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = PowerBlocks{.block = 0}; }),
                 "a block has at least 1 element, not 0"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = DelayedScale{.history = -1}; }),
                 "the history keeps at least 1 amax, not -1"));
  CHECK(contains(message([](Quantizer& q) { q.scaling = DelayedScale{}; }), "needs the history of a tensor's amaxes"));
  for (const double value : {0.0, -2.0, 1e-44, 1e60, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK(contains(message([&](Quantizer& q) { q.scaling = FixedScale{.value = value}; }),
                   "a fixed scale is a number from 2^-126 to 2^126, not "));
  CHECK(contains(message([](Quantizer& q) { q.scaling = TensorScale{.margin = 100}; }), "the margin is -64 to 64"));
  CHECK(contains(message([](Quantizer& q) {
                   q.rounding = {RoundingMode::stochastic, 0};
                 }),
                 "takes 1 to 32 random bits, not 0"));
  CHECK(contains(message([](Quantizer& q) {
                   q.format = format("fp16");
                   q.scaling = Nvfp4Blocks{};
                 }),
                 "for elements of at most 8 bits, not 16"));
  CHECK(contains(message([](Quantizer& q) {
                   q.format = format("e8m0");
                   q.scaling = TensorScale{};
                 }),
                 "without zero"));
  CHECK(contains(message([](Quantizer&) {}, {.axis = 2}), "2"));
  CHECK(contains(
      message_of([] { fake_quantize(zeros({2}, {.dtype = DType::i64}), Quantizer{.format = format("e4m3fn")}); }),
      "takes a floating tensor, not i64"));
  CHECK(contains(message_of([] { quantize(zeros({2}), Quantizer{.format = format("e4m3fn"), .hadamard = true}); }),
                 "the Hadamard transform belongs to a product"));
}
