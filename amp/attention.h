// Attention as FlashAttention computes it, a block of keys at a time, with every format of its inside. The reference
// consists of the library's ops, which observers see; on the CPU a kernel has the same bits (attention_kernel.h).
//
// For queries Q [L, E] and blocks of keys K_j [block, E] and values V_j [block, D], from j = 1 (Milakov and Gimelshein
// 2018; Dao et al. 2022):
//
//   S = q(Q) k(K_j)^T scale + mask      scores; sums in qk_accumulator
//   m' = max(m, rowmax(S))              the running maximum, rounded by softmax
//   P = exp(S - m')
//   l = exp(m - m') l + rowsum(P)       the running sum, rounded by softmax
//   O = exp(m - m') O + p(P) v(V_j)     sums in pv_accumulator; the product and O rounded by running
//
// and at the end O = o(O / l). Backward recomputes P = exp(S - lse) from lse = m + log l, rounded by softmax:
//
//   D = rowsum(do(dO) O)                f32
//   dV_j = p(P)^T do(dO)                pv_accumulator, as dQ and dK
//   dP = dp(do(dO) v(V_j)^T)            qk_accumulator
//   dS = P (dP - D)
//   dQ += ds(dS) k(K_j) scale           f32
//   dK_j = ds(dS)^T q(Q) scale
//
// Lower-case names are quantizers. Each operand is rounded along the axis that its product contracts: Q and dO once for
// all blocks, K, V, P, dP and dS block by block. Scales multiply the operands first. What has no quantizer is f32 (f64
// for f64 tensors).
//
// Where both operands of a product have a Hadamard transform (Quantizer::hadamard), both are multiplied by the same
// orthogonal H along the contracted axis before they are rounded: incoherent processing in FlashAttention-3 (Shah et
// al. 2024, arXiv 2407.08608). Q and K have it in S, dO and V in dP, in groups that divide the head size; D then reads
// O H. If P has it, so have P V and P^T dO, whose other operands need it; if dS has it, dS K and dS^T Q. These contract
// keys of a block, which the groups divide, or queries; zeros fill the last group. P V has none under a mask: rounding
// errors of hidden values would reach the output.
//
// Delayed scales (DelayedScale) are kept in AttentionHistories, one for each field, from the amax over all blocks. So
// Transformer Engine has them: the recipe DelayedScaling with fp8_dpa (its API documentation), whose attention takes
// scales of Q, K, V, S, O, dO and dP. Its S is P here.
//
// The gradient is straight-through. A row that sees no key has m = -Inf, which is not rounded, and its output is 0. A
// finite mask of a whole row, such as -1e9, gives scores so large that lse = m + log l rounds to m: the output is still
// the mean of the values, but backward takes 1 for every P of the row.
#pragma once

#include <array>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#include "../core/formats/accumulator.h"
#include "../core/ops/attrs.h"
#include "../core/ops/op.h"
#include "../core/quantize/quantizer.h"

namespace gradual::amp {

struct AttentionPrecision {
  std::optional<Quantizer> q = {};
  std::optional<Quantizer> k = {};
  std::optional<Quantizer> v = {};
  std::optional<Quantizer> p = {};
  std::optional<Quantizer> d_o = {};
  std::optional<Quantizer> d_p = {};
  std::optional<Quantizer> d_s = {};
  std::optional<Quantizer> softmax = {};  // the running maximum and sum, and the logsumexp for backward
  std::optional<Quantizer> running = {};  // P V of a block, and O between blocks
  std::optional<Quantizer> o = {};        // the output; backward reads it rounded
  std::optional<Accumulator> qk_accumulator =
      {};  // of Q K^T and dO V^T; unset: that of the surrounding scope, else f32 (CPU: in order)
  std::optional<Accumulator> pv_accumulator = {};  // of P V, P^T dO, dS K and dS^T Q
  int block = 64;                                  // keys of a block
  // Not 0: where a row's maximum in a block occurs more than once, it becomes beta times itself if it is positive, and
  // 0 if it is negative (arXiv 2510.04212). Unlike the paper's it moves by no less than 0.5 and no more than 16: the
  // row's P in this block is at most exp(-0.5) = 0.61, and at the maximum at least exp(-16) = 1e-7, a normal number of
  // bf16 and f32; narrow formats without a scale make it 0. The result does not change otherwise. A shift is lost where
  // the format of the running maximum has no place for it: in f32, scores above 2^28.
  double beta = 0;

