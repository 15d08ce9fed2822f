// Quantizers: a format with a rule for its scales, from none to the two levels of NVFP4. Bits and scales stay apart:
//
//   const Quantizer q{.format = format("e4m3fn"), .overflow = Overflow::saturate, .scaling = {.kind = ScalingKind::tensor}};
//   const QuantizedTensor codes = quantize(x, q);        // 8-bit codes and a scale
//   codes.dequantize();                                  // f32
//   fake_quantize(x, q);                                 // the same values, without the codes
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../formats/rounding.h"
#include "../tensor/tensor.h"
#include "amax_history.h"
#include "quantized_tensor.h"

namespace gradual {

enum class ScalingKind : std::uint8_t {
  none,
  fixed,    // one number, given
  tensor,   // one a tensor, from its own amax
  delayed,  // one a tensor, from the amax of earlier ones (AmaxHistory)
  row,      // one for each row along the contracted axis, from its amax
  block,    // one for each block along the contracted axis (square: for each square tile of a matrix)
  nvfp4     // blocks with e4m3fn scales, under one f32 scale a tensor
};
std::string_view to_string(ScalingKind kind);

// In what a block's scale is held.
enum class ScaleFormat : std::uint8_t { f32, power_of_two, e8m0 };
std::string_view to_string(ScaleFormat format);

// How a power of two is found from a block's amax (OCP MX; torchao's names), emax the format's largest exponent.
enum class ScaleRule : std::uint8_t {
  floor,  // 2^(floor(log2 amax) - emax), the specification's: the largest elements may saturate
  rceil,  // the power of two at or above amax / max: none does
  ceil,   // 2^(ceil(log2 amax) - emax)
  even    // floor of the amax rounded to the element's mantissa
};
std::string_view to_string(ScaleRule rule);

// What implementations do with an amax of 0, Inf or NaN, where they differ.
enum class ScaleOracle : std::uint8_t {
  transformer_engine,  // tensor, row: 1. Blocks: 0 gives the smallest scale, Inf the largest (e8m0 FE), NaN gives NaN
  torchao              // tensor, row: max / max(amax, 1e-12) in f64. Blocks: 0 gives the smallest, Inf and NaN NaN (FF)
};
std::string_view to_string(ScaleOracle oracle);

struct Scaling {
  ScalingKind kind = ScalingKind::none;
  double value = 1;           // fixed: times the source
  double margin = 0;          // tensor, row, delayed, blocks' f32 scales: the scale is 2^margin smaller
  bool power_of_two = false;  // tensor, row, blocks' f32 scales: rounded down to one
  int history = 1024;         // delayed: amaxes kept, at least 1
  bool most_recent = false;   // delayed: the last amax, not the largest kept
  int block = 32;             // block, nvfp4: elements, at least 1; a ragged last block counts as padded with zeros
  bool square = false;        // block, nvfp4: weights in tiles of block x block
  ScaleFormat scale = ScaleFormat::e8m0;  // block
  ScaleRule rule = ScaleRule::floor;      // block, with a scale that is a power of two
  ScaleOracle oracle = ScaleOracle::transformer_engine;

  bool operator==(const Scaling&) const = default;
};

struct Quantizer {
  Format format;
  Rounding rounding = {};
  Overflow overflow = Overflow::saturate;
  Scaling scaling = {};
  bool hadamard = false;  // a random Hadamard transform of 16 along the contracted axis first (see hadamard16)

  bool operator==(const Quantizer&) const = default;
};
// Error naming the field and what is allowed.
void check_valid(const Quantizer& quantizer);
// "e4m3fn, one delayed scale a tensor (history 1024, max)".
std::string describe(const Quantizer& quantizer);

struct QuantizeOptions {
  int axis = -1;  // the contracted one: rows and blocks run along it
  // Of stochastic rounding; element i is numbered with the axis last. Where the call is recorded (cuda::Graph) it counts as
  // drawn from the default generator, and replays move it on.
  RandomKey key = {};
  // Instead of that, in the memory of x's GPU: streams begin at key.stream + (*steps << 25).
  const std::int64_t* steps = nullptr;
  AmaxHistory* history = nullptr;  // delayed scaling needs it; the amax is staged
  bool stage = true;               // false: the history is only read,
  bool keep = false;               // its scale remembered,
  bool again = false;              // and the one used that was remembered last
  CastStats stats = {};  // of the scaled values; exponents are the source's. Of a GPU's tensor they are waited for
  bool scaled_exponents = false;  // exponents too are of the scaled values, as the format meets them
};

// Codes and scales. x: any floating tensor, of any device, where the result lies too, with the
// same bits and counts (of a NaN times a scale that is NaN, either's sign may stay); scales from amaxes are found there, and
// the host waits for none. Error for the transform, which has no codes of its own.
QuantizedTensor quantize(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});
// Plain rounding to a format's codes, without scales.
QuantizedTensor quantize(const Tensor& x, const Format& format, const Rounding& rounding, Overflow overflow,
                         RandomKey key = {}, CastStats stats = {});
// What codes and scales stand for, as f32 (f64 for f64 where nothing is scaled).
Tensor fake_quantize(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});
Tensor fake_quantize(const Tensor& x, const Format& format, const Rounding& rounding, Overflow overflow,
                     RandomKey key = {}, CastStats stats = {});

// An operand for an exact contraction: x is about values * scale. Scales of blocks are in the values; one a tensor or
// a row stands apart (f32, sizes 1 but for the rows; undefined: 1; on a GPU one from an amax is always defined), so that
// values have few significant bits.
struct QuantizedOperand {
  Tensor values;  // x's sizes; f32, or f64 as fake_quantize gives it
  Tensor scale;
};
QuantizedOperand quantize_operand(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});

// x [.., K], K a multiple of 16, times H = 1/4 diag(signs) H16 in groups of 16 along the last dim; bit i of `signs` set:
// element i is negated first. H is orthogonal: transformed operands have the products of the original ones.
Tensor hadamard16(const Tensor& x, std::uint16_t signs);

// The largest magnitude, max(|x|): 0 for none, NaN where there is one.
float absmax(const Tensor& x);
// The same, f32 [], where x is: nobody waits.
Tensor absmax_tensor(const Tensor& x);

}  // namespace gradual
