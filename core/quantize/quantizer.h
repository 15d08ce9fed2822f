// Quantizers: a format and a rule for its scales, from no scale to the two levels of NVFP4.
//
//   const Quantizer q{.format = format("e4m3fn"), .scaling = TensorScale{}};
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
#include "scaling.h"

namespace gradual {

// The size of a Hadamard transform: 0 for none, 16, 32, 64, 128 or 256. `true` stands for 16.
struct HadamardSize {
  int size = 0;

  constexpr HadamardSize() = default;
  constexpr HadamardSize(bool on) : size(on ? 16 : 0) {}  // NOLINT(google-explicit-constructor)
  constexpr HadamardSize(int n) : size(n) {}              // NOLINT(google-explicit-constructor)
  constexpr explicit operator bool() const { return size != 0; }
  bool operator==(const HadamardSize&) const = default;
};
inline constexpr int kHadamardSizes[] = {16, 32, 64, 128, 256};
// The random signs of the transform.
enum class HadamardSigns : std::uint8_t {
  fixed,  // the same in every product and run
  drawn   // new ones in each product, from the default generator. Not in a recorded step (cuda::Graph)
};
template <> inline constexpr std::string_view kEnumNames<HadamardSigns>[] = {"fixed", "drawn"};

// What stands for the derivative of rounding, which is 0 or undefined, where the gradient of a product's operand is
// computed. Scales count as constants. u is an element times its scale.
enum class QuantizerGradient : std::uint8_t {
  straight,  // 1 (straight-through: Bengio et al. 2013, arXiv 1308.3432)
  clipped,   // 0 where u lies beyond the format's largest or lowest value, else 1 (PACT, Choi et al. 2018, arXiv
             // 1805.06085)
  // The derivative of a smooth step from one value of the format to the next (Wang et al. 2025, arXiv 2501.17116): see
  // GradientEstimator. 0 beyond the largest and the lowest value.
  differentiable
};
template <>
inline constexpr std::string_view kEnumNames<QuantizerGradient>[] = {"straight", "clipped", "differentiable"};

struct Quantizer {
  Format format;
  Rounding rounding = {};
  Overflow overflow = Overflow::saturate;
  Scaling scaling = {};
  HadamardSize hadamard = {};  // a random Hadamard transform along the contracted axis before rounding (see hadamard())
  HadamardSigns signs = HadamardSigns::fixed;
  // The mean over the samples is subtracted before rounding, and its part of the product is added in f32. For x and dy
  // of matmul and linear.
  bool center = false;
  QuantizerGradient gradient = QuantizerGradient::straight;  // changes no bit of what it rounds

  bool operator==(const Quantizer&) const = default;
};
// Throws Error that names the wrong field and what is allowed.
void check_valid(const Quantizer& quantizer);
// True if GPUs refuse it: tables of values, zero points, parts of blocks, searched and learned scales, coded ones but
// nvfp4's in e4m3fn to nearest, gradients that are not straight.
bool cpu_only(const Quantizer& quantizer);
// True if it rounds elements or scales at random, by QuantizeOptions::key.
bool is_random(const Quantizer& quantizer);
// A description: "e4m3fn, one delayed scale per tensor (history 1024, max)".
std::string describe(const Quantizer& quantizer);

// What a call is for: what it does with the history of delayed scaling. Other scalings do the same for all.
enum class QuantizeFor : std::uint8_t {
  one_use,           // takes the history's scale and stages x's amax
  first_use,         // the same, and stores the scale as AmaxHistory::used for later uses
  first_use_frozen,  // stores the scale and stages nothing
  later_use,         // takes AmaxHistory::used and stages nothing
  evaluation         // takes the history's scale and leaves the history as it is
};
constexpr bool stages_amax(QuantizeFor use) { return use == QuantizeFor::one_use || use == QuantizeFor::first_use; }
constexpr bool keeps_scale(QuantizeFor use) {
  return use == QuantizeFor::first_use || use == QuantizeFor::first_use_frozen;
}

struct QuantizeOptions {
  int axis = -1;  // the contracted axis, along which rows and blocks lie
  // The key of stochastic rounding. Elements are numbered with the axis last; random scales have a stream of their own.
  // In a recorded call (cuda::Graph) the key counts as a draw from the default generator, and each replay advances it.
  RandomKey key = {};
  // If not null, in the memory of x's GPU: the stream is key.stream + (*steps << 25), and replays do not advance the
  // key.
  const std::int64_t* steps = nullptr;
  AmaxHistory* history = nullptr;  // delayed scaling needs it, and learned scaling, which finds its scale there
  QuantizeFor use = QuantizeFor::one_use;
  CastStats stats = {};  // counts are of the scaled values, exponents of the source. The host waits for a GPU's stats
  bool scaled_exponents = false;  // exponents are of the scaled values too
};

// x's codes and scales. x is a floating tensor of any sizes on any device. The result is on x's device; all devices
// give the same bits and counts (a NaN times a NaN scale may have either sign). Scales from amaxes are computed on the
// device, and the host does not wait. Error if q.hadamard or q.center is set: they belong to a product.
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

// The factors that take the gradient of fake_quantize(x, ..) to that of x, as q.gradient says: f32, of x's sizes.
// `options` are those of the call whose gradient it is; a history stages nothing and nothing is counted. CPU only.
Tensor quantizer_slopes(const Tensor& x, const Quantizer& quantizer, const QuantizeOptions& options = {});

// x [.., K], K a multiple of n, times H = diag(signs) Hn / sqrt(n) in groups of n along the last dim, n one of
// kHadamardSizes. negated [n]: the elements of a group that are negated first. H is orthogonal, so a product of
// transformed operands is the product of the operands, up to rounding: 1/sqrt(n) is exact for 16, 64 and 256.
Tensor hadamard(const Tensor& x, const std::vector<bool>& negated);
// The same for n = 16; bit i of `signs` negates element i.
Tensor hadamard16(const Tensor& x, std::uint16_t signs);

// The largest magnitude in x: 0 without elements, NaN if x has one.
double absmax(const Tensor& x);
// The same as f32 [], or f64 [] of an f64 x, on x's device. The host does not wait.
Tensor absmax_tensor(const Tensor& x);

}  // namespace gradual
