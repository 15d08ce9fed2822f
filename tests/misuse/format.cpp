#include <cmath>

#include "misuse.h"

using namespace gradual;

namespace test {
namespace {

Quantizer mx() { return {.format = format("e4m3fn"), .scaling = PowerBlocks{}}; }
template <class F> Tensor rounded(F edit) {
  Quantizer q = mx();
  edit(q);
  return fake_quantize(ones({2}), q);
}

}  // namespace

Misuses format_misuses() {
  return {
      {"a format of no name", [] { return format("fp7").max(); },
       "no format 'fp7'; there are fp32, tf32, bf16, fp16, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e8m0fnu,"},
      {"a format of nine bits of exponent", [] { return format("e9m2").max(); },
       "format e9m2: 9 exponent bits; allowed are 1 to 8"},
      {"a format of 24 bits of mantissa", [] { return format("e8m24").max(); },
       "format e8m24: 24 mantissa bits; allowed are 0 to 23"},
      {"an IEEE form of no exponent", [] { return Format::ieee(0, 3).max(); },
       "format e0m3: 0 exponent bits; allowed are 1 to 8"},
      {"a format with a bias out of range",
       [] { check_valid(Format{.exponent_bits = 4, .mantissa_bits = 3, .bias = 4000}); },
       "format e4m3: with the bias 4000 its normal values run from 2^-3999 to below 2^-3984; f32 holds"},
      {"the format of integers", [] { return format_of(DType::i64).max(); },
       "format_of: i64 has no format here; f32, f16, bf16, f8e4m3fn and f8e5m2 have"},
      {"a rounding of no name", [] { return to_string(rounding_from_name("nearest")); },
       "no rounding 'nearest'; there are nearest-even, nearest-away, toward-zero, up, down, to-odd,"},
      {"a stochastic rounding of 33 bits", [] { return to_string(rounding_from_name("stochastic:33")); },
       "rounding 'stochastic:33': stochastic: must be followed by the number of random bits, 1 to 32"},
      {"a stochastic rounding of no bit", [] { return to_string(rounding_from_name("stochastic:0")); },
       "rounding 'stochastic:0': stochastic: must be followed by the number of random bits, 1 to 32"},
      {"an overflow of no name", [] { return std::string(to_string(overflow_from_name("wrap"))); },
       "no overflow policy 'wrap'; there are ieee, saturate, saturate-finite, ml-dtypes"},
      {"an accumulator of no name", [] { return to_string(accumulator("fp17")); },
       "accumulator 'fp17': there are f32, f64, fp16-acc, bf16-acc, fp16-unfused, bf16-unfused, hopper-fp8-14bit,"},
      {"an accumulator of chunks of -1", [] { return to_string(accumulator("f32/chunk=-1")); },
       "accumulator 'f32/chunk=-1': chunk=N takes a whole number from 1 on, not 'chunk=-1'"},
      {"an accumulator with an unknown option", [] { return to_string(accumulator("f32/chonk=2")); },
       "accumulator 'f32/chonk=2': no option 'chonk=2'; there are chunk=N, promote=N, group=N, fraction=N, adds=WAY, "
       "lowest=N, product=FORMAT;"},
      {"an accumulator that rounds at random", [] { return to_string(accumulator("bf16-acc:stochastic")); },
       "= bf16-acc:stochastic"},
      {"a scope of an accumulator with a promotion of -1",
       [] { const AccumulatorScope scope(Accumulator{.promote = -1}); },
       "accumulator: it promotes after at least 1 product (0: never), not -1"},
      {"a quantizer of blocks of 0", [] { return rounded([](Quantizer& q) { set_block(q.scaling, 0); }); },
       "quantizer to e4m3fn: a block has at least 1 element, not 0"},
      {"a quantizer with a fixed scale of NaN",
       [] { return rounded([](Quantizer& q) { q.scaling = FixedScale{.value = NAN}; }); },
       "quantizer to e4m3fn: a fixed scale is a number from 2^-126 to 2^126, not nan"},
      {"a quantizer with a fixed scale of 0",
       [] { return rounded([](Quantizer& q) { q.scaling = FixedScale{.value = 0}; }); },
       "quantizer to e4m3fn: a fixed scale is a number from 2^-126 to 2^126, not 0"},
      {"a quantizer with a margin of NaN",
       [] { return rounded([](Quantizer& q) { q.scaling = TensorScale{.margin = NAN}; }); },
       "quantizer to e4m3fn: the margin is -64 to 64 (powers of two), not nan"},
      {"a quantizer with a history of 0",
       [] { return rounded([](Quantizer& q) { q.scaling = DelayedScale{.history = 0}; }); },
       "quantizer to e4m3fn: the history keeps at least 1 amax, not 0"},
      {"delayed scaling without a history", [] { return rounded([](Quantizer& q) { q.scaling = DelayedScale{}; }); },
       "quantize: delayed scaling needs the history of a tensor's amaxes (QuantizeOptions::history)"},
      {"a quantizer of no format", [] { return fake_quantize(ones({2}), Quantizer{}); },
       "format e0m0: 0 exponent bits; allowed are 1 to 8"},
      {"a quantizer of a random transform",
       [] {
         Quantizer q = mx();
         q.hadamard = true;
         return quantize(ones({2}), q).dequantize();
       },
       "quantize: the Hadamard transform belongs to a product; apply hadamard() yourself"},
      {"integers quantised", [] { return fake_quantize(arange(0, 3), mx()); },
       "quantize: takes a floating tensor, not i64"},
      {"an undefined tensor quantised", [] { return fake_quantize(Tensor(), mx()); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"a quantizer along a dim too far", [] { return fake_quantize(ones({2}), mx(), {.axis = 3}); },
       "quantize: dim 3 is out of range for a 1-d tensor; allowed are -1 to 0"},
      {"square blocks of a vector", [] { return rounded([](Quantizer& q) { set_tiles(q.scaling, true); }); },
       "= f32: 1 1"},
      {"hadamard16 of 8 columns",
       [] {
         return hadamard16(ones({2, 8}), 0);
       },
       "hadamard16: [2, 8]: the last dim must be a multiple of 16"},
      {"absmax of integers", [] { return static_cast<double>(absmax(arange(0, 3))); },
       "quantize: takes a floating tensor, not i64"},
      {"absmax of nothing", [] { return static_cast<double>(absmax(zeros({0}))); }, "= 0"},
      {"what_if of integers", [] { return what_if(arange(0, 3)).amax; }, "what_if: takes a floating tensor, not i64"},
      {"what_if of a format of no name", [] { return what_if(ones({3})).of("fp7").best.scale; },
       "no format 'fp7'; there are fp32, tf32, bf16, fp16, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e8m0fnu,"},
      {"what_if above range", [] { return what_if(ones({3}), {.above = -1}).amax; },
       "what_if: the sweep goes 0 to 256 powers of two beyond the first overflow, not -1"},
  };
}

}  // namespace test
