// Finds by experiments how a dot product is computed: the order of its sum, the bits and the rounding of each addition,
// whether products are rounded, and whether subnormal numbers count as zeros. It only calls the dot product.
//
//   const ProbeResult found = inspect::probe(dot, {.terms = 64, .operands = DType::bf16, .result = DType::f32});
//   to_string(found.tree);   // "0+1+..+63"
//
// The order: of M at place i, -M at place j and a small unit at place t, the unit survives exactly if t is not below
// the lowest common ancestor of i and j (FPRev, Xie et al. 2024, arXiv 2411.00442). Bits, rounding and alignment follow
// Fasi, Higham, Mikaitis and Pranesh 2021, "Numerical behavior of NVIDIA tensor cores".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "../core/formats/dtype.h"
#include "sum_tree.h"

namespace gradual::inspect {

// The dot product of a and b, which have options.terms values of the dtype `operands`: a value of the dtype `result`.
using DotProduct = std::function<double(std::span<const double> a, std::span<const double> b)>;

struct ProbeOptions {
  int terms = 128;  // 4 to 4096
  DType operands = DType::f32, result = DType::f32;
};

// fit: they fit the sum's bits. rounded: each is rounded before it is added. fused: each is added unrounded, though
// those that begin a sum may be rounded.
enum class Products : std::uint8_t { unseen, fit, rounded, fused };

struct ProbeResult {
  SumTree tree = {};
  bool consistent = true;           // false: experiments contradict each other, and the tree is none
  Adder sum = {};                   // of the products
  std::optional<Adder> outer = {};  // of sums of products, if another: a promotion
  int chunk = 0, promote = 0;       // as in an Accumulator, if its definition gives this tree. 0: none
  Products products = Products::unseen;
  // Whether subnormal numbers count as zeros. Nothing: not seen.
  std::optional<bool> flushes_operands = {}, flushes_products = {}, flushes_sums = {};
  int least = 0, largest = 0;  // 2^least to 2^largest are the powers of two that a sum and the result hold
  // Dot products of random numbers that were computed by the tree as well, and how many of them had the same bits.
  int replayed = 0, reproduced = 0;
};

// Error for options that are not allowed, and for a function that is no dot product.
ProbeResult probe(const DotProduct& dot, const ProbeOptions& options = {});

}  // namespace gradual::inspect