  bool all_modules = false;  // of a model's recipe: also in modules that Quantization::modules give another recipe

  bool operator==(const AttentionPrecision&) const = default;
};
// The quantizers by name.
struct AttentionField {
  const char* name;
  std::optional<Quantizer> AttentionPrecision::*quantizer;
  bool of_backward = false;  // it rounds errors
};
inline constexpr AttentionField kAttentionFields[] = {{"q", &AttentionPrecision::q},
                                                      {"k", &AttentionPrecision::k},
                                                      {"v", &AttentionPrecision::v},
                                                      {"p", &AttentionPrecision::p},
                                                      {"do", &AttentionPrecision::d_o, true},
                                                      {"dp", &AttentionPrecision::d_p, true},
                                                      {"ds", &AttentionPrecision::d_s, true},
                                                      {"softmax", &AttentionPrecision::softmax},
                                                      {"running", &AttentionPrecision::running},
                                                      {"o", &AttentionPrecision::o}};

// Throws Error that names the wrong field.
void check_valid(const AttentionPrecision& precision);

// Takes away the quantizer of a field. Operands that then lack a partner for their transform lose it.
void leave_unrounded(AttentionPrecision& precision, std::optional<Quantizer> AttentionPrecision::*field);

// The amax histories of an attention's fields, in the order of kAttentionFields. `softmax` and `running` have none.
struct AttentionHistories {
  std::array<AmaxHistory, std::size(kAttentionFields)> fields = {};

  AmaxHistory& of(std::optional<Quantizer> AttentionPrecision::*field);
  // Takes in the amaxes that calls have staged of a field, if it has a delayed scale.
  void take_staged(const AttentionPrecision& precision, const AttentionField& field);
  // Those of forward's fields, or of backward's (do, dp, ds).
  void take_staged(const AttentionPrecision& precision, bool backward);
};
// True if a field has a delayed scale.
bool has_delayed_scales(const AttentionPrecision& precision);

// A flag for each of kAttentionFields.
using AttentionFlags = std::array<bool, std::size(kAttentionFields)>;

// What a call does with delayed scales, and who looks at the numbers that it rounds. Backward rounds q, k, v and p with
// forward's scales.
struct AttentionScales {
  std::shared_ptr<AttentionHistories> histories = {};  // null: an Error for delayed scales
  QuantizeFor forward = QuantizeFor::first_use;        // of q, k, v, p and o
  std::function<QuantizeFor()> backward = {};          // of do, dp and ds, asked in backward; empty: one_use
  // Each pass calls look(largest, quantizer) for its fields that are looked at; those of backward are do, dp and ds.
  // `largest` [1] is the largest magnitude of all numbers that the pass gives to the quantizer; NaN if one is.
  AttentionFlags looked_at = {};
  std::function<void(const Tensor& largest, const Quantizer& quantizer)> look = {};
};

// scaled_dot_product_attention of these inputs (core/ops/ops.h), recorded as one node. q [.., L, E], k [.., S, E],
// v [.., S, D], whose leading dims broadcast; mask: undefined, bool or added. Observers see the rounding of P, say, in
// the module PATH.p. Error for second derivatives.
Tensor attention_in_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                           const AttentionAttrs& attrs, const AttentionPrecision& precision,
                           const AttentionScales& scales = {}, Loc loc = Loc::current());

}  // namespace gradual::amp
