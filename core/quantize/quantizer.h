// Quantizers: a format and a rule for its scales, from no scale to the two levels of NVFP4.
//
//   const Quantizer q{.format = format("e4m3fn"), .scaling = {.kind = ScalingKind::tensor}};
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
  fixed,    // one given number
  tensor,   // one scale per tensor, from its amax
  delayed,  // one scale per tensor, from the amaxes of earlier tensors (AmaxHistory)
  row,      // one scale per row along the contracted axis, from its amax
  block,    // one scale per block along the contracted axis (square: per square tile of a matrix)
  nvfp4     // one e4m3fn scale per block and one f32 scale per tensor
};
// True if a tensor has at most one scale.
constexpr bool per_tensor(ScalingKind kind) { return kind <= ScalingKind::delayed; }
template <>
inline constexpr std::string_view kEnumNames<ScalingKind>[] = {"none", "fixed", "tensor", "delayed",
                                                               "row",  "block", "nvfp4"};

// The storage of a block's scale.
enum class ScaleFormat : std::uint8_t { f32, power_of_two, e8m0 };
template <> inline constexpr std::string_view kEnumNames<ScaleFormat>[] = {"f32", "power-of-two", "e8m0"};

// How a power of two follows from a block's amax (OCP MX; torchao's names). emax is the format's largest exponent.
enum class ScaleRule : std::uint8_t {
  floor,  // 2^(floor(log2 amax) - emax), as in the specification; the largest elements may saturate
  rceil,  // the smallest power of two at or above amax / max; no element saturates
  ceil,   // 2^(ceil(log2 amax) - emax)
  even    // as floor, with the amax first rounded to the element's mantissa bits
};
template <> inline constexpr std::string_view kEnumNames<ScaleRule>[] = {"floor", "rceil", "ceil", "even"};

// The implementation whose scales for an amax of 0, Inf or NaN are used; implementations differ.
enum class ScaleOracle : std::uint8_t {
  transformer_engine,  // tensor, row: 1. Blocks: 0 gives the smallest scale, Inf the largest (e8m0 FE), NaN gives NaN
  torchao  // tensor, row: max / max(amax, 1e-12) in f64. Blocks: 0 gives the smallest; Inf, NaN give NaN (FF)
};
template <> inline constexpr std::string_view kEnumNames<ScaleOracle>[] = {"transformer-engine", "torchao"};

struct Scaling {
  ScalingKind kind = ScalingKind::none;
  double value = 1;           // fixed: the factor of the source
  double margin = 0;          // tensor, row, delayed, block with f32 scales: the scale is 2^margin smaller
  bool power_of_two = false;  // tensor, row, block with f32 scales: the scale is rounded down to a power of two
  int history = 1024;         // delayed: the number of amaxes kept, at least 1
  bool most_recent = false;   // delayed: the scale follows from the last amax, not from the largest one kept
  int block = 32;             // block, nvfp4: elements per block, at least 1; zeros pad a smaller last block
  bool square = false;        // block, nvfp4: tiles of block x block elements
  ScaleFormat scale = ScaleFormat::e8m0;  // block
  ScaleRule rule = ScaleRule::floor;      // block, with scales that are powers of two
  ScaleOracle oracle = ScaleOracle::transformer_engine;

  bool operator==(const Scaling&) const = default;
};

struct Quantizer {
  Format format;
  Rounding rounding = {};
  Overflow overflow = Overflow::saturate;
  Scaling scaling = {};
  bool hadamard = false;  // a random Hadamard transform along the contracted axis before rounding (see hadamard16)

  bool operator==(const Quantizer&) const = default;
};
// Throws Error that names the wrong field and what is allowed.
void check_valid(const Quantizer& quantizer);
// A description: "e4m3fn, one delayed scale a tensor (history 1024, max)".
std::string describe(const Quantizer& quantizer);

struct QuantizeOptions {
  int axis = -1;  // the contracted axis, along which rows and blocks lie
  // The key of stochastic rounding. Elements are numbered with the axis last. In a recorded call (cuda::Graph) the key
  // counts as a draw from the default generator, and each replay advances it.
  RandomKey key = {};
  // If not null, in the memory of x's GPU: the stream is key.stream + (*steps << 25), and replays do not advance the
  // key.
  const std::int64_t* steps = nullptr;
  AmaxHistory* history = nullptr;  // delayed scaling needs it
  bool stage = true;               // stage x's amax in the history
  bool keep = false;               // store the history's scale as AmaxHistory::used
  bool again = false;              // use AmaxHistory::used as the scale
  CastStats stats = {};  // counts are of the scaled values, exponents of the source. The host waits for a GPU's stats
  bool scaled_exponents = false;  // exponents are of the scaled values too
};

// x's codes and scales. x is a floating tensor of any sizes on any device. The result is on x's device; all devices
// give the same bits and counts (a NaN times a NaN scale may have either sign). Scales from amaxes are computed on the
// device, and the host does not wait. Error if q.hadamard is set: the transform belongs to a product.
QuantizedTensor quantize(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});
// x rounded to codes of a format, without scales.
QuantizedTensor quantize(const Tensor& x, const Format& format, const Rounding& rounding, Overflow overflow,
                         RandomKey key = {}, CastStats stats = {});
// The values of quantize(x, ..), as f32 with x's sizes; f64 if x is f64 and the quantizer has no scales.
Tensor fake_quantize(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});
Tensor fake_quantize(const Tensor& x, const Format& format, const Rounding& rounding, Overflow overflow,
                     RandomKey key = {}, CastStats stats = {});

// An operand for an exact contraction: fake_quantize(x) is values * scale. `values` includes the scales of blocks. A
// scale per tensor or row is separate, so that the values have few significant bits.
struct QuantizedOperand {
  Tensor values;  // x's sizes, the dtype of fake_quantize
  Tensor scale;   // f32, [] or x's sizes with 1 along the axis. Undefined: 1. On a GPU a scale from an amax is defined
};
QuantizedOperand quantize_operand(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});

// x [.., K], K a multiple of 16, times H = 1/4 diag(signs) H16 in groups of 16 along the last dim. Bit i of `signs`
// negates element i of a group first. H is orthogonal, so a product of transformed operands is the product of the
// operands.
Tensor hadamard16(const Tensor& x, std::uint16_t signs);

// The largest magnitude in x: 0 without elements, NaN if x has one.
float absmax(const Tensor& x);
// The same as f32 [] on x's device. The host does not wait.
Tensor absmax_tensor(const Tensor& x);

}  // namespace gradual
