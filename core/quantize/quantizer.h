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
enum class ScaleFormat : std::uint8_t {
  f32,
  power_of_two,
  e8m0,
  coded  // Scaling::scale_format: amax / max rounded to nearest in it. CPU only
};
template <> inline constexpr std::string_view kEnumNames<ScaleFormat>[] = {"f32", "power-of-two", "e8m0", "coded"};

// How a power of two follows from a block's amax (OCP MX; torchao's names). emax is the format's largest exponent.
enum class ScaleRule : std::uint8_t {
  floor,  // 2^(floor(log2 amax) - emax), as in the specification; the largest elements may saturate
  rceil,  // the smallest power of two at or above amax / max; no element saturates
  ceil,   // 2^(ceil(log2 amax) - emax)
  even,   // as floor, with the amax first rounded to the element's mantissa bits
  // Searches, on the CPU only; the squared errors are those of rounding to nearest.
  four_over_six,  // coded, nvfp4: the amax becomes max or 2/3 of it (6 or 4), whichever errs less (arXiv 2512.02010)
  least_squares   // coded, nvfp4: of the amax as 1/2 to 3/2 of max in steps of 1/16. Powers of two: of floor's, the one
                  // above and two below
};
template <>
inline constexpr std::string_view kEnumNames<ScaleRule>[] = {"floor", "rceil",         "ceil",
                                                             "even",  "four-over-six", "least-squares"};
// Whether the rule tries several scales on the block's elements.
constexpr bool searches(ScaleRule rule) { return rule >= ScaleRule::four_over_six; }

// The implementation whose scales for an amax of 0, Inf or NaN are used; implementations differ.
enum class ScaleOracle : std::uint8_t {
  transformer_engine,  // tensor, row: 1. Blocks: 0 gives the smallest scale, Inf the largest (e8m0 FE), NaN gives NaN
  // tensor, row: max / max(amax, 1e-12) in f64. Blocks: Inf counts as 2^128, but FE by rceil; NaN gives FF, and the
  // codes of the others are 0. The source under an e8m0 scale of 2^-127 is multiplied by 2^126 only (rceil: by 1).
  // nvfp4: a block's scale is at least 2^-6, and its arithmetic is torchao's.
  torchao
};
template <> inline constexpr std::string_view kEnumNames<ScaleOracle>[] = {"transformer-engine", "torchao"};

// How an element is multiplied by its scale before it is rounded to the format.
enum class ScaledProduct : std::uint8_t {
  exact,   // the exact product is rounded once
  rounded  // the product is rounded to f32 (f64 sources: to f64) first, as kernels of GPUs do; likewise the products of
           // the amaxes from which coded scales of blocks follow
};
template <> inline constexpr std::string_view kEnumNames<ScaledProduct>[] = {"exact", "rounded"};

struct Scaling {
  ScalingKind kind = ScalingKind::none;
  double value = 1;  // fixed: the factor of the source
  // tensor, row, delayed, block with f32 scales: the scale is 2^margin smaller. Where rounding may go up and overflow
  // is not saturated, a scale of tensor, row or block takes the largest element to the largest value at most.
  double margin = 0;
  bool power_of_two = false;  // tensor, row, block with f32 scales: the scale is rounded down to a power of two
  int history = 1024;         // delayed: the number of amaxes kept, at least 1
  bool most_recent = false;   // delayed: the scale follows from the last amax, not from the largest one kept
  // tensor, row, block with f32 scales, to integers of at most 16 bits: x is about scale * (q - z). Each scale has a
  // zero point z. As PyTorch's MinMaxObserver: scale = max(2^-23, (high - low) / (qmax - qmin)) and
  // z = qmin - round(low / scale), where low <= 0 <= high are the elements' range; q = clamp(round(x / scale) + z).
  // A range that is not finite has the scale 1 and z 0; NaN does not count. CPU only.
  bool zero_point = false;
  int block = 32;       // block, nvfp4: elements per block, at least 1; zeros pad a smaller last block
  bool square = false;  // block, nvfp4: tiles of block x block elements
  // block: not 0: parts of a block, at whose elements' magnitude their scale is that of the block or twice it, so that
  // the block's is half as large (Rouhani et al. 2023, shared microexponents; HiFloat4). Parts of parts double again.
  // Each size divides the one before it. CPU only; a QuantizedTensor has one scale for each innermost part.
  int part = 0;
  int inner_part = 0;
  ScaleFormat scale = ScaleFormat::e8m0;  // block
  // nvfp4, and block with coded scales: signed or not, with a zero and at most 2^64 (nvfp4). nvfp4 keeps e4m3fn on GPUs
  Format scale_format = {.exponent_bits = 4, .mantissa_bits = 3, .bias = 7, .nan = NanEncoding::all_ones};
  ScaleRule rule = ScaleRule::floor;  // block, with scales that are powers of two; searches: coded scales and nvfp4 too
  ScaleOracle oracle = ScaleOracle::transformer_engine;
  ScaledProduct product = ScaledProduct::exact;  // all kinds but none

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
// True if GPUs refuse it: tables of values, zero points, parts of blocks, searched scales, coded ones but nvfp4's in
// e4m3fn.
bool cpu_only(const Quantizer& quantizer);
// A description: "e4m3fn, one delayed scale per tensor (history 1024, max)".
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
inline QuantizedTensor quantize(const Tensor& x, const Format& format, const Rounding& rounding, Overflow overflow,
                                RandomKey key = {}, CastStats stats = {}) {
  return quantize(x, {format, rounding, overflow}, {.key = key, .stats = stats});
}
// The values of quantize(x, ..), as f32 with x's sizes; f64 if x is f64 and the quantizer has no scales. A finite value
// beyond f32 becomes f32's largest number.
Tensor fake_quantize(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});
inline Tensor fake_quantize(const Tensor& x, const Format& format, const Rounding& rounding, Overflow overflow,
                            RandomKey key = {}, CastStats stats = {}) {
  return fake_quantize(x, {format, rounding, overflow}, {.key = key, .stats = stats});
}

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
double absmax(const Tensor& x);
// The same as f32 [], or f64 [] of an f64 x, on x's device. The host does not wait.
Tensor absmax_tensor(const Tensor& x);

}  // namespace gradual
