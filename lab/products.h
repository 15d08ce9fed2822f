// The ways in which this machine multiplies, for the probe, and what is documented of each.
//
//   for (const Product& p : lab::products_of_this_machine(256))
//     for (const CheckedFact& c : lab::check_claim(p.claim, inspect::probe(p.dot, p.options)))
//       ..  // c.what, c.claimed, c.found, c.agrees
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../core/support/cpu_isa.h"
#include "../inspect/probe.h"

namespace gradual::lab {

// Something that is found or claimed of a sum: "rounding", "nearest-even".
struct Fact {
  std::string what, text;
};
// All that was found, in words and numbers.
std::vector<Fact> facts_of(const inspect::ProbeResult& found);

// What is documented of a sum. What is absent is not claimed.
struct Claim {
  std::string source = {};  // empty: nothing is claimed
  std::optional<inspect::SumTree> tree = {};
  std::vector<Fact> facts = {};
};

struct Product {
  std::string name;  // "fast bf16 avx512", "emulated hopper-fp8-14bit/promote=128"
  inspect::ProbeOptions options;
  inspect::DotProduct dot;  // an element of matmul's result
  Claim claim;
};

// matmul by each CPU backend, instruction set and dtype, by emulated accumulators, and on GPUs. The products are those
// of matrices of 16 rows and columns, on one thread; emulated ones are those of two vectors. Other shapes may be summed
// in another order. A dot product sets backend and instruction set for the whole process while it runs.
std::vector<Product> products_of_this_machine(int terms);
// matmul of f32 vectors with this accumulator. The claim is its definition.
Product emulated_product(std::string_view accumulator, int terms);
// What the manual says of a sum by VDPBF16PS (isa: avx512) or TDPBF16PS (amx) that takes the operands in their order.
Claim bf16_claim(CpuIsa isa, int terms);

struct CheckedFact {
  std::string what, claimed, found;
  bool agrees;
};
// A line for each thing that is claimed and was seen.
std::vector<CheckedFact> check_claim(const Claim& claim, const inspect::ProbeResult& found);

}  // namespace gradual::lab
