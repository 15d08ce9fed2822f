// The CPU kernel of attention in blocks (amp/attention.h has the definition and the reference, whose bits these are).
// All numbers are f32. Leading dims of operands broadcast to `batch`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "../formats/accumulator.h"
#include "../tensor/tensor.h"

namespace gradual::cpu {

// True if the device has this kernel.
bool has_attention_blocks(Device device);

// Rounds n numbers in place, whole rows of a tensor; the first one has this number in it. Any thread may call it.
// Empty: they stay.
struct RowRounding {
  std::function<void(float* values, std::int64_t n, std::int64_t first)> round = {};
  bool each_alone = true;  // the result for a number does not depend on its place or neighbours
};

struct BlockAttention {
  Shape batch;
  Tensor q;          // [.., L, E], rounded for the scores
  Tensor mask = {};  // undefined, or bool or f32 [.., L, S] whose sizes of 1 are broadcast
  Tensor kept = {};  // undefined, or the factors of dropout [.., L, S]
  double scale = 1;  // of the scores
  double beta = 0;   // of repeated maxima
  bool causal = false;
  std::int64_t keys = 0;    // S
  std::int64_t values = 0;  // D
};

// A block of keys in forward, with what its steps round and how they sum.
struct ForwardBlock {
  std::int64_t first = 0;
  std::int64_t count = 0;
  Tensor k = {};  // [.., count, E]
  Tensor v = {};  // [.., count, D]
  Accumulator scores = {};
  Accumulator output = {};
  RowRounding maximum = {};
  RowRounding p = {};
  RowRounding product = {};  // P V
  RowRounding sum = {};
  RowRounding running = {};  // O; not in the first block
};
// The most keys that a block may have.
std::int64_t most_keys_of_block();

// Writes O before it is rounded and the logsumexp, [batch, L, D] and [batch, L, 1], row-major.
void attend_in_blocks(const BlockAttention& call, const std::vector<ForwardBlock>& blocks, const Tensor& o,
                      const Tensor& logsumexp);

// The same in backward. Columns are along the queries: they are rounded as rows of the transposed block.
struct BackwardBlock {
  std::int64_t first = 0;
  std::int64_t count = 0;
  Tensor k = {};        // for the scores
  Tensor v = {};        // for dP
  Tensor k_of_dq = {};  // for dQ
  Accumulator scores = {};
  Accumulator dv = {};
  Accumulator dp = {};
  Accumulator dq = {};
  Accumulator dk = {};
  RowRounding p_columns = {};
  RowRounding dp_rows = {};
  RowRounding ds_rows = {};
  RowRounding ds_columns = {};
  bool ds_once = false;  // rows and columns of dS are rounded to the same numbers
};
struct BackwardOperands {
  Tensor along_values, along_queries;  // dO [.., L, D], rounded for dP and for dV
  Tensor q;                            // [.., L, E], rounded for dK
  Tensor delta, logsumexp;             // [batch, L, 1], row-major
};
// Writes dQ, dK and dV, [batch, L, E], [batch, S, E] and [batch, S, D], row-major.
void attend_in_blocks_backward(const BlockAttention& call, const std::vector<BackwardBlock>& blocks,
                               const BackwardOperands& operands, const Tensor& dq, const Tensor& dk, const Tensor& dv);

}  // namespace gradual::cpu
