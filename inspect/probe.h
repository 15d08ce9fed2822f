// Finds by experiments how a dot product is computed: the order of its sum, the bits and the rounding of each addition,
// whether products are rounded, and whether subnormal numbers count as zeros. It only calls the dot product.
//
//   const ProbeResult found = inspect::probe(dot, {.terms = 64, .operands = DType::bf16, .result = DType::f32});
//   to_string(found.tree);   // "0+1+..+63"
//
// The order: put M at place i, -M at place j and a small unit at place t. The unit survives exactly if t is not below
// the lowest common ancestor of i and j (FPRev, Xie et al. 2024, arXiv 2411.00442). Bits, rounding and alignment follow
// Fasi, Higham, Mikaitis and Pranesh 2021, "Numerical behavior of NVIDIA tensor cores".
#pragma once

#include <functional>
#include <span>

#include "../core/formats/dtype.h"
#include "sum_tree.h"

namespace gradual::inspect {

// The dot product of a and b, as a value of the dtype `result`. a and b have options.terms values of the dtype
// `operands`.
using DotProduct = std::function<double(std::span<const double> a, std::span<const double> b)>;

struct ProbeOptions {
  int terms = 128;  // 4 to 4096
  DType operands = DType::f32;
  DType result = DType::f32;
};

// fit: products fit the bits of the sum. rounded: each product is rounded before it is added. fused: products are added
// unrounded, except perhaps those that begin a sum.
enum class Products : std::uint8_t { unseen, fit, rounded, fused };

struct ProbeResult {
  SumTree tree = {};
  bool consistent = true;           // false: experiments contradict each other, and the tree is meaningless
  Adder sum = {};                   // the additions of products
  std::optional<Adder> outer = {};  // the additions of sums of products, if they differ: a promotion
  // as in an Accumulator whose definition gives this tree; 0: none
  int chunk = 0;
  int promote = 0;
  Products products = Products::unseen;
  // True if subnormal numbers count as zeros. Unset: not seen.
  std::optional<bool> flushes_operands = {};
  std::optional<bool> flushes_products = {};
  std::optional<bool> flushes_sums = {};
  // a sum and the result hold the powers of two 2^least to 2^largest
  int least = 0;
  int largest = 0;
  // The number of random dot products that were also computed by the tree, and how many of them had the same bits.
  int replayed = 0;
  int reproduced = 0;
};

// Error for invalid options, and for a function that is not a dot product.
ProbeResult probe(const DotProduct& dot, const ProbeOptions& options = {});

}  // namespace gradual::inspect
